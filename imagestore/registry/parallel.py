"""One large blob over several connections: bounded ranges side by side, handed out in order.

The first range is the proof: only when its host answers it exactly (206 with the Content-Range that was asked for) do
further ranges follow, each checked the same way. A host that later ignores one ends the parallel part, and the rest
comes in one stream. Bytes are handed out in their order and held in memory until then, so whoever writes them appends,
hashes and can be resumed as ever; the window of parts bounds the memory. Nothing verifies a single part in this
protocol: the digest over the whole is checked where the bytes are kept.
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from imagestore.registry.blob import BlobStream, RangeIgnoredError, Stretch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType
    from typing import Self

    from imagestore.cancel import CancelToken
    from imagestore.registry.policy import TransferPolicy

    Make = Callable[[Stretch, CancelToken], BlobStream]

# Parts in memory for each connection: one that comes, one that came before its turn.
_PARTS_PER_CONNECTION: Final = 2


@dataclass(slots=True)
class _Part:
    """A stretch on its way.

    Attributes:
        stretch: which bytes.
        pieces: those that came and were not handed out.
        is_over: nothing more comes.
        failure: why it broke off, if it did.
    """

    stretch: Stretch
    pieces: deque[bytes] = field(default_factory=deque)
    is_over: bool = False
    failure: BaseException | None = None


class ParallelStream:
    """A BlobReader over several connections.

    Args:
        first: the stream of the first stretch, whose host has proved that it serves stretches.
        size: of the blob in bytes.
        make: opens a stream of another stretch, ended by a token.
        policy: how many at a time, and how large.
        cancel: ends it.
    """

    def __init__(
        self, first: BlobStream, size: int, *, make: Make, policy: TransferPolicy, cancel: CancelToken
    ) -> None:
        self._first = first
        self._size = size
        self._make = make
        self._cancel = cancel
        self._connections = policy.parallel_ranges
        self._changed = threading.Condition()
        self._waiting = deque(_stretches(first.end, size, policy.range_bytes))
        self._window: deque[_Part] = deque()
        self._hosts: dict[str, None] = {}
        self._is_closed = False
        self._threads: list[threading.Thread] = []
        self._rest: BlobStream | None = None
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

    def __iter__(self) -> Iterator[bytes]:
        """See BlobReader."""
        proven = self._first.end
        for _ in range(self._connections - 1):
            self._employ()
        for piece in self._first:
            yield piece
            if self._first.end != proven:
                # Its host changed its mind (or another host took over), and the stream goes on to the blob's end.
                self._first.note_waste(self._dismiss())
        position = self._first.position
        if position < self._size:
            self._employ()
        while position < self._size:
            part = self._head()
            yield from self._pieces(part)
            if isinstance(part.failure, RangeIgnoredError):
                yield from self._one_stream(part.stretch.start)
                return
            if part.failure is not None:
                raise part.failure
            position = part.stretch.end

    def close(self) -> None:
        """See BlobReader."""
        self._dismiss()
        self._first.close()
        if self._rest is not None:
            self._rest.close()
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None, /
    ) -> None:
        self.close()

    def _employ(self) -> None:
        thread = threading.Thread(target=self._work, name="imagestore-range", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _dismiss(self) -> int:
        """End the threads and wait for them; the bytes that came ahead of their turn and are lost."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._token.cancel("the transfer was closed")
        while self._threads:
            self._threads.pop().join()
        lost = sum(len(piece) for part in self._window for piece in part.pieces)
        self._window.clear()
        return lost

    def _work(self) -> None:
        while (part := self._take()) is not None:
            failure: BaseException | None = None
            try:
                self._receive(part)
            except BaseException as error:  # noqa: BLE001 - raised in the reader's thread, at its place in the order
                failure = error
            with self._changed:
                part.failure, part.is_over = failure, True
                self._is_closed |= failure is not None
                self._changed.notify_all()

    def _take(self) -> _Part | None:
        """The next stretch, once it fits the window; None when there is nothing to do any more."""
        with self._changed:
            while True:
                if self._is_closed or not self._waiting:
                    return None
                if len(self._window) < self._connections * _PARTS_PER_CONNECTION:
                    break
                self._changed.wait()
            part = _Part(self._waiting.popleft())
            self._window.append(part)
            self._changed.notify_all()
            return part

    def _receive(self, part: _Part) -> None:
        with self._make(part.stretch, self._token) as stream:
            for piece in stream:
                with self._changed:
                    part.pieces.append(piece)
                    self._changed.notify_all()
            with self._changed:
                self._hosts.update(dict.fromkeys(stream.hosts))

    def _head(self) -> _Part:
        """The part whose turn it is."""
        with self._changed:
            while not self._window:
                self._changed.wait()
            return self._window[0]

    def _pieces(self, part: _Part) -> Iterator[bytes]:
        """What one part brings, as it comes; then it leaves the window, unless it failed."""
        while True:
            with self._changed:
                while not part.pieces and not part.is_over:
                    self._changed.wait()
                if not part.pieces:
                    if part.failure is None:
                        self._window.popleft()
                        self._changed.notify_all()
                    return
                piece = part.pieces.popleft()
            yield piece

    def _one_stream(self, start: int) -> Iterator[bytes]:
        """The rest of the blob without ranges; what came ahead of its turn is lost."""
        stretch = Stretch(start, self._size, is_continued=True, wasted=self._dismiss())
        self._rest = self._make(stretch, self._cancel)
        yield from self._rest


def _stretches(start: int, end: int, step: int) -> Iterator[Stretch]:
    """Equal parts of the bytes between two offsets; the last may be shorter."""
    for offset in range(start, end, step):
        yield Stretch(offset, min(offset + step, end), is_exact=True, is_continued=True)
