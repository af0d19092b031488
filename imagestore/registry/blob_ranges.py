"""One large blob over several connections: ranges are fetched in parallel and handed out in order.

Further ranges follow only if a host answers the first one exactly (206 with the requested Content-Range); each is
checked the same way. If a host later ignores one, the rest comes in one stream. Parts wait in memory for their turn, so
the writer appends, hashes and resumes as with one stream; the number of parts limits the memory. The protocol can't
verify a single part: the digest of the whole blob is checked by the writer.
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from imagestore.registry.blobs import BlobStream, ByteRange, RangeIgnoredError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Self

    from imagestore.registry.policy import TransferPolicy
    from imagestore.util.cancel import CancelToken

# Parts in memory for each connection: one that is received, one that waits for its turn.
_PARTS_PER_CONNECTION: Final = 2


@dataclass(slots=True)
class _Part:
    """A range that a thread fetches; ``is_over`` when it has ended, with or without a failure."""

    byte_range: ByteRange
    buffer: memoryview
    received: int = 0
    is_over: bool = False
    failure: BaseException | None = None


class ParallelStream:
    """A BlobReader over several connections."""

    def __init__(
        self,
        first: BlobStream,
        size: int,
        *,
        make: Callable[[ByteRange, CancelToken], BlobStream],
        policy: TransferPolicy,
        cancel: CancelToken,
    ) -> None:
        self._first = first
        self._size = size
        self._make = make
        self._cancel = cancel
        self._connections = policy.parallel_ranges
        self._changed = threading.Condition()
        self._waiting = deque(_ranges(first.end, size, policy.range_bytes))
        self._window: deque[_Part] = deque()
        self._hosts: dict[str, None] = {}
        self._is_closed = False
        self._threads: list[threading.Thread] = []
        self._rest: BlobStream | None = None
        self._proven = first.end
        self._position = first.start
        self._has_begun = self._is_first_over = False
        self._stack = ExitStack()
        self._token = self._stack.enter_context(cancel.child())

    @property
    def start(self) -> int:
        """See BlobReader."""
        return self._first.start

    @property
    def hosts(self) -> tuple[str, ...]:
        """See BlobReader."""
        rest = self._rest.hosts if self._rest is not None else ()
        with self._changed:
            return tuple(dict.fromkeys((*self._first.hosts, *self._hosts, *rest)))

    def readinto(self, buffer: memoryview) -> int:
        """See BlobReader."""
        if self._rest is not None:
            return self._rest.readinto(buffer)
        if not self._has_begun:
            self._has_begun = True
            for _ in range(self._connections - 1):
                self._start_worker()
        if not self._is_first_over:
            count = self._first.readinto(buffer)
            self._position += count
            if self._first.end != self._proven and self._threads:
                # Its host stopped serving ranges (or another host took over): this stream goes on to the blob's end.
                # A failed part has closed the window too; that there are threads shows that it was not emptied yet.
                self._first.note_waste(self._stop_workers())
            if count:
                return count
            self._is_first_over = True
            if self._position < self._size:
                # Its connection is free now.
                self._start_worker()
                if not self._threads:
                    return self._one_stream(buffer)
        return self._from_window(buffer)

    def close(self) -> None:
        """See BlobReader."""
        self._stop_workers()
        self._first.close()
        if self._rest is not None:
            self._rest.close()
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start_worker(self) -> None:
        thread = threading.Thread(target=self._work, name="imagestore-range", daemon=True)
        self._threads.append(thread)
        try:
            thread.start()
        except RuntimeError:  # no more threads for this process: go on with those there are, or with one stream
            self._threads.remove(thread)

    def _stop_workers(self) -> int:
        """End the threads and wait for them; empty the window; returns how many bytes were in it."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._token.cancel("the transfer was closed")
        while self._threads:
            self._threads.pop().join()
        received = sum(part.received for part in self._window)
        self._window.clear()
        return received

    def _work(self) -> None:
        while (part := self._take()) is not None:
            failure: BaseException | None = None
            try:
                self._receive(part)
            except BaseException as error:  # noqa: BLE001 - raised in the reader's thread, when the part's turn comes
                failure = error
            with self._changed:
                part.failure, part.is_over = failure, True
                self._is_closed |= failure is not None
                self._changed.notify_all()

    def _take(self) -> _Part | None:
        """The next range, once it fits the window; None when there is nothing left to do."""
        with self._changed:
            while True:
                if self._is_closed or not self._waiting:
                    return None
                if len(self._window) < self._connections * _PARTS_PER_CONNECTION:
                    break
                self._changed.wait()
            byte_range = self._waiting.popleft()
            part = _Part(byte_range, memoryview(bytearray(byte_range.end - byte_range.start)))
            self._window.append(part)
            self._changed.notify_all()
            return part

    def _receive(self, part: _Part) -> None:
        with self._make(part.byte_range, self._token) as stream:
            # Reading on after the last byte lets the connection serve the next request.
            end = memoryview(bytearray(1))
            while count := stream.readinto(part.buffer[part.received :] or end):
                with self._changed:
                    part.received += count
                    self._changed.notify_all()
            with self._changed:
                self._hosts.update(dict.fromkeys(stream.hosts))

    def _from_window(self, buffer: memoryview) -> int:
        """The next bytes of the parts in order; 0 when they were the last."""
        while self._position < self._size or self._window:
            with self._changed:
                while not self._window:
                    self._changed.wait()
                part = self._window[0]
                done = self._position - part.byte_range.start
                while part.received == done and not part.is_over:
                    self._changed.wait()
                count = min(part.received - done, len(buffer))
                if not count and part.failure is None:
                    # The part has ended without a failure.
                    self._window.popleft()
                    self._changed.notify_all()
                    continue
            if count:
                buffer[:count] = part.buffer[done : done + count]
                self._position += count
                return count
            if isinstance(part.failure, RangeIgnoredError):
                return self._one_stream(buffer)
            assert part.failure is not None
            raise part.failure
        return 0

    def _one_stream(self, buffer: memoryview) -> int:
        """Go on without ranges; parts that wait for their turn are dropped."""
        handed_out = self._position - self._window[0].byte_range.start if self._window else 0
        byte_range = ByteRange(self._position, self._size, is_continued=True, wasted=self._stop_workers() - handed_out)
        self._rest = self._make(byte_range, self._cancel)
        return self._rest.readinto(buffer)


def _ranges(start: int, end: int, step: int) -> Iterator[ByteRange]:
    """Equal parts of the bytes between two offsets; the last may be shorter."""
    for offset in range(start, end, step):
        yield ByteRange(offset, min(offset + step, end), is_exact=True, is_continued=True)
