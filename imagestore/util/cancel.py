"""Cancellation: one token per operation, carried down to every loop and every socket.

Checking a flag is not enough when a read is blocked, so a reader registers a callback that ends its wait (for a socket:
shut it down); the canceller runs it.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from typing import TYPE_CHECKING, Final

from imagestore.errors import DeadlineExceededError, InvalidInputError, OperationCancelledError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_PIECE_SECONDS: Final = 1.0


class CancelToken:
    """Says whether an operation should go on.

    Args:
        deadline_seconds: from now; None means no deadline.

    Raises:
        InvalidInputError: the deadline is negative or no number.

    >>> token = CancelToken()
    >>> token.cancel("the user pressed Ctrl-C")
    >>> token.check()
    Traceback (most recent call last):
        ...
    imagestore.errors.OperationCancelledError: the user pressed Ctrl-C
    """

    def __init__(self, deadline_seconds: float | None = None) -> None:
        if deadline_seconds is not None and not deadline_seconds >= 0:  # NaN is refused too
            raise InvalidInputError(f"deadline {deadline_seconds}: expected seconds, zero or more")
        self._lock = threading.Lock()
        self._reason: str | None = None
        self._callbacks: dict[int, Callable[[], None]] = {}
        self._next_key = 0
        self._event = threading.Event()
        self._deadline = None if deadline_seconds is None else time.monotonic() + deadline_seconds
        self._deadline_seconds = deadline_seconds
        self._root: CancelToken | None = None

    @property
    def operation(self) -> CancelToken:
        """The token of the whole operation that this one is a part of; itself when it isn't a child."""
        return self._root or self

    @property
    def is_cancelled(self) -> bool:
        """Whether cancel() was called (a passed deadline is seen by check())."""
        return self._reason is not None

    def remaining_seconds(self) -> float | None:
        """Time left before the deadline, at most what a lock can wait for; None without one."""
        if self._deadline is None:
            return None
        return min(max(0.0, self._deadline - time.monotonic()), threading.TIMEOUT_MAX)

    def cancel(self, reason: str = "the operation was cancelled") -> None:
        """End the operation: later checks raise, waits end, registered callbacks run once.

        Not from a signal handler, see cancel_beside().
        """
        with self._lock:
            if self._reason is not None:
                return
            self._reason = reason
            callbacks = list(self._callbacks.values())
            self._callbacks.clear()
        self._event.set()
        with contextlib.ExitStack() as stack:
            # One that fails keeps none of the others from being called.
            for callback in reversed(callbacks):
                stack.callback(callback)

    def cancel_beside(self, reason: str) -> None:
        """As cancel(), for signal handlers: in a thread of its own, and so perhaps a moment later.

        A handler runs in the middle of whatever its thread does, also while that holds the lock of this token or of a
        connection; to wait for one there would be for ever.
        """
        try:
            threading.Thread(target=self.cancel, args=(reason,), daemon=True).start()
        except RuntimeError:  # no more threads for this process; the lock is nearly always free
            self.cancel(reason)

    def check(self) -> None:
        """Raise when the operation should stop.

        Raises:
            OperationCancelledError: cancel() was called.
            DeadlineExceededError: the deadline passed.
        """
        if self._reason is not None:
            raise OperationCancelledError(self._reason)
        if self._deadline is not None and time.monotonic() >= self._deadline:
            raise DeadlineExceededError(f"the operation did not finish within {self._deadline_seconds:g} seconds")

    def wait(self, seconds: float) -> None:
        """Sleep, but not past cancellation or the deadline; then check()."""
        until = time.monotonic() + seconds
        if self._deadline is not None:
            until = min(until, self._deadline)
        while not self._event.is_set() and (left := until - time.monotonic()) > 0:
            # By pieces: Python acts on a signal that comes just before a wait begins only when the wait ends.
            self._event.wait(min(left, _PIECE_SECONDS))
        self.check()

    @contextlib.contextmanager
    def child(self, *, deadline_seconds: float | None = None) -> Iterator[CancelToken]:
        """A token that ends with this one but can be cancelled alone, to stop one part of the work.

        Args:
            deadline_seconds: for that part, from now; None for the whole operation's.
        """
        token = CancelToken(deadline_seconds)
        if token._deadline is None or (self._deadline is not None and self._deadline < token._deadline):
            token._deadline, token._deadline_seconds = self._deadline, self._deadline_seconds
        token._root = self.operation
        with self.on_cancel(lambda: token.cancel(self._reason or "the operation was cancelled")):
            yield token

    @contextlib.contextmanager
    def on_cancel(self, callback: Callable[[], None]) -> Iterator[None]:
        """Run ``callback`` (from the cancelling thread) if cancel() comes while the block runs."""
        with self._lock:
            cancelled = self._reason is not None
            key = self._next_key
            self._next_key += 1
            if not cancelled:
                self._callbacks[key] = callback
        if cancelled:
            callback()
        try:
            yield
        finally:
            with self._lock:
                self._callbacks.pop(key, None)


class CancelGroup:
    """The operations that run on something, which end when it is closed.

    Each has a token of its own, so that those who wait for one another know them apart.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[CancelToken, _Running] = {}
        self._reason = ""
        self._process = os.getpid()

    @property
    def is_ended(self) -> bool:
        """Whether end() was called."""
        return bool(self._reason)

    @contextlib.contextmanager
    def joined(self, cancel: CancelToken | None) -> Iterator[CancelToken]:
        """An operation of this thread.

        Args:
            cancel: ends it too.

        Yields:
            Its token.

        Raises:
            OperationCancelledError: the group was ended.
        """
        running = _Running(threading.get_ident(), threading.Lock())
        with contextlib.ExitStack() as stack:
            token = CancelToken() if cancel is None else stack.enter_context(cancel.child())
            stack.enter_context(running.is_over)
            with self._lock:
                if self._reason:
                    raise OperationCancelledError(self._reason)
                self._running[token] = running
            try:
                yield token
            finally:
                with self._lock:
                    del self._running[token]

    def end(self, reason: str, *, patience_seconds: float) -> None:
        """Cancel all operations and wait for them; none begins any more. Those of this thread aren't waited for.

        Args:
            reason: what they are cancelled with.
            patience_seconds: for all of them; what goes on after that is left to itself.
        """
        if os.getpid() != self._process:
            # A fork: what runs is the parent's, and so are the connections that a cancellation would cut.
            return
        with self._lock:
            self._reason = self._reason or reason
            running = dict(self._running)
        with contextlib.ExitStack() as stack:
            # One that fails keeps none of the others from being called.
            for token in running:
                stack.callback(token.cancel, reason)
        until = time.monotonic() + patience_seconds
        for each in running.values():
            if each.thread != threading.get_ident():
                each.wait(max(0.0, until - time.monotonic()))


class _Running:
    """An operation: its thread, and a lock that it holds until it is over."""

    __slots__ = ("is_over", "thread")

    def __init__(self, thread: int, is_over: threading.Lock) -> None:
        self.thread = thread
        self.is_over = is_over

    def wait(self, seconds: float) -> None:
        """Until it is over, but not longer."""
        if self.is_over.acquire(timeout=seconds):
            self.is_over.release()
