"""The members of an archive, whatever holds them: a tar file, a folder, a pipe, with or without gzip around it.

Nothing is unpacked. A tar file is read at the places its headers tell; a folder's files are opened one name at a time
from its top, following no symbolic link. What can't be read at any place (pipes, gzip) goes through a nameless
temporary file inside the store, which is gone when the import ends, however it ends.
"""

from __future__ import annotations

import contextlib
import os
import stat
from typing import TYPE_CHECKING, Final, Protocol

from imagestore.archive import tar
from imagestore.archive.spool import COMPRESSIONS, spool
from imagestore.errors import DocumentError, InvalidInputError, SizeMismatchError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from imagestore.cancel import CancelToken

#: The name of standard input.
STDIN: Final = "-"
_PIECE: Final = 1024 * 1024
#: As many folders stay open; in a usual layout all of them.
_MOST_OPEN: Final = 8
_FOLDER_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Without O_NONBLOCK opening a FIFO would wait for a writer, and nothing could end that.
_ARCHIVE_FLAGS: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
_FILE_FLAGS: Final = _ARCHIVE_FLAGS | os.O_NOFOLLOW


class Source(Protocol):
    """Files by name. Any number of threads may read at once."""

    @property
    def what(self) -> str:
        """Names the archive in errors."""

    @property
    def links(self) -> Mapping[str, str]:
        """Targets of symbolic links by name."""

    def sizes(self) -> Mapping[str, int]:
        """Every file with its size in bytes."""

    def chunks(self, name: str, offset: int = 0) -> Iterator[bytes]:
        """A file's bytes from an offset on, in pieces of at most 1 MiB.

        Raises:
            DocumentError: there is no such file, or it is none.
            SizeMismatchError: it became shorter.
        """


def read(source: Source, name: str, *, limit_bytes: int) -> bytes:
    """A small file whole.

    Raises:
        DocumentError: it is missing, or longer than the limit.
    """
    size = source.sizes().get(name)
    if size is None:
        raise DocumentError(source.what, [f"has no file {name!r}"])
    if size > limit_bytes:
        raise DocumentError(source.what, [f"{name!r} is {size} bytes long, more than the {limit_bytes} allowed"])
    return b"".join(source.chunks(name))


@contextlib.contextmanager
def opened(path: str, *, scratch: Path, limit_bytes: int, cancel: CancelToken) -> Iterator[Source]:
    """Open an archive for a block of work.

    Args:
        path: a folder, a file or a pipe; ``-`` is standard input.
        scratch: folder of the nameless temporary file for what can't be read at any place.
        limit_bytes: the most that file may take.
        cancel: ends the reading.

    Raises:
        InvalidInputError: the path can't be opened, or is compressed in a way that isn't read.
        DocumentError: it is no archive, or holds what is refused.
        StoreFullError: the temporary file would become too large.
    """
    what = "archive on standard input" if path == STDIN else f"archive {path}"
    with contextlib.ExitStack() as stack:
        with _readable(what):
            descriptor = os.dup(0) if path == STDIN else os.open(path, _ARCHIVE_FLAGS)
            stack.callback(os.close, descriptor)
            kind = os.fstat(descriptor).st_mode
            head = os.pread(descriptor, 8, 0) if stat.S_ISREG(kind) else b""
        if stat.S_ISDIR(kind):
            yield FolderSource(descriptor, what, stack)
            return
        if not stat.S_ISREG(kind) or path == STDIN or head.startswith(tuple(COMPRESSIONS)):
            file = stack.enter_context(
                spool(descriptor, folder=scratch, limit_bytes=limit_bytes, what=what, cancel=cancel)
            )
            descriptor = file.fileno()
        yield TarSource(descriptor, what, cancel)


