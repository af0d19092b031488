"""Other people's programs: bounded in time and output, ended with everything they started.

Credential helpers and image verifiers are run this way: no shell, a process group of their own, both pipes bounded and
never blocking.
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
    """Run a program, give it its standard input, and return its standard output and exit status.

    Args:
        command: absolute path of the program, and its arguments; no shell is involved.
        question: its standard input.
        environment: all of its variables.
        seconds: how long it may take.
        limit_bytes: how much it may say.
        cancel: ends it early.

    Raises:
        TimeoutError: it took too long; it and everything it started were ended.
        OverflowError: it said too much.
        OSError: it can't be started.
        OperationCancelledError: cancelled since then.
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
    """Write the question, read the answer until the program has ended; both pipes bounded and never blocking."""
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
            # A daemon it left behind may hold the pipe open for ever; what the program itself said is there by now.
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
    """What is left to write; nothing when the reader has gone."""
    try:
        return data[os.write(descriptor, data) :]
    except BlockingIOError:
        return data
    except BrokenPipeError:
        return b""


def _end_group(process: subprocess.Popen[bytes]) -> None:
    # Its process id is also its group's; a child that wasn't waited for keeps the number from being used again.
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
