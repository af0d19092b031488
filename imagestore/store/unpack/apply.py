"""One layer applied to a tree: entries, whiteouts, and what each file gets (OCI image-spec 1.1, layer.md)."""

from __future__ import annotations

import contextlib
import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from imagestore.errors import DocumentError
from imagestore.store.unpack.brought import BroughtPaths
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
from imagestore.store.unpack.limits import Unpacked
from imagestore.store.unpack.metadata import (
    DEFAULT_ACL,
    FileMetadata,
    clear_xattrs,
    set_on_name,
    set_on_open,
    set_xattrs,
)
from imagestore.store.unpack.path_table import PathTable
from imagestore.store.unpack.paths import joined, parts_of
from imagestore.store.unpack.reader import entries

if TYPE_CHECKING:
    from collections.abc import Iterable

    from imagestore.store.unpack.entry import Entry
    from imagestore.store.unpack.layer import LayerStream
    from imagestore.store.unpack.limits import UnpackLimits
    from imagestore.store.unpack.metadata import FolderState
    from imagestore.store.unpack.paths import Parts
    from imagestore.store.unpack.tree import Folder, Tree

OPAQUE: Final = ".wh..wh..opq"
#: Names that aufs kept for itself, which some layers still have.
_AUFS: Final = ".wh..wh."
#: Among them the folder of files that had several names: in such a layer each of these is a hard link into it.
_LINKED: Final = ".wh..wh.plnk"
#: Of the names that were left out: it still is, or something else has been there since.
_LEFT_OUT, _REPLACED = 1, 2
#: What becomes a device or a FIFO, and its kind (stat(2)).
_NODES: Final = {CHARACTER_DEVICE: stat.S_IFCHR, BLOCK_DEVICE: stat.S_IFBLK, FIFO: stat.S_IFIFO}
#: Last parts of a path that name nothing in the folder above.
_NO_NAMES: Final = ("", ".", "..")


@dataclass(slots=True)
class _CurrentFolder:
    """The folder that entries go into; most entries have the same folder as the entry before.

    Attributes:
        text: the path in front of the last slash, as the archive has it; None when there is none.
        named: its names.
        folder: where that leads.
        place: the path of that, with a slash behind it; empty for the root.
        state: what it gets back when entries go elsewhere.
        owner: user and group that new files have in it, once one has been made. The folder has neither owner nor mode
            changed as long as this object is used.
    """

    text: str | None
    named: Parts
    folder: Folder
    place: str
    state: FolderState
    owner: tuple[int, int] | None = None


