"""Connecting, in a way that can be left behind."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable


def start(work: Callable[[], None], name: str) -> None:
    """Do some work in a thread of its own, or in this one where the process may have no more."""
    try:
        threading.Thread(target=work, name=name, daemon=True).start()
    except RuntimeError:
        # It can't be left behind then, and takes its time.
        work()


class Closable(Protocol):
    """What Dial needs to know of a connection."""

    def close(self) -> None:
        """Give it up."""


C = TypeVar("C", bound=Closable)


class Dial(Generic[C]):
    """Making a connection that can be left behind: nothing ends the system's own call but its time limit.

    Args:
        connect: makes the connection.
    """

    def __init__(self, connect: Callable[[], C]) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        self._is_done = threading.Event()
        self._is_left = False
        self._stream: C | None = None
        self._error: Exception | None = None

    def result(self, wait: Callable[[threading.Event], None]) -> C:
        """The connection.

        Args:
            wait: waits for the event; when it raises, the connection is closed as soon as it is there.

        Raises:
            Exception: what ``connect`` or ``wait`` raises.
        """
        start(self._run, "connect")
        try:
            wait(self._is_done)
        except BaseException:
            with self._lock:
                self._is_left = True
            if self._stream is not None:
                self._stream.close()
            raise
        if self._stream is None:
            assert self._error is not None
            raise self._error
        return self._stream

    def _run(self) -> None:
        stream: C | None = None
        try:
            stream = self._connect()
        except Exception as error:  # noqa: BLE001 - raised in the thread that waits
            self._error = error
        with self._lock:
            if not self._is_left:
                self._stream, stream = stream, None
        if stream is not None:
            stream.close()
        self._is_done.set()
