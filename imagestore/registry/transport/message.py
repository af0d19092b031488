"""HTTP/1.1 messages as bytes (RFC 9112): what is sent, the head of what comes, and how its body ends.

Strict where laxness has been exploited (lengths, codings, field names, line ends inside fields), and bounded. What a
recipient may mend is mended: folded lines are joined, equal lengths count once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from imagestore.registry.transport import urls
from imagestore.registry.transport.faults import InvalidAnswerError, OtherProtocolError, UnsendableError

if TYPE_CHECKING:
    from imagestore.registry.exchange import Request

Fields = tuple[tuple[bytes, bytes], ...]

#: A head may be as long, lines between informational heads included.
MAX_HEAD_BYTES: Final = 100 * 1024
#: How a body of unknown length ends.
CHUNKED: Final = -1
UNTIL_END: Final = -2

_TOKEN: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE: Final = re.compile(rb"[^\x00\n\x0b\x0c\r]*")
_SENT_VALUE: Final = re.compile(rb"[\t\x20-\x7e]*")
_TARGET: Final = re.compile(rb"[\x21-\x7e]+")
# What another major version means nobody says (RFC 9110, section 2.5).
_STATUS_LINE: Final = re.compile(rb"HTTP/(1\.[0-9]) ([0-9]{3})(?: [^\x00\r\n]*)?")
_LENGTH: Final = re.compile(rb"[0-9]{1,19}")
_END_OF_HEAD: Final = re.compile(rb"\n\r?\n")


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A request, ready to be sent.

    Attributes:
        method: upper case.
        scheme: ``http`` or ``https``.
        host: without brackets.
        port: always given.
        target: path and query.
        fields: all of them, Host first.
        body: may be empty.
        connect_seconds: for a connection, TLS included.
        idle_seconds: without a single byte.
    """

    method: str
    scheme: str
    host: str
    port: int
    # Signatures, tokens and passwords are in these.
    target: bytes = field(repr=False)
    fields: Fields = field(repr=False)
    body: bytes = field(repr=False)
    connect_seconds: float
    idle_seconds: float

    @property
    def given_port(self) -> int | None:
        """The port where it isn't the scheme's own."""
        return None if self.port == urls.DEFAULT_PORTS[self.scheme] else self.port

    @property
    def limits(self) -> dict[str, float]:
        """Seconds of the waits by the names that httpx and its engine have for them."""
        idle = self.idle_seconds
        return {"connect": self.connect_seconds, "read": idle, "write": idle, "pool": idle}

    def head(self) -> bytes:
        """Request line and fields.

        Raises:
            UnsendableError: they would say something else than what is meant.
        """
        if not _TOKEN.fullmatch(self.method.encode()) or not _TARGET.fullmatch(self.target):
            raise UnsendableError("method or target")
        for name, value in self.fields:
            if not _TOKEN.fullmatch(name) or not _SENT_VALUE.fullmatch(value) or value.strip(b" \t") != value:
                raise UnsendableError("field")
        lines = [b"%b %b HTTP/1.1" % (self.method.encode(), self.target)]
        lines += [b"%b: %b" % field for field in self.fields]
        return b"\r\n".join([*lines, b"", b""])


def outgoing(request: Request, *, user_agent: str, connect_seconds: float, idle_seconds: float) -> Outgoing:
    """A request with what every request of ours says.

    Args:
        request: what to send.
        user_agent: unless the request says its own.
        connect_seconds, idle_seconds: see Outgoing.

    Raises:
        ProtocolError: its address can't be used.
        UnsendableError: a field isn't ASCII.
    """
    parts = urls.split(request.url)
    host = parts.hostname or ""
    default = urls.DEFAULT_PORTS[parts.scheme]
    port = parts.port or default
    named = f"[{host}]" if ":" in host else host
    # Digests are over bytes as stored; a transport coding would only add a decompression bomb.
    always = [("Host", named if port == default else f"{named}:{port}"), ("Accept-Encoding", "identity")]
    always.append(("User-Agent", user_agent))
    if request.body is not None or request.method == "POST":
        always.append(("Content-Length", str(len(request.body or b""))))
    given = {name.lower() for name, _ in request.headers}
    fields = [each for each in always if each[0].lower() not in given]
    try:
        encoded = tuple((name.encode("ascii"), value.encode("ascii")) for name, value in (*fields, *request.headers))
    except UnicodeEncodeError as error:
        raise UnsendableError("field") from error
    target = ((parts.path or "/") + (f"?{parts.query}" if parts.query else "")).encode("ascii")
    return Outgoing(
        request.method,
        parts.scheme,
        host,
        port,
        target,
        encoded,
        request.body or b"",
        connect_seconds,
        idle_seconds,
    )


