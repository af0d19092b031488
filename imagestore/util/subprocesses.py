"""Running external programs (credential helpers, image verifiers) with limits of time and output.

There is no shell. The program has a process group of its own, which ends with everything that it started; the pipes
never block.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from imagestore.util.cancel import CancelToken

_POLL_SECONDS: Final = 0.1


def converse(
    command: Sequence[str],
    question: bytes,
    environment: Mapping[str, str],
    *,
    seconds: float,
    limit_bytes: int,
    cancel: CancelToken,
) -> tuple[bytes, int]:
    """Run a program with this standard input and environment; return its standard output and exit status.

    Raises:
        TimeoutError: it took longer than ``seconds``; it and everything it started were ended.
        OverflowError: its output is longer than ``limit_bytes``.
        OSError: it can't be started.
        OperationCancelledError: cancelled.
    """
    process = subprocess.Popen(
        list(command),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=dict(environment),
        cwd="/",
        # Its own group, so that everything it started can be ended with it.
        start_new_session=True,
    )
    is_done = False
    with process, cancel.on_cancel(lambda: _end_group(process)):
        try:
            output = _exchange(process, question, time.monotonic() + seconds, limit_bytes, cancel)
            is_done = True
        finally:
            if not is_done:
                _end_group(process)
    cancel.check()
    return output, process.returncode


def _exchange(
    process: subprocess.Popen[bytes], question: bytes, until: float, limit_bytes: int, cancel: CancelToken
) -> bytes:
    """Write the question, and read the answer until the program has ended."""
    stdin, stdout = process.stdin, process.stdout
    assert stdin is not None
    assert stdout is not None
    os.set_blocking(stdin.fileno(), False)
    os.set_blocking(stdout.fileno(), False)
    output = bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(stdin, selectors.EVENT_WRITE)
        selector.register(stdout, selectors.EVENT_READ)
        while selector.get_map():
            cancel.check()
            if time.monotonic() >= until:
                raise TimeoutError
            # A daemon that it started may hold the pipe open for ever; the program's own output is there by now.
            has_ended = process.poll() is not None
            ready = selector.select(0 if has_ended else min(_POLL_SECONDS, max(0.0, until - time.monotonic())))
            if has_ended and not ready:
                break
            for key, _ in ready:
                if key.fileobj is stdin:
                    question = _write(stdin.fileno(), question)
                    if not question:
                        selector.unregister(stdin)
                        with contextlib.suppress(BrokenPipeError):
                            stdin.close()
                    continue
                chunk = os.read(stdout.fileno(), 16384)
                if not chunk:
                    selector.unregister(stdout)
                output += chunk
                if len(output) > limit_bytes:
                    raise OverflowError
    while process.poll() is None:
        if time.monotonic() >= until:
            raise TimeoutError
        cancel.wait(0.005)
    return bytes(output)


def _write(descriptor: int, data: bytes) -> bytes:
    """Write what the pipe takes and return the rest; nothing if the reader has closed it."""
    try:
        return data[os.write(descriptor, data) :]
    except BlockingIOError:
        return data
    except BrokenPipeError:
        return b""


def _end_group(process: subprocess.Popen[bytes]) -> None:
    # Its process id is also its group's; until it is waited for, the number isn't used again.
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
