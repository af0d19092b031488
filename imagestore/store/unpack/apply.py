"""One layer applied to a tree: entries, whiteouts, and what each file gets (OCI image-spec 1.1, layer.md)."""

from __future__ import annotations

import contextlib
import os
import stat
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, cast

from imagestore.errors import DocumentError
from imagestore.store.unpack.layer import entries
from imagestore.store.unpack.metadata import FileMetadata, set_on_name, set_on_open
from imagestore.store.unpack.tree import parts_of

if TYPE_CHECKING:
    import tarfile

    from imagestore.store.unpack.layer import LayerStream
    from imagestore.store.unpack.tree import Parts, Tree

WHITEOUT: Final = ".wh."
OPAQUE: Final = ".wh..wh..opq"
#: Names that aufs kept for itself, which some layers still have.
_AUFS: Final = ".wh..wh."
#: Shown of what was left out; the rest is counted.
_MOST_SHOWN: Final = 1000
_NODES: Final = {b"3": stat.S_IFCHR, b"4": stat.S_IFBLK, b"6": stat.S_IFIFO}


@dataclass(frozen=True, slots=True)
class UnpackLimits:
    """What all layers of an image together may take.

    Attributes:
        size: bytes of files.
        entries: files, folders, links.
        depth: folders above a file.
    """

    size: int = 256 * 1024**3
    entries: int = 10_000_000
    depth: int = 512


@dataclass(slots=True)
class Unpacked:
    """What has been unpacked so far.

    Attributes:
        entries: of all layers.
        size: bytes of files.
        left_out: what this user can't make, each with the reason; a thousand at most.
        left_out_count: how many there were.
    """

    entries: int = 0
    size: int = 0
    left_out: list[str] = field(default_factory=list)
    left_out_count: int = 0

    def leave_out(self, name: str, reason: str) -> None:
        """Something of the image isn't in the tree."""
        self.left_out_count += 1
        if len(self.left_out) < _MOST_SHOWN:
            self.left_out.append(f"{name}: {reason}")


