"""Effects on bodies: bytes flipped, added or compressed, documents that hurt a parser; late, slow, stalled, cut off."""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass, replace
from typing import Final

from imagestore.testing.builders.bodies import BytesBody, FlippedBody, PaddedBody, read_all
from imagestore.testing.builders.layers import stored_gzip
from imagestore.testing.engine.messages import Ending, Reply, Request, has_body
from imagestore.testing.faults.rules import SUCCESSES, Effect, choice, number

# Pauses in seconds and paces in bytes per second; a tape takes no other numbers either.
_FINITE: Final = (0, 10**9)
_MOST_ADDED: Final = 1 << 40
# Effects that rewrite a whole body do so in memory; for larger layers there are the effects on delivery.
_MAX_REWRITTEN: Final = 64 << 20


def _from_end(position: int, length: int) -> int:
    """A position in a body; a negative one counts from the end."""
    return max(0, min(length, position if position >= 0 else length + position))


@dataclass(frozen=True, slots=True)
class Flip(Effect):
    """One byte of the content is inverted; ``at`` counts in the whole body, negative from its end."""

    is_on_body = True
    at: int = 0

    def fits(self, request: Request, reply: Reply) -> bool:
        """Answers that the byte is in; a range may leave it out, and a short body may not have it."""
        position = _from_end(self.at, reply.body.size)
        return Effect.fits(self, request, reply) and reply.start <= position < reply.start + reply.length

    def _changed(self, request: Request, reply: Reply) -> Reply:
        return replace(reply, body=FlippedBody(reply.body, _from_end(self.at, reply.body.size)))


@dataclass(frozen=True, slots=True)
class ExtraBytes(Effect):
    """The body is longer than the content by ``count`` blanks, and the length says so."""

    count: int = number(1, 0, _MOST_ADDED)

    def _changed(self, request: Request, reply: Reply) -> Reply:
        longer = PaddedBody(reply.body, reply.body.size + self.count)
        return replace(reply, body=longer, stop=None if reply.stop is None else reply.stop + self.count)


@dataclass(frozen=True, slots=True)
class GzipCoding(Effect):
    """The body is sent with ``Content-Encoding: gzip``, asked for or not.

    Attributes:
        is_bomb: really compressed instead of stored, with blanks in front so that it grows a thousandfold.
    """

    is_bomb: bool = False

    def _changed(self, request: Request, reply: Reply) -> Reply:
        data = read_all(reply.body, _MAX_REWRITTEN)
        packed = zlib.compress(data + b" " * (16 << 20), 9, 31) if self.is_bomb else stored_gzip(data)
        fields = reply.fields.without("Content-Range", "Content-Length").put("Content-Encoding", "gzip")
        return replace(reply, status=200, body=BytesBody(packed), start=0, stop=None, fields=fields)


@dataclass(frozen=True, slots=True)
class HugeManifest(Effect):
    """A document padded with blanks to ``size`` bytes, so that it still parses."""

    size: int = number(5 << 20, 0, _MOST_ADDED)

    def _changed(self, request: Request, reply: Reply) -> Reply:
        return replace(reply, body=PaddedBody(reply.body, max(self.size, reply.body.size)), stop=None)


@dataclass(frozen=True, slots=True)
class DeepJson(Effect):
    """A document of ``depth`` nested lists inside an object."""

    depth: int = number(100_000, 0, 10_000_000)

    def _changed(self, request: Request, reply: Reply) -> Reply:
        text = '{"schemaVersion": 2, "annotations": ' + "[" * self.depth + "]" * self.depth + "}"
        return replace(reply, body=BytesBody(text.encode()), start=0, stop=None)


@dataclass(frozen=True, slots=True)
class DuplicateKeys(Effect):
    """A document that starts with a second ``member`` of the same name, which parsers read differently."""

    member: str = "schemaVersion"

    def _changed(self, request: Request, reply: Reply) -> Reply:
        added = json.dumps({self.member: 2}).encode()[:-1] + b", "
        data = read_all(reply.body, _MAX_REWRITTEN).replace(b"{", added, 1)
        return replace(reply, body=BytesBody(data), start=0, stop=None)


