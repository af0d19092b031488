"""Effects on the wire: late, slow, stalled, cut off, reset."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from imagestore.testing.engine.exchange import Ending, has_body
from imagestore.testing.faults.effect import FINITE, Effect, from_end

if TYPE_CHECKING:
    from collections.abc import Mapping

    from imagestore.testing.engine.exchange import Reply, Request


def _is_inside(at: int, reply: Reply) -> bool:
    """Whether a body has bytes behind this position; a fault at its end would count as done, and nobody see it."""
    return from_end(at, reply.length) < reply.length


def _is_seen(at: int, reply: Reply) -> bool:
    """Whether a client that has everything up to this position misses anything: bytes, or the mark of the end."""
    return _is_inside(at, reply) or reply.delivery.framing != "length"


@dataclass(frozen=True, slots=True)
class SlowHead(Effect):
    """The status line comes late."""

    name: ClassVar[str] = "slow-head"
    ranges: ClassVar[Mapping[str, tuple[int, int]]] = {"seconds": FINITE}
    seconds: float = 1.0

    def apply(self, request: Request, reply: Reply) -> Reply:
        """Delay the head."""
        return reply.deliver(head_delay_seconds=self.seconds)


@dataclass(frozen=True, slots=True)
class SlowFirstByte(Effect):
    """The head comes, then a pause before the body."""

    name: ClassVar[str] = "slow-first-byte"
    is_on_body: ClassVar[bool] = True
    ranges: ClassVar[Mapping[str, tuple[int, int]]] = {"seconds": FINITE}
    seconds: float = 1.0

    def apply(self, request: Request, reply: Reply) -> Reply:
        """Delay the body."""
        return reply.deliver(body_delay_seconds=self.seconds)


@dataclass(frozen=True, slots=True)
class Drip(Effect):
    """The body comes at a given pace; timeouts on single reads never notice."""

    name: ClassVar[str] = "drip"
    is_on_body: ClassVar[bool] = True
    ranges: ClassVar[Mapping[str, tuple[int, int]]] = {"bytes_per_second": FINITE}
    bytes_per_second: float = 1024.0

    def apply(self, request: Request, reply: Reply) -> Reply:
        """Pace the body."""
        return reply.deliver(bytes_per_second=self.bytes_per_second)


@dataclass(frozen=True, slots=True)
class Stall(Effect):
    """The body stops at byte ``at`` and the connection stays open for ``seconds``."""

    name: ClassVar[str] = "stall"
    is_on_body: ClassVar[bool] = True
    ranges: ClassVar[Mapping[str, tuple[int, int]]] = {"seconds": FINITE}
    at: int = 0
    seconds: float = 60.0

    def fits(self, request: Request, reply: Reply) -> bool:
        """With a body that long."""
        return Effect.fits(self, request, reply) and _is_seen(self.at, reply)

    def apply(self, request: Request, reply: Reply) -> Reply:
        """Stop, and wait."""
        position = from_end(self.at, reply.length)
        return reply.deliver(stop_at=position, ending=Ending.STALLED, stall_seconds=self.seconds)


@dataclass(frozen=True, slots=True)
class Reset(Effect):
    """The connection is reset after ``at`` body bytes; with ``before_head`` no answer comes at all."""

    name: ClassVar[str] = "reset"
    at: int = 0
    before_head: bool = False

    def fits(self, request: Request, reply: Reply) -> bool:
        """With a body to break off there, unless it is broken off before."""
        has_place = has_body(request.method, reply.status) and _is_seen(self.at, reply)
        return reply.status in self.statuses and (self.before_head or has_place)

    def apply(self, request: Request, reply: Reply) -> Reply:
        """Reset."""
        position = -1 if self.before_head else from_end(self.at, reply.length)
        return reply.deliver(stop_at=position, ending=Ending.RESET)


@dataclass(frozen=True, slots=True)
class Truncate(Effect):
    """The body ends early with an orderly close.

    Attributes:
        at: bytes that come; negative counts from the end.
        framing: ``length`` announces the full length, ``chunked`` leaves the last chunk out, ``close`` announces
            nothing, so that only the size in the descriptor shows that bytes are missing.
    """

    name: ClassVar[str] = "truncate"
    is_on_body: ClassVar[bool] = True
    at: int = -1
    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {"framing": ("length", "chunked", "close")}
    framing: str = "length"

    def fits(self, request: Request, reply: Reply) -> bool:
        """With a body that long; the last chunk can be left out of any."""
        is_seen = self.framing == "chunked" or _is_inside(self.at, reply)
        return Effect.fits(self, request, reply) and is_seen

    def apply(self, request: Request, reply: Reply) -> Reply:
        """Close early."""
        return reply.deliver(stop_at=from_end(self.at, reply.length), ending=Ending.CLOSED, framing=self.framing)


@dataclass(frozen=True, slots=True)
class Unframed(Effect):
    """The whole body comes, without Content-Length: ``chunked`` or ended by ``close``; legal, and often forgotten."""

    name: ClassVar[str] = "unframed"
    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {"framing": ("length", "chunked", "close")}
    framing: str = "chunked"

    def apply(self, request: Request, reply: Reply) -> Reply:
        """Change the framing."""
        return reply.deliver(framing=self.framing)