@dataclass(frozen=True, slots=True)
class Head:
    """Status line and fields of an answer.

    Attributes:
        version: ``1.1``, for example.
        status: code.
        fields: as received, without the space around values.
    """

    version: bytes
    status: int
    fields: Fields = field(repr=False)

    @property
    def keeps_connection(self) -> bool:
        """Whether the connection serves again once the body has been read (section 9.3)."""
        options = {option.strip(b" \t").lower() for option in _all(self, b"connection")}
        # Both a length and a coding: somebody between may see another end than we do (section 6.3).
        is_doubtful = bool(_all(self, b"transfer-encoding") and _all(self, b"content-length"))
        return self.version == b"1.1" and b"close" not in options and not is_doubtful


def end_of_head(data: bytearray, start: int) -> int:
    """Offset behind the empty line that ends a head, or -1; looked for from ``start`` on."""
    found = _END_OF_HEAD.search(data, max(0, start - 3))
    return found.end() if found is not None else -1


def check_beginning(data: bytearray) -> None:
    """Tell at once when a peer speaks another protocol, which may wait for us to speak.

    Raises:
        OtherProtocolError: it doesn't begin as HTTP does.
    """
    if not data.startswith(b"HTTP/"[: len(data)]):
        raise OtherProtocolError("expected a status line, found something else")


def parse_head(data: bytes) -> Head:
    """Read a head, its last, empty line included (sections 4 and 5).

    Raises:
        InvalidAnswerError: it is no HTTP.
    """
    lines = [line.removesuffix(b"\r") for line in data.split(b"\n")]
    status = _STATUS_LINE.fullmatch(lines[0])
    if status is None or status[2] < b"100":
        raise InvalidAnswerError("expected a status line, found something else")
    fields: list[tuple[bytes, bytes]] = []
    for line in lines[1:]:
        if line[:1] in (b" ", b"\t"):
            if not fields:
                raise InvalidAnswerError("the first field is folded")
            name, value = fields.pop()
            fields.append((name, (value + b" " + line.strip(b" \t")).strip(b" \t")))
        elif line:
            name, colon, value = line.partition(b":")
            if not colon or not _TOKEN.fullmatch(name):
                raise InvalidAnswerError("a header field has no valid name")
            fields.append((name, value.strip(b" \t")))
    if not all(_VALUE.fullmatch(value) for _, value in fields):
        raise InvalidAnswerError("a header field holds a control character")
    return Head(status[1], int(status[2]), tuple(fields))


def body_length(method: str, head: Head) -> int:
    """Bytes of the body; CHUNKED or UNTIL_END when only its end tells (section 6.3).

    Raises:
        InvalidAnswerError: the fields that say it contradict each other, or name a coding nobody asked for.
    """
    codings = [value.lower() for name, value in head.fields if name.lower() == b"transfer-encoding"]
    if codings and codings != [b"chunked"]:
        raise InvalidAnswerError("a transfer coding that was not asked for")
    lengths = {part.strip(b" \t") for part in _all(head, b"content-length")}
    if len(lengths) > 1 or not all(_LENGTH.fullmatch(length) for length in lengths):
        raise InvalidAnswerError("no valid Content-Length")
    if method == "HEAD" or head.status in (204, 304):
        return 0
    if codings:
        return CHUNKED
    return int(lengths.pop()) if lengths else UNTIL_END


def _all(head: Head, name: bytes) -> list[bytes]:
    return [part for key, value in head.fields if key.lower() == name for part in value.split(b",")]
