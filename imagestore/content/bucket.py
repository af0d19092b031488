"""Blobs in an S3-compatible bucket, by digest: read from an offset, written only if they verify, signed for others.

The object of a blob is ``blobs/<algorithm>/<hex>`` below the bucket's prefix, unless the caller gives it another key,
which then begins so and has one more part. It is visible once it is whole: a small one comes in one PUT, a large one in
parts, whose last one is held back until the digest of all is right. Uploads that a killed process left behind are for
the bucket's own lifecycle rule (AbortIncompleteMultipartUpload).

The library's threads don't live through a fork, and it would hang in the child; so a child is refused.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
from datetime import timedelta
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, Protocol

from imagestore.content.api import ContentInfo
from imagestore.content.blob_files import is_name
from imagestore.content.bucket_access import URL, is_endpoint, part_bytes, s3_store
from imagestore.content.bucket_errors import BucketErrors, NoBucketError, RefusedRequestError
from imagestore.errors import (
    AlreadyExistsError,
    ConfigError,
    ContentNotFoundError,
    ContentUnavailableError,
    PreconditionError,
    SizeMismatchError,
    StoreError,
)
from imagestore.oci.digest import Digest, Verifier
from imagestore.util.distribution import install_hint
from imagestore.util.logins import without_login

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Self

    from imagestore.config.model import BucketSettings
    from imagestore.util.cancel import CancelToken

#: Names the store whose prefix it is.
_OWNER: Final = "owner"
_MOST_OWNER_BYTES: Final = 200
_CLAIMS: Final = 3
#: Smaller blobs go in one PUT, which leaves nothing behind.
_SMALL_BYTES: Final = 8 * 1024 * 1024
#: Parts under way at once. A part has as many bytes as a small blob, or a whole number of pieces that leads to no more
#: parts than S3 allows; both together are what an upload takes of memory.
_PARTS: Final = 4
_CHUNK_BYTES: Final = 1024 * 1024


log = logging.getLogger(__name__)


class Readable(Protocol):
    """What an upload reads."""

    def read(self, count: int, /) -> bytes:
        """The next bytes, as many at most; none at the end."""


class Bucket:
    """A bucket's blobs; thread-safe, for one process.

    Every method raises PreconditionError if the credentials are refused, and StoreError if it doesn't answer.

    Raises:
        ConfigError: the URL, or a file of a key, can't be used; or the library isn't installed.
    """

    def __init__(self, settings: BucketSettings) -> None:
        found = URL.fullmatch(settings.url)
        if found is None:
            raise ConfigError(
                f"bucket {without_login(settings.url)!r}: expected s3://BUCKET or s3://BUCKET/PREFIX",
                hint="a bucket's name is of 3 to 255 letters, digits, '.', '-' and '_'; no part of a prefix is '..'",
            )
        try:
            import obstore
        except ImportError as error:
            raise ConfigError(
                f"bucket {settings.url}: expected the package obstore, it is not installed",
                hint=install_hint("s3"),
            ) from error
        for endpoint in (settings.endpoint, settings.public_endpoint):
            if endpoint and not is_endpoint(endpoint):
                raise ConfigError(
                    f"bucket {settings.url}: an endpoint can't be used", hint="write https://HOST:PORT, without a login"
                )
        self._obstore: Any = obstore
        self.url = settings.url.rstrip("/")
        self._process = os.getpid()
        connected = functools.partial(s3_store, found["bucket"], found["prefix"] or "", settings)
        self._store = connected(settings.endpoint)
        # For what is small: a collection waits for it while others wait for the database.
        self._quick = connected(settings.endpoint, is_quick=True)
        self._single = connected(settings.endpoint, is_quick=True, has_bulk_delete=False)
        self._has_bulk_delete = True
        self._signer = connected(settings.public_endpoint or settings.endpoint)

    def check(self) -> None:
        """Check that the bucket exists and can be read.

        Raises:
            ConfigError: it isn't there, or the credentials are refused.
        """
        try:
            self._see()
            self._head("blobs/none", "the bucket")
        except (NoBucketError, PreconditionError) as error:
            raise ConfigError(str(error), hint=error.hint) from None

    def find(self, digest: Digest) -> ContentInfo | None:
        """A blob's size in bytes and its time; None where it isn't there."""
        meta = self._head(blob_key(digest), str(digest))
        return None if meta is None else _info(digest, meta)

    def size(self, digest: Digest) -> int | None:
        """A blob's size in bytes; None where it isn't there."""
        found = self.find(digest)
        return None if found is None else found.size

    def e_tag(self, digest: Digest) -> str:
        """Differs between two objects that had the same name; empty where there is none."""
        meta = self._head(blob_key(digest), str(digest))
        return "" if meta is None else str(meta["e_tag"] or "")

    def has_object(self, key: str) -> bool:
        """Whether there is an object of this key."""
        return self._head(key, key) is not None

    def _head(self, key: str, what: str) -> Any | None:
        try:
            with self._asking(what):
                return self._obstore.head(self._quick, key)
        except ContentNotFoundError:
            return None
        except (PreconditionError, RefusedRequestError):
            self._see()  # the answer to a HEAD has no body, which would say why
            raise

    def walk(self) -> Iterator[ContentInfo]:
        """Every blob whose key is that of its digest, in no particular order; other objects are left alone."""
        return (info for key, info in self.objects() if key == blob_key(info.digest))

    def objects(self) -> Iterator[tuple[str, ContentInfo]]:
        """The key of every object that is a blob's, in no particular order, and which blob it is."""
        with self._asking("the list of its blobs"):
            for some in self._obstore.list(self._quick, prefix="blobs"):
                self._check_process()
                for meta in some:
                    _, algorithm, encoded = (*meta["path"].split("/"), "", "")[:3]
                    if is_name(algorithm, encoded):
                        yield meta["path"], _info(Digest(algorithm, encoded), meta)

    def delete(self, digest: Digest) -> int | None:
        """Remove a blob; its size in bytes, None when it wasn't there."""
        size = self.size(digest)
        if size is None:
            self._see()  # no bucket isn't no blob
        else:
            self._delete(blob_key(digest), str(digest))
        return size

    def delete_objects(self, keys: Sequence[str]) -> None:
        """Remove objects by their keys, at most 1,000; those that aren't there don't matter.

        They go in one request, or one by one where the service doesn't take that.

        Raises:
            PreconditionError, StoreError: a request failed; some may be gone.
        """
        if self._has_bulk_delete and len(keys) > 1:
            try:
                with self._asking(f"{keys[0]} and others"):
                    self._obstore.delete(self._quick, list(keys))
                return
            except (ContentNotFoundError, PreconditionError, ContentUnavailableError) as error:
                log.info("%s; deleting one by one", error)
        for key in keys:
            self._delete(key, key)
        # Now it is known that the objects may be deleted, but not together.
        self._has_bulk_delete = self._has_bulk_delete and len(keys) < 2

    def _delete(self, key: str, what: str) -> None:
        with contextlib.suppress(ContentNotFoundError), self._asking(what):
            self._obstore.delete(self._single, key)

    def _see(self) -> None:
        with self._asking("the list of its blobs"):
            next(iter(self._obstore.list(self._quick, chunk_size=1)), None)

    def owner(self) -> str:
        """The name of the store that owns the prefix; empty where there is none."""
        options = {"range": (0, _MOST_OWNER_BYTES)}
        with contextlib.suppress(ContentNotFoundError), self._asking(_OWNER):
            return bytes(self._obstore.get(self._quick, _OWNER, options=options).bytes()).decode("utf-8", "replace")
        return ""

    def claim(self, owner: str, *, hint: str) -> None:
        """Write the owner's name into an empty prefix, once and for all.

        Raises:
            PreconditionError: the prefix is another store's (the hint says what to do), or has blobs and no name.
        """
        mode = "create"
        for left in range(_CLAIMS, -1, -1):
            if (found := self.owner()) or not left:
                break
            if next(self.objects(), None) is not None:
                raise PreconditionError(
                    f"{self.url}: has blobs that no store owns; a mirror's, perhaps",
                    hint="give this store a prefix of its own",
                )
            # What is there afterwards counts: not every service refuses a second one, or takes the condition.
            mode = self._try_to_claim(owner, mode if left > 1 else "overwrite")
        if not found:
            raise ContentUnavailableError(f"{self.url}: its owner was written, and isn't there")
        if found != owner:
            raise PreconditionError(f"{self.url}: belongs to another store ({found[:40]!r})", hint=hint)

    def _try_to_claim(self, owner: str, mode: str) -> str:
        """Write the owner's name; returns how to write it the next time, if it isn't there then."""
        try:
            with contextlib.suppress(AlreadyExistsError), self._asking(_OWNER):
                self._obstore.put(self._quick, _OWNER, owner.encode(), mode=mode, use_multipart=False)
        except (ContentNotFoundError, PreconditionError, RefusedRequestError) as error:
            if mode != "create" or isinstance(error, NoBucketError):
                raise
            if isinstance(error, RefusedRequestError) and error.status == HTTPStatus.CONFLICT:
                return mode  # perhaps with another one that claims it
            log.info("%s; the service has no conditional writes (If-None-Match)", error)
            return self._try_to_claim(owner, "overwrite")
        return mode

    def open(
        self, digest: Digest, size: int | None, *, offset: int, cancel: CancelToken, key: str = ""
    ) -> BucketReader:
        """A blob's bytes from an offset on.

        Args:
            size: what it must have in bytes; None for whatever it has.
            key: of its object; empty for ``blob_key()``.

        Raises:
            ContentNotFoundError: it isn't there.
            SizeMismatchError: what is there has another size.
        """
        # An empty object has no first byte to begin at.
        options = {"range": {"offset": offset}} if offset else {}
        with self._asking(str(digest)):
            result = self._obstore.get(self._store, key or blob_key(digest), options=options)
            if size is not None and result.meta["size"] != size:
                raise SizeMismatchError(f"{digest} in {self.url}", expected=size, actual=result.meta["size"])
            return BucketReader(self.url, digest, offset, result, cancel, self._check_process)

    def put(self, digest: Digest, size: int, file: Readable, *, cancel: CancelToken, key: str = "") -> None:
        """Upload a blob; it becomes visible only if its bytes are right.

        Args:
            cancel: ends it; nothing stays.
            key: of its object; empty for ``blob_key()``.

        Raises:
            IntegrityError: the file has other bytes.
            StoreError: the bucket doesn't take it.
        """
        pieces = _verified(digest, size, file, cancel)
        try:
            with self._asking(str(digest)):
                if size <= _SMALL_BYTES:
                    self._obstore.put(self._store, key or blob_key(digest), b"".join(pieces), use_multipart=False)
                else:
                    parts = {"chunk_size": part_bytes(size, _SMALL_BYTES), "max_concurrency": _PARTS}
                    self._obstore.put(self._store, key or blob_key(digest), pieces, **parts)
        except ContentNotFoundError:
            self._see()
            raise NoBucketError(self.url) from None

    def signed(self, digest: Digest, seconds: float, *, key: str = "") -> str:
        """A URL at which anyone can read a blob for this time; no request is sent."""
        with self._asking(str(digest)):
            path = key or blob_key(digest)
            return str(self._obstore.sign(self._signer, "GET", path, timedelta(seconds=seconds)))

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("a bucket has secrets and threads, and can't be pickled")

    def _asking(self, what: str) -> BucketErrors:
        self._check_process()
        return BucketErrors(self.url, what)

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise StoreError(
                f"{self.url}: this process was forked after the bucket was opened",
                hint="start processes by spawn, and open the bucket in each",
            )