class LayerApplier:
    """Applies layers, the lowest first.

    Args:
        tree: gets the files.
        limits: what all layers may take.
        is_rootless: this user can neither give files away nor make devices.
    """

    def __init__(self, tree: Tree, limits: UnpackLimits, *, is_rootless: bool) -> None:
        self._tree = tree
        self._limits = limits
        self._is_rootless = is_rootless
        self.unpacked = Unpacked()
        #: Folders get their times, and without root their modes, when nothing is made in them any more.
        self._folders: dict[Parts, FileMetadata] = {}

    def apply(self, stream: LayerStream, *, what: str) -> None:
        """Apply one layer.

        Raises:
            DocumentError: the layer can't be read, breaks a rule, or takes more than it may.
            OSError: the file system refuses something.
        """
        # Whiteouts are about the layers below: they spare what this layer brought.
        own: set[Parts] = set()
        for entry in entries(stream, what=what):
            parts = parts_of(entry.name)
            self._count(entry, parts, what)
            if any(part.startswith(_AUFS) for part in parts[:-1]):
                continue
            if parts and parts[-1].startswith(WHITEOUT):
                self._remove(parts, own, what)
                continue
            own.update(parts[:end] for end in range(len(parts), 0, -1))
            self._make(entry, parts, stream, what)

    def _count(self, entry: tarfile.TarInfo, parts: Parts, what: str) -> None:
        self.unpacked.entries += 1
        self.unpacked.size += entry.size if entry.isreg() else 0
        for name, found, most in (
            ("entries", self.unpacked.entries, self._limits.entries),
            ("bytes", self.unpacked.size, self._limits.size),
            ("folders above an entry", len(parts), self._limits.depth),
        ):
            if found > most:
                raise DocumentError(what, [f"has more than {most} {name}, the limit of this unpacking"])

    def _remove(self, parts: Parts, own: set[Parts], what: str) -> None:
        above, name = parts[:-1], parts[-1]
        if name == OPAQUE:
            with contextlib.suppress(FileNotFoundError):
                self._tree.remove_others(above, own)
        elif not name.startswith(_AUFS):
            hidden = name.removeprefix(WHITEOUT)
            if hidden in ("", ".", ".."):
                raise DocumentError(what, [f"has a whiteout {'/'.join(parts)!r} that names nothing"])
            target = (*above, hidden)
            if target not in own:
                self._tree.remove(target)
            elif self._tree.is_folder(target):
                self._tree.remove_others(target, own)

    def _make(self, entry: tarfile.TarInfo, parts: Parts, stream: LayerStream, what: str) -> None:
        if not parts and not entry.isdir():
            raise DocumentError(what, [f"has an entry {entry.name!r} in the place of the root folder"])
        if entry.isdir():
            self._make_folder(entry, parts)
        elif entry.isreg():
            self._make_file(entry, parts, stream)
        elif entry.issym():
            self._tree.make_link(parts, entry.linkname)
            self._set_on_name(entry, parts, is_link=True)
        elif entry.islnk():
            # The name that came first has brought owner, mode and times.
            self._tree.make_hard_link(parts, parts_of(entry.linkname))
        elif entry.type in _NODES:
            self._make_node(entry, parts)
        else:
            raise DocumentError(what, [f"has an entry {entry.name!r} of type {entry.type!r}, which layers don't have"])

    def _make_folder(self, entry: tarfile.TarInfo, parts: Parts) -> None:
        metadata = FileMetadata.of(entry)
        descriptor = self._tree.make_folder(parts)
        # Without root a folder that its owner may not write takes no files.
        mode = metadata.mode | stat.S_IRWXU if self._is_rootless else metadata.mode
        refused = set_on_open(descriptor, metadata, has_owner=not self._is_rootless, mode=mode)
        self._leave_out_xattrs(parts, refused)
        self._folders[parts] = metadata

    def _make_file(self, entry: tarfile.TarInfo, parts: Parts, stream: LayerStream) -> None:
        metadata = FileMetadata.of(entry)
        with self._tree.new_file(parts) as descriptor:
            if entry.issparse():
                _write_sparse(descriptor, entry, stream)
            else:
                for chunk in stream.chunks(entry.size):
                    _write(descriptor, chunk)
            refused = set_on_open(descriptor, metadata, has_owner=not self._is_rootless)
            os.utime(descriptor, ns=metadata.times_ns)
        self._leave_out_xattrs(parts, refused)

    def _make_node(self, entry: tarfile.TarInfo, parts: Parts) -> None:
        kind = _NODES[entry.type]
        if self._is_rootless and kind != stat.S_IFIFO:
            self._tree.remove(parts)
            self.unpacked.leave_out("/".join(parts), "a device, which only root can make")
            return
        device = os.makedev(entry.devmajor, entry.devminor) if kind != stat.S_IFIFO else 0
        self._tree.make_node(parts, kind, device)
        self._set_on_name(entry, parts, is_link=False)

    def _set_on_name(self, entry: tarfile.TarInfo, parts: Parts, *, is_link: bool) -> None:
        metadata = FileMetadata.of(entry)
        above = self._tree.folder(parts[:-1])
        has_owner = not self._is_rootless
        refused = set_on_name(above, parts[-1], metadata, has_owner=has_owner, is_link=is_link)
        self._leave_out_xattrs(parts, refused)

    def _leave_out_xattrs(self, parts: Parts, refused: list[str]) -> None:
        for name in refused:
            self.unpacked.leave_out("/".join(parts) or "/", f"the extended attribute {name}")

    def finish(self) -> None:
        """Give folders what they only keep when nothing is made in them any more; the innermost first."""
        for parts in sorted(self._folders, key=len, reverse=True):
            if self._tree.is_folder(parts):
                metadata, descriptor = self._folders[parts], self._tree.folder(parts)
                if self._is_rootless:
                    os.fchmod(descriptor, metadata.mode)
                os.utime(descriptor, ns=metadata.times_ns)


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _write_sparse(descriptor: int, entry: tarfile.TarInfo, stream: LayerStream) -> None:
    """Write what a sparse file has, and leave holes for the rest."""
    # The type stubs say otherwise; it is the map of the pieces that the archive has, in order.
    for offset, size in cast("list[tuple[int, int]]", entry.sparse or []):
        os.lseek(descriptor, offset, os.SEEK_SET)
        for chunk in stream.chunks(size):
            _write(descriptor, chunk)
    os.ftruncate(descriptor, entry.size)
