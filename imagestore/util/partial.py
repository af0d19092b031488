"""New files and folders under a temporary name, until they are whole and get the final one.

The folder that they are in may belong to another user, who may rename, exchange or remove whatever is in it, at any
time. So that folder is opened once, all names are relative to it, and what is new is used through its own descriptor
only. At the end the final path must lead to what the descriptor has open.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import stat
import time
import uuid
from typing import TYPE_CHECKING, Final

from imagestore.errors import (
    AlreadyExistsError,
    ImageStoreError,
    InvalidInputError,
    OperationCancelledError,
    PreconditionError,
)
from imagestore.util.cancel import never_cancelled
from imagestore.util.failpoint import reach
from imagestore.util.file_locks import flock_alone
from imagestore.util.files import write_refusal
from imagestore.util.trees import remove_content

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from imagestore.util.cancel import CancelToken

#: A folder whose names are used; it need not be readable.
_ABOVE: Final = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC
#: A folder that is read, and no link.
FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: A file that isn't there yet.
NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_LEFTOVER: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_ENDING: Final = r"\.[0-9a-f]{12}\.partial"
_CLOSED: Final = 0o700
#: A writer has this long between making its temporary file and locking it.
_LEAST_AGE_SECONDS: Final = 60.0
#: What cancelled work takes for removing what it has made.
_PATIENCE_SECONDS: Final = 0.25
#: Errors that say that the name of a folder is that of nothing, of a file or of a link.
_OTHERS: Final = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}
_HINT: Final = "name a place in a folder where only you can write, and move the result afterwards"


@contextlib.contextmanager
def new_folder(path: str, *, mode: int = _CLOSED, cancel: CancelToken | None = None) -> Iterator[int]:
    """A new folder, which gets its name when the block succeeds and is removed otherwise.

    The block gets its descriptor. Nothing but that may be used: its name may lead elsewhere. When the token is
    cancelled, no more than a quarter of a second goes into the removal. The hint of the error then names the folder
    with the rest, which the next work for this place removes.

    Args:
        path: absolute; not there, or an empty folder.
        mode: until the block changes it, less the process's mask.
        cancel: of the block's work.

    Raises:
        AlreadyExistsError: something is there.
        InvalidInputError, PreconditionError: the folder can't be made, or get its name.
        PreconditionError: another user has exchanged or removed it.
    """

    def _make(above: int, name: str) -> int:
        final = os.path.basename(path)
        if not final or not _is_free(above, final):
            text = f"{path}: is there already; expected nothing or an empty folder"
            raise AlreadyExistsError(text, hint="choose another place")
        reach("partial-make")
        os.mkdir(name, mode, dir_fd=above)
        reach("partial-open")
        return _opened(above, name, path)

    with _renamed(path, _make, cancel) as descriptor:
        yield descriptor


@contextlib.contextmanager
def new_file(path: str) -> Iterator[int]:
    """A new file, which replaces the one of that name when the block succeeds and is removed otherwise.

    The block gets its descriptor, open for writing.

    Args:
        path: absolute, without links.

    Raises:
        InvalidInputError, PreconditionError: the file can't be made, or get its name.
        PreconditionError: another user has exchanged or removed it.
    """
    with _renamed(path, lambda above, name: os.open(name, NEW_FILE, 0o666, dir_fd=above)) as descriptor:
        yield descriptor


def remove_folder(path: str, cancel: CancelToken) -> None:
    """Remove a folder with all that is in it, as far as possible; nothing there is fine.

    It loses its name first, so nobody finds a part of it there. Then this waits for those who hold a lock on it
    (flock(2)), as its readers may. If the process dies, the rest is a leftover.

    Args:
        path: absolute.
        cancel: ends the wait and the removal.

    Raises:
        InvalidInputError, PreconditionError: it can't be renamed.
        OperationCancelledError: cancelled; the rest is a leftover.
    """
    with _translated(path), contextlib.ExitStack() as stack, contextlib.suppress(FileNotFoundError):
        folder, final = os.path.split(path)
        above = os.open(folder, _ABOVE)
        stack.callback(os.close, above)
        name = _temporary(final)
        reach("folder-rename")
        os.rename(final, name, src_dir_fd=above, dst_dir_fd=above)
        descriptor = os.open(name, FOLDER, dir_fd=above)
        stack.callback(os.close, descriptor)
        with contextlib.suppress(OSError):  # a file system without locks
            flock_alone(descriptor, path, check=cancel.check)
        _remove(above, name, descriptor, cancel.check)
        cancel.check()


def remove_leftovers(folder: str, cancel: CancelToken) -> None:
    """Remove what dead writers of this user left in a folder, whatever it was for; as far as possible.

    Raises:
        OperationCancelledError: cancelled.
    """
    with contextlib.suppress(OSError):
        above = os.open(folder, _ABOVE)
        try:
            _remove_leftovers(above, re.compile(f".+{_ENDING}"), cancel.check)
        finally:
            os.close(above)
    cancel.check()


def _temporary(final: str) -> str:
    return f"{final}.{uuid.uuid4().hex[:12]}.partial"


@contextlib.contextmanager
def _renamed(path: str, make: Callable[[int, str], int], cancel: CancelToken | None = None) -> Iterator[int]:
    """What ``make`` makes in the open folder under the temporary name, renamed when the block succeeds."""
    check = _patient(cancel) if cancel is not None else never_cancelled
    with contextlib.ExitStack() as stack:
        with _translated(path):
            folder, final = os.path.split(path)
            above = os.open(folder, _ABOVE)
            stack.callback(os.close, above)
            name = _temporary(final)
            descriptor = make(above, name)
            stack.callback(os.close, descriptor)
        try:
            # Marks it as in use; on file systems without locks no leftover is removed.
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove_leftovers(above, re.compile(re.escape(final) + _ENDING), check)
            yield descriptor
            with _translated(path):
                _rename(above, name, final, descriptor, path)
        except BaseException as error:
            # An interrupt may come when it has its name, or others may have moved the folder above: it is whole then.
            if not _leads_to(above, final, descriptor):
                _remove(above, name, descriptor, check)
                if isinstance(error, ImageStoreError) and _leads_to(above, name, descriptor):
                    left = os.path.join(folder, name)
                    error.hint = error.hint or f"remove {left}, which has what is left of it"
            raise


def _opened(above: int, name: str, path: str) -> int:
    """The folder that was just made, whose name may have been given to something else meanwhile."""
    with contextlib.ExitStack() as stack:
        is_own = False
        try:
            descriptor = os.open(name, FOLDER, dir_fd=above)
            stack.callback(os.close, descriptor)
            is_own = _is_own(descriptor)
        except OSError as error:
            if error.errno not in _OTHERS:
                with contextlib.suppress(OSError):
                    os.rmdir(name, dir_fd=above)
                raise
        if not is_own:
            raise _exchanged(path)
        stack.pop_all()
    return descriptor


def _rename(above: int, name: str, final: str, descriptor: int, path: str) -> None:
    reach("partial-rename")
    try:
        os.rename(name, final, src_dir_fd=above, dst_dir_fd=above)
        reach("partial-renamed")
        found = os.stat(path, follow_symlinks=False)
    except FileNotFoundError as error:
        raise _exchanged(path) from error
    if not os.path.samestat(found, os.fstat(descriptor)):
        raise _exchanged(path)


def _exchanged(path: str) -> PreconditionError:
    text = f"{path}: another user exchanged, moved or removed it, or a folder above it, while it was made"
    return PreconditionError(text, hint=_HINT)


@contextlib.contextmanager
def _translated(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise write_refusal(path, error) from error
    except ValueError as error:
        raise InvalidInputError(f"{path!r}: expected a path, it has characters that none can have") from error


def _is_free(above: int, name: str) -> bool:
    """Whether a name is nobody's, or an empty folder's."""
    try:
        if not stat.S_ISDIR(os.stat(name, dir_fd=above, follow_symlinks=False).st_mode):
            return False
        descriptor = os.open(name, FOLDER, dir_fd=above)
    except FileNotFoundError:
        return True
    try:
        return not os.listdir(descriptor)
    finally:
        os.close(descriptor)


def _is_own(descriptor: int) -> bool:
    """Whether an open folder can be the one that was just made, and isn't one that was given its name meanwhile."""
    if os.listdir(descriptor):
        return False
    owner = os.fstat(descriptor).st_uid
    if owner == os.geteuid():
        return True
    # Some file systems give all that we make to another user (NFS with root_squash, vfat).
    name = f"{uuid.uuid4().hex}.tmp"
    probe = os.open(name, NEW_FILE, 0o600, dir_fd=descriptor)
    try:
        os.unlink(name, dir_fd=descriptor)
        return os.fstat(probe).st_uid == owner
    finally:
        os.close(probe)


