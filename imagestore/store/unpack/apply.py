"""One layer applied to a tree: entries, whiteouts, and what each file gets (OCI image-spec 1.1, layer.md)."""

from __future__ import annotations

import contextlib
import os
import stat
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NoReturn

from imagestore.errors import DocumentError
from imagestore.store.unpack.entry import (
    BLOCK_DEVICE,
    CHARACTER_DEVICE,
    DEVICES,
    FIFO,
    FILE,
    FOLDER,
    HARD_LINK,
    LINK,
    WHITEOUT,
    shown,
)
from imagestore.store.unpack.metadata import FileMetadata, clear_xattrs, set_on_name, set_on_open, set_xattrs
from imagestore.store.unpack.paths import PathNode, parts_of
from imagestore.store.unpack.reader import entries

if TYPE_CHECKING:
    from collections.abc import Iterable

    from imagestore.store.unpack.entry import Entry
    from imagestore.store.unpack.layer import LayerStream
    from imagestore.store.unpack.paths import Parts
    from imagestore.store.unpack.tree import Folder, Tree

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
#: What becomes a device or a FIFO, and its kind (stat(2)).
_NODES: Final = {CHARACTER_DEVICE: stat.S_IFCHR, BLOCK_DEVICE: stat.S_IFBLK, FIFO: stat.S_IFIFO}
#: Last parts of a path that name nothing in the folder above.
_NO_NAMES: Final = ("", ".", "..")


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
        """The most that all layers may take uncompressed: files, and headers of as many entries as are allowed."""
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
        """Note something of the image that isn't in the tree."""
        self.left_out_count += 1
        if len(self.left_out) < _MOST_SHOWN:
            self.left_out.append(f"{name[:_MOST_NAME]}: {reason}")


@dataclass(slots=True)
class _CurrentFolder:
    """The folder that entries go into; most entries have the same folder as the entry before.

    Attributes:
        text: the path in front of the last slash, as the archive has it; None when there is none.
        named: its names.
        folder: where that leads.
        own: what this layer has in it.
        known: the folders that have metadata and are in it, where there is one.
        owner: user and group that new files have in it, once one has been made. The folder has neither owner nor mode
            changed as long as this object is used.
    """

    text: str | None
    named: Parts
    folder: Folder
    own: PathNode
    known: PathNode | None
    owner: tuple[int, int] | None = None


