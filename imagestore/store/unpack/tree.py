"""A tree of files below one folder, written by names that are not trusted.

Every step goes from an open folder to a name in it, and no call follows a symbolic link. Links on the way to a name are
read and resolved here, with the tree's root as their root, as containerd (``fs.RootPath``) and ``openat2(2)`` with
``RESOLVE_IN_ROOT`` do it. So nothing outside of the folder is ever touched, whatever a layer says, also when another
process changes the tree during the work.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections import OrderedDict
from typing import IO, TYPE_CHECKING, Final, TypeVar

from imagestore.errors import DocumentError
from imagestore.store.unpack.entry import shown
from imagestore.store.unpack.metadata import FolderState
from imagestore.store.unpack.path_table import PathTable
from imagestore.store.unpack.paths import MOST_PATH_BYTES, byte_length, joined, parts_of
from imagestore.util.cancel import never_cancelled
from imagestore.util.file_calls import nameless_file
from imagestore.util.trees import Choice, prune, remove_folder

if TYPE_CHECKING:
    from collections.abc import Callable

    from imagestore.store.unpack.paths import Parts

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_READING: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
#: As the kernel has it for one path.
_MOST_LINKS: Final = 40
#: Names on the way to a path, those in its links too: without a bound each entry might cost 80,000 system calls.
_MOST_STEPS: Final = 4096
#: Folders below each other, also where links lead deeper than names say: removing a tree takes a descriptor for each.
MOST_DEEP: Final = 512
_MOST_OPEN: Final = 64
_PARENT_MODE: Final = 0o755
#: In the table of modes: the folder gets no other mode at the end.
_AS_IT_IS: Final = 8
_T = TypeVar("_T")


class Folder:
    """A folder of a tree that is open until the tree closes it.

    Attributes:
        descriptor: negative once it is closed.
        parts: where it is: names that aren't links.
    """

    __slots__ = ("descriptor", "parts")

    def __init__(self, descriptor: int, parts: Parts) -> None:
        self.descriptor = descriptor
        self.parts = parts

    def close(self) -> None:
        """Close it; once is enough."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


