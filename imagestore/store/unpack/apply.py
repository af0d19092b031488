"""One layer applied to a tree: entries, whiteouts, and what each file gets (OCI image-spec 1.1, layer.md)."""

from __future__ import annotations

import contextlib
import os
import stat
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from imagestore.errors import DocumentError
from imagestore.store.unpack.judge import NODES, WHITEOUT, shown, sparse_map
from imagestore.store.unpack.layer import entries
from imagestore.store.unpack.metadata import FileMetadata, clear_xattrs, set_on_name, set_on_open, set_xattrs
from imagestore.store.unpack.paths import PathNode, parts_of

if TYPE_CHECKING:
    import tarfile

    from imagestore.store.unpack.layer import LayerStream
    from imagestore.store.unpack.paths import Parts
    from imagestore.store.unpack.tree import Tree

OPAQUE: Final = ".wh..wh..opq"
#: Names that aufs kept for itself, which some layers still have.
_AUFS: Final = ".wh..wh."
#: Shown of what was left out; the rest is counted.
_MOST_SHOWN: Final = 1000
#: Of a name that is shown (PATH_MAX).
_MOST_NAME: Final = 4096
#: What headers and padding take of a layer, at most: on average for one entry, and in any case.
_ENTRY_BYTES: Final = 4096
_LEAST_BYTES: Final = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class UnpackLimits:
    """What all layers of an image together may take.

    Attributes:
        size: bytes of files.
        entries: files, folders, links.
        depth: folders above a file; 512 is the most that a tree ever has.
    """

    size: int = 256 * 1024**3
    entries: int = 10_000_000
    depth: int = 512

    @property
    def plain_bytes(self) -> int:
        """What all layers may be without their compression: files, and as much for headers as entries may have."""
        return self.size + self.entries * _ENTRY_BYTES + _LEAST_BYTES


