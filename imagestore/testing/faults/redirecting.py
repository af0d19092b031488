"""Redirects as faults: same host, another host, loops, chains, and down to plain http.

The new address lies below ``/-/`` and holds the old one, so that the engine knows what to serve there without memory:
``/-/<hops left>/<host>/v2/...``. Content there needs no credential, as on a storage service; the ledger shows who
sent one all the same.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Final

from imagestore.testing.engine.exchange import Fields, Reply, Request
from imagestore.testing.faults.effect import Effect

if TYPE_CHECKING:
    from collections.abc import Mapping

    from imagestore.testing.engine.rules import Responder

_PLACE: Final = re.compile(r"/-/([0-9]{1,3}|loop)/([a-z0-9.:-]{1,260})(/v2/.*)")


@dataclass(frozen=True, slots=True)
class Redirect(Effect):
    """A redirect instead of the content.

    Attributes:
        form: ``same`` host, ``cross`` to another one, ``loop`` without end, or ``downgrade`` to plain http.
        to_host: where ``cross`` leads.
        hops: how many redirects in a row.
        status: 301, 302, 303, 307 or 308.
        is_relative: the Location has no host (same host only).
    """

    name: ClassVar[str] = "redirect"
    is_replacing: ClassVar[bool] = True
    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {"form": ("same", "cross", "loop", "downgrade")}
    ranges: ClassVar[Mapping[str, tuple[int, int]]] = {"hops": (1, 999), "status": (300, 308)}
    form: str = "cross"
    to_host: str = "storage.example"
    hops: int = 1
    status: int = 307
    is_relative: bool = False

    def apply(self, request: Request, reply: Reply) -> Reply:
        """Redirect."""
        if request.path.startswith("/-/"):
            return reply
        host = self.to_host if self.form == "cross" else request.host
        scheme = "http" if self.form == "downgrade" else "https"
        left = "loop" if self.form == "loop" else str(max(1, self.hops) - 1)
        place = f"/-/{left}/{request.host}{request.path}?signature=placeholder"
        location = place if self.is_relative else f"{scheme}://{host}{place}"
        return Reply(self.status, Fields.of({"Location": location}), kind=reply.kind, digest=reply.digest).deliver(
            head_delay_seconds=reply.delivery.head_delay_seconds
        )

    def fits(self, request: Request, reply: Reply) -> bool:
        """Content, at its own address."""
        return reply.status in self.statuses and not request.path.startswith("/-/")


def original_path(path: str) -> str:
    """The address before a redirect led away from it; any other path is its own."""
    found = _PLACE.fullmatch(path)
    return found[3] if found is not None else path


class RedirectTargets:
    """Serves what redirects lead to.

    Args:
        inside: answers without asking for credentials.
    """

    def __init__(self, inside: Responder) -> None:
        self._inside = inside

    def respond(self, request: Request) -> Reply | None:
        """The next hop, the content, or None for any other address."""
        found = _PLACE.fullmatch(request.path)
        if found is None:
            return None
        left, host, path = found.groups()
        if left != "0":
            again = "loop" if left == "loop" else str(int(left) - 1)
            place = f"{request.scheme}://{request.host}/-/{again}/{host}{path}?signature=placeholder"
            return Reply(307, Fields.of({"Location": place}), kind="blob")
        moved = replace(request, host=host, path=path, query="", fields=request.fields.without("Authorization"))
        return self._inside.respond(moved)
