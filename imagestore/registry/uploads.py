"""Uploads one blob into a repository (OCI distribution specification 1.1, "Pushing blobs").

A blob that the repository has is not sent; one that another repository of the same registry has is mounted from there.
A small one goes in one PUT. A large one goes in one PATCH, which containers' tools have long used and so every registry
takes, and a PUT then asks the registry to verify it. If the connection breaks, the registry is asked how much it has
kept: from there the upload goes on, or it begins anew where that can't be told.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, TypeVar
from urllib.parse import quote

from imagestore.errors import (
    DigestMismatchError,
    ImageStoreError,
    ProtocolError,
    RateLimitedError,
    RegistryError,
    RegistryUnavailableError,
)
from imagestore.oci.digest import Verifier
from imagestore.registry.errors_body import failure
from imagestore.registry.events import BlobUploaded, BlobUploading
from imagestore.registry.manifests import accepted, announced_digest, is_document
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

_OCTETS: Final = "application/octet-stream"
#: Blobs up to this size are sent with one request after they were read and verified.
_SMALL_BYTES: Final = 1024 * 1024
_PIECE_BYTES: Final = 1024 * 1024
#: Answers of registries that can't take a blob over from another repository, or may not.
_NOT_MOUNTED: Final = frozenset({400, 401, 403, 404, 405})
_RANGE: Final = re.compile(r"(?:bytes=)?0-([0-9]{1,19})")


class _SourceError(Exception):
    """The bytes can't be read; the error is that of the source, not of the registry that they go to."""

    def __init__(self, error: ImageStoreError) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass(slots=True)
