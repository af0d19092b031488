"""The bytes of a blob as one stream, over as many connections as it takes.

If a transfer breaks, it is resumed with Range where it stopped (``blob_sources.py``; several ranges at a time:
``blob_ranges.py``). A host that ignores Range sends the blob from its start; bytes that are here already are dropped,
up to a limit. Tries are counted only without progress.

The size is checked here. The digest is checked by the writer, which sees the whole content, also of earlier runs.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from imagestore.errors import RegistryUnavailableError, SizeMismatchError
from imagestore.registry.retry import backoff_seconds, is_transient

if TYPE_CHECKING:
    import io
    from collections.abc import Callable, Collection
    from collections.abc import Set as AbstractSet
    from types import TracebackType
    from typing import Self

    from imagestore.errors import RegistryError
    from imagestore.oci.descriptor import Descriptor
    from imagestore.registry.content_coding import GunzippedBody
    from imagestore.registry.limits import Slot
    from imagestore.registry.operation import Operation
    from imagestore.registry.session import ClientContext
    from imagestore.registry.transport.messages import Response
    from imagestore.util.cancel import CancelToken

_log = logging.getLogger(__name__)

# Smaller parts than this would make a request for every few packets.
_LEAST_PART_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class Body:
    """An opened transfer of the bytes from ``start`` up to before ``end``; the hint is for wrong content."""

    source: Response | GunzippedBody | io.BytesIO
    start: int
    end: int
    host: str
    slot: Slot | None = None
    hint: str = ""

    def close(self) -> None:
        """Close the transfer and release the slot at its host; may be called again."""
        try:
            self.source.close()
        finally:
            if self.slot is not None:
                self.slot.give_back()


@dataclass(frozen=True, slots=True)
class ByteRange:
    """Which bytes of a blob a stream reads, from ``start`` up to before ``end``.

    Attributes:
        is_exact: a host that offers other bytes ends the stream with RangeIgnoredError; without it, the stream adapts.
        is_continued: the bytes before ``start`` were handed out already. A host that sends them again doesn't make the
            stream start there; they are dropped and count as wasted.
        wasted: how many bytes were received twice before.
    """

    start: int
    end: int
    is_exact: bool = False
    is_continued: bool = False
    wasted: int = 0


class Transfer(Protocol):
    """The bytes of a blob from ``start`` to its end; close always."""

    @property
    def start(self) -> int:
        """Offset of the first byte: as asked, or 0 when the origin can't resume."""

    @property
    def hosts(self) -> Collection[str]:
        """The hosts that the bytes came from; none for a local source."""

    def readinto(self, buffer: memoryview) -> int:
        """Put the next bytes into a buffer, often fewer than fit; 0 only at the end."""

    def __enter__(self) -> Self:
        """Close at the end of the block."""

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None, /
    ) -> None:
        """Close."""


