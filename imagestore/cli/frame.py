"""What is around every command: streams, signals, and the one place where errors become exit statuses."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
from typing import TYPE_CHECKING, Final

from imagestore import errors
from imagestore.cli.failure import ExitStatus, report, say
from imagestore.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable

#: Whether a signal to end came, whatever became of the exception it raised.
_was_ended = False


#: Python's own (before 3.13): so many objects more, before it looks for circles.
_COLLECT_AFTER: Final = 700


def stay() -> None:
    """For commands that don't end by themselves: look for circles again, which short ones put off for good.

    A server's calls leave some, each with its last message.
    """
    import gc

    gc.set_threshold(_COLLECT_AFTER)


def run(work: Callable[[], int]) -> int:
    """Do a command's work and return its exit status."""
    global _was_ended
    _was_ended = False
    _prepare_streams()
    with contextlib.suppress(ValueError):  # not the main thread
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # What is ignored from the start stays so, as nohup and shells with jobs in the background want it.
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, _terminate)
    try:
        status = work()
        sys.stdout.flush()
        return status
    except errors.ImageStoreError as error:
        return report(error)
    except KeyboardInterrupt:
        return interrupted()
    except RuntimeError as error:
        # What Python 3.11 makes of one while a class is defined, as imports do.
        if isinstance(error.__cause__, KeyboardInterrupt):
            return interrupted()
        raise
    except BrokenPipeError:
        # The reader of our output left; whatever is still buffered has nowhere to go.
        _silence_output()
        return ExitStatus.FAILURE
    except OSError as error:
        say(f"imagestore: {printable(str(error.filename or 'output'))}: {error.strerror}")
        _silence_output()
        return ExitStatus.FAILURE
    except UnicodeEncodeError as error:
        # Names of files may be any bytes; whatever else an argument is goes to places that take UTF-8 only.
        odd = error.object[error.start]
        word = next((word for word in sys.argv[1:] if odd in word), None)
        if word is None:
            raise
        say(f"imagestore: argument '{printable(word)}': expected UTF-8")
        return ExitStatus.USAGE


def end_if_told() -> None:
    """End a command, before its long work, that was told to while it got ready.

    Exceptions raised in a finalizer or in a callback (the import system has some) only print there; the signal counts.

    Raises:
        KeyboardInterrupt: a signal to end came.
    """
    if _was_ended:
        raise KeyboardInterrupt


def interrupted() -> int:
    """Say that somebody ended the command."""
    say("imagestore: interrupted")
    return ExitStatus.INTERRUPTED


def _prepare_streams() -> None:
    """A service may start without standard streams, and a terminal may know only ASCII."""
    for name in ("stdin", "stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - lives as long as the process
        elif name != "stdin" and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _silence_output() -> None:
    """What is still buffered has nowhere to go, and the interpreter would complain about it at its end."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _terminate(_signum: int, _frame: object) -> None:
    global _was_ended
    _was_ended = True
    raise KeyboardInterrupt
