"""Listening sockets on disk: made under a temporary name, given their permissions, then renamed into place.

So no client ever sees a socket that isn't ready or whose permissions are too wide. A missing folder is made with mode
0711, as containerd's, so that the socket's own permissions alone decide who may connect; a folder in which other users
could rename files is refused. A socket whose server has died is replaced; one whose server lives is not. A lock file
next to the socket decides between two servers that start at once. It is never removed: two processes could then hold
locks on two files of this name.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import socket
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from imagestore.errors import ServerError
from imagestore.util.endpoint import LONGEST_PATH_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

_PROBE_SECONDS: Final = 2.0
_FOLDER_MODE: Final = 0o711
_FOLDER_MASK: Final = 0o022
# Of the temporary name: a dot and eight hex digits.
_TEMPORARY_BYTES: Final = 9


@dataclass(frozen=True, slots=True)
class SocketRights:
    """Who may connect: permission bits, and the owning group's number (None to leave it)."""

    mode: int = 0o660
    group: int | None = None


class SocketFile:
    """One socket at its path, until closed.

    Raises:
        ServerError: another server listens there, the place is taken by something else, or can't be used.
    """

    def __init__(self, path: str, rights: SocketRights) -> None:
        self.path = path
        self._rights = rights
        self._identity: tuple[int, int] | None = None
        folder, name = os.path.split(path)
        prepare_folder(folder)
        # The name it is bound to first.
        self._temporary = os.path.join(folder, f".{secrets.token_hex(4)}")
        if len(os.fsencode(folder)) + 1 + _TEMPORARY_BYTES > LONGEST_PATH_BYTES:
            raise ServerError(f"socket {path}: the folder's path is too long to make a socket in")
        self._lock = _lock(os.path.join(folder, f".{name}.lock"), path)
        try:
            refuse_live(path)
        except BaseException:
            os.close(self._lock)
            raise

    def bind(self, listen: Callable[[str], None]) -> None:
        """Call ``listen`` with a temporary path to bind to, and put the socket in place.

        Raises:
            ServerError: that failed.
        """
        # The mask is the process's: nothing else makes files while a server starts.
        before = os.umask(0o177)
        try:
            listen(self._temporary)
        finally:
            os.umask(before)
        try:
            if self._rights.group is not None:
                os.chown(self._temporary, -1, self._rights.group)
            os.chmod(self._temporary, self._rights.mode)
            status = os.lstat(self._temporary)
            os.rename(self._temporary, self.path)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(self._temporary)
            raise ServerError(f"socket {self.path}: can't be put in place: {error.strerror}") from error
        self._identity = (status.st_dev, status.st_ino)

    def withdraw(self) -> None:
        """Remove the socket if it is still this server's, so that clients are refused at once."""
        with contextlib.suppress(OSError):
            status = os.lstat(self.path)
            if self._identity == (status.st_dev, status.st_ino):
                os.unlink(self.path)
        self._identity = None

    def close(self) -> None:
        """Remove the socket and release the lock."""
        self.withdraw()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def prepare_folder(folder: str) -> None:
    """Make the folder of a socket, or check that other users can't replace what is in it.

    Raises:
        ServerError: they could, or it can't be made.
    """
    try:
        if not os.path.isdir(folder):
            # The process's own mask could deny the folder to users whom the socket lets in.
            before = os.umask(_FOLDER_MASK)
            try:
                os.makedirs(os.path.dirname(folder), exist_ok=True)
                os.mkdir(folder, _FOLDER_MODE)
            except FileExistsError:
                pass
            finally:
                os.umask(before)
        status = os.stat(folder)
    except OSError as error:
        raise ServerError(f"socket folder {folder}: {error.strerror}") from error
    if status.st_uid not in (0, os.geteuid()):
        raise ServerError(
            f"socket folder {folder}: expected it to be root's or ours, but user {status.st_uid} owns it",
            hint="choose a folder of your own",
        )
    if status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
        raise ServerError(
            f"socket folder {folder}: all users may write there and could exchange the socket",
            hint=f"run 'chmod o-w {folder}', or choose another folder",
        )


def refuse_live(path: str) -> None:
    """Make sure that no server listens at a path; a socket left behind by a dead server is fine.

    Raises:
        ServerError: one does, or something else is there.
    """
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise ServerError(f"socket {path}: {error.strerror}") from error
    if not stat.S_ISSOCK(mode):
        raise ServerError(f"socket {path}: expected a socket or nothing, found another kind of file")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_PROBE_SECONDS)
        number = probe.connect_ex(path)
    if number in (errno.ECONNREFUSED, errno.ENOENT):
        return
    if number in (0, errno.EAGAIN):
        raise ServerError(
            f"socket {path}: another server listens there", hint="stop that server, or listen at another path"
        )
    raise ServerError(f"socket {path}: can't tell whether a server listens there: {os.strerror(number)}")


def _lock(path: str, what: str) -> int:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise ServerError(f"socket {what}: can't make its lock file {path}: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise ServerError(
            f"socket {what}: another imagestore server listens there or is about to",
            hint="stop that server, or listen at another path",
        ) from error
    return descriptor
