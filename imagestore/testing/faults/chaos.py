"""Chaos from a seed: recoverable faults, mixed, the same for the same seed however requests interleave.

Each decision depends on the seed, the request's method and address and how often that address was asked, and on nothing
else; all uploads into a repository count as one address. After ``most_per_address`` faults an address behaves, so a
client that retries sensibly always gets through.
"""

from __future__ import annotations

import collections
import random
from typing import TYPE_CHECKING, Final

from imagestore.testing.faults.bodies import Drip, Reset, SlowFirstByte, Truncate, Unframed
from imagestore.testing.faults.replies import CutUpload, IgnoreRange, Refuse, ShortRange
from imagestore.testing.faults.rules import Effect

if TYPE_CHECKING:
    from imagestore.testing.engine.engine import FaultInjector
    from imagestore.testing.engine.messages import Reply, Request

_KINDS: Final = frozenset({"manifest", "blob", "tags", "token"})


class _Chaos:
    def __init__(self, seed: int | str, rate: float, most_per_address: int) -> None:
        self._seed = seed
        self._rate = rate
        self._most = most_per_address
        self._asked: collections.Counter[str] = collections.Counter()
        self._done: collections.Counter[str] = collections.Counter()

    def inject(self, request: Request, reply: Reply) -> Reply:
        """See FaultInjector."""
        is_read = reply.kind in _KINDS and reply.status in (200, 206)
        if not is_read and reply.act is None:
            return reply
        # All uploads into a repository are one address: each try to upload a blob has a name of its own.
        path = request.path.rpartition("/")[0] if reply.kind == "upload" else request.path
        address = f"{request.method} {request.host}{path}"
        self._asked[address] += 1
        dice = random.Random(f"{self._seed} {address} {self._asked[address]}")  # noqa: S311 - reproducible on purpose, guards nothing
        if self._done[address] >= self._most or dice.random() >= self._rate:
            return reply
        effect = _pick(dice, reply) if is_read else _pick_for_change(dice, request)
        if not effect.fits(request, reply):
            return reply
        self._done[address] += 1
        return effect.apply(request, reply, prefix="chaos:")


def chaos(seed: int | str, *, rate: float = 0.3, most_per_address: int = 2) -> FaultInjector:
    """Mix recoverable faults; the same seed gives the same ones.

    ``rate`` is how likely one answer goes wrong, 0 to 1, ``most_per_address`` how often one address does altogether.
    """
    return _Chaos(seed, rate, most_per_address)


def _pick(dice: random.Random, reply: Reply) -> Effect:
    at = dice.randrange(reply.length) if reply.length else 0
    choices: list[Effect] = [
        Refuse(503),
        Refuse(429, retry_after="0"),
        Refuse(502, page="<html>bad gateway</html>"),
        Reset(at),
        Reset(before_head=True),
        Truncate(at),
        Truncate(at, framing="chunked"),
        SlowFirstByte(0.02),
        Unframed("chunked"),
        Drip(max(1024.0, reply.length * 20.0)),
    ]
    if reply.status == 206:
        choices += [IgnoreRange(), ShortRange(max(1, reply.length // 2))]
    return dice.choice(choices)


def _pick_for_change(dice: random.Random, request: Request) -> Effect:
    cut = CutUpload(dice.randrange(len(request.body))) if request.body else Reset(before_head=True)
    choices = (Refuse(503), Refuse(429, retry_after="0"), Refuse(502, page="<html>bad gateway</html>"), cut)
    return dice.choice((*choices, Reset(before_head=True)))
