"""Writing members: a tar archive or a folder, the same bytes each time, whole or not at all.

Members come sorted by name, with time 0, owner 0 and fixed modes. A file is written next to its place and renamed when
it is complete; a folder too. A pipe or a device is written directly; a wait for a pipe's reader ends with the token.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import stat
import sys
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from imagestore.errors import InvalidInputError
from imagestore.events import BlobAdvanced, BlobStarted
from imagestore.util import files
from imagestore.util.files import follow_links
from imagestore.util.partial import new_file, new_folder

if TYPE_CHECKING:
    from collections.abc import Iterable

    from imagestore.events import Observer
    from imagestore.oci.descriptor import Descriptor
    from imagestore.util.cancel import CancelToken

#: The name of standard output.
STDOUT: Final = "-"
FILE_MODE: Final = 0o644
BLOB_MODE: Final = 0o444
_FOLDER_MODE: Final = 0o755
_POLL_SECONDS: Final = 0.1
# Without O_NONBLOCK a pipe would wait for its reader, and nothing could end that.
_PIPE_FLAGS: Final = os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC
Write = Callable[[bytes], None]


@dataclass(frozen=True, slots=True)
class Member:
    """A file of an archive.

    Attributes:
        name: with slashes, relative.
        size: in bytes.
        mode: permission bits.
        pieces: gives its bytes, verified by their end.
        descriptor: of the content that it is; None for what the archive adds.
    """

    name: str
    size: int
    mode: int
    pieces: Callable[[], Iterator[bytes]]
    descriptor: Descriptor | None = None

    @classmethod
    def of(cls, name: str, data: bytes) -> Member:
        """A small file whose bytes are at hand."""
        return cls(name, len(data), FILE_MODE, lambda: iter((data,)))


def write_tar(path: str, members: Iterable[Member], *, observer: Observer, cancel: CancelToken) -> int:
    """Write a tar archive (USTAR; PAX only where a size needs it).

    Args:
        path: a file, replaced when it is there; a pipe or device; ``-`` for standard output.
        members: in any order.

    Raises:
        InvalidInputError, PreconditionError: the file can't be written; an older one stays as it was.
    """
    ordered = sorted(members, key=lambda member: member.name)
    with _whole_file(path, cancel) as write:
        return _Tar(write, observer, cancel).run(ordered)


def write_folder(path: str, members: Iterable[Member], *, observer: Observer, cancel: CancelToken) -> int:
    """Write the members into a new folder.

    Args:
        path: the folder; it must be empty or not there yet.
        members: in any order.

    Raises:
        AlreadyExistsError: there is something at that path.
        InvalidInputError, PreconditionError: the folder can't be written; nothing stays.
    """
    # A link stays a link, as for files: what it points at is filled.
    with _translated(path), new_folder(follow_links(path), mode=_FOLDER_MODE) as top:
        written, folders = 0, set[str]()
        for member in sorted(members, key=lambda member: member.name):
            for folder in _folders_above(member.name):
                if folder not in folders:
                    folders.add(folder)
                    os.mkdir(folder, _FOLDER_MODE, dir_fd=top)
            with open(member.name, "xb", opener=_new_in(top, member.mode)) as file:
                written += _copy(member, _writer(file.fileno(), cancel), observer, cancel)
                os.fsync(file.fileno())
        for *_, descriptor in os.fwalk(".", topdown=False, dir_fd=top):
            os.fsync(descriptor)
        return written


def _folders_above(name: str) -> Iterator[str]:
    """The folders that a member is in, from the top.

    >>> list(_folders_above("blobs/sha256/1"))
    ['blobs', 'blobs/sha256']
    """
    return (name[:at] for at, character in enumerate(name) if character == "/")


class _Tar:
    def __init__(self, write: Write, observer: Observer, cancel: CancelToken) -> None:
        self._write_plain = write
        self._observer = observer
        self._cancel = cancel
        self._written = 0

    def run(self, members: list[Member]) -> int:
        """Write the members in the given order, each folder before its first member, and the end of the archive."""
        folders: set[str] = set()
        for member in members:
            for folder in _folders_above(member.name):
                if folder not in folders:
                    folders.add(folder)
                    self._header(f"{folder}/", 0, _FOLDER_MODE, tarfile.DIRTYPE)
            self._header(member.name, member.size, member.mode, tarfile.REGTYPE)
            _copy(member, self._write, self._observer, self._cancel)
            self._write(bytes(-member.size % tarfile.BLOCKSIZE))
        self._write(bytes(2 * tarfile.BLOCKSIZE))
        return self._written

    def _header(self, name: str, size: int, mode: int, kind: bytes) -> None:
        info = tarfile.TarInfo(name)
        info.size, info.mode, info.type = size, mode, kind
        self._write(info.tobuf(tarfile.PAX_FORMAT))

    def _write(self, data: bytes) -> None:
        self._write_plain(data)
        self._written += len(data)


def _copy(member: Member, write: Write, observer: Observer, cancel: CancelToken) -> int:
    if member.descriptor is not None:
        observer(BlobStarted(member.descriptor, 0))
    written = 0
    for piece in member.pieces():
        cancel.check()
        write(piece)
        written += len(piece)
        if member.descriptor is not None:
            observer(BlobAdvanced(member.descriptor.digest, written))
    return written


@contextlib.contextmanager
def _whole_file(path: str, cancel: CancelToken) -> Iterator[Write]:
    """A file that appears when the block ends well, and not at all when it doesn't."""
    if path == STDOUT:
        if sys.stdout.isatty():
            raise InvalidInputError("standard output is a terminal", hint="send it to a file or a pipe")
        with _translated("standard output"):
            sys.stdout.flush()
            descriptor = _without_blocking(sys.stdout.fileno())
            try:
                yield _writer(descriptor, cancel)
            finally:
                os.close(descriptor)
        return
    with _translated(path), contextlib.ExitStack() as stack:
        # A link stays a link: what it points at is replaced.
        final = follow_links(path)
        kind = os.stat(path).st_mode if os.path.exists(path) else stat.S_IFREG
        if not stat.S_ISREG(kind) or _is_nameless(path, final):
            descriptor = _pipe(path, cancel) if stat.S_ISFIFO(kind) else os.open(path, os.O_WRONLY | os.O_CLOEXEC)
            stack.callback(os.close, descriptor)
            yield _writer(descriptor, cancel)
            return
        descriptor = stack.enter_context(new_file(final))
        yield _writer(descriptor, cancel)
        os.fsync(descriptor)


