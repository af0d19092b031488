"""One exchange as values: the request, the reply, and how the reply is delivered.

A Reply describes its delivery (pauses, pace, where it breaks off and how); the loopback server plays that description
on a real socket, the httpx transport raises what httpx raises in that case.
"""

from __future__ import annotations

import enum
import json
import re
import urllib.parse
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal

from imagestore.oci import Digest
from imagestore.testing.builders.bodies import Body, BytesBody

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    #: Answers some requests; None when it has nothing to say about a request.
    Responder = Callable[["Request"], "Reply | None"]

Framing = Literal["length", "chunked", "close"]
# Fields that hold addresses.
_ADDRESSED: Final = frozenset({"location", "link", "www-authenticate"})
#: A header of every answer of a registry.
API_VERSION: Final = {"Docker-Distribution-Api-Version": "registry/2.0"}
_NO_BODY: Final = BytesBody(b"")
_RANGE: Final = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})")
# A paced body is cut so that a client sees about this many pieces a second.
_PIECES_PER_SECOND: Final = 20


@dataclass(frozen=True, slots=True)
class Fields:
    """Header fields in order; names compare without case, and may repeat.

    >>> Fields.of({"Range": "bytes=0-"}).get("range")
    'bytes=0-'
    """

    items: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, fields: dict[str, str]) -> Fields:
        """Make fields from a mapping, in order."""
        return cls(tuple(fields.items()))

    @classmethod
    def decode(cls, raw: Iterable[tuple[bytes, bytes]]) -> Fields:
        """Make fields from the raw headers of httpx."""
        return cls(tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in raw))

    def get(self, name: str, default: str = "") -> str:
        """First value of a field, or the default."""
        return next(iter(self.get_all(name)), default)

    def get_all(self, name: str) -> tuple[str, ...]:
        """Every value of a field."""
        wanted = name.lower()
        return tuple(value for key, value in self.items if key.lower() == wanted)

    def has(self, name: str) -> bool:
        """Whether the field is there at all."""
        return bool(self.get_all(name))

    def without(self, *names: str) -> Fields:
        """The same fields, less some."""
        dropped = {name.lower() for name in names}
        return Fields(tuple(item for item in self.items if item[0].lower() not in dropped))

    def put(self, name: str, value: str) -> Fields:
        """The same fields with one replaced in place (or added at the end)."""
        if not self.has(name):
            return Fields((*self.items, (name, value)))
        first = next(index for index, (key, _) in enumerate(self.items) if key.lower() == name.lower())
        return Fields((*self.items[:first], (name, value), *Fields(self.items[first + 1 :]).without(name).items))

    def readdressed(self, rewrite: Callable[[str], str]) -> Fields:
        """The same fields, with the values that hold addresses rewritten."""
        return Fields(
            tuple((name, rewrite(value) if name.lower() in _ADDRESSED else value) for name, value in self.items)
        )


@dataclass(frozen=True, slots=True)
class Request:
    """A request as the engine sees it; path and query are as sent.

    The host is logical, in lower case, with a port that isn't the scheme's. The scheme is logical too: ``https`` also
    when a plain loopback listener stands in for it.
    """

    method: str
    scheme: str
    host: str
    path: str
    query: str = ""
    fields: Fields = Fields()
    body: bytes = b""

    def parameters(self) -> list[tuple[str, str]]:
        """The query, decoded; at most 100 names."""
        return urllib.parse.parse_qsl(self.query, keep_blank_values=True)[:100]

    def form(self) -> list[tuple[str, str]]:
        """The body as a form, decoded; at most 100 names."""
        return urllib.parse.parse_qsl(self.body.decode("utf-8", "replace"), keep_blank_values=True)[:100]

    def __repr__(self) -> str:
        names = ", ".join(name for name, _ in self.fields.items)
        return f"Request({self.method} {self.scheme}://{self.host}{self.path}, fields: {names})"


class Ending(enum.Enum):
    """How the delivery of an answer ends."""

    COMPLETE = "complete"
    CLOSED = "closed"
    RESET = "reset"
    STALLED = "stalled"


@dataclass(frozen=True, slots=True)
class Delivery:
    """How an answer goes onto the wire.

    Attributes:
        head_delay_seconds: pause before the status line.
        body_delay_seconds: pause between head and first body byte.
        bytes_per_second: pace of the body; 0 is as fast as it goes.
        stop_at: body bytes after which ``ending`` happens; None sends all, -1 not even the head.
        stall_seconds: how long a stalled connection stays open.
        framing: how the body's end is marked.
    """

    head_delay_seconds: float = 0.0
    body_delay_seconds: float = 0.0
    bytes_per_second: float = 0.0
    stop_at: int | None = None
    ending: Ending = Ending.COMPLETE
    stall_seconds: float = 60.0
    framing: Framing = "length"


