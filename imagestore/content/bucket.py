"""Blobs in an S3-compatible bucket, by digest: read from an offset, written only if they verify, signed for others.

The object of a blob is ``blobs/<algorithm>/<hex>`` below the bucket's prefix. It is visible once it is whole: a small
one comes in one PUT, a large one in parts, whose last one is held back until the digest of all is right. Uploads that a
killed process left behind are for the bucket's own lifecycle rule (AbortIncompleteMultipartUpload).

The library's threads don't live through a fork, and it would hang in the child; so a child is refused.
"""

from __future__ import annotations

import contextlib
import os
import re
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from imagestore.content.api import ContentInfo
from imagestore.content.blob_files import is_name
from imagestore.errors import (
    AlreadyExistsError,
    ConfigError,
    ContentNotFoundError,
    PreconditionError,
    SizeMismatchError,
    StoreError,
    StoreFullError,
)
from imagestore.oci.digest import Digest, Verifier

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO, Self

    from obstore.store import S3Store

    from imagestore.config.model import BucketSettings
    from imagestore.util.cancel import CancelToken

_URL: Final = re.compile(
    r"s3://(?P<bucket>[a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/(?P<prefix>[!-.0-~]+(?:/[!-.0-~]+)*))?/?"
)
#: Names the store whose prefix it is.
_OWNER: Final = "owner"
#: Smaller blobs go in one PUT, which leaves nothing behind.
_SMALL_BYTES: Final = 8 * 1024 * 1024
#: Parts under way at once, and their size: what an upload takes of memory.
_PARTS: Final = 4
_CHUNK_BYTES: Final = 1024 * 1024
_CONNECT: Final = timedelta(seconds=5)
_STALL: Final = timedelta(seconds=30)
#: A transfer as a whole; the library counts the reading of a body, however slow its reader is.
_WHOLE: Final = timedelta(hours=12)
_RETRIES: Final = 5
_RETRY: Final = timedelta(seconds=10)