class Tree:
    """The folder and what is made in it; one thread uses it.

    Args:
        descriptor: the open folder; it stays the caller's.
        what: names the image, or the layer that is applied, in errors; it may be set anew.
        check: called often in long removals; what it raises ends them.

    Attributes:
        implied: folders that were made on the way to a name.
        has_default_acl: some folder may have an access list that files made in it would inherit (acl(5)).
    """

    def __init__(self, descriptor: int, *, what: str, check: Callable[[], None] = never_cancelled) -> None:
        self.what = what
        self.check = check
        self._root = Folder(os.dup(descriptor), ())
        #: Folders that were used last, by the names that led there.
        self._open: OrderedDict[Parts, Folder] = OrderedDict()
        self.implied = 0
        self.has_default_acl = False
        #: What the owner of a folder may not do in it at the end, by its path.
        self._closed = PathTable(self.temporary_file, check=check)

    def close(self) -> None:
        """Close all folders."""
        self._forget()
        self._root.close()
        self._closed.close()

    def temporary_file(self) -> IO[bytes]:
        """A new file without a name, on the file system that the tree is on."""
        return nameless_file(self._root.descriptor)

    def _forget(self) -> None:
        """Forget open folders: names may lead elsewhere from now on."""
        for folder in self._open.values():
            folder.close()
        self._open.clear()

    def folder(self, parts: Parts, *, is_making: bool = True) -> int:
        """The descriptor of a folder; see reached()."""
        return self.reached(parts, is_making=is_making).descriptor

    def place(self, parts: Parts, *, is_making: bool = True) -> Parts:
        """The names of a path without links on the way to the last one, which may be one.

        Raises:
            As reached(), for the folder that has the last name.
        """
        return (*self.reached(parts[:-1], is_making=is_making).parts, *parts[-1:])

    def reached(self, parts: Parts, *, is_making: bool = True) -> Folder:
        """An open folder, made with those above it when missing; the tree closes it, sooner or later.

        Raises:
            DocumentError: too many links or folders lead there, or its path is too long.
            NotADirectoryError: something on the way is neither a folder nor a link to one.
            FileNotFoundError: it is missing, and nothing is to be made.
        """
        if not parts:
            return self._root
        found = self._open.get(parts)
        if found is not None:
            self._open.move_to_end(parts)
            return found
        found = self._open[parts] = self._stepped(parts) or self._walked(parts, is_making=is_making)
        if byte_length(joined(found.parts)) > MOST_PATH_BYTES:
            raise DocumentError(self.what, [f"has a folder whose path is longer than {MOST_PATH_BYTES} bytes"])
        if len(self._open) > _MOST_OPEN:
            _, oldest = self._open.popitem(last=False)
            oldest.close()
        return found

    def _stepped(self, parts: Parts) -> Folder | None:
        """One step from a folder that is open; None when it takes more."""
        above = self._open.get(parts[:-1]) if len(parts) > 1 else self._root
        if above is None or len(above.parts) >= MOST_DEEP:
            return None
        try:
            return Folder(os.open(parts[-1], _FOLDER, dir_fd=above.descriptor), (*above.parts, parts[-1]))
        except OSError:  # missing, or a link
            return None

    def _walked(self, parts: Parts, *, is_making: bool) -> Folder:
        # Folders from the root to where the walk is, so that ".." in a link leads to the one above.
        way: list[tuple[int, str]] = [(os.dup(self._root.descriptor), "")]
        pending, links, steps = list(reversed(parts)), 0, 0
        try:
            while pending:
                name = pending.pop()
                steps += 1
                if name == "..":
                    if len(way) > 1:
                        os.close(way.pop()[0])
                    continue
                opened, target = self._opened(way, name, is_making=is_making)
                if opened is not None:
                    way.append((opened, name))
                    if len(way) > MOST_DEEP + 1:
                        raise DocumentError(self.what, [f"has more than {MOST_DEEP} folders in each other"])
                    continue
                links += 1
                if links > _MOST_LINKS or steps > _MOST_STEPS:
                    raise DocumentError(self.what, [f"leads {shown('/'.join(parts))} through too many links"])
                if target.startswith("/"):
                    while len(way) > 1:
                        os.close(way.pop()[0])
                pending += [part for part in reversed(target.split("/")) if part not in ("", ".")]
            place = tuple(name for _, name in way[1:])
            return Folder(way.pop()[0], place)
        finally:
            for each, _ in way:
                os.close(each)

    def _opened(self, way: list[tuple[int, str]], name: str, *, is_making: bool) -> tuple[int | None, str]:
        """The folder of a name at the end of the way, made when missing; or the target of the link of that name."""
        above = way[-1][0]
        try:
            return os.open(name, _FOLDER, dir_fd=above), ""
        except FileNotFoundError:
            if not is_making:
                raise
        except OSError as error:
            if error.errno not in (errno.ENOTDIR, errno.ELOOP):
                raise
            try:
                return None, os.readlink(name, dir_fd=above)
            except OSError:
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), name) from error
        state = self.state_of(above)
        os.mkdir(name, _PARENT_MODE, dir_fd=above)
        state.restore(above)
        self.implied += 1
        made = os.open(name, _FOLDER, dir_fd=above)
        # Whatever the process's mask says; below a set-group-id folder it is one, too.
        os.fchmod(made, _PARENT_MODE | os.fstat(made).st_mode & stat.S_ISGID)
        if self._closed:
            self._closed[joined((*(each for _, each in way[1:]), name))] = _AS_IT_IS
        return made, ""

    def state_of(self, descriptor: int) -> FolderState:
        """What an open folder gets back when something has been made or removed in it."""
        return FolderState.taken(descriptor, has_acl=self.has_default_acl)

    def remove(self, parts: Parts) -> None:
        """Remove whatever has this name; nothing there is fine. The folder above keeps its times."""
        try:
            above = self.folder(parts[:-1], is_making=False)
            kind = os.stat(parts[-1], dir_fd=above, follow_symlinks=False).st_mode
        except (FileNotFoundError, NotADirectoryError):
            return
        state = self.state_of(above)
        if stat.S_ISDIR(kind):
            remove_folder(above, parts[-1], check=self.check)
        else:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(parts[-1], dir_fd=above)
        state.restore(above)
        if stat.S_ISDIR(kind) or stat.S_ISLNK(kind):
            self._forget()

    def prune(self, parts: Parts, choose: Callable[[str], Choice]) -> None:
        """Remove what is chosen of all that is below a folder; no folder there is fine.

        Args:
            choose: gets the path of each name, from the root on.
        """
        if not self.is_folder(parts):
            return
        above = "".join(f"{part}/" for part in parts)
        prune(self.folder(parts, is_making=False), lambda path: choose(above + path), check=self.check)
        self._forget()

    def close_later(self, parts: Parts, bits: int) -> None:
        """Have finish() take permissions away from the owner of a folder, which would hinder the work until then."""
        if bits or self._closed:
            self._closed[joined(parts)] = bits >> 6 or _AS_IT_IS

    def finish(self) -> None:
        """Take permissions away as close_later() was told, from the innermost folders on."""

        def _close(folder: int, path: str) -> None:
            bits = (self._closed[path] & ~_AS_IT_IS) << 6
            if bits:
                os.fchmod(folder, stat.S_IMODE(os.fstat(folder).st_mode) & ~bits)

        if self._closed:
            prune(self._root.descriptor, lambda _: Choice.ENTER, check=self.check, on_leaving=_close)

    def is_folder(self, parts: Parts) -> bool:
        """Whether a name is a folder's, and no link's."""
        if not parts:
            return True
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            above = self.folder(parts[:-1], is_making=False)
            status = os.stat(parts[-1], dir_fd=above, follow_symlinks=False)
            return stat.S_ISDIR(status.st_mode)
        return False

    def _replacing(self, folder: Folder, name: str, make: Callable[[Folder], _T]) -> _T:
        """Make something in a folder, in the place of anything else that has the name."""
        try:
            return make(folder)
        except FileExistsError:
            parts = folder.parts
            self.remove((*parts, name))
            return make(self.reached(parts))

    def make_folder(self, folder: Folder, name: str) -> int:
        """A folder in a folder, in the place of anything else; what is in it stays."""
        parts = (*folder.parts, name)
        try:
            os.mkdir(name, 0o700, dir_fd=folder.descriptor)
        except FileExistsError:
            if not self.is_folder(parts):
                self._replacing(folder, name, lambda above: os.mkdir(name, 0o700, dir_fd=above.descriptor))
        return self.folder(parts)

    def make_file(self, folder: Folder, name: str) -> int:
        """A new, empty file in the place of anything else, open for writing; the caller closes it."""
        try:
            return os.open(name, _NEW_FILE, 0o600, dir_fd=folder.descriptor)
        except FileExistsError:
            return self._replacing(folder, name, lambda above: os.open(name, _NEW_FILE, 0o600, dir_fd=above.descriptor))

    def make_link(self, folder: Folder, name: str, target: str) -> int:
        """A symbolic link in the place of anything else; returns the descriptor of the folder that has it."""

        def _make(above: Folder) -> int:
            os.symlink(target, name, dir_fd=above.descriptor)
            return above.descriptor

        return self._replacing(folder, name, _make)

    def make_node(self, folder: Folder, name: str, kind: int, device: int) -> int:
        """A device or a FIFO in the place of anything else.

        Args:
            kind: ``stat.S_IFCHR``, ``S_IFBLK`` or ``S_IFIFO``.

        Returns:
            The descriptor of the folder that has it.
        """

        def _make(above: Folder) -> int:
            os.mknod(name, kind | 0o600, device, dir_fd=above.descriptor)
            return above.descriptor

        return self._replacing(folder, name, _make)

    def make_hard_link(self, parts: Parts, target: Parts) -> None:
        """A second name for a file of the tree, in the place of anything else.

        Raises:
            DocumentError: no file has the first one.
        """
        text = f"has a hard link {shown('/'.join(parts))} to {shown('/'.join(target))}"
        if not target or parts == target:
            raise DocumentError(self.what, [f"{text}: itself, or the root"])

        def _make(_: Folder) -> None:
            # To reach one folder may close the other one.
            source = os.dup(self.folder(target[:-1], is_making=False))
            try:
                above = self.folder(parts[:-1])
                os.link(target[-1], parts[-1], src_dir_fd=source, dst_dir_fd=above, follow_symlinks=False)
            finally:
                os.close(source)

        try:
            self._replacing(self.reached(parts[:-1]), parts[-1], _make)
        except (FileNotFoundError, NotADirectoryError):
            raise DocumentError(self.what, [f"{text}, which isn't there"]) from None
        except PermissionError:
            if not self.is_folder(target):
                raise
            raise DocumentError(self.what, [f"{text}, which is a folder"]) from None

    def read(self, parts: Parts, limit_bytes: int) -> bytes:
        """The content of a small regular file, links resolved within the tree; empty where there is none.

        Raises:
            DocumentError: it is longer, or its links lead in a circle.
        """
        for _ in range(_MOST_LINKS):
            if not parts:
                return b""
            try:
                above = self.folder(parts[:-1], is_making=False)
                kind = os.stat(parts[-1], dir_fd=above, follow_symlinks=False).st_mode
                if not stat.S_ISREG(kind) and not stat.S_ISLNK(kind):
                    return b""  # to open a device may do something
                descriptor = os.open(parts[-1], _READING, dir_fd=above)
            except (FileNotFoundError, NotADirectoryError):
                return b""
            except OSError as error:
                if error.errno != errno.ELOOP:
                    raise
                target = os.readlink(parts[-1], dir_fd=above)
                parts = parts_of(target if target.startswith("/") else "/".join((*parts[:-1], target)))
                continue
            with open(descriptor, "rb") as file:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    return b""
                found = file.read(limit_bytes + 1)
            if len(found) > limit_bytes:
                text = f"has a file {shown('/'.join(parts))} of more than {limit_bytes} bytes"
                raise DocumentError(self.what, [text])
            return found
        raise DocumentError(self.what, [f"has links at {shown('/'.join(parts))} that lead in a circle"])