class BlobReader(Transfer, Protocol):
    """The bytes of a blob from a registry.

    Reading raises SizeMismatchError (the host sends more than the descriptor's size), RegistryError (the transfer
    broke, and resuming it failed too often) and OperationCancelledError.
    """

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts that have served so far, in order; avoid them if the content turns out to be wrong."""

    def close(self) -> None:
        """Close the connections; may be called again."""


class RangeIgnoredError(Exception):
    """A host offers other bytes than the range that was asked for; never leaves this package."""


class BlobStream:
    """A BlobReader over one connection at a time.

    ``opener`` asks the hosts in turn, the suspects last, for a range of bytes.

    Raises:
        RegistryError, IntegrityError: no host serves the blob.
        RangeIgnoredError: only for an exact range.
    """

    def __init__(
        self,
        descriptor: Descriptor,
        byte_range: ByteRange,
        cancel: CancelToken,
        *,
        opener: Callable[[ByteRange, AbstractSet[str], CancelToken], Body],
        shared: ClientContext,
        operation: Operation,
    ) -> None:
        if not 0 <= byte_range.start <= byte_range.end <= descriptor.size:
            raise ValueError(f"{byte_range} is outside a blob of {descriptor.size} bytes")
        self._descriptor = descriptor
        self._opener = opener
        self._shared = shared
        self._operation = operation
        self._cancel = cancel
        self._is_exact = byte_range.is_exact
        #: Offset behind the last byte that will come: that of the range, or the blob's if a host serves no ranges.
        self.end = byte_range.end
        self._wasted = byte_range.wasted
        self._has_begun = byte_range.is_continued
        self._failures = 0
        self._served_by: dict[str, None] = {}
        self._suspects: set[str] = set()
        self._body: Body | None = None
        # "mark" is the position at the last break. "arrived" is the offset behind the last byte that the body gave; it
        # is less than the position while a host repeats bytes.
        self._start = self._position = self._mark = self._arrived = byte_range.start
        # If all bytes are here, no request is sent, except for an empty blob: it may not exist.
        if byte_range.start < byte_range.end or descriptor.size == 0:
            body = self._open(byte_range.start)
            if not byte_range.is_continued:
                self._start = self._position = self._mark = body.start

    @property
    def start(self) -> int:
        """See BlobReader."""
        return self._start

    @property
    def hosts(self) -> tuple[str, ...]:
        """See BlobReader."""
        return tuple(self._served_by)

    def readinto(self, buffer: memoryview) -> int:
        """See BlobReader."""
        while self._body is not None:
            try:
                count = self._read(self._body, buffer)
                if count:
                    return count
                failure: RegistryError = RegistryUnavailableError(
                    f"{self._body.host}: the body ended after {self._position} of {self._descriptor.size} bytes",
                    host=self._body.host,
                    hint=self._body.hint,
                )
            except RegistryUnavailableError as error:
                failure = error
            if self._position == self.end:
                # A failure after the last byte doesn't matter any more.
                self.close()
            elif self._position == self._body.end and self._position - self._mark >= _LEAST_PART_BYTES:
                # The host serves the blob in parts: legal, and no failure.
                self.close()
                self._mark = self._position
                self._open(self._position)
            else:
                self._resume(failure)
        return 0

    def note_waste(self, byte_count: int) -> None:
        """Count bytes that were received elsewhere and dropped."""
        self._wasted += byte_count
        if self._body is not None:
            self._check_waste(self._body.host)

    def close(self) -> None:
        """See BlobReader."""
        body, self._body = self._body, None
        if body is not None:
            body.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self, body: Body, buffer: memoryview) -> int:
        """Read bytes beyond the position from one transfer; 0 when it is over."""
        fresh = 0
        while fresh <= 0:
            self._cancel.check()
            count = body.source.readinto(buffer[: self._operation.share(len(buffer))])
            if not count:
                return 0
            self._operation.throttle(count, cancel=self._cancel)
            self._arrived += count
            if self._arrived > self.end:
                what = f"blob {self._descriptor.digest} from {body.host}"
                if self.end < self._descriptor.size:
                    what = f"bytes {body.start} to {self.end} of {what}"
                error = SizeMismatchError(what, expected=self.end, actual=self._arrived)
                error.hint = body.hint
                raise error
            fresh = self._arrived - self._position
        if fresh < count:
            buffer[:fresh] = buffer[count - fresh : count]
        self._position = self._arrived
        return min(fresh, count)

    def _resume(self, failure: RegistryError) -> None:
        """Open again where we stopped, after a wait."""
        policy = self._shared.policy
        if self._body is not None and self._position == self._mark:
            # It broke before it gave anything: ask other hosts first.
            self._suspects.add(self._body.host)
        self.close()
        if self._position - self._mark >= policy.progress_bytes:
            self._failures = 0
        self._failures += 1
        self._mark = self._position
        if self._failures >= policy.attempts or not is_transient(failure) or not self._operation.take_retry():
            raise failure
        _log.debug("blob %s: broken at %d, resuming: %s", self._descriptor.digest, self._position, failure)
        seconds = backoff_seconds(policy, self._failures, self._shared.timing.random())
        self._shared.wait(failure.host, seconds, str(failure), self._cancel)
        self._open(self._position)

    def _open(self, offset: int) -> Body:
        body = self._body = self._opener(
            ByteRange(offset, self.end, is_exact=self._is_exact), self._suspects, self._cancel
        )
        self._arrived = body.start
        self._served_by[body.host] = None
        if self.end < self._descriptor.size and (body.start != offset or body.end > self.end):
            if self._is_exact:
                self.close()
                raise RangeIgnoredError(f"{body.host} offers bytes {body.start} to {body.end}")
            self.end = self._descriptor.size
        self._wasted += self._position - body.start if self._has_begun else 0
        self._has_begun = True
        self._check_waste(body.host)
        return body

    def _check_waste(self, host: str) -> None:
        if self._wasted > self._shared.policy.wasted_share * self._descriptor.size:
            self.close()
            raise RegistryUnavailableError(
                f"{host}: ignores Range, and the transfer of {self._descriptor.digest} broke too often: "
                f"{self._wasted} bytes would have been received twice",
                host=host,
            )