class Bucket:
    """A bucket's blobs; thread-safe, for one process.

    Args:
        settings: where it is.

    Raises:
        ConfigError: the URL, or a file of a key, can't be used; or the library isn't installed.
    """

    def __init__(self, settings: BucketSettings) -> None:
        found = _URL.fullmatch(settings.url)
        if found is None:
            raise ConfigError(f"bucket {settings.url!r}: expected s3://BUCKET or s3://BUCKET/PREFIX")
        try:
            import obstore
        except ImportError as error:
            raise ConfigError(
                f"bucket {settings.url}: expected the package obstore, it is not installed",
                hint="pip install 'imagestore[s3]'",
            ) from error
        self._obstore: Any = obstore
        self.url = settings.url.rstrip("/")
        self._process = os.getpid()
        self._store = _store(found["bucket"], found["prefix"] or "", settings, settings.endpoint)
        public = settings.public_endpoint or settings.endpoint
        self._signer = _store(found["bucket"], found["prefix"] or "", settings, public)

    def check(self) -> None:
        """See whether the bucket is there and can be read.

        Raises:
            ConfigError: it isn't there, or the credentials are refused.
            StoreError: it can't be asked now.
        """
        self._check_process()
        try:
            with _Translated(self.url, "the bucket"):
                # The library tells a refusal of one object, but not one of a list.
                with contextlib.suppress(FileNotFoundError):
                    self._obstore.head(self._store, "blobs/none")
                next(iter(self._obstore.list(self._store, chunk_size=1)), None)
        except ContentNotFoundError:
            raise ConfigError(f"{self.url}: there is no such bucket", hint="make it, or correct its name") from None
        except PreconditionError as error:
            raise ConfigError(str(error), hint=error.hint) from None

    def find(self, digest: Digest) -> ContentInfo | None:
        """A blob's size in bytes and its time; None where it isn't there.

        Raises:
            PreconditionError: the credentials are refused.
            StoreError: the bucket can't be asked.
        """
        self._check_process()
        try:
            with _Translated(self.url, str(digest)):
                return _info(digest, self._obstore.head(self._store, _key(digest)))
        except ContentNotFoundError:
            return None

    def size(self, digest: Digest) -> int | None:
        """A blob's size in bytes; as find()."""
        found = self.find(digest)
        return None if found is None else found.size

    def walk(self) -> Iterator[ContentInfo]:
        """Every blob, in no particular order; objects that no digest names are left alone.

        Raises:
            PreconditionError: the credentials are refused.
            StoreError: the bucket can't be asked.
        """
        self._check_process()
        with _Translated(self.url, "the list of its blobs"):
            for some in self._obstore.list(self._store, prefix="blobs"):
                for meta in some:
                    _, algorithm, encoded = (*meta["path"].split("/"), "", "")[:3]
                    if is_name(algorithm, encoded) and meta["path"] == f"blobs/{algorithm}/{encoded}":
                        yield _info(Digest(algorithm, encoded), meta)

    def delete(self, digest: Digest) -> int | None:
        """Remove a blob; its size in bytes, None when it wasn't there.

        Raises:
            PreconditionError: the credentials are refused.
            StoreError: the bucket can't be asked.
        """
        size = self.size(digest)
        if size is not None:
            with _Translated(self.url, str(digest)):
                self._obstore.delete(self._store, _key(digest))
        return size

    def claim(self, owner: str) -> str:
        """Write a name into an empty prefix, once for ever; the name that is there.

        Raises:
            PreconditionError: there are blobs and no name; or the credentials are refused.
            StoreError: the bucket can't be asked.
        """
        self._check_process()
        with contextlib.suppress(ContentNotFoundError), _Translated(self.url, _OWNER):
            return bytes(self._obstore.get(self._store, _OWNER).bytes()).decode("utf-8", "replace")
        if next(self.walk(), None) is not None:
            raise PreconditionError(
                f"{self.url}: has blobs of somebody else, a mirror perhaps", hint="give this store a prefix of its own"
            )
        try:
            with _Translated(self.url, _OWNER):
                self._obstore.put(self._store, _OWNER, owner.encode(), mode="create", use_multipart=False)
        except AlreadyExistsError:
            return self.claim(owner)
        return owner

    def open(self, digest: Digest, size: int, *, offset: int, cancel: CancelToken) -> BucketReader:
        """A blob's bytes from an offset on.

        Raises:
            ContentNotFoundError: it isn't there.
            SizeMismatchError: what is there has another size.
            PreconditionError: the credentials are refused.
            StoreError: the bucket can't be asked.
        """
        self._check_process()
        with _Translated(self.url, str(digest)):
            result = self._obstore.get(self._store, _key(digest), options={"range": {"offset": offset}})
            if result.meta["size"] != size:
                raise SizeMismatchError(f"{digest} in {self.url}", expected=size, actual=result.meta["size"])
            return BucketReader(self.url, digest, offset, iter(result.stream(_CHUNK_BYTES)), cancel)

    def put(self, digest: Digest, size: int, file: BinaryIO, *, cancel: CancelToken) -> None:
        """Bring a blob there; it appears only if its bytes are right.

        Args:
            digest: of the blob.
            size: in bytes.
            file: gives its bytes.
            cancel: ends it; nothing stays.

        Raises:
            IntegrityError: the file has other bytes.
            StoreError: the bucket doesn't take it.
            OperationCancelledError: cancelled.
        """
        self._check_process()
        pieces = _verified(digest, size, file, cancel)
        with _Translated(self.url, str(digest)):
            if size <= _SMALL_BYTES:
                self._obstore.put(self._store, _key(digest), b"".join(pieces), use_multipart=False)
            else:
                self._obstore.put(self._store, _key(digest), pieces, chunk_size=_SMALL_BYTES, max_concurrency=_PARTS)

    def signed(self, digest: Digest, seconds: float) -> str:
        """A URL at which anybody can read a blob for so long; nothing is asked."""
        self._check_process()
        with _Translated(self.url, str(digest)):
            return str(self._obstore.sign(self._signer, "GET", _key(digest), timedelta(seconds=seconds)))

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("a bucket has secrets and threads, and can't be pickled")

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise StoreError(
                f"{self.url}: this process was forked after the bucket was opened",
                hint="start processes by spawn, and open the bucket in each",
            )


