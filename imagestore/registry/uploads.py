"""Uploads one blob into a repository (OCI distribution specification 1.1, "Pushing blobs").

A blob that the repository has is not sent; one that another repository of the same registry has is mounted from there.
Both are attempts: if one fails, whatever the reason, the blob is sent.
A small blob is sent in one PUT. A large one is sent in one PATCH, which every registry accepts, since container tools
have long used it; if that is too large, in several. A PUT then asks the registry to verify the blob.

If the connection breaks, the registry is asked how much it has kept, and the upload resumes there. If the registry
doesn't report that, the upload starts again.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar
from urllib.parse import unquote, urlencode

from imagestore.errors import (
    ImageStoreError,
    OperationCancelledError,
    ProtocolError,
    RegistryError,
    SizeMismatchError,
)
from imagestore.events import BlobUploaded, BlobUploading
from imagestore.oci.digest import Verifier
from imagestore.oci.media_types import OCTETS
from imagestore.registry.errors_body import failure
from imagestore.registry.presence import is_there, named
from imagestore.registry.retry import is_transient
from imagestore.registry.session import Call, Content
from imagestore.registry.transport import urls

if TYPE_CHECKING:
    from imagestore.oci.descriptor import Descriptor
    from imagestore.registry.blobs import Transfer
    from imagestore.registry.session import Session
    from imagestore.registry.transport.messages import Response

    #: Opens a blob's bytes at an offset, or before it.
    Opener = Callable[[int], Transfer]

T = TypeVar("T")

_log = logging.getLogger(__name__)

#: Blobs up to this size are sent with one request after they were read and verified.
_SMALL_BYTES: Final = 1024 * 1024
_PIECE_BYTES: Final = 1024 * 1024
#: Bytes of one request after a larger one was refused: proxies have limits, often 100 MB.
_CHUNK_BYTES: Final = 32 * 1024 * 1024
_TOO_LARGE: Final = 413
#: A mount that isn't answered by then is given up, and the bytes are sent.
_MOUNT_SECONDS: Final = 120.0
#: The end of an upload's URL, as registries write it.
_UPLOAD: Final = re.compile(r"[A-Za-z0-9._=~-]*[A-Za-z0-9_=~-]")
_RANGE: Final = re.compile(r"(?:bytes=)?0-([0-9]{1,19})")


class _SourceError(Exception):
    """The bytes can't be read. ``error`` is that of the source, not of the registry that receives them."""

    def __init__(self, error: ImageStoreError) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass(slots=True)
