"""The members of an archive, whatever holds them: a tar file, a folder, a pipe, compressed or not.

Nothing is unpacked. A tar file is read at the places its headers name; a folder's files are opened one name at a time
from its top, following no symbolic link. What can't be read at any place (pipes, compressed files) goes through a
nameless temporary file inside the store, which is gone when the import ends, however it ends.
"""

from __future__ import annotations

import contextlib
import functools
import os
import stat
from typing import TYPE_CHECKING, Final, Protocol

from imagestore.errors import DocumentError, InvalidInputError, SizeMismatchError
from imagestore.store.archive import tar
from imagestore.store.archive.compressions import HEAD_BYTES, compression_of
from imagestore.store.archive.spool import spool

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping
    from pathlib import Path

    from imagestore.util.cancel import CancelToken

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

    @property
    def others(self) -> Mapping[str, str]:
        """What is neither a file, a folder nor a symbolic link, by name: "a FIFO"."""

    def sizes(self) -> Mapping[str, int]:
        """Every file with its size in bytes."""

    def place(self, name: str) -> str:
        """A name that a document of the archive has, as names are here; empty when it leaves the archive."""

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
    size = size_of(source, name)
    if size > limit_bytes:
        raise DocumentError(source.what, [f"{name!r} is {size} bytes long, more than the {limit_bytes} allowed"])
    return b"".join(source.chunks(name))


def first_in(names: Collection[str], path: str) -> str:
    """The first of a path and the folders above it that is among some names; empty when none is."""
    parts = path.split("/")
    above = ("/".join(parts[:count]) for count in range(1, len(parts) + 1))
    return next((each for each in above if each in names), "")


def size_of(source: Source, name: str) -> int:
    """The size of a file that is needed, in bytes.

    Raises:
        DocumentError: there is no such file, or it is none.
    """
    size = source.sizes().get(name)
    if size is not None:
        return size
    if linked := first_in(source.links, name):
        fault = f"{linked!r} is a symbolic link, and links are not followed here"
    elif other := first_in(source.others, name):
        fault = f"{other!r} is {source.others[other]}, expected {'a file' if other == name else 'a folder'}"
    else:
        fault = f"has no file {name!r}"
    raise DocumentError(source.what, [fault])


def path_of(archive: str | os.PathLike[str]) -> str:
    """An archive's path as text.

    Raises:
        InvalidInputError: it is none.
    """
    path = os.fspath(archive)
    if not path or "\0" in path:
        raise InvalidInputError(
            f"archive {path!r}: is no path", hint="name a file, a folder, a pipe, or - for a stream"
        )
    return path


@contextlib.contextmanager
def opened(path: str, *, scratch: Path, limit_bytes: int, cancel: CancelToken) -> Iterator[Source]:
    """Open an archive for a block of work.

    Args:
        path: a folder, a file or a pipe; ``-`` is standard input.
        scratch: folder of the nameless temporary file for what can't be read at any place.
        limit_bytes: the most that file may take.

    Raises:
        InvalidInputError: the path can't be opened.
        DocumentError: it is no archive, or holds what is refused.
        StoreFullError: the temporary file would become too large.
    """
    what = "archive on standard input" if path == STDIN else f"archive {path}"
    with contextlib.ExitStack() as stack:
        with _readable(what):
            descriptor = os.dup(0) if path == STDIN else os.open(path, _ARCHIVE_FLAGS)
            stack.callback(os.close, descriptor)
            kind = os.fstat(descriptor).st_mode
            head = os.pread(descriptor, HEAD_BYTES, 0) if stat.S_ISREG(kind) else b""
        if stat.S_ISDIR(kind):
            yield FolderSource(descriptor, what, stack)
            return
        if stat.S_ISREG(kind) and path != STDIN and not compression_of(head):
            yield TarSource(functools.partial(_read_at, descriptor, what), what, cancel)
            return
        spooled = stack.enter_context(
            spool(descriptor, folder=scratch, limit_bytes=limit_bytes, what=what, cancel=cancel)
        )
        source = TarSource(spooled.read, what, cancel)
        spooled.drain()
        yield source


def _read_at(descriptor: int, what: str, offset: int, size: int) -> bytes:
    with _readable(what):
        return os.pread(descriptor, size, offset)


@contextlib.contextmanager
def _readable(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InvalidInputError(f"{what}: can't be read: {os.strerror(error.errno or 0)}") from error


class TarSource:
    """The files of a tar archive.

    Args:
        read: gives so many bytes (second argument) at an offset (first), fewer at the end.

    Raises:
        DocumentError: as tar.scan().
    """

    def __init__(self, read: Callable[[int, int], bytes], what: str, cancel: CancelToken) -> None:
        self.what = what
        self._read = read
        if not read(0, 1):
            raise DocumentError(what, ["is empty"])
        table = tar.scan(read, what, cancel)
        self._files = table.files
        self._sizes = {name: span.size for name, span in table.files.items()}
        self.links, self.others = table.links, table.others

    def sizes(self) -> Mapping[str, int]:
        """Every file with its size in bytes."""
        return self._sizes

    def place(self, name: str) -> str:
        """As the members' own names."""
        return tar.member_name(name)

    def chunks(self, name: str, offset: int = 0) -> Iterator[bytes]:
        """A file's bytes from an offset on."""
        size_of(self, name)
        span = self._files[name]
        for place, size in span.parts(offset, _PIECE):
            piece = bytes(size) if place is None else self._read(place, size)
            offset += len(piece)
            if piece:
                yield piece
            if len(piece) < size:
                raise SizeMismatchError(f"{self.what}: {name}", expected=span.size, actual=offset)


class FolderSource:
    """The files of a folder, three levels deep at most: what an OCI layout has.

    Args:
        descriptor: the open folder; stays the caller's.
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
        self.links: dict[str, str] = {}
        self.others: dict[str, str] = {}
        with _readable(what):
            self._list("", descriptor, levels=3)

    def sizes(self) -> Mapping[str, int]:
        """Every file with its size in bytes."""
        return self._sizes

    def place(self, name: str) -> str:
        """Below the folder; an absolute name would be a file of this machine."""
        return tar.clean(name)

    def chunks(self, name: str, offset: int = 0) -> Iterator[bytes]:
        """A file's bytes from an offset on."""
        size = size_of(self, name)
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
                    self._list_inner(name, entry.name, descriptor, levels=levels - 1)
                elif stat.S_ISLNK(status.st_mode):
                    self.links[name] = os.readlink(entry.name, dir_fd=descriptor)
                elif stat.S_ISREG(status.st_mode) and name:
                    self._sizes[name] = status.st_size
                elif not stat.S_ISDIR(status.st_mode) and name:
                    self.others[name] = "no plain file"
                if len(self._sizes) + len(self.links) + len(self.others) > tar.MAX_MEMBERS:
                    raise DocumentError(self.what, [f"has more than {tar.MAX_MEMBERS} files"])

    def _list_inner(self, name: str, last: str, above: int, *, levels: int) -> None:
        try:
            descriptor = os.open(last, _FOLDER_FLAGS, dir_fd=above)
        except PermissionError:
            self.others[name] = "a folder that can't be read"
            return
        is_kept = len(self._folders) < _MOST_OPEN
        with contextlib.ExitStack() as briefly:
            (self._stack if is_kept else briefly).callback(os.close, descriptor)
            if is_kept:
                self._folders[name] = descriptor
            self._list(f"{name}/", descriptor, levels=levels)