class BucketReader:
    """A blob's bytes in order, from ``start`` on; close it."""

    def __init__(self, url: str, digest: Digest, start: int, pieces: Iterator[Any], cancel: CancelToken) -> None:
        self._url = url
        self._digest = digest
        self._pieces = pieces
        self._cancel = cancel
        self._rest = memoryview(b"")
        #: Offset of the first byte.
        self.start = start
        #: None: there is no other host to ask instead.
        self.hosts: tuple[str, ...] = ()

    def readinto(self, buffer: memoryview) -> int:
        """Put the next bytes into a buffer; 0 only at the end.

        Raises:
            StoreError: the bucket breaks off.
            OperationCancelledError: cancelled.
        """
        self._cancel.check()
        if not self._rest:
            with _Translated(self._url, str(self._digest)):
                self._rest = memoryview(bytes(next(self._pieces, b"")))
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count

    def close(self) -> None:
        """Give up the connection."""
        self._pieces = iter(())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Translated:
    """The library's errors, of many lines with URLs, become ours of one line."""

    def __init__(self, url: str, what: str) -> None:
        self._url = url
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if isinstance(error, FileNotFoundError):
            raise ContentNotFoundError(f"{self._what}: is not in {self._url}") from None
        if error is None or not type(error).__module__.startswith("obstore"):
            return
        name = type(error).__name__
        if name == "AlreadyExistsError":
            raise AlreadyExistsError(f"{self._what}: is in {self._url} already") from None
        # These two have no classes of their own.
        if "NoSuchBucket" in str(error):
            raise ContentNotFoundError(f"{self._url}: there is no such bucket") from None
        if "QuotaExceeded" in str(error):
            raise StoreFullError(f"{self._what}: {self._url} has reached its quota") from None
        if name in {"PermissionDeniedError", "UnauthenticatedError"}:
            hint = "look at the access key, and at what it may do in this bucket"
            raise PreconditionError(f"{self._what}: {self._url} refuses the credentials", hint=hint) from None
        raise StoreError(f"{self._what}: {self._url} can't be asked ({name})") from None


def _info(digest: Digest, meta: Any) -> ContentInfo:
    return ContentInfo(digest, int(meta["size"]), meta["last_modified"].timestamp())


def _key(digest: Digest) -> str:
    return f"blobs/{digest.algorithm}/{digest.encoded}"


def _verified(digest: Digest, size: int, file: BinaryIO, cancel: CancelToken) -> Iterator[bytes]:
    """Pieces of their own, since the library sends them later; the last one only when all are right."""
    verifier, held = Verifier(digest, size), b""
    while piece := file.read(_CHUNK_BYTES):
        cancel.check()
        verifier.update(piece)
        if held:
            yield held
        held = piece
    verifier.finish()
    yield held


def _store(bucket: str, prefix: str, settings: BucketSettings, endpoint: str) -> S3Store:
    from obstore.store import S3Store

    files = {"access_key_id": settings.access_key_file, "secret_access_key": settings.secret_key_file}
    given: dict[str, Any] = {name: _secret(path) for name, path in files.items() if path}
    if endpoint:
        given["endpoint"] = endpoint
    return S3Store(
        bucket,
        prefix=prefix or None,
        region=settings.region,
        virtual_hosted_style_request=not endpoint,
        client_options={
            "allow_http": endpoint.startswith("http://"),
            "connect_timeout": _CONNECT,
            "read_timeout": _STALL,
            "timeout": _WHOLE,
        },
        retry_config={"max_retries": _RETRIES, "retry_timeout": _RETRY},
        **given,
    )


def _secret(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(4096).strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is no text"
        raise ConfigError(f"{path}: can't be read: {reason}") from None
    if not text or not text.isprintable():
        raise ConfigError(f"{path}: expected a key on one line")
    return text