class BlobUpload:
    """The upload of one blob into a repository; ``mount_from`` is one of the same registry that has it, or empty."""

    session: Session
    repository: str
    descriptor: Descriptor
    opener: Opener
    mount_from: str
    # The URL of the upload, which may be signed; empty before it has begun.
    _place: str = field(default="", init=False)
    # Most bytes of one request; None for no limit.
    _most: int | None = field(default=None, init=False)
    # Bytes sent, including those of failed tries.
    _sent: int = field(default=0, init=False)
    _reading: Generator[bytes] | None = field(default=None, init=False)
    # Verifies the bytes read so far, each byte once.
    _verifier: Verifier = field(init=False)

    def __post_init__(self) -> None:
        self._verifier = self._new_verifier()

    def run(self) -> BlobUploaded:
        """Upload the blob, unless the repository has it.

        Raises:
            RegistryError: refused, unreachable, or no sensible protocol; of either side.
            IntegrityError: the source's bytes aren't the descriptor's, or the registry has others.
            OperationCancelledError: cancelled, or past the deadline.
        """
        try:
            return BlobUploaded(self.descriptor, 0) if self._is_there() else self._sent_whole()
        finally:
            self._close_source()

    def _sent_whole(self) -> BlobUploaded:
        attempt = 0
        while True:
            try:
                start = self._kept() if self._place else 0
                if start is None:
                    self._place = ""
                    start = 0
                    # Perhaps the upload succeeded and only the answer was lost.
                    if self._is_there():
                        return BlobUploaded(self.descriptor, self._sent)
                if not self._place and not self._begin():
                    return BlobUploaded(self.descriptor, 0, self.mount_from)
                self.mount_from = ""
                self._send(start)
                return BlobUploaded(self.descriptor, self._sent)
            except _SourceError as failed:
                self._give_up()
                raise failed.error from failed.error.__cause__
            except RegistryError as error:
                attempt += 1
                if error.status == _TOO_LARGE and self._most is None and self.descriptor.size > _CHUNK_BYTES:
                    self._most = _CHUNK_BYTES
                    self._place = ""
                    continue
                # Without a location the failed request began the upload, and the session has retried it already.
                if not self._place or not self._will_wait(error, attempt):
                    raise

    def _will_wait(self, error: RegistryError, attempt: int) -> bool:
        """Wait if another try may succeed; otherwise return False."""
        is_lost = error.status in {404, 416}
        if attempt >= self.session.shared.policy.attempts or not (is_lost or is_transient(error)):
            return False
        return self.session.will_wait(error, attempt, error.retry_after)

    def _is_there(self) -> bool:
        """Whether the repository has the blob; if it doesn't say, the bytes are sent."""
        try:
            return is_there(replace(self.session, is_tried_once=True), self.repository, self.descriptor)
        except RegistryError as error:
            _log.debug("%s: sent, since looking for it failed: %s", self._what, error)
            return False

    def _begin(self) -> bool:
        """Begin an upload; False if the blob was mounted instead."""
        if self.mount_from:
            location = self._mounted()
            if location is None:
                return False
            self._place = location
        if not self._place:
            self._place = self.session.call(self._call("POST", "blobs/uploads/"), self._begun)
        return True

    def _mounted(self) -> str | None:
        """Try once to mount the blob: None if it is there, else the URL of an upload, or empty if it has to be begun.

        The client may not read the other repository, or the registry can't mount: whatever it is, the bytes are sent.
        """
        query = urlencode({"mount": str(self.descriptor.digest), "from": self.mount_from})

        def _judged(response: Response) -> str | None:
            path = unquote(response.headers.get("Location", "").partition("?")[0])
            is_blob = path.endswith(f"/blobs/{self.descriptor.digest}")
            if response.is_success and (is_blob or (response.status == 201 and "/uploads/" not in path)):
                response.close()
                return None
            return self._begun(response)

        with self.session.cancel.child(deadline_seconds=_MOUNT_SECONDS) as token:
            try:
                once = replace(self.session, cancel=token, is_tried_once=True)
                return once.call(replace(self._call("POST", "blobs/uploads/"), query=query), _judged)
            except (RegistryError, OperationCancelledError) as error:
                self.session.cancel.check()
                _log.debug("%s: sent, since it can't be mounted: %s", self._what, error)
                return ""

    def _begun(self, response: Response) -> str:
        """The URL at which an upload goes on, from any answer that means success."""
        with response:
            if not response.is_success:
                raise failure(response, what=self._what)
            return self._location(response)

    def _send(self, start: int) -> None:
        if self.descriptor.size <= _SMALL_BYTES:
            data = b"".join(self._opened(0, self.descriptor.size))
            self._commit(Content(OCTETS, len(data), lambda: (data,)))
            return
        while start < self.descriptor.size:
            end = min(self.descriptor.size, start + (self._most or self.descriptor.size))
            is_part = start or end < self.descriptor.size
            place = f"{start}-{end - 1}" if is_part else ""
            content = Content(OCTETS, end - start, partial(self._opened, start, end), place)
            self._place = self._at("PATCH", content, self._begun)
            start = end
        self._commit(Content(OCTETS, 0, tuple))

    def _kept(self) -> int | None:
        """Number of bytes that a registry kept of a broken upload; None if unknown, or if resuming isn't worth it."""
        if self.descriptor.size <= _SMALL_BYTES:
            return None
        most = self._verifier.received  # the registry can't have more than was read

        def _judged(response: Response) -> int | None:
            with response:
                found = _RANGE.fullmatch(response.headers.get("Range", "").strip())
                if not response.is_success or found is None:
                    return None
                # 0-0 is ambiguous: registries send it for one byte and for none.
                last = int(found[1])
                if not 0 < last < most:
                    return None
                if response.headers.get("Location", ""):
                    self._place = self._location(response)
                return last + 1

        return self._at("GET", None, _judged)

    def _commit(self, content: Content) -> None:
        """Ask the registry to verify the uploaded bytes and to make the blob visible."""

        def _judged(response: Response) -> None:
            with response:
                if not response.is_success:
                    raise failure(response, what=self._what)

        self._at("PUT", content, _judged, query=urlencode({"digest": str(self.descriptor.digest)}))
        self._place = ""

    def _give_up(self) -> None:
        """Ask the registry to delete the upload. If it doesn't, it drops the upload after some days."""
        if self._place:
            with contextlib.suppress(ImageStoreError):
                self._at("DELETE", None, lambda response: response.close())
            self._place = ""

    def _at(self, method: str, content: Content | None, use: Callable[[Response], T], *, query: str = "") -> T:
        """Send one request to the upload, without retry: the caller must first find out how much arrived."""
        location = self._place
        if query:
            location += ("&" if "?" in location else "?") + query
        call = replace(self._call(method, ""), url=location, content=content)
        return replace(self.session, is_tried_once=True).call(call, use)

    def _call(self, method: str, path: str) -> Call:
        return Call(method, self.repository, path, self._what)

    def _location(self, response: Response) -> str:
        """The upload's URL that an answer names. It may be at another host, which then gets no login.

        Raises:
            ProtocolError: there is none, or it isn't encrypted, or another host names one of the registry's that is
                no upload: the login is sent there.
        """
        endpoint, named = self.session.endpoint, response.headers.get("Location", "").strip()
        host = endpoint.host
        if not named:
            raise ProtocolError(f"{self._what}: {response.host} names no Location for the upload", host=host)
        location = urls.join(response.url, named)
        here, there = urls.origin_of(response.url), urls.origin_of(location)
        if there.scheme != "https" and "https" in {here.scheme, endpoint.origin.scheme}:
            message = f"{self._what}: {response.host} names a place for the upload that is not encrypted:"
            hint = "a registry behind a proxy has to know its public address; tell its operator"
            raise ProtocolError(f"{message} {urls.shown(location)}", host=host, hint=hint)
        if there == endpoint.origin != here and not self._is_upload(location):
            message = f"{self._what}: {response.host} names a place for the upload that is none of {host}:"
            raise ProtocolError(f"{message} {urls.shown(location)}", host=host)
        return location

    def _is_upload(self, url: str) -> bool:
        """Whether a URL at the registry is that of an upload into the repository."""
        folder, _, name = url.partition("?")[0].rpartition("/")
        uploads = self.session.endpoint.url(self.repository, "blobs/uploads").partition("?")[0]
        return folder == uploads and _UPLOAD.fullmatch(name) is not None

    def _opened(self, start: int, end: int) -> Iterator[bytes]:
        """Pieces for one try. Closes the source of the previous try, which its error may still refer to."""
        self._close_source()
        self._reading = self._pieces(start, end)
        return self._reading

    def _close_source(self) -> None:
        if self._reading is not None:
            self._reading.close()

    def _pieces(self, start: int, end: int) -> Generator[bytes]:
        """The blob's bytes from ``start`` to before ``end``; while one piece is sent, the next is read.

        Raises:
            _SourceError: they can't be read, or don't match the descriptor.
        """
        if start == 0:
            self._verifier = self._new_verifier()
        at = start
        observer = self.session.shared.observer
        observer(BlobUploading(self.descriptor, start))
        try:
            with self.opener(start) as source, ThreadPoolExecutor(1, "imagestore-read") as reader:
                pieces = self._read(source, start)
                coming = reader.submit(next, pieces, b"")
                while at < end and (piece := coming.result()[: end - at]):
                    coming = reader.submit(next, pieces, b"")
                    self._sent += len(piece)
                    yield piece
                    at += len(piece)
                    observer(BlobUploading(self.descriptor, at))
                if at == self.descriptor.size and coming.result():
                    at += 1  # more bytes than the descriptor states
            if at != end:
                raise SizeMismatchError(self._what, expected=self.descriptor.size, actual=at)
            if end == self.descriptor.size:
                self._verifier.finish()
        except ImageStoreError as error:
            raise _SourceError(error) from error

    def _read(self, source: Transfer, start: int) -> Iterator[bytes]:
        """Pieces from an offset on; each byte is verified once."""
        buffer = memoryview(bytearray(_PIECE_BYTES))
        at = source.start
        while count := source.readinto(buffer):
            self.session.cancel.check()
            piece, first, at = buffer[:count], at, at + count
            if at > self._verifier.received:
                self._verifier.update(piece[max(0, self._verifier.received - first) :])
            if at > start:
                yield bytes(piece[max(0, start - first) :])

    def _new_verifier(self) -> Verifier:
        return Verifier(self.descriptor.digest, self.descriptor.size, what=self._what)

    @property
    def _what(self) -> str:
        return named(self.descriptor, self.repository)