class LayerApplier:
    """Applies layers, the lowest first.

    Nothing is kept of an entry but what ``BroughtPaths`` and the tree's table of modes bound: folders get owner,
    attributes and times with their entry, and their times again whenever something was made in them.

    Args:
        rootless: this user can neither give files away nor make devices.
    """

    def __init__(self, tree: Tree, limits: UnpackLimits, *, rootless: bool) -> None:
        self._tree = tree
        self._limits = limits
        self._is_rootless = rootless
        self.unpacked = Unpacked()
        # The root's, when no layer has an entry of it: as umoci leaves it.
        self._root = FileMetadata(os.geteuid(), os.getegid(), 0o755, (0, 0), ())
        self._brought = BroughtPaths(tree.temporary_file, is_lowest=True, check=tree.check)
        #: Devices of all layers that this user can't make, and other names of them.
        self._left_out = PathTable(tree.temporary_file, check=tree.check)
        self._current: _CurrentFolder | None = None

    def inherit(self, descriptor: int, parts: Parts, metadata: FileMetadata) -> None:
        """Count an open folder to the layers below, which has all that it has from them but its metadata.

        The root comes first, before any layer.
        """
        if parts:
            self._set_on_new_folder(descriptor, parts, metadata)
        else:
            self._root = metadata
            self._brought = BroughtPaths(self._tree.temporary_file, is_lowest=False, check=self._tree.check)

    def apply(self, stream: LayerStream, *, what: str) -> None:
        """Apply one layer.

        Raises:
            DocumentError: the layer can't be read, breaks a rule, or takes more than it may.
            OSError: the file system refuses something; its ``filename`` is the entry's.
        """
        self._tree.what = what
        with contextlib.closing(self._brought):
            for entry in entries(stream, what=what):
                stream.check()
                try:
                    self._apply_entry(entry, stream, what)
                except NotADirectoryError as error:
                    raise DocumentError(what, [f"has an entry {shown(entry.name)} below a file"]) from error
                except OSError as error:
                    error.filename, error.filename2 = entry.name, None
                    raise
            self._leave()
        self._tree.remove((_LINKED,))
        self._brought = BroughtPaths(self._tree.temporary_file, is_lowest=False, check=self._tree.check)

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
        if named[:1] == (_LINKED,) and entry.kind != FOLDER and not named[-1].startswith(WHITEOUT):
            named = (_LINKED, named[-1])  # no layer can have such a name, so it is there until the layer's end
        elif any(part.startswith(_AUFS) for part in named[:-1]):
            return
        if not named:
            self._set_on_root(entry, what)
        elif named[-1].startswith(WHITEOUT):
            self._hide(entry, named, what)
        elif self._is_rootless and self._is_left_out(entry):
            self._leave_out(named)
        else:
            current = self._reached(above if name not in _NO_NAMES else None, named[:-1])
            self._make(entry, current, named[-1], stream, what)

    def _count(self, entry: Entry, depth: int, what: str) -> None:
        self.unpacked.count(entry, self._limits, depth=depth, implied=self._tree.implied, what=what)

    def _reached(self, text: str | None, named: Parts) -> _CurrentFolder:
        self._leave()
        folder = self._tree.reached(named)
        place = joined(folder.parts)
        self._brought.add(place)
        state = self._tree.state_of(folder.descriptor)
        self._current = _CurrentFolder(text, named, folder, f"{place}/" if place else "", state)
        return self._current

    def _leave(self) -> None:
        """Give the current folder back what making entries in it has changed; it isn't the current one any more."""
        current, self._current = self._current, None
        if current is not None:
            folder = current.folder
            if folder.descriptor < 0:
                folder = self._tree.reached(folder.parts, is_making=False)
            current.state.restore(folder.descriptor)

    def _hide(self, entry: Entry, named: Parts, what: str) -> None:
        if named[-1].removeprefix(WHITEOUT) in _NO_NAMES:
            raise DocumentError(what, [f"has a whiteout {shown(entry.name)} that names nothing"])
        self._leave()
        # Below what isn't there, or is no folder, nothing is to be hidden.
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            self._remove(self._tree.place(named, is_making=False))

    def _remove(self, parts: Parts) -> None:
        above, name = parts[:-1], parts[-1]
        if self._brought.is_clean(joined(above)):
            return
        if name == OPAQUE:
            self._remove_others(above)
        elif not name.startswith(_AUFS):
            target = (*above, name.removeprefix(WHITEOUT))
            if joined(target) in self._brought:
                self._remove_others(target)
            else:
                self._tree.remove(target)
                self._replace_left_out(joined(target))

    def _remove_others(self, parts: Parts) -> None:
        place = joined(parts)
        if not self._brought.is_clean(place):
            self._tree.prune(parts, self._brought.spared)
            self._brought.set_clean(place)

    def _make(self, entry: Entry, current: _CurrentFolder, name: str, stream: LayerStream, what: str) -> None:
        self._brought.add_name(current.place + name)
        self._replace_left_out(current.place + name)
        if entry.kind == FOLDER:
            self._make_folder(entry, current.folder, name)
        elif entry.kind == FILE:
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
        above, target = folder.parts, _target_of(entry)
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
        self._root = FileMetadata.of(entry)

    def _make_folder(self, entry: Entry, above: Folder, name: str) -> None:
        self._set_on_new_folder(self._tree.make_folder(above, name), (*above.parts, name), FileMetadata.of(entry))

    def _set_on_new_folder(self, descriptor: int, parts: Parts, metadata: FileMetadata) -> None:
        mode = metadata.mode
        if self._is_rootless:
            # Without root a folder that its owner may not write takes no files.
            self._tree.close_later(parts, ~mode & stat.S_IRWXU)
            mode |= stat.S_IRWXU
        set_on_open(descriptor, metadata, has_owner=not self._is_rootless, mode=mode)
        self._set_on_folder(descriptor, parts, metadata)

    def _set_on_folder(self, descriptor: int, parts: Parts, metadata: FileMetadata) -> None:
        """Give an open folder its attributes instead of those that it has from another layer, and its times."""
        clear_xattrs(descriptor)
        if metadata.xattrs:
            self._tree.has_default_acl |= any(name == DEFAULT_ACL for name, _ in metadata.xattrs)
            self._leave_out_xattrs(parts, set_xattrs(descriptor, metadata))
        os.utime(descriptor, ns=metadata.times_ns)

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

    def _is_left_out(self, entry: Entry) -> bool:
        """Whether it is a device, or another name of one."""
        if entry.kind != HARD_LINK or not self._left_out:
            return entry.kind in DEVICES
        return self._left_out[joined(self._place(_target_of(entry)))] == _LEFT_OUT

    def _leave_out(self, named: Parts) -> None:
        self._leave()
        # Folders above are there as if it had been made: other names may lead through them.
        place = self._tree.place(named)
        self._tree.remove(place)
        self._left_out[joined(place)] = _LEFT_OUT
        self.unpacked.leave_out(joined(named), "a device, which only root can make")

    def _place(self, named: Parts) -> Parts:
        """Where a name leads; below what isn't there, the name itself."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return self._tree.place(named, is_making=False)
        return named

    def _replace_left_out(self, path: str) -> None:
        if self._left_out and self._left_out[path]:
            self._left_out[path] = _REPLACED

    def _set_on_name(self, entry: Entry, above: int, current: _CurrentFolder, name: str, *, is_link: bool) -> None:
        metadata = FileMetadata.of(entry)
        refused = set_on_name(above, name, metadata, has_owner=not self._is_rootless, is_link=is_link)
        self._leave_out_xattrs((*current.folder.parts, name), refused)

    def _leave_out_xattrs(self, parts: Parts, refused: Iterable[str]) -> None:
        for name in refused:
            self.unpacked.leave_out(joined(parts) or "/", f"the extended attribute {name}")

    def finish(self) -> None:
        """Set what has to wait until nothing is made any more: the root's metadata, and modes that hinder this user.

        Raises:
            OSError: the file system refuses something; its ``filename`` is the folder's.
        """
        self._left_out.close()
        try:
            self._tree.finish()
            descriptor = self._tree.folder(())
            self._set_on_folder(descriptor, (), self._root)
            set_on_open(descriptor, self._root, has_owner=not self._is_rootless)
        except OSError as error:
            error.filename = error.filename or "/"
            raise


def _target_of(link: Entry) -> Parts:
    """The names of a hard link's target."""
    target = parts_of(link.link)
    return (_LINKED, target[-1]) if target[:1] == (_LINKED,) else target


def _write_sparse(descriptor: int, entry: Entry, stream: LayerStream) -> None:
    """Write what a sparse file has, and leave holes for the rest."""
    for offset, size in entry.pieces or ():
        stream.check()
        os.lseek(descriptor, offset, os.SEEK_SET)
        stream.copy_to(descriptor, size)
    os.ftruncate(descriptor, entry.size)
