"""Starting threads."""

from __future__ import annotations

import threading


def start(thread: threading.Thread) -> bool:
    """Start a thread; False where this process gets no more.

    Args:
        thread: known already to whoever ends it: an interrupt may come when it has begun.

    Raises:
        BaseException: what interrupted this thread meanwhile.
    """
    try:
        thread.start()
    except RuntimeError as error:
        interruption = error.__context__
        if interruption is not None and not isinstance(interruption, Exception):
            # It came while the lock was let go that is held for a moment, and then that fails too.
            raise interruption from None
        return False
    return True
