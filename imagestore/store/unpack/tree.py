"""A tree of files below one folder, written by names that nobody vouches for.

Every step goes from an open folder to a name in it, and no call follows a symbolic link. Links on the way to a name are
read and resolved here, with the tree's root as their root, as containerd (``fs.RootPath``) and ``openat2(2)`` with
``RESOLVE_IN_ROOT`` do it. So nothing outside of the folder is ever touched, whatever a layer says and whoever changes
the tree meanwhile.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from imagestore.errors import DocumentError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

#: Names from the root down.
Parts = tuple[str, ...]

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_READING: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
#: As the kernel's limit is 40 for one path; layers of distributions have a handful.
_MOST_LINKS: Final = 255
_MOST_OPEN: Final = 64
_PARENT_MODE: Final = 0o755


def parts_of(name: str) -> Parts:
    """The names of a path below a root; ``..`` leads to the root at most.

    >>> parts_of("./a//b/../c"), parts_of("/../../etc")
    (('a', 'c'), ('etc',))
    """
    parts: list[str] = []
    for part in name.split("/"):
        if part == "..":
            del parts[-1:]
        elif part not in ("", "."):
            parts.append(part)
    return tuple(parts)


class Tree:
    """The folder and what is made in it; one thread uses it.

    Args:
        path: the folder, which is there.
        what: names the image in errors.
    """

    def __init__(self, path: str, *, what: str) -> None:
        self._what = what
        self._root = os.open(path, _FOLDER)
        #: Folders that were used last, open, by the names that led there.
        self._open: OrderedDict[Parts, int] = OrderedDict()

    def close(self) -> None:
        """Close all folders."""
        self._forget()
        os.close(self._root)

    def _forget(self) -> None:
        """Names may lead elsewhere from now on."""
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open.clear()

    def folder(self, parts: Parts, *, is_making: bool = True) -> int:
        """An open folder, made with those above it when missing; the tree closes it, sooner or later.

        Raises:
            DocumentError: something on the way is neither a folder nor a link to one.
            FileNotFoundError: it is missing, and nothing is to be made.
        """
        if not parts:
            return self._root
        found = self._open.get(parts)
        if found is not None:
            self._open.move_to_end(parts)
            return found
        descriptor = self._walked(parts, is_making=is_making)
        self._open[parts] = descriptor
        if len(self._open) > _MOST_OPEN:
            _, oldest = self._open.popitem(last=False)
            os.close(oldest)
        return descriptor

    def _walked(self, parts: Parts, *, is_making: bool) -> int:
        above = self._open.get(parts[:-1]) if len(parts) > 1 else self._root
        if above is not None:
            with contextlib.suppress(OSError):
                return os.open(parts[-1], _FOLDER, dir_fd=above)
        # Folders from the root to where the walk is, so that ".." in a link leads to the one above.
        way = [os.dup(self._root)]
        pending, links = list(reversed(parts)), 0
        try:
            while pending:
                name = pending.pop()
                if name == "..":
                    if len(way) > 1:
                        os.close(way.pop())
                    continue
                opened, target = self._opened(way[-1], name, "/".join(parts), is_making=is_making)
                if opened is not None:
                    way.append(opened)
                    continue
                links += 1
                if links > _MOST_LINKS:
                    raise DocumentError(self._what, [f"leads {'/'.join(parts)!r} through too many links"])
                if target.startswith("/"):
                    while len(way) > 1:
                        os.close(way.pop())
                pending += [part for part in reversed(target.split("/")) if part not in ("", ".")]
            return way.pop()
        finally:
            for each in way:
                os.close(each)

    def _opened(self, above: int, name: str, path: str, *, is_making: bool) -> tuple[int | None, str]:
        """A folder by its name in another, made when missing; or what the link of that name says."""
        for _ in range(2):
            try:
                return os.open(name, _FOLDER, dir_fd=above), ""
            except FileNotFoundError:
                if not is_making:
                    raise
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, _PARENT_MODE, dir_fd=above)
            except OSError as error:
                if error.errno not in (errno.ENOTDIR, errno.ELOOP):
                    raise
                try:
                    return None, os.readlink(name, dir_fd=above)
                except OSError:
                    raise DocumentError(self._what, [f"has an entry {path!r} below a file"]) from error
        raise DocumentError(self._what, [f"has an entry {path!r} below a folder that comes and goes"])

    def remove(self, parts: Parts) -> None:
        """Remove whatever has this name; nothing there is fine."""
        try:
            above = self.folder(parts[:-1], is_making=False)
            os.unlink(parts[-1], dir_fd=above)
        except FileNotFoundError:
            return
        except (IsADirectoryError, PermissionError):
            # What is not a folder fails here again, with its true reason.
            shutil.rmtree(parts[-1], dir_fd=above)
        # Names may lead elsewhere now: a folder or a link is gone.
        self._forget()

    def remove_others(self, parts: Parts, kept: Collection[Parts]) -> None:
        """Remove what is below a folder, but for some paths and what is above them."""
        for name in os.listdir(self.folder(parts, is_making=False)):
            inner = (*parts, name)
            if inner not in kept:
                self.remove(inner)
            elif self.is_folder(inner):
                self.remove_others(inner, kept)

    def is_folder(self, parts: Parts) -> bool:
        """Whether a name is a folder's, and no link's."""
        if not parts:
            return True
        with contextlib.suppress(FileNotFoundError):
            above = self.folder(parts[:-1], is_making=False)
            status = os.stat(parts[-1], dir_fd=above, follow_symlinks=False)
            return stat.S_ISDIR(status.st_mode)
        return False

    def make_folder(self, parts: Parts) -> int:
        """A folder of this name, in the place of anything else; what is in it stays."""
        if parts and not self.is_folder(parts):
            self.remove(parts)
            os.mkdir(parts[-1], 0o700, dir_fd=self.folder(parts[:-1]))
        return self.folder(parts)

    @contextlib.contextmanager
    def new_file(self, parts: Parts) -> Iterator[int]:
        """A new, empty file in the place of anything else, open for writing."""
        above, name = self.folder(parts[:-1]), parts[-1]
        try:
            descriptor = os.open(name, _NEW_FILE, 0o600, dir_fd=above)
        except FileExistsError:
            self.remove(parts)
            descriptor = os.open(name, _NEW_FILE, 0o600, dir_fd=self.folder(parts[:-1]))
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def make_link(self, parts: Parts, target: str) -> None:
        """A symbolic link in the place of anything else."""
        self.remove(parts)
        os.symlink(target, parts[-1], dir_fd=self.folder(parts[:-1]))

    def make_hard_link(self, parts: Parts, target: Parts) -> None:
        """A second name for a file of the tree.

        Raises:
            DocumentError: no file has the first one.
        """
        if not target or parts == target:
            raise DocumentError(self._what, [f"has a hard link {'/'.join(parts)!r} that names itself or the root"])
        self.remove(parts)
        source = -1
        try:
            source = os.dup(self.folder(target[:-1], is_making=False))
            above = self.folder(parts[:-1])
            os.link(target[-1], parts[-1], src_dir_fd=source, dst_dir_fd=above, follow_symlinks=False)
        except FileNotFoundError:
            text = f"has a hard link {'/'.join(parts)!r} to {'/'.join(target)!r}, which isn't there"
            raise DocumentError(self._what, [text]) from None
        finally:
            if source >= 0:
                os.close(source)

    def make_node(self, parts: Parts, kind: int, device: int) -> None:
        """A device or a FIFO in the place of anything else.

        Args:
            parts: its path.
            kind: ``stat.S_IFCHR``, ``S_IFBLK`` or ``S_IFIFO``.
            device: its number.
        """
        self.remove(parts)
        os.mknod(parts[-1], kind | 0o600, device, dir_fd=self.folder(parts[:-1]))

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
                descriptor = os.open(parts[-1], _READING, dir_fd=above)
            except FileNotFoundError:
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
                raise DocumentError(self._what, [f"has a file {'/'.join(parts)!r} of more than {limit_bytes} bytes"])
            return found
        raise DocumentError(self._what, [f"has links at {'/'.join(parts)!r} that lead in a circle"])