class BucketReader:
    """A blob's bytes in order, from ``start`` on; close it."""

    def __init__(
        self, url: str, digest: Digest, start: int, result: Any, cancel: CancelToken, check_process: Callable[[], None]
    ) -> None:
        self._url = url
        self._digest = digest
        self._pieces: Iterator[Any] = iter(result.stream(_CHUNK_BYTES))
        self._cancel = cancel
        self._check_process = check_process
        self._rest = memoryview(b"")
        #: Bytes of the whole blob.
        self.size = int(result.meta["size"])
        #: Differs between two objects that had the same name.
        self.e_tag = str(result.meta["e_tag"] or "")
        #: Offset of the first byte.
        self.start = start
        #: Empty: there is no other host to try.
        self.hosts: tuple[str, ...] = ()

    def readinto(self, buffer: memoryview) -> int:
        """Put the next bytes into a buffer; 0 only at the end."""
        self._cancel.check()
        self._check_process()
        if not self._rest:
            with BucketErrors(self._url, str(self._digest)):
                self._rest = memoryview(bytes(next(self._pieces, b"")))
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count

    def close(self) -> None:
        """Close the connection."""
        self._pieces = iter(())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _info(digest: Digest, meta: Any) -> ContentInfo:
    # Whole seconds: the service reports no more of one object, but does in a list.
    return ContentInfo(digest, int(meta["size"]), float(int(meta["last_modified"].timestamp())))


def blob_key(digest: Digest) -> str:
    """Where the object of a blob is, below the bucket's prefix."""
    return f"blobs/{digest.algorithm}/{digest.encoded}"


def _verified(digest: Digest, size: int, file: Readable, cancel: CancelToken) -> Iterator[bytes]:
    """The file's pieces, each a new object since the library sends them later; the last one only if all verify."""
    verifier, held = Verifier(digest, size), b""
    while piece := _read(file):
        cancel.check()
        verifier.update(piece)
        if held:
            yield held
        held = piece
    verifier.finish()
    yield held


def _read(file: Readable) -> bytes:
    try:
        return file.read(_CHUNK_BYTES)
    except OSError as error:
        raise StoreError(f"what goes to the bucket can't be read: {error.strerror or error}") from error