def _leads_to(above: int, name: str, descriptor: int) -> bool:
    """Whether a name in an open folder is that of an open file or folder."""
    try:
        return os.path.samestat(os.stat(name, dir_fd=above, follow_symlinks=False), os.fstat(descriptor))
    except OSError:
        return False


def _patient(cancel: CancelToken) -> Callable[[], None]:
    """A check that lets work go on for a moment once it is cancelled."""
    ends: float | None = None

    def _check() -> None:
        nonlocal ends
        try:
            cancel.check()
        except OperationCancelledError:
            now = time.monotonic()
            ends = now + _PATIENCE_SECONDS if ends is None else ends
            if now > ends:
                raise

    return _check


def _remove(above: int, name: str, descriptor: int, check: Callable[[], None] = never_cancelled) -> None:
    """Remove what is open, as far as possible; what others have given its name stays."""
    with contextlib.suppress(OSError, OperationCancelledError):
        is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        if is_folder:
            if os.geteuid() != 0:  # root needs no mode
                os.fchmod(descriptor, _CLOSED)
            remove_content(descriptor, check=check)
        reach("partial-remove")
        if _leads_to(above, name, descriptor):
            (os.rmdir if is_folder else os.unlink)(name, dir_fd=above)


def _remove_leftovers(above: int, dead: re.Pattern[str], check: Callable[[], None] = never_cancelled) -> None:
    """Remove what dead writers of this user left under such names, as far as possible.

    Where another user can rename what is in the folder, it stays: a folder of ours with such a name may be any.
    """
    with contextlib.suppress(OSError):  # a folder that we may write and not list
        status = os.fstat(above)
        is_shared = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not status.st_mode & stat.S_ISVTX
        if is_shared or status.st_uid not in (0, os.geteuid()):
            return
        descriptor = os.open(".", FOLDER, dir_fd=above)
        try:
            names = os.listdir(descriptor)
        finally:
            os.close(descriptor)
        for name in filter(dead.fullmatch, names):
            with contextlib.suppress(OSError):
                _remove_leftover(above, name, check)


def _remove_leftover(above: int, name: str, check: Callable[[], None]) -> None:
    descriptor = os.open(name, _LEFTOVER, dir_fd=above)
    try:
        status = os.fstat(descriptor)
        is_removable = stat.S_ISDIR(status.st_mode) or stat.S_ISREG(status.st_mode)
        is_old = time.time() - status.st_mtime >= _LEAST_AGE_SECONDS
        if is_removable and is_old and status.st_uid == os.geteuid():
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(above, name, descriptor, check)
    finally:
        os.close(descriptor)