@dataclass(frozen=True, slots=True)
class Push:
    """What a request put into a repository.

    Attributes:
        repository: path of the repository.
        digest: of the blob or manifest.
        size: its bytes, whether or not they were sent.
        tag: that a manifest was pushed by; empty for a blob, and for a manifest pushed by digest.
        is_mounted: a blob came from another repository; nothing was sent.
    """

    repository: str
    digest: Digest
    size: int
    tag: str = ""
    is_mounted: bool = False

    def __str__(self) -> str:
        how = "mounted into" if self.is_mounted else "pushed to"
        return f"{how} {self.repository}{f':{self.tag}' if self.tag else ''}: {self.digest}, {self.size} bytes"


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer, not yet sent.

    Attributes:
        fields: header fields; addresses in them use logical host names. A Content-Length here replaces the true one.
        body: the whole representation; ``start`` and ``stop`` say which part is sent (stop None: to its end).
        kind: what was asked for; see urls.KINDS.
        digest: of the content the body is (a part of), when known.
        faults: names of the faults that changed it.
        act: makes the change that the answer confirms, given how many bytes of the request's body came. It is lost with
            an answer that a fault replaces.
        arrived: bytes of the request's body that came before the connection broke; None is all.
        pushed: what the change puts into a repository.
    """

    status: int
    fields: Fields = Fields()
    body: Body = _NO_BODY
    start: int = 0
    stop: int | None = None
    kind: str = "other"
    digest: Digest | None = None
    delivery: Delivery = Delivery()
    faults: tuple[str, ...] = ()
    act: Callable[[int], None] | None = None
    arrived: int | None = None
    pushed: Push | None = None

    @property
    def length(self) -> int:
        """Bytes of the body that a complete delivery sends."""
        return max(0, (self.body.size if self.stop is None else self.stop) - self.start)

    def framed_fields(self, method: str) -> Fields:
        """The header fields with the one that marks the body's end; a Content-Length among them stays as it is."""
        fields, framing = self.fields.without("Transfer-Encoding"), self.delivery.framing
        if framing == "chunked" and has_body(method, self.status):
            return fields.put("Transfer-Encoding", "chunked")
        is_counted = framing == "length" and self.status not in (204, 304) and not fields.has("Content-Length")
        return fields.put("Content-Length", str(self.length)) if is_counted else fields

    def deliver(self, **changes: object) -> Reply:
        """The same reply with members of its delivery changed."""
        return replace(self, delivery=replace(self.delivery, **changes))  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Pause:
    """A step of a delivery: wait."""

    seconds: float


def body_steps(reply: Reply) -> Iterator[bytes | Pause | Ending]:
    """Play the body of a reply: pieces and pauses in turn, and at last exactly one Ending."""
    how = reply.delivery
    if how.body_delay_seconds:
        yield Pause(how.body_delay_seconds)
    stop = reply.start + (reply.length if how.stop_at is None else min(how.stop_at, reply.length))
    for piece in reply.body.chunks(reply.start, stop):
        if not how.bytes_per_second:
            yield piece
            continue
        step = max(1, int(how.bytes_per_second / _PIECES_PER_SECOND))
        for offset in range(0, len(piece), step):
            part = piece[offset : offset + step]
            yield part
            yield Pause(len(part) / how.bytes_per_second)
    yield Ending.COMPLETE if how.stop_at is None else how.ending


def has_body(method: str, status: int) -> bool:
    """Whether an answer to this method with this status carries a body (RFC 9110 section 6.4.1)."""
    return method != "HEAD" and status not in (204, 304) and status >= 200


def error(status: int, code: str, message: str, *, fields: dict[str, str] | None = None, kind: str = "other") -> Reply:
    """An error document: ``{"errors": [{"code", "message"}]}``."""
    return json_reply({"errors": [{"code": code, "message": message}]}, status=status, fields=fields, kind=kind)


def json_reply(value: object, *, status: int = 200, fields: dict[str, str] | None = None, kind: str = "other") -> Reply:
    """A JSON document."""
    headers = {"Content-Type": "application/json", **API_VERSION, **(fields or {})}
    return Reply(status, Fields.of(headers), BytesBody(json.dumps(value).encode()), kind=kind)


def created(push: Push, folder: str, *, kind: str) -> Reply:
    """The answer to a push: where the content is now, below ``blobs`` or ``manifests``."""
    about = {"Location": f"/v2/{push.repository}/{folder}/{push.digest}", "Docker-Content-Digest": str(push.digest)}
    return Reply(201, Fields.of({**about, **API_VERSION}), kind=kind, digest=push.digest, pushed=push)


def is_digest_of(digest: Digest, data: bytes) -> bool:
    """Whether a digest is that of some bytes; one whose algorithm can't be verified is not."""
    return digest.is_verifiable and Digest.of(data, digest.algorithm) == digest


def parse_range(text: str, size: int) -> tuple[int, int] | None:
    """Start and stop (exclusive) that a Range asks for (RFC 9110 section 14); None when it is to be ignored.

    A list of ranges, another unit and nonsense are ignored, as the RFC allows. An unsatisfiable range gives an empty
    one, ``(size, size)``.

    >>> parse_range("bytes=2-3", 10)
    (2, 4)
    >>> parse_range("bytes=-3", 10)
    (7, 10)
    """
    found = _RANGE.fullmatch(text)
    if found is None or (not found[1] and not found[2]):
        return None
    if not found[1]:
        return max(0, size - int(found[2])), size
    start = int(found[1])
    stop = int(found[2]) + 1 if found[2] else size
    if stop <= start and found[2]:
        return None
    return (start, min(stop, size)) if start < size else (size, size)


def apply_range(reply: Reply, range_text: str) -> Reply:
    """Turn a 200 into the 206 or 416 that the Range asks for; other replies pass."""
    if reply.status != 200 or not range_text:
        return reply
    size = reply.body.size
    part = parse_range(range_text, size)
    if part is None:
        return reply
    start, stop = part
    if start >= stop:
        refused = error(416, "RANGE_INVALID", "the range is not in the blob", kind=reply.kind)
        return replace(refused, fields=refused.fields.put("Content-Range", f"bytes */{size}"), digest=reply.digest)
    fields = reply.fields.put("Content-Range", f"bytes {start}-{stop - 1}/{size}")
    return replace(reply, status=206, fields=fields, start=start, stop=stop)
