"""A blob as one clean sequence of bytes, whatever the connection does.

When a transfer breaks, it is resumed with Range where it stopped (registry answers: ``ranges.py``; several stretches at
a time: ``parallel.py``). A host that ignores
Range sends the blob from its start; what we have already is thrown away, up to a bound. Resuming goes on as long as
there is progress; without it, tries run out. The size is checked here, the digest where the bytes are kept: only there
the whole content is seen, across runs too.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from imagestore.errors import RegistryUnavailableError, SizeMismatchError
from imagestore.registry.retry import backoff_seconds, is_transient
from imagestore.registry.session import wait

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet
    from types import TracebackType
    from typing import Self

    from imagestore.errors import RegistryError
    from imagestore.oci.descriptor import Descriptor
    from imagestore.registry.limits import Place
    from imagestore.registry.operation import Operation
    from imagestore.registry.session import Surroundings
    from imagestore.util.cancel import CancelToken

_log = logging.getLogger(__name__)

# Smaller parts than this would make a request for every few packets.
_LEAST_PART_BYTES: Final = 64 * 1024


class Source(Protocol):
    """Where an opened transfer's bytes come from: an answer, or what unpacks it."""

    def readinto(self, buffer: memoryview) -> int:
        """Put the next bytes into a buffer; 0 only at the end."""

    def close(self) -> None:
        """Give up the connection; may be called again."""


@dataclass(frozen=True, slots=True)
class Body:
    """An opened transfer.

    Attributes:
        response: brings the blob from ``start`` on.
        start: offset of the body's first byte in the blob.
        end: offset behind the last byte that this answer promises.
        host: who serves it.
        place: at the host, given back once the body is closed; None where it takes none.
        hint: what to do if it turns out to be something else.
    """

    response: Source
    start: int
    end: int
    host: str
    place: Place | None = None
    hint: str = ""

    def close(self) -> None:
        """Give up the connection; may be called again."""
        try:
            self.response.close()
        finally:
            if self.place is not None:
                self.place.give_back()


@dataclass(frozen=True, slots=True)
class Stretch:
    """Which bytes of a blob a stream shall bring.

    Attributes:
        start: offset of the first.
        end: offset behind the last.
        is_exact: a host that offers other bytes ends the stream with RangeIgnoredError; without it, the stream adapts.
        is_continued: the bytes before ``start`` were handed out already, so what a host sends of them again is dropped
            (and counts as waste), instead of the stream starting there.
        wasted: bytes that were received in vain already.
    """

    start: int
    end: int
    is_exact: bool = False
    is_continued: bool = False
    wasted: int = 0


@dataclass(frozen=True, slots=True)
class Setting:
    """What a transfer happens in: policy, clocks and observer; what its operation shares; the token that ends it."""

    shared: Surroundings
    operation: Operation
    cancel: CancelToken


class RangeIgnoredError(Exception):
    """A host offers other bytes than the stretch that was asked for; never leaves this package."""


class BlobReader(Protocol):
    """The bytes of a blob from ``start`` to its end, in order; close always.

    Reading raises SizeMismatchError (the host sends more than the descriptor's size), RegistryError (the transfer
    broke, and resuming it failed too often) and OperationCancelledError.
    """

    @property
    def start(self) -> int:
        """Offset of the first byte that comes; 0 when the host doesn't resume, though a later offset was asked for."""

    @property
    def hosts(self) -> tuple[str, ...]:
        """Who has served so far, in order; the ones to avoid when the content turns out wrong."""

    def readinto(self, buffer: memoryview) -> int:
        """Put the next bytes into a buffer, often fewer than fit; 0 only at the end."""

    def close(self) -> None:
        """Give up the connections; may be called again."""

    def __enter__(self) -> Self:
        """Use as a context manager that closes."""

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None, /
    ) -> None:
        """Close."""


class Opener(Protocol):
    """Opens a blob at an offset, or before it when no host resumes."""

    def __call__(self, offset: int, end: int, suspects: AbstractSet[str]) -> Body:
        """Ask the hosts in turn, the suspects last, for the bytes from an offset up to before an end.

        Raises:
            RegistryError, IntegrityError: nobody serves it.
        """


@dataclass(slots=True)
class _Progress:
    """How the tries of one transfer went."""

    failures: int = 0
    mark: int = 0
    wasted: int = 0
    has_begun: bool = False
    hosts: list[str] = field(default_factory=list)
    suspects: set[str] = field(default_factory=set)


