"""What SIGINT, SIGTERM and SIGHUP do to a command: end it, in order where it has a token to cancel."""

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
#: How long a command may take to end in order before another signal ends it as it is.
_PATIENCE_SECONDS: Final = 1.0
#: Whether a signal to end came. Python drops an exception that is raised in a finalizer or a callback of the import
#: system; this remembers it.
_has_come = False


def _heard() -> list[signal.Signals]:
    """Signals that aren't ignored from the start, as under nohup or for background jobs of shells."""
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
    """Called before long work.

    Raises:
        KeyboardInterrupt: a signal to end came, and Python dropped the exception.
    """
    if _has_come:
        raise KeyboardInterrupt


@contextlib.contextmanager
def cancelled_by_signals(*, deadline_seconds: float | None = None) -> Iterator[CancelToken]:
    """A token that signals cancel, so that sockets close and leases are released in order.

    A signal that comes a second later or more ends the command all the same: a command that waits for a file system
    that hangs doesn't see the token. (Some wrappers pass one Ctrl-C on twice.)
    """
    token = CancelToken(deadline_seconds)
    first: float | None = None

    def _cancel(_signum: int, _frame: object) -> None:
        nonlocal first
        now = time.monotonic()
        if first is not None and now - first >= _PATIENCE_SECONDS:
            raise KeyboardInterrupt
        first = now if first is None else first
        token.cancel_beside("interrupted")

    before = {number: signal.signal(number, _cancel) for number in _heard()}
    try:
        raise_if_signalled()
        yield token
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