@dataclass(slots=True)
class Unpacked:
    """What has been unpacked so far.

    Attributes:
        entries: of all layers.
        size: bytes of files.
        plain: bytes of layers without their compression.
        left_out: what this user can't make, each with the reason; a thousand at most.
        left_out_count: how many there were.
    """

    entries: int = 0
    size: int = 0
    plain: int = 0
    left_out: list[str] = field(default_factory=list)
    left_out_count: int = 0

    def leave_out(self, name: str, reason: str) -> None:
        """Something of the image isn't in the tree."""
        self.left_out_count += 1
        if len(self.left_out) < _MOST_SHOWN:
            self.left_out.append(f"{name[:_MOST_NAME]}: {reason}")


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
        #: Folders get times and attributes, and without root their modes, when nothing is made in them any more.
        self._folders = PathNode()
        # The root's, when no layer has an entry of it: as umoci leaves it.
        self._folders.metadata = FileMetadata(os.geteuid(), os.getegid(), 0o755, (0, 0), ())

    def apply(self, stream: LayerStream, *, what: str) -> None:
        """Apply one layer.

        Raises:
            DocumentError: the layer can't be read, breaks a rule, or takes more than it may.
            OSError: the file system refuses something; its ``filename`` is the entry's.
        """
        self._tree.what = what
        # Whiteouts are about the layers below: they spare what this layer brought.
        own = PathNode()
        for entry in entries(stream, what=what):
            try:
                self._apply_entry(entry, own, stream, what)
            except NotADirectoryError as error:
                raise DocumentError(what, [f"has an entry {shown(entry.name)} below a file"]) from error
            except OSError as error:
                error.filename, error.filename2 = entry.name, None
                raise

    def _apply_entry(self, entry: tarfile.TarInfo, own: PathNode, stream: LayerStream, what: str) -> None:
        named = parts_of(entry.name)
        self._count(entry, named, what)
        if any(part.startswith(_AUFS) for part in named[:-1]):
            return
        if named and named[-1].startswith(WHITEOUT):
            if named[-1].removeprefix(WHITEOUT) in ("", ".", ".."):
                raise DocumentError(what, [f"has a whiteout {shown(entry.name)} that names nothing"])
            # Below what isn't there, or is no folder, nothing is to be hidden.
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                self._remove(self._tree.place(named, is_making=False), own)
            return
        if self._is_rootless and (entry.ischr() or entry.isblk()):
            self._leave_out_device(named)
            return
        parts = self._tree.place(named)
        own.add(parts)
        if not entry.isdir():
            self._folders.remove(parts)
        self._make(entry, parts, stream, what)

    def _count(self, entry: tarfile.TarInfo, parts: Parts, what: str) -> None:
        self.unpacked.entries += 1
        self.unpacked.size += entry.size if entry.isreg() else 0
        for name, found, most in (
            ("entries", self.unpacked.entries + self._tree.implied, self._limits.entries),
            ("bytes", self.unpacked.size, self._limits.size),
            ("folders above an entry", len(parts), self._limits.depth),
        ):
            if found > most:
                raise DocumentError(what, [f"has more than {most} {name}, the limit of this unpacking"])

    def _remove(self, parts: Parts, own: PathNode) -> None:
        above, name = parts[:-1], parts[-1]
        if name == OPAQUE:
            self._remove_others(above, own)
        elif not name.startswith(_AUFS):
            target = (*above, name.removeprefix(WHITEOUT))
            if own.find(target) is not None:
                self._remove_others(target, own)
            else:
                self._tree.remove(target)
                self._folders.remove(target)

    def _remove_others(self, parts: Parts, own: PathNode) -> None:
        kept = own.find(parts)
        self._tree.remove_others(parts, kept)
        known = self._folders.find(parts)
        if known is not None:
            known.keep(kept)

    def _make(self, entry: tarfile.TarInfo, parts: Parts, stream: LayerStream, what: str) -> None:
        if not parts and not entry.isdir():
            raise DocumentError(what, [f"has an entry {shown(entry.name)} in the place of the root folder"])
        if entry.isdir():
            self._make_folder(entry, parts)
        elif entry.isreg():
            self._make_file(entry, parts, stream)
        elif entry.issym():
            self._tree.make_link(parts, entry.linkname)
            self._set_on_name(entry, parts, is_link=True)
        elif entry.islnk():
            # The name that came first has brought owner, mode and times.
            self._make_hard_link(entry, parts, what)
        elif entry.type in NODES:
            self._make_node(entry, parts)
        else:
            raise DocumentError(
                what, [f"has an entry {shown(entry.name)} of type {entry.type!r}, which layers don't have"]
            )

    def _make_hard_link(self, entry: tarfile.TarInfo, parts: Parts, what: str) -> None:
        target = parts_of(entry.linkname)
        try:
            target = self._tree.place(target, is_making=False)
        except (FileNotFoundError, NotADirectoryError) as error:
            text = f"has a hard link {shown(entry.name)} to {shown(entry.linkname)}, which isn't there"
            raise DocumentError(what, [text]) from error
        self._tree.make_hard_link(parts, target)

    def _make_folder(self, entry: tarfile.TarInfo, parts: Parts) -> None:
        metadata = self._folders.add(parts).metadata = FileMetadata.of(entry)
        descriptor = self._tree.make_folder(parts)
        if parts:  # the root stays closed to others until all is done
            # Without root a folder that its owner may not write takes no files.
            mode = metadata.mode | stat.S_IRWXU if self._is_rootless else metadata.mode
            set_on_open(descriptor, metadata, has_owner=not self._is_rootless, mode=mode)

    def _make_file(self, entry: tarfile.TarInfo, parts: Parts, stream: LayerStream) -> None:
        metadata = FileMetadata.of(entry)
        with self._tree.new_file(parts) as descriptor:
            if entry.issparse():
                _write_sparse(descriptor, entry, stream)
            else:
                for chunk in stream.chunks(entry.size):
                    _write(descriptor, chunk)
            set_on_open(descriptor, metadata, has_owner=not self._is_rootless)
            refused = set_xattrs(descriptor, metadata)
            os.utime(descriptor, ns=metadata.times_ns)
        self._leave_out_xattrs(parts, refused)

    def _make_node(self, entry: tarfile.TarInfo, parts: Parts) -> None:
        kind = NODES[entry.type]
        device = os.makedev(entry.devmajor, entry.devminor) if kind != stat.S_IFIFO else 0
        self._tree.make_node(parts, kind, device)
        self._set_on_name(entry, parts, is_link=False)

    def _leave_out_device(self, named: Parts) -> None:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            parts = self._tree.place(named, is_making=False)
            self._tree.remove(parts)
            self._folders.remove(parts)
        self.unpacked.leave_out("/".join(named), "a device, which only root can make")

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
        """Give folders what they only keep when nothing is made in them any more: the innermost first, the root last.

        Raises:
            OSError: the file system refuses something; its ``filename`` is the folder's.
        """
        for parts, metadata in self._folders.innermost_first():
            try:
                if self._tree.is_folder(parts):
                    self._finish_folder(parts, metadata)
            except OSError as error:
                error.filename = "/".join(parts) or "/"
                raise

    def _finish_folder(self, parts: Parts, metadata: FileMetadata) -> None:
        descriptor = self._tree.folder(parts)
        clear_xattrs(descriptor)
        self._leave_out_xattrs(parts, set_xattrs(descriptor, metadata))
        if self._is_rootless or not parts:
            set_on_open(descriptor, metadata, has_owner=not self._is_rootless)
        os.utime(descriptor, ns=metadata.times_ns)


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _write_sparse(descriptor: int, entry: tarfile.TarInfo, stream: LayerStream) -> None:
    """Write what a sparse file has, and leave holes for the rest."""
    for offset, size in sparse_map(entry):
        os.lseek(descriptor, offset, os.SEEK_SET)
        for chunk in stream.chunks(size):
            _write(descriptor, chunk)
    os.ftruncate(descriptor, entry.size)
