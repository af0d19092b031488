"""HTTP/1.1 on a socket, by hand: reading requests, and sending replies that may break off on purpose (RFC 9112).

An ordinary HTTP server library refuses to send what a broken registry sends (a wrong length, a control character, a
reset in mid-body), so this one writes its bytes itself. Only what a test kit needs: no trailers, no upgrade, bodies
of requests in memory up to a limit.
"""

from __future__ import annotations

import contextlib
import http
import re
import socket
import struct
import threading
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Final

from imagestore.testing.engine.messages import Ending, Fields, Pause, Reply, Request, body_steps, has_body

if TYPE_CHECKING:
    from collections.abc import Callable

_REQUEST_LINE: Final = re.compile(r"([A-Z]{1,20}) ([!-~]{1,8192}) HTTP/1\.[01]")
_MAX_LINE: Final = 64 << 10
_MAX_FIELDS: Final = 200
#: A request body longer than this is refused.
MAX_BODY: Final = 64 << 20
# Most bytes of such a body that are read before it is refused.
_MAX_SKIPPED: Final = 1 << 30
_TOO_LONG: Final = f"the request body has more than {MAX_BODY} bytes"
_HEX: Final = re.compile(rb"[0-9a-fA-F]{1,8}")
_DECIMAL: Final = re.compile(r"[0-9]{1,12}")