class BlobStream:
    """A BlobReader over one connection at a time.

    Args:
        descriptor: of the blob.
        stretch: which bytes of it; the caller has the bytes before.
        opener: opens transfers.
        setting: what the transfer happens in.

    Raises:
        RegistryError, IntegrityError: no host serves the blob.
        RangeIgnoredError: only for an exact stretch.
    """

    def __init__(self, descriptor: Descriptor, stretch: Stretch, *, opener: Opener, setting: Setting) -> None:
        if not 0 <= stretch.start <= stretch.end <= descriptor.size:
            raise ValueError(f"{stretch} is outside a blob of {descriptor.size} bytes")
        self.descriptor = descriptor
        self._opener = opener
        self._shared = setting.shared
        self._operation = setting.operation
        self._cancel = setting.cancel
        self._is_exact = stretch.is_exact
        self._end = stretch.end
        self._progress = _Progress(mark=stretch.start, wasted=stretch.wasted, has_begun=stretch.is_continued)
        self._body: Body | None = None
        # Offset behind the last byte that the body gave, ahead of the position or behind it.
        self._start = self._position = self._arrived = stretch.start
        # Everything is there already; only an empty blob is still asked for, to learn whether it exists.
        if stretch.start < stretch.end or descriptor.size == 0:
            body = self._open(stretch.start)
            if not stretch.is_continued:
                self._start = self._position = self._progress.mark = body.start

    @property
    def start(self) -> int:
        """See BlobReader."""
        return self._start

    @property
    def end(self) -> int:
        """Offset behind the last byte that will come: the stretch's, or the blob's where a host serves no stretches."""
        return self._end

    @property
    def hosts(self) -> tuple[str, ...]:
        """See BlobReader."""
        return tuple(dict.fromkeys(self._progress.hosts))

    def readinto(self, buffer: memoryview) -> int:
        """See BlobReader."""
        while self._body is not None:
            try:
                count = self._read(self._body, buffer)
                if count:
                    return count
                failure: RegistryError = RegistryUnavailableError(
                    f"{self._body.host}: the body ended after {self._position} of {self.descriptor.size} bytes",
                    host=self._body.host,
                    hint=self._body.hint,
                )
            except RegistryUnavailableError as error:
                failure = error
            if self._position == self._end:
                # Whatever broke after the last byte doesn't matter any more.
                self.close()
            elif self._position == self._body.end and self._position - self._progress.mark >= _LEAST_PART_BYTES:
                # The host hands the blob out in parts: legal, and no failure.
                self._continue()
            else:
                self._resume(failure)
        return 0

    def note_waste(self, byte_count: int) -> None:
        """Bytes of the blob were received elsewhere in vain.

        Raises:
            RegistryUnavailableError: with these, too much was.
        """
        self._progress.wasted += byte_count
        if self._body is not None:
            self._check_waste(self._body.host)

    def close(self) -> None:
        """See BlobReader."""
        body, self._body = self._body, None
        if body is not None:
            body.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None, /
    ) -> None:
        self.close()

    def _read(self, body: Body, buffer: memoryview) -> int:
        """What one transfer adds to what we have; 0 when it is over."""
        fresh = 0
        while fresh <= 0:
            self._cancel.check()
            count = body.response.readinto(buffer[: self._operation.share(len(buffer))])
            if not count:
                return 0
            self._operation.throttle(count, cancel=self._cancel)
            self._arrived += count
            if self._arrived > self._end:
                what = f"blob {self.descriptor.digest} from {body.host}"
                if self._end < self.descriptor.size:
                    what = f"bytes {body.start} to {self._end} of {what}"
                error = SizeMismatchError(what, expected=self._end, actual=self._arrived)
                error.hint = body.hint
                raise error
            fresh = self._arrived - self._position
        if fresh < count:
            buffer[:fresh] = buffer[count - fresh : count]
        self._position = self._arrived
        return min(fresh, count)

    def _continue(self) -> None:
        """Ask for the next part."""
        self.close()
        self._progress.mark = self._position
        self._open(self._position)

    def _resume(self, failure: RegistryError) -> None:
        """Open again where we stopped, after a wait.

        Raises:
            RegistryError: the tries are used up.
        """
        progress, policy = self._progress, self._shared.policy
        if self._body is not None and self._position == progress.mark:
            # It broke before it gave anything: another host may do better.
            progress.suspects.add(self._body.host)
        self.close()
        if self._position - progress.mark >= policy.progress_bytes:
            progress.failures = 0
        progress.failures += 1
        progress.mark = self._position
        if progress.failures >= policy.attempts or not is_transient(failure) or not self._operation.take_retry():
            raise failure
        _log.debug("blob %s: broken at %d, resuming: %s", self.descriptor.digest, self._position, failure)
        seconds = backoff_seconds(policy, progress.failures, self._shared.timing.random())
        wait(self._shared, failure.host, seconds, str(failure), self._cancel)
        self._open(self._position)

    def _open(self, offset: int) -> Body:
        body = self._body = self._opener(offset, self._end, self._progress.suspects)
        self._arrived = body.start
        self._progress.hosts.append(body.host)
        if self._end < self.descriptor.size and (body.start != offset or body.end > self._end):
            if self._is_exact:
                self.close()
                raise RangeIgnoredError(f"{body.host} offers bytes {body.start} to {body.end}")
            self._end = self.descriptor.size
        self._progress.wasted += self._position - body.start if self._progress.has_begun else 0
        self._progress.has_begun = True
        self._check_waste(body.host)
        return body

    def _check_waste(self, host: str) -> None:
        if self._progress.wasted > self._shared.policy.wasted_share * self.descriptor.size:
            self.close()
            raise RegistryUnavailableError(
                f"{host}: ignores Range, and the transfer of {self.descriptor.digest} broke too often: "
                f"{self._progress.wasted} bytes would have been received twice",
                host=host,
            )
