"""SIGINT, SIGTERM and SIGHUP end a command, by its cancel token if it has one."""

from __future__ import annotations

import contextlib
import signal
import time
from typing import TYPE_CHECKING, Final

from imagestore.util.cancel import CancelToken

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Signals that end a command.
ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: Seconds after the first signal from which on a further signal ends the command at once.
_PATIENCE_SECONDS: Final = 1.0
#: Whether a signal arrived. Python drops an exception that is raised in a finalizer or a callback of the import system;
#: this records it.
_has_come = False


def _heard() -> list[signal.Signals]:
    """The signals to handle: not those ignored at start, as under nohup or in background jobs of shells."""
    return [number for number in ENDING if signal.getsignal(number) is not signal.SIG_IGN]


def _interrupt(_signum: int, _frame: object) -> None:
    global _has_come
    _has_come = True
    raise KeyboardInterrupt


def raise_on_signals() -> None:
    """From now on these signals raise KeyboardInterrupt in the main thread."""
    global _has_come
    _has_come = False
    with contextlib.suppress(ValueError):  # not the main thread
        for number in _heard():
            signal.signal(number, _interrupt)


def raise_if_signalled() -> None:
    """Raise the interrupt that Python dropped; call this before long work.

    Raises:
        KeyboardInterrupt: a signal to end came, and Python dropped the exception.
    """
    if _has_come:
        raise KeyboardInterrupt


@contextlib.contextmanager
def cancelled_by_signals(*, deadline_seconds: float | None = None) -> Iterator[CancelToken]:
    """A token that signals cancel, so that sockets close and leases are released in order.

    A further signal a second or more after the first ends the command at once, since a command that waits for a hanging
    file system doesn't see the token. An earlier one is ignored: some wrappers forward one Ctrl-C twice.
    """
    token = CancelToken(deadline_seconds)
    first: float | None = None

    def _cancel(_signum: int, _frame: object) -> None:
        nonlocal first
        now = time.monotonic()
        if first is not None and now - first >= _PATIENCE_SECONDS:
            raise KeyboardInterrupt
        first = now if first is None else first
        token.cancel_from_signal("interrupted")

    before = {number: signal.signal(number, _cancel) for number in _heard()}
    try:
        raise_if_signalled()
        yield token
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
