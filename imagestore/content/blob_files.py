"""Files of blobs: opening (if the disk can't read one, the error names the content), names and listing."""

from __future__ import annotations

import contextlib
import errno
import io
import itertools
import os
import re
import stat
from typing import TYPE_CHECKING, Final

from imagestore.content.api import ContentInfo
from imagestore.errors import AlreadyExistsError, ContentUnreadableError, StoreCorruptError
from imagestore.oci.digest import VERIFIABLE
from imagestore.util.disk_errors import translated

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import BinaryIO

    from _typeshed import WriteableBuffer

    from imagestore.oci.digest import Digest

#: What systems say of bytes that are lost: by the device, or by a file system that finds its own notes wrong.
#: EUCLEAN is Linux's.
LOST: Final = {errno.EIO, getattr(errno, "EUCLEAN", errno.EIO), errno.EBADMSG, errno.ENODATA, errno.EILSEQ}
_DIGITS: Final = b"0123456789abcdef"
_HEX: Final = re.compile(r"[a-f0-9]+")
#: Names of a folder that are looked at together.
_AT_ONCE: Final = 1024


def open_blob(path: str, digest: Digest) -> BinaryIO:
    """Open a blob's file, buffered; no link is followed, since the bytes behind a link weren't verified.

    Raises:
        ContentUnreadableError: the disk can't read what is needed for that.
    """
    with damage_named(digest):
        return io.BufferedReader(_BlobFile(path, digest))


@contextlib.contextmanager
def damage_named(digest: Digest) -> Iterator[None]:
    """Around reads of a blob's file: errors name the content.

    Raises:
        ContentUnreadableError: the disk can't read it.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in LOST:
            raise
        raise ContentUnreadableError(f"content {digest}", error.strerror or str(error)) from error


class _BlobFile(io.FileIO):
    def __init__(self, path: str, digest: Digest) -> None:
        self._digest = digest
        super().__init__(path, "rb", opener=_without_links)

    def readinto(self, buffer: WriteableBuffer, /) -> int | None:
        """See io.RawIOBase."""
        with damage_named(self._digest):
            return super().readinto(buffer)

    def readall(self) -> bytes:
        """See io.RawIOBase."""
        with damage_named(self._digest):
            return super().readall()

    def close(self) -> None:
        """See io.RawIOBase."""
        with translated("close its file", f"content {self._digest}"):
            super().close()


def _without_links(path: str, flags: int) -> int:
    # Not to wait for the other end of a pipe that was put in a blob's place.
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)


def check_name_free(path: Path, digest: Digest) -> None:
    """Check that no blob has this name already; one call, since a collection may remove it between two.

    Raises:
        AlreadyExistsError: a blob has it.
        StoreCorruptError: something that is no file has it.
    """
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode):
        raise StoreCorruptError(f"{path}: expected a blob's file, found something else")
    raise AlreadyExistsError(f"content {digest} is in the store already")


def is_name(algorithm: str, name: str) -> bool:
    """Whether a file of this name in this algorithm's folder is a blob's."""
    return len(name) == VERIFIABLE.get(algorithm) and _HEX.fullmatch(name) is not None


def info_of(digest: Digest, status: os.stat_result) -> ContentInfo:
    """What the status of a blob's file says of it."""
    return ContentInfo(digest, status.st_size, status.st_mtime, status.st_nlink > 1)


def entries(blobs: Path) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Everything in the folders of the known algorithms, blob or not, with the algorithm."""
    for algorithm in sorted(VERIFIABLE):
        folder = blobs / algorithm
        with translated("list", folder), contextlib.suppress(FileNotFoundError), os.scandir(folder) as found:
            for entry in found:
                yield algorithm, entry


def names(blobs: Path) -> Iterator[str]:
    """Every blob's digest in text form, in no particular order; no file is looked at."""
    return itertools.chain.from_iterable(_names_by_part(blobs))


def _names_by_part(blobs: Path) -> Iterator[list[str]]:
    """Some hundred at a time: a collection reads half a million, and a step of Python for each would cost the most."""
    for algorithm, length in sorted(VERIFIABLE.items()):
        folder = blobs / algorithm
        with translated("list", folder), contextlib.suppress(FileNotFoundError), os.scandir(folder) as found:
            while part := list(itertools.islice(found, _AT_ONCE)):
                listed = [entry.name for entry in part if entry.is_file(follow_symlinks=False)]
                others = "".join(listed).encode("ascii", "replace").translate(None, _DIGITS)
                if others or set(map(len, listed)) != {length}:
                    listed = [name for name in listed if is_name(algorithm, name)]
                yield [f"{algorithm}:{name}" for name in listed]
