"""Cancellation: one token per operation, passed to every loop and every socket.

A blocked read can't check a flag, so the reader registers a callback that ends its wait (shuts its socket down), and
cancel() runs it.
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


def never_cancelled() -> None:
    """A check for work that nobody cancels, in the place of ``CancelToken.check``."""


class CancelToken:
    """Cancels an operation, by a call or at a deadline, ``deadline_seconds`` from now.

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
        """The token of the whole operation: of a child the topmost parent, else the token itself."""
        return self._root or self

    @property
    def is_cancelled(self) -> bool:
        """Whether cancel() was called; a deadline that passed doesn't count."""
        return self._reason is not None

    def remaining_seconds(self) -> float | None:
        """Time left before the deadline, at most what a lock can wait for; None without a deadline."""
        if self._deadline is None:
            return None
        return min(max(0.0, self._deadline - time.monotonic()), threading.TIMEOUT_MAX)

    def cancel(self, reason: str = "the operation was cancelled") -> None:
        """End the operation: later checks raise, waits end, registered callbacks run once.

        A signal handler calls cancel_from_signal() instead.
        """
        with self._lock:
            if self._reason is not None:
                return
            self._reason = reason
            callbacks = list(self._callbacks.values())
            self._callbacks.clear()
        self._event.set()
        with contextlib.ExitStack() as stack:
            # The stack runs all callbacks even if one fails.
            for callback in reversed(callbacks):
                stack.callback(callback)

    def cancel_from_signal(self, reason: str) -> None:
        """As cancel(), for signal handlers: in a thread of its own, and so perhaps a moment later.

        The interrupted thread may hold the lock of this token or of a connection; to wait for it would be a deadlock.
        """
        try:
            threading.Thread(target=self.cancel, args=(reason,), daemon=True).start()
        except RuntimeError:  # no thread can be started; the lock is nearly always free
            self.cancel(reason)

    def check(self) -> None:
        """Raise if the operation should stop.

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
            # In pieces: Python handles a signal that arrives just before a wait only after the wait.
            self._event.wait(min(left, _PIECE_SECONDS))
        self.check()

    @contextlib.contextmanager
    def child(self, *, deadline_seconds: float | None = None) -> Iterator[CancelToken]:
        """A token that is cancelled with this one but can be cancelled alone, for a part of the work.

        Its deadline is the earlier one.
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
    """The running operations on a resource, which end when it is closed; each has a token of its own."""

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
        """An operation of this thread; yields its token, which ``cancel`` cancels too.

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
        """Cancel all operations, let no other begin, and wait for other threads, in all ``patience_seconds``."""
        if os.getpid() != self._process:
            return  # a fork: the operations, and the connections that a cancellation would cut, are the parent's
        with self._lock:
            self._reason = self._reason or reason
            running = dict(self._running)
        with contextlib.ExitStack() as stack:
            # The stack cancels all even if one callback fails.
            for token in running:
                stack.callback(token.cancel, reason)
        until = time.monotonic() + patience_seconds
        for each in running.values():
            if each.thread != threading.get_ident():
                each.wait(max(0.0, until - time.monotonic()))


class _Running:
    """An operation: its thread, and a lock that it holds as long as it runs."""

    __slots__ = ("is_over", "thread")

    def __init__(self, thread: int, is_over: threading.Lock) -> None:
        self.thread = thread
        self.is_over = is_over

    def wait(self, seconds: float) -> None:
        """Wait for its end, at most so long."""
        if self.is_over.acquire(timeout=seconds):
            self.is_over.release()