def _is_nameless(path: str, final: str) -> bool:
    """Whether an open file is meant, as by /dev/fd/N, that has no name any more."""
    return os.path.exists(path) and not (os.path.exists(final) and os.path.samefile(path, final))


def _pipe(path: str, cancel: CancelToken) -> int:
    """Open a named pipe as soon as it has a reader."""
    while True:
        try:
            return os.open(path, _PIPE_FLAGS)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
        cancel.wait(_POLL_SECONDS)


def _without_blocking(descriptor: int) -> int:
    """An end of the same pipe that is ours alone: other programs that share this one don't expect it not to block."""
    if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
        with contextlib.suppress(OSError):  # no reader, or not ours to open
            return os.open(f"/dev/fd/{descriptor}", _PIPE_FLAGS)
    return os.dup(descriptor)


def _writer(descriptor: int, cancel: CancelToken) -> Write:
    def _write(data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[os.write(descriptor, rest) :]
            except BlockingIOError:
                cancel.check()
                _await_room(descriptor)

    return _write


def _await_room(descriptor: int) -> None:
    room = select.poll()
    room.register(descriptor, select.POLLOUT)
    room.poll(_POLL_SECONDS * 1000)


def _new_in(folder: int, mode: int) -> Callable[[str, int], int]:
    return lambda name, flags: os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=folder)


@contextlib.contextmanager
def _translated(path: str) -> Iterator[None]:
    """Turn an OSError into ours; a reader that left is not one."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise files.write_refusal(path, error) from error