class WireError(Exception):
    """A request that isn't HTTP/1.1, or is too large; the connection ends with an answer of this ``status``."""

    def __init__(self, message: str, *, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Incoming:
    """A request as read from a socket; ``target`` is the request line's middle."""

    method: str
    target: str
    fields: Fields
    body: bytes

    def to_request(self, scheme: str, host: str, target: str = "") -> Request:
        """The request to a logical host; ``target`` replaces that of the request line, as a proxy needs it."""
        path, _, query = (target or self.target).partition("?")
        return Request(self.method, scheme, host, path, query, self.fields, self.body)


def read_request(stream: IO[bytes], *, reply_continue: Callable[[], None]) -> Incoming | None:
    """Read one request; None when the client hung up before one began.

    ``reply_continue`` is called when the client waits for ``100 Continue``.

    Raises:
        WireError: not HTTP/1.1, or above a limit.
    """
    line = _line(stream)
    if not line:
        return None
    found = _REQUEST_LINE.fullmatch(line)
    if found is None:
        raise WireError("the request line is not HTTP/1.1")
    fields: list[tuple[str, str]] = []
    while (line := _line(stream)) != "":
        if line is None:
            raise WireError("the head broke off")
        name, colon, value = line.partition(":")
        if not colon or len(fields) >= _MAX_FIELDS:
            raise WireError("a header field has no colon, or there are too many")
        fields.append((name, value.strip()))
    headers = Fields(tuple(fields))
    if headers.get("Expect").lower() == "100-continue":
        reply_continue()
    return Incoming(found[1], found[2], headers, _body(stream, headers))


def _line(stream: IO[bytes]) -> str | None:
    """The next line; None when the client hung up before one."""
    line = stream.readline(_MAX_LINE + 1)
    if len(line) > _MAX_LINE:
        raise WireError("a header line is too long")
    if not line:
        return None
    if not line.endswith(b"\n"):
        raise WireError("the head broke off")
    return line.decode("latin-1").rstrip("\r\n")


def _body(stream: IO[bytes], fields: Fields) -> bytes:
    if fields.get("Transfer-Encoding").lower() == "chunked":
        return _chunked(stream)
    length = fields.get("Content-Length", "0")
    if not _DECIMAL.fullmatch(length):
        raise WireError("Content-Length is not a number")
    if int(length) > MAX_BODY:
        _skip(stream, min(int(length), _MAX_SKIPPED))
        raise WireError(_TOO_LONG, status=413)
    data = stream.read(int(length))
    if len(data) != int(length):
        raise WireError("the request body broke off")
    return data


def _skip(stream: IO[bytes], size: int) -> None:
    """Read bytes that nothing keeps: to close the connection on them would lose the answer."""
    while size > 0 and (piece := stream.read(min(size, 1 << 20))):
        size -= len(piece)


def _chunked(stream: IO[bytes]) -> bytes:
    out = bytearray()
    came = 0
    while True:
        size_text = stream.readline(64).split(b";")[0].strip()
        if not _HEX.fullmatch(size_text):
            raise WireError("a chunk has no size")
        size = int(size_text, 16)
        came += size
        if came > _MAX_SKIPPED:
            raise WireError(_TOO_LONG, status=413)
        if came > MAX_BODY:
            out.clear()
            _skip(stream, size)
        else:
            out += stream.read(size)
        if stream.readline(3) not in (b"\r\n", b"\n"):
            raise WireError("a chunk has no end")
        if size == 0:
            if came > MAX_BODY:
                raise WireError(_TOO_LONG, status=413)
            return bytes(out)


@dataclass(frozen=True, slots=True)
class Sent:
    """How sending a reply ended."""

    body_bytes: int
    ending: Ending
    is_reusable: bool


def send_reply(
    connection: socket.socket, reply: Reply, method: str, *, stopping: threading.Event, is_last: bool = False
) -> Sent:
    """Send a reply with all that its delivery says; ``stopping`` ends pauses early, ``is_last`` closes afterwards."""
    how = reply.delivery
    sent = 0
    try:
        _pause(stopping, how.head_delay_seconds)
        if how.stop_at == -1:  # broken off before the head
            return _break_off(connection, how.ending, 0, stopping, how.stall_seconds)
        connection.sendall(_head(reply, method, is_last=is_last))
        if not has_body(method, reply.status):
            return Sent(0, Ending.COMPLETE, not is_last)
        for step in body_steps(reply):
            if isinstance(step, Pause):
                _pause(stopping, step.seconds)
            elif isinstance(step, Ending):
                if step is not Ending.COMPLETE:
                    return _break_off(connection, step, sent, stopping, how.stall_seconds)
            else:
                if how.framing == "chunked":
                    connection.sendall(b"%x\r\n" % len(step))
                connection.sendall(step)
                sent += len(step)
                if how.framing == "chunked":
                    connection.sendall(b"\r\n")
        if how.framing == "chunked":
            connection.sendall(b"0\r\n\r\n")
    except OSError:
        return Sent(sent, Ending.CLOSED, is_reusable=False)
    # After a length that wasn't kept (on purpose, or because a file became shorter) nothing can follow.
    is_kept = reply.fields.get("Content-Length", str(reply.length)) == str(reply.length) == str(sent)
    return Sent(sent, Ending.COMPLETE, not is_last and how.framing != "close" and is_kept)


def _head(reply: Reply, method: str, *, is_last: bool) -> bytes:
    try:
        phrase = http.HTTPStatus(reply.status).phrase
    except ValueError:
        phrase = "Unknown"
    lines = [f"HTTP/1.1 {reply.status} {phrase}"]
    lines += [f"{name}: {value}" for name, value in reply.framed_fields(method).items]
    if is_last or reply.delivery.framing == "close":
        lines.append("Connection: close")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace")


def _pause(stopping: threading.Event, seconds: float) -> None:
    if seconds > 0:
        stopping.wait(seconds)


def _break_off(
    connection: socket.socket, ending: Ending, sent: int, stopping: threading.Event, stall_seconds: float
) -> Sent:
    if ending is Ending.STALLED:
        _wait_for_hang_up(connection, stopping, stall_seconds)
    if ending is not Ending.CLOSED:
        reset(connection)
    return Sent(sent, ending, is_reusable=False)


def _wait_for_hang_up(connection: socket.socket, stopping: threading.Event, seconds: float) -> None:
    # Short waits, so that a stopping server isn't held up by a stalled client.
    waited = 0.0
    connection.settimeout(0.1)
    while waited < seconds and not stopping.is_set():
        with contextlib.suppress(TimeoutError):
            if not connection.recv(1):
                return
        waited += 0.1


def reset(connection: socket.socket) -> None:
    """Close with RST instead of FIN, so that the client sees "connection reset"."""
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        # A TLS object keeps the file descriptor; closing it without close_notify sends the reset.
        connection.close()