@dataclass(frozen=True, slots=True)
class SlowHead(Effect):
    """The status line comes late."""

    statuses = SUCCESSES
    seconds: float = number(1.0, *_FINITE)

    def _changed(self, request: Request, reply: Reply) -> Reply:
        return reply.deliver(head_delay_seconds=self.seconds)


@dataclass(frozen=True, slots=True)
class SlowFirstByte(Effect):
    """The head comes, then a pause before the body."""

    is_on_body = True
    seconds: float = number(1.0, *_FINITE)

    def _changed(self, request: Request, reply: Reply) -> Reply:
        return reply.deliver(body_delay_seconds=self.seconds)


@dataclass(frozen=True, slots=True)
class Drip(Effect):
    """The body comes at a given pace; timeouts on single reads never notice."""

    is_on_body = True
    bytes_per_second: float = number(1024.0, *_FINITE)

    def _changed(self, request: Request, reply: Reply) -> Reply:
        return reply.deliver(bytes_per_second=self.bytes_per_second)


def _is_inside(at: int, reply: Reply) -> bool:
    """Whether a body has bytes behind this position; a fault at its end would be counted without an effect."""
    return _from_end(at, reply.length) < reply.length


def _is_seen(at: int, reply: Reply) -> bool:
    """Whether a client that has everything up to this position misses anything: bytes, or the mark of the end."""
    return _is_inside(at, reply) or reply.delivery.framing != "length"


@dataclass(frozen=True, slots=True)
class Stall(Effect):
    """The body stops at byte ``at`` and the connection stays open for ``seconds``."""

    is_on_body = True
    at: int = 0
    seconds: float = number(60.0, *_FINITE)

    def fits(self, request: Request, reply: Reply) -> bool:
        """With a body that long."""
        return Effect.fits(self, request, reply) and _is_seen(self.at, reply)

    def _changed(self, request: Request, reply: Reply) -> Reply:
        position = _from_end(self.at, reply.length)
        return reply.deliver(stop_at=position, ending=Ending.STALLED, stall_seconds=self.seconds)


@dataclass(frozen=True, slots=True)
class Reset(Effect):
    """The connection is reset after ``at`` body bytes; with ``before_head`` no answer comes at all."""

    statuses = SUCCESSES
    at: int = 0
    before_head: bool = False

    def fits(self, request: Request, reply: Reply) -> bool:
        """With a body to break off there, unless it is broken off before."""
        has_place = has_body(request.method, reply.status) and _is_seen(self.at, reply)
        return reply.status in self.statuses and (self.before_head or has_place)

    def _changed(self, request: Request, reply: Reply) -> Reply:
        position = -1 if self.before_head else _from_end(self.at, reply.length)
        return reply.deliver(stop_at=position, ending=Ending.RESET)


@dataclass(frozen=True, slots=True)
class Truncate(Effect):
    """The body ends early with an orderly close.

    Attributes:
        at: bytes that come; negative counts from the end.
        framing: ``length`` announces the full length, ``chunked`` leaves the last chunk out, ``close`` announces
            nothing, so that only the size in the descriptor shows that bytes are missing.
    """

    is_on_body = True
    at: int = -1
    framing: str = choice("length", "chunked", "close")

    def fits(self, request: Request, reply: Reply) -> bool:
        """With a body that long; the last chunk can be left out of any."""
        is_seen = self.framing == "chunked" or _is_inside(self.at, reply)
        return Effect.fits(self, request, reply) and is_seen

    def _changed(self, request: Request, reply: Reply) -> Reply:
        return reply.deliver(stop_at=_from_end(self.at, reply.length), ending=Ending.CLOSED, framing=self.framing)


@dataclass(frozen=True, slots=True)
class Unframed(Effect):
    """The whole body comes, without Content-Length: ``chunked`` or ended by ``close``; legal, and often forgotten."""

    framing: str = choice("chunked", "length", "close")

    def _changed(self, request: Request, reply: Reply) -> Reply:
        return reply.deliver(framing=self.framing)
