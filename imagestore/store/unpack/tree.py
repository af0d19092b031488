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
import shutil
import stat
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, TypeVar

from imagestore.errors import DocumentError
from imagestore.store.unpack.entry import shown
from imagestore.store.unpack.paths import parts_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from imagestore.store.unpack.paths import Parts, PathNode

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_READING: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
#: As the kernel has it for one path.
_MOST_LINKS: Final = 40
#: Folders below each other, also where links lead deeper than names say: removing a tree takes a descriptor for each.
MOST_DEEP: Final = 512
_MOST_OPEN: Final = 64
_PARENT_MODE: Final = 0o755
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
    """

    def __init__(self, descriptor: int, *, what: str) -> None:
        self.what = what
        self._root = Folder(os.dup(descriptor), ())
        #: Folders that were used last, by the names that led there.
        self._open: OrderedDict[Parts, Folder] = OrderedDict()
        #: Folders made on the way to a name.
        self.implied = 0

    def close(self) -> None:
        """Close all folders."""
        self._forget()
        self._root.close()

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
            DocumentError: too many links or folders lead there.
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
        pending, links = list(reversed(parts)), 0
        try:
            while pending:
                name = pending.pop()
                if name == "..":
                    if len(way) > 1:
                        os.close(way.pop()[0])
                    continue
                opened, target = self._opened(way[-1][0], name, is_making=is_making)
                if opened is not None:
                    way.append((opened, name))
                    if len(way) > MOST_DEEP + 1:
                        raise DocumentError(self.what, [f"has more than {MOST_DEEP} folders in each other"])
                    continue
                links += 1
                if links > _MOST_LINKS:
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

    def _opened(self, above: int, name: str, *, is_making: bool) -> tuple[int | None, str]:
        """A folder by its name in another, made when missing; or the target of the link of that name."""
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
        os.mkdir(name, _PARENT_MODE, dir_fd=above)
        self.implied += 1
        made = os.open(name, _FOLDER, dir_fd=above)
        # Whatever the process's mask says; below a set-group-id folder it is one, too.
        os.fchmod(made, _PARENT_MODE | os.fstat(made).st_mode & stat.S_ISGID)
        return made, ""

    def remove(self, parts: Parts) -> None:
        """Remove whatever has this name; nothing there is fine."""
        try:
            above = self.folder(parts[:-1], is_making=False)
            kind = os.stat(parts[-1], dir_fd=above, follow_symlinks=False).st_mode
        except (FileNotFoundError, NotADirectoryError):
            return
        if stat.S_ISDIR(kind):
            shutil.rmtree(parts[-1], dir_fd=above)
        else:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(parts[-1], dir_fd=above)
        if stat.S_ISDIR(kind) or stat.S_ISLNK(kind):
            self._forget()

    def remove_others(self, parts: Parts, kept: PathNode | None) -> None:
        """Remove what is below a folder, but for some paths and what is above them; no folder there is fine."""
        if not self.is_folder(parts):
            return
        for name in os.listdir(self.folder(parts, is_making=False)):
            inner = kept.inner.get(name) if kept is not None else None
            if inner is None:
                self.remove((*parts, name))
            else:
                self.remove_others((*parts, name), inner)

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