class BlobUpload:
    """One blob on its way into a repository.

    Attributes:
        session: the registry.
        repository: a reference's path.
        descriptor: of the blob.
        opener: opens its bytes.
        mount_from: repository of the same registry that has it; empty if there is none.
    """

    session: Session
    repository: str
    descriptor: Descriptor
    opener: Opener
    mount_from: str = ""
    _sent: int = field(default=0, init=False)
    _reading: Generator[bytes] | None = field(default=None, init=False)
    # Over what was read so far, of which a part may be sent again.
    _verifier: Verifier = field(init=False)

    def __post_init__(self) -> None:
        self._verifier = self._new_verifier()

    def run(self) -> BlobUploaded:
        """Bring the blob there, unless it is there.

        Raises:
            RegistryError: refused, unreachable, or no sensible protocol; of either side.
            IntegrityError: the source's bytes aren't the descriptor's, or the registry has others.
            OperationCancelledError: cancelled, or past the deadline.
        """
        try:
            return self._run()
        finally:
            self._close_source()

    def _run(self) -> BlobUploaded:
        if self._is_there():
            return BlobUploaded(self.descriptor, 0)
        attempt, location = 0, ""
        while True:
            try:
                start = self._kept(location) if location else 0
                if start is None:
                    location, start = "", 0
                    # The answer may be all that was lost.
                    if self._is_there():
                        return BlobUploaded(self.descriptor, self._sent)
                if not location:
                    location = self._begin()
                    if not location:
                        return BlobUploaded(self.descriptor, 0, self.mount_from)
                    self.mount_from = ""
                self._send(location, start)
                return BlobUploaded(self.descriptor, self._sent)
            except _SourceError as failed:
                self._give_up(location)
                raise failed.error from failed.error.__cause__
            except RegistryError as error:
                attempt += 1
                # Without a location it was a request that the session has tried several times.
                if not location or not self._will_go_on(error, attempt):
                    raise

    def _will_go_on(self, error: RegistryError, attempt: int) -> bool:
        """Wait, if another try may succeed."""
        is_lost = error.status in {404, 416}
        if attempt >= self.session.shared.policy.attempts or not (is_lost or is_transient(error)):
            return False
        asked = error.retry_after if isinstance(error, RateLimitedError | RegistryUnavailableError) else None
        return self.session.will_wait(error, attempt, asked)

    def _is_there(self) -> bool:
        return is_there(self.session, self.repository, self.descriptor)

    def _begin(self) -> str:
        """Where to send the blob; empty if it was mounted, which is tried once."""

        def judged(response: Response) -> str:
            with response:
                if response.status == 201 and self.mount_from:
                    return ""
                if response.status == 202:
                    return self._location(response)
                raise failure(response, what=self._what)

        call = self._call("POST", "blobs/uploads/")
        if self.mount_from:
            query = f"mount={quote(str(self.descriptor.digest), safe='')}&from={quote(self.mount_from, safe='')}"
            try:
                location = self.session.call(replace(call, query=query), judged)
            except RegistryError as error:
                # The other repository may not be read, or the registry doesn't mount: the bytes are sent.
                if error.status not in _NOT_MOUNTED:
                    raise
            else:
                return location
            self.mount_from = ""
        return self.session.call(call, judged)

    def _send(self, location: str, start: int) -> None:
        if self.descriptor.size <= _SMALL_BYTES:
            data = b"".join(self._opened(0))
            self._commit(location, Content(_OCTETS, len(data), lambda: (data,)))
            self._sent = len(data)
            return
        if start < self.descriptor.size:
            place = f"{start}-{self.descriptor.size - 1}" if start else ""
            content = Content(_OCTETS, self.descriptor.size - start, lambda: self._opened(start), place)
            location = self._at(location, "PATCH", content, self._next_location)
        self._commit(location, Content(_OCTETS, 0, tuple))

    def _kept(self, location: str) -> int | None:
        """How many bytes a registry has of an upload that broke; None if that can't be told, or none are worth it."""
        if self.descriptor.size <= _SMALL_BYTES:
            return None

        def judged(response: Response) -> int | None:
            with response:
                found = _RANGE.fullmatch(response.headers.get("Range", "").strip())
                if response.status != 204 or found is None:
                    return None
                # The first byte alone, or none: registries write both as 0-0. What wasn't read can't be there.
                last = int(found[1])
                return last + 1 if 0 < last < self._verifier.received else None

        return self._at(location, "GET", None, judged)

    def _next_location(self, response: Response) -> str:
        with response:
            if response.status != 202:
                raise failure(response, what=self._what)
            return self._location(response)

    def _commit(self, location: str, content: Content) -> None:
        """Ask the registry to verify what it has, and to make it visible."""

        def judged(response: Response) -> None:
            with response:
                if response.status not in {200, 201, 204}:
                    raise failure(response, what=self._what)
                claimed = announced_digest(response.headers)
            wanted = self.descriptor.digest
            if claimed is not None and claimed.algorithm == wanted.algorithm and claimed != wanted:
                what = f"{self._what} at {self.session.endpoint.host}"
                raise DigestMismatchError(what, expected=str(wanted), actual=str(claimed))

        mark = "&" if "?" in location else "?"
        self._at(f"{location}{mark}digest={quote(str(self.descriptor.digest), safe='')}", "PUT", content, judged)

    def _give_up(self, location: str) -> None:
        """Let the registry delete what it has; one that doesn't, forgets it after some days."""
        if location:
            with contextlib.suppress(ImageStoreError):
                self._at(location, "DELETE", None, lambda response: response.close())

    def _at(self, location: str, method: str, content: Content | None, use: Callable[[Response], T]) -> T:
        """One request to an upload, sent once: what repeats it has to know how far it came."""
        call = replace(self._call(method, ""), url=location, content=content)
        return replace(self.session, is_tried_once=True).call(call, use)

    def _call(self, method: str, path: str) -> Call:
        return Call(method, self.repository, path, self._what)

    def _location(self, response: Response) -> str:
        """The address that a registry names for an upload; credentials go along, so it must be the registry's own."""
        host, named = self.session.endpoint.host, response.headers.get("Location", "").strip()
        if not named:
            raise ProtocolError(f"{self._what}: {host} names no Location for the upload", host=host)
        location = urls.join(response.url, named)
        if urls.origin_of(location) != self.session.endpoint.origin:
            message = f"{self._what}: {host} names another place for the upload: {urls.shown(location)}"
            hint = "a registry behind a proxy has to know its public address; tell its operator"
            raise ProtocolError(message, host=host, hint=hint)
        return location

    def _opened(self, start: int) -> Iterator[bytes]:
        """Pieces for one try; the source of the try before, which its error may still know, is closed."""
        self._close_source()
        self._reading = self._pieces(start)
        return self._reading

    def _close_source(self) -> None:
        if self._reading is not None:
            self._reading.close()

    def _pieces(self, start: int) -> Generator[bytes]:
        """The blob's bytes from an offset on; while one piece is sent, the next is read.

        Raises:
            _SourceError: they can't be had, or aren't the descriptor's.
        """
        if start == 0 and self._verifier.received:
            self._verifier = self._new_verifier()
        self._sent = start
        observer = self.session.shared.observer
        observer(BlobUploading(self.descriptor, start))
        try:
            with self.opener(start) as source, ThreadPoolExecutor(1, "imagestore-read") as reader:
                pieces = self._read(source, start)
                coming = reader.submit(next, pieces, b"")
                while piece := coming.result():
                    coming = reader.submit(next, pieces, b"")
                    yield piece
                    self._sent += len(piece)
                    observer(BlobUploading(self.descriptor, self._sent))
            self._verifier.finish()
        except ImageStoreError as error:
            raise _SourceError(error) from error

    def _read(self, source: Transfer, start: int) -> Iterator[bytes]:
        """Pieces from an offset on, verified as far as they come from the blob's beginning, each byte once."""
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
        return _what(self.descriptor, self.repository)


def is_there(session: Session, repository: str, descriptor: Descriptor) -> bool:
    """Whether a repository has a blob, a manifest or an index.

    Raises:
        RegistryError: refused, unreachable, or no sensible protocol.
        OperationCancelledError: cancelled, or past the deadline.
    """
    what = _what(descriptor, repository)

    def judged(response: Response) -> bool:
        with response:
            if response.status == 200:
                return response.length in (None, descriptor.size)
            # Some registries know no HEAD.
            if response.status in {404, 405}:
                return False
            raise failure(response, what=what)

    is_manifest = is_document(descriptor)
    folder, accept = ("manifests", accepted(descriptor.media_type)) if is_manifest else ("blobs", ())
    return session.call(Call("HEAD", repository, f"{folder}/{descriptor.digest}", what, accept=accept), judged)


def _what(descriptor: Descriptor, repository: str) -> str:
    return f"{descriptor.kind.value} {descriptor.digest} of {repository}"