@contextlib.contextmanager
def _readable(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InvalidInputError(f"{what}: can't be read: {os.strerror(error.errno or 0)}") from error


class TarSource:
    """The files of a tar archive.

    Args:
        descriptor: the open file; stays the caller's.
        what: names the archive in errors.
        cancel: ends the reading of the headers.

    Raises:
        DocumentError: as tar.scan().
    """

    def __init__(self, descriptor: int, what: str, cancel: CancelToken) -> None:
        self.what = what
        self._descriptor = descriptor
        length = os.fstat(descriptor).st_size
        if length == 0:
            raise DocumentError(what, ["is empty"])
        self._table = tar.scan(self._read_at, length, what, cancel)
        self._sizes = {name: span.size for name, span in self._table.files.items()}

    @property
    def links(self) -> Mapping[str, str]:
        """Targets of symbolic links by name."""
        return self._table.links

    def sizes(self) -> Mapping[str, int]:
        """Every file with its size in bytes."""
        return self._sizes

    def chunks(self, name: str, offset: int = 0) -> Iterator[bytes]:
        """A file's bytes from an offset on."""
        span = self._table.files.get(name)
        if span is None:
            raise DocumentError(self.what, [f"has no file {name!r}"])
        while offset < span.size:
            piece = self._read_at(span.offset + offset, min(_PIECE, span.size - offset))
            if not piece:
                raise SizeMismatchError(f"{self.what}: {name}", expected=span.size, actual=offset)
            offset += len(piece)
            yield piece

    def _read_at(self, offset: int, size: int) -> bytes:
        with _readable(self.what):
            return os.pread(self._descriptor, size, offset)


class FolderSource:
    """The files of a folder, three levels deep at most: what an OCI layout has.

    Args:
        descriptor: the open folder; stays the caller's.
        what: names the archive in errors.
        stack: ends what is opened for the whole time.

    Raises:
        DocumentError: it holds too many files.
    """

    def __init__(self, descriptor: int, what: str, stack: contextlib.ExitStack) -> None:
        self.what = what
        self._stack = stack
        # By name: a layout of many blobs has them in one folder. Only read after the listing.
        self._folders = {"": descriptor}
        self._sizes: dict[str, int] = {}
        self._links: dict[str, str] = {}
        with _readable(what):
            self._list("", descriptor, levels=3)

    @property
    def links(self) -> Mapping[str, str]:
        """Targets of symbolic links by name."""
        return self._links

    def sizes(self) -> Mapping[str, int]:
        """Every file with its size in bytes."""
        return self._sizes

    def chunks(self, name: str, offset: int = 0) -> Iterator[bytes]:
        """A file's bytes from an offset on."""
        size = self._sizes.get(name)
        if size is None:
            raise DocumentError(self.what, [f"has no file {name!r}"])
        with _readable(f"{self.what}: {name}"):
            descriptor = self._open(name)
            try:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise DocumentError(self.what, [f"{name!r} is no plain file"])
                while offset < size:
                    piece = os.pread(descriptor, min(_PIECE, size - offset), offset)
                    if not piece:
                        raise SizeMismatchError(f"{self.what}: {name}", expected=size, actual=offset)
                    offset += len(piece)
                    yield piece
            finally:
                os.close(descriptor)

    def _open(self, name: str) -> int:
        """One step at a time, so that no link is followed on the way."""
        above, _, last = name.rpartition("/")
        if (folder := self._folders.get(above)) is not None:
            return os.open(last, _FILE_FLAGS, dir_fd=folder)
        with contextlib.ExitStack() as steps:
            folder = self._folders[""]
            for each in above.split("/"):
                folder = os.open(each, _FOLDER_FLAGS, dir_fd=folder)
                steps.callback(os.close, folder)
            return os.open(last, _FILE_FLAGS, dir_fd=folder)

    def _list(self, above: str, descriptor: int, *, levels: int) -> None:
        with os.scandir(descriptor) as entries:
            for entry in entries:
                name = tar.clean(f"{above}{entry.name}")
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(status.st_mode) and levels > 1:
                    self._list_inner(name, os.open(entry.name, _FOLDER_FLAGS, dir_fd=descriptor), levels=levels - 1)
                elif stat.S_ISLNK(status.st_mode):
                    self._links[name] = os.readlink(entry.name, dir_fd=descriptor)
                elif stat.S_ISREG(status.st_mode) and name:
                    self._sizes[name] = status.st_size
                if len(self._sizes) + len(self._links) > tar.MAX_MEMBERS:
                    raise DocumentError(self.what, [f"has more than {tar.MAX_MEMBERS} files"])

    def _list_inner(self, name: str, descriptor: int, *, levels: int) -> None:
        is_kept = len(self._folders) < _MOST_OPEN
        with contextlib.ExitStack() as briefly:
            (self._stack if is_kept else briefly).callback(os.close, descriptor)
            if is_kept:
                self._folders[name] = descriptor
            self._list(f"{name}/", descriptor, levels=levels)
