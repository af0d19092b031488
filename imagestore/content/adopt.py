"""Adopting: taking content from another store on this machine instead of fetching it.

A *source* is a folder with ``blobs/<algorithm>/<hex>``, as containerd's content store and OCI image layouts have it. It
is only read. Whatever is adopted is hashed first, and takes the cheapest of three ways: a reflink (shares the disk
blocks, not the file), a hard link to a file that no user may write, a copy.
"""

from __future__ import annotations

import contextlib
import os
import stat
from typing import TYPE_CHECKING, Final

from imagestore.content.api import Adoption
from imagestore.errors import AlreadyExistsError, IntegrityError
from imagestore.oci.digest import Verifier
from imagestore.util.disk_errors import translated
from imagestore.util.failpoint import reach
from imagestore.util.file_calls import reflink
from imagestore.util.files import make_directory, sync_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from imagestore.content.ingest import LocalIngestWriter
    from imagestore.oci.digest import Digest
    from imagestore.util.cancel import CancelToken

_CHUNK_BYTES: Final = 1024 * 1024
_ANY_WRITE: Final = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH


def adopt(
    sources: Sequence[Path],
    digest: Digest,
    size: int,
    blob: Path,
    open_writer: Callable[[], LocalIngestWriter],
    cancel: CancelToken,
) -> Adoption | None:
    """Take a blob from a source, hashed first; None when no source has it whole, or another writer brought it first."""
    for source in sources:
        named = _name_in(source, digest)
        with _opened(named, size) as descriptor:
            if descriptor is None or not _is_right(descriptor, digest, size, cancel):
                continue
            try:
                with open_writer() as writer:
                    return _adopt_into(writer, descriptor, named, digest, size, blob, cancel)
            except AlreadyExistsError:
                return None
            except IntegrityError:  # changed, or became unreadable, since it was hashed
                continue
    return None


def _adopt_into(
    writer: LocalIngestWriter,
    descriptor: int,
    named: Path,
    digest: Digest,
    size: int,
    blob: Path,
    cancel: CancelToken,
) -> Adoption:
    writer.truncate()
    how = Adoption.REFLINK
    try:
        if not writer.clone(lambda data: reflink(data, descriptor)):
            with translated("adopt into", blob):
                is_linked = hard_link(descriptor, named, blob, writer.directory / "linked")
            if is_linked:
                writer.abort()
                return Adoption.HARD_LINK
            how = Adoption.COPY
            for chunk in _chunks(descriptor, size, cancel):
                writer.write(chunk)
        writer.commit(digest, size)
    except IntegrityError:
        writer.abort()
        raise
    return how


def is_at(sources: Sequence[Path], digest: Digest, size: int) -> bool:
    """Whether a source has a file of this name and size; adopt() hashes it before it counts."""
    for source in sources:
        with _opened(_name_in(source, digest), size) as descriptor:
            if descriptor is not None:
                return True
    return False


def _name_in(source: Path, digest: Digest) -> Path:
    return source / "blobs" / digest.algorithm / digest.encoded


@contextlib.contextmanager
def _opened(path: Path, size: int) -> Iterator[int | None]:
    """A source's file of a blob, open for reading; None when there is none of that size."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        yield None
        return
    try:
        status = os.fstat(descriptor)
        yield descriptor if stat.S_ISREG(status.st_mode) and status.st_size == size else None
    finally:
        os.close(descriptor)


def _is_right(descriptor: int, digest: Digest, size: int, cancel: CancelToken) -> bool:
    """Whether an open file has the bytes of a digest; False if it can't be read."""
    verifier = Verifier(digest, size)
    try:
        for chunk in _chunks(descriptor, size + 1, cancel):
            verifier.update(chunk)
        verifier.finish()
    except IntegrityError:
        return False
    return True


def _chunks(descriptor: int, most_bytes: int, cancel: CancelToken) -> Iterator[bytes]:
    """A source's bytes, at most ``most_bytes``.

    Raises:
        IntegrityError: they can't be read. A source's bad disk is no reason to fail: the bytes are elsewhere too.
    """
    offset = 0
    while offset < most_bytes:
        cancel.check()
        try:
            chunk = os.pread(descriptor, min(_CHUNK_BYTES, most_bytes - offset), offset)
        except OSError as error:
            raise IntegrityError(f"source of adoption: can't be read: {error.strerror}") from error
        if not chunk:
            return
        yield chunk
        offset += len(chunk)


def hard_link(descriptor: int, named: Path, target: Path, waiting: Path) -> bool:
    """Hard-link an open, verified, read-only file into our folder; returns whether that was possible.

    Args:
        waiting: a name in the ingest's folder, for the moment between.
    """
    status = os.fstat(descriptor)
    if status.st_mode & _ANY_WRITE or status.st_uid not in (0, os.geteuid()):
        return False
    make_directory(target.parent)
    # Linked under another name first: the name a blob has must never lead to a file that was swapped since then.
    try:
        os.fsync(descriptor)
        # A process may have died between the two names.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(waiting)
        reach("adopt-link")
        os.link(named, waiting, follow_symlinks=False)
    except OSError:
        return False
    linked = os.stat(waiting, follow_symlinks=False)
    if (linked.st_dev, linked.st_ino) != (status.st_dev, status.st_ino):
        os.unlink(waiting)
        return False
    reach("adopt-rename")
    os.rename(waiting, target)
    sync_directory(target.parent)
    return True