class LayerApplier:
    """Applies layers, the lowest first.

    Args:
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
        #: Whiteouts are about the layers below: they spare what this layer brought.
        self._own = PathNode()
        self._current: _CurrentFolder | None = None

    def inherit(self, parts: Parts, metadata: FileMetadata) -> None:
        """Count a folder that is in the tree already to the layers below; all that it has from them is in it."""
        self._folders.add(parts).metadata = metadata

    def apply(self, stream: LayerStream, *, what: str) -> None:
        """Apply one layer.

        Raises:
            DocumentError: the layer can't be read, breaks a rule, or takes more than it may.
            OSError: the file system refuses something; its ``filename`` is the entry's.
        """
        self._tree.what = what
        self._own, self._current = PathNode(), None
        for entry in entries(stream, what=what):
            try:
                self._apply_entry(entry, stream, what)
            except NotADirectoryError as error:
                raise DocumentError(what, [f"has an entry {shown(entry.name)} below a file"]) from error
            except OSError as error:
                error.filename, error.filename2 = entry.name, None
                raise

    def _apply_entry(self, entry: Entry, stream: LayerStream, what: str) -> None:
        above, _, name = entry.name.rpartition("/")
        current = self._current
        if (
            entry.kind == FILE
            and current is not None
            and current.text == above
            and current.folder.descriptor >= 0
            and name not in _NO_NAMES
            and not name.startswith(WHITEOUT)
        ):
            # As below, without repeating the checks of the entry before.
            self._count(entry, len(current.named) + 1, what)
            self._make(entry, current, name, stream, what)
            return
        named = parts_of(entry.name)
        self._count(entry, len(named), what)
        if any(part.startswith(_AUFS) for part in named[:-1]):
            return
        if not named:
            self._set_on_root(entry, what)
        elif named[-1].startswith(WHITEOUT):
            self._hide(entry, named, what)
        elif self._is_rootless and entry.kind in DEVICES:
            self._leave_out_device(named)
        else:
            self._current = current = self._reached(above if name not in _NO_NAMES else None, named[:-1])
            self._make(entry, current, named[-1], stream, what)

    def _count(self, entry: Entry, depth: int, what: str) -> None:
        unpacked, limits = self.unpacked, self._limits
        unpacked.entries += 1
        if entry.kind == FILE:
            unpacked.size += entry.size
        if unpacked.entries + self._tree.implied > limits.entries:
            self._refuse_excess(limits.entries, "entries", what)
        if unpacked.size > limits.size:
            self._refuse_excess(limits.size, "bytes", what)
        if depth > limits.depth:
            self._refuse_excess(limits.depth, "folders above an entry", what)

    def _refuse_excess(self, most: int, name: str, what: str) -> NoReturn:
        raise DocumentError(what, [f"has more than {most} {name}, the limit of this unpacking"])

    def _reached(self, text: str | None, named: Parts) -> _CurrentFolder:
        folder = self._tree.reached(named)
        return _CurrentFolder(text, named, folder, self._own.add(folder.parts), self._folders.find(folder.parts))

    def _hide(self, entry: Entry, named: Parts, what: str) -> None:
        if named[-1].removeprefix(WHITEOUT) in _NO_NAMES:
            raise DocumentError(what, [f"has a whiteout {shown(entry.name)} that names nothing"])
        # Below what isn't there, or is no folder, nothing is to be hidden.
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            self._remove(self._tree.place(named, is_making=False))
        self._current = None

    def _remove(self, parts: Parts) -> None:
        above, name = parts[:-1], parts[-1]
        if name == OPAQUE:
            self._remove_others(above)
        elif not name.startswith(_AUFS):
            target = (*above, name.removeprefix(WHITEOUT))
            if self._own.find(target) is not None:
                self._remove_others(target)
            else:
                self._tree.remove(target)
                self._folders.remove(target)

    def _remove_others(self, parts: Parts) -> None:
        kept = self._own.find(parts)
        self._tree.remove_others(parts, kept)
        known = self._folders.find(parts)
        if known is not None:
            known.keep(kept)

    def _make(self, entry: Entry, current: _CurrentFolder, name: str, stream: LayerStream, what: str) -> None:
        current.own.add_leaf(name)
        if entry.kind == FOLDER:
            self._make_folder(entry, current.folder, name)
            self._current = None  # its folders with metadata are others now
            return
        if current.known is not None:
            current.known.inner.pop(name, None)
        if entry.kind == FILE:
            self._make_file(entry, current, name, stream)
        elif entry.kind == LINK:
            above = self._tree.make_link(current.folder, name, entry.link)
            self._set_on_name(entry, above, current, name, is_link=True)
        elif entry.kind == HARD_LINK:
            # The name that came first has brought owner, mode and times.
            self._make_hard_link(entry, current.folder, name, what)
        elif entry.kind in _NODES:
            kind = _NODES[entry.kind]
            device = os.makedev(entry.major, entry.minor) if kind != stat.S_IFIFO else 0
            above = self._tree.make_node(current.folder, name, kind, device)
            self._set_on_name(entry, above, current, name, is_link=False)
        else:
            raise DocumentError(
                what, [f"has an entry {shown(entry.name)} of type {entry.kind!r}, which layers don't have"]
            )

    def _make_hard_link(self, entry: Entry, folder: Folder, name: str, what: str) -> None:
        # To reach the target may close the folder.
        above, target = folder.parts, parts_of(entry.link)
        try:
            target = self._tree.place(target, is_making=False)
        except (FileNotFoundError, NotADirectoryError) as error:
            text = f"has a hard link {shown(entry.name)} to {shown(entry.link)}, which isn't there"
            raise DocumentError(what, [text]) from error
        self._tree.make_hard_link((*above, name), target)

    def _set_on_root(self, entry: Entry, what: str) -> None:
        if entry.kind != FOLDER:
            raise DocumentError(what, [f"has an entry {shown(entry.name)} in the place of the root folder"])
        # It stays closed to others until all is done.
        self._folders.metadata = FileMetadata.of(entry)

    def _make_folder(self, entry: Entry, above: Folder, name: str) -> None:
        metadata = self._folders.add((*above.parts, name)).metadata = FileMetadata.of(entry)
        descriptor = self._tree.make_folder(above, name)
        # Without root a folder that its owner may not write takes no files.
        mode = metadata.mode | stat.S_IRWXU if self._is_rootless else metadata.mode
        set_on_open(descriptor, metadata, has_owner=not self._is_rootless, mode=mode)

    def _make_file(self, entry: Entry, current: _CurrentFolder, name: str, stream: LayerStream) -> None:
        metadata = FileMetadata.of(entry)
        descriptor = self._tree.make_file(current.folder, name)
        try:
            if entry.pieces is None:
                stream.copy_to(descriptor, entry.stored)
            else:
                _write_sparse(descriptor, entry, stream)
            if current.owner is None:
                status = os.fstat(descriptor)
                current.owner = (status.st_uid, status.st_gid)
            is_given = not self._is_rootless and current.owner != (metadata.uid, metadata.gid)
            set_on_open(descriptor, metadata, has_owner=is_given)
            refused = set_xattrs(descriptor, metadata) if metadata.xattrs else ()
            os.utime(descriptor, ns=metadata.times_ns)
        finally:
            os.close(descriptor)
        if refused:
            self._leave_out_xattrs((*current.folder.parts, name), refused)

    def _leave_out_device(self, named: Parts) -> None:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            parts = self._tree.place(named, is_making=False)
            self._tree.remove(parts)
            self._folders.remove(parts)
        self.unpacked.leave_out("/".join(named), "a device, which only root can make")

    def _set_on_name(self, entry: Entry, above: int, current: _CurrentFolder, name: str, *, is_link: bool) -> None:
        metadata = FileMetadata.of(entry)
        refused = set_on_name(above, name, metadata, has_owner=not self._is_rootless, is_link=is_link)
        self._leave_out_xattrs((*current.folder.parts, name), refused)

    def _leave_out_xattrs(self, parts: Parts, refused: Iterable[str]) -> None:
        for name in refused:
            self.unpacked.leave_out("/".join(parts) or "/", f"the extended attribute {name}")

    def finish(self) -> None:
        """Set times, attributes and modes of folders, now that nothing more is made in them: innermost first.

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


def _write_sparse(descriptor: int, entry: Entry, stream: LayerStream) -> None:
    """Write what a sparse file has, and leave holes for the rest."""
    for offset, size in entry.pieces or ():
        os.lseek(descriptor, offset, os.SEEK_SET)
        stream.copy_to(descriptor, size)
    os.ftruncate(descriptor, entry.size)
