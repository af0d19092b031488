"""Faults: which requests, which effect, how often.

Only answers that the effect can change are counted, so "reset the first blob" means the first blob that would have been
sent, not the 401 before it. Several rules may shape one answer, in order. Those that put another answer in its place go
first; what they leave for the next request (a redirect's target, say) is then for the others.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final

from imagestore.errors import InvalidInputError
from imagestore.testing.engine.messages import Reply, Request, has_body
from imagestore.testing.engine.urls import check_names, parse_path

if TYPE_CHECKING:
    from collections.abc import Sequence


#: A redirect's target: hops left, and the host and path that it stands for; see imagestore.testing.faults.replies.
REDIRECT_TARGET: Final = re.compile(r"/-/([0-9]{1,3}|loop)/([a-z0-9.:-]{1,260})(/v2/.*)")


#: What answers a request that succeeded, with content or a change.
SUCCESSES: Final = frozenset({200, 201, 202, 204, 206})


def number(default: float, least: int, most: int) -> Any:
    """A member of an effect that is a number within bounds."""
    return field(default=default, metadata={"bounds": (least, most)})


def choice(default: str, *others: str) -> Any:
    """A member of an effect that is one of a few texts."""
    return field(default=default, metadata={"choices": (default, *others)})


@dataclass(frozen=True, slots=True)
class Effect:
    """One way an answer can go wrong. Members are strings, numbers or flags, so that a tape can hold them.

    Attributes:
        name: how tapes and ledgers call it: the class's name in lower case, with dashes. A class that gets another
            name changes the tape format.
        statuses: answers that it can change; 200 and 206 carry content.
        is_replacing: another answer comes instead; such effects go first, so that no other one is lost by them. Nothing
            is pushed or deleted then; effects that only change or lose the answer leave what the request did.
        is_on_body: nothing of it can be seen in a head, so an answer without a body (to HEAD, say) can't go wrong.
    """

    name: ClassVar[str] = ""
    statuses: ClassVar[frozenset[int]] = frozenset({200, 206})
    is_replacing: ClassVar[bool] = False
    is_on_body: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        cls.name = re.sub("(?<!^)(?=[A-Z])", "-", cls.__name__).lower()

    def __post_init__(self) -> None:
        """Check the members.

        Raises:
            InvalidInputError: one is not among its choices, or out of its bounds.
        """
        for member in dataclasses.fields(self):
            value, limits = getattr(self, member.name), member.metadata
            if "choices" in limits and value not in limits["choices"]:
                expected = f"one of {', '.join(limits['choices'])}; got {value!r}"
            elif "bounds" in limits and not limits["bounds"][0] <= value <= limits["bounds"][1]:
                expected = "{} to {}; got {}".format(*limits["bounds"], value)
            else:
                continue
            raise InvalidInputError(f"fault {self.name}: {member.name}: expected {expected}")

    def fits(self, request: Request, reply: Reply) -> bool:
        """Whether this answer can go wrong in this way."""
        return reply.status in self.statuses and (not self.is_on_body or has_body(request.method, reply.status))

    def apply(self, request: Request, reply: Reply, *, prefix: str = "") -> Reply:
        """The changed answer, with the effect's name among its faults."""
        return replace(self._changed(request, reply), faults=(*reply.faults, f"{prefix}{self.name}"))

    def _changed(self, request: Request, reply: Reply) -> Reply:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Where:
    """Which requests; an empty member fits all.

    Attributes:
        host: logical host.
        kind: ``ping``, ``token``, ``catalog``, ``manifest``, ``blob``, ``upload``, ``tags``, ``referrers``.
        method: ``GET``, ``HEAD``, ``POST``, ``PATCH``, ``PUT``, ``DELETE``, ...
        repository: path of the repository; ``*`` and ``?`` are wildcards.
        reference: tag or digest, as asked or as found; wildcards too.

    Raises:
        InvalidInputError: unknown kind or method.
    """

    host: str = ""
    kind: str = ""
    method: str = ""
    repository: str = ""
    reference: str = ""

    def __post_init__(self) -> None:
        check_names(kind=self.kind, method=self.method)

    def fits(self, request: Request, reply: Reply) -> bool:
        """Whether a request, with the answer it would get, is meant."""
        # A redirect's target stands for the address that it leads away from.
        redirected = REDIRECT_TARGET.fullmatch(request.path)
        target = parse_path(redirected[3] if redirected is not None else request.path)
        names = (target.reference, str(reply.digest or ""))
        return (
            (not self.host or self.host == request.host)
            and (not self.kind or self.kind == reply.kind)
            and (not self.method or self.method == request.method)
            and (not self.repository or fnmatch.fnmatchcase(target.repository, self.repository))
            and (not self.reference or any(fnmatch.fnmatchcase(name, self.reference) for name in names))
        )


@dataclass(frozen=True, slots=True)
class FaultRule:
    """One fault.

    Attributes:
        what: the effect.
        where: the requests.
        skip: this many matching answers pass first.
        times: then it happens this often; 0 is always.
        every: only every n-th of these.

    Raises:
        InvalidInputError: a number is out of range, or ``what`` is not an effect.
    """

    what: Effect
    where: Where = field(default_factory=Where)
    skip: int = 0
    times: int = 1
    every: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.what, Effect):
            raise InvalidInputError(f"fault {self.what!r}: expected an effect, such as Reset()")
        if self.skip < 0 or self.times < 0 or self.every < 1:
            raise InvalidInputError(
                f"fault {self.what.name}: expected skip >= 0, times >= 0, every >= 1; "
                f"got {self.skip}, {self.times}, {self.every}"
            )

    def is_due(self, occurrence: int) -> bool:
        """Whether the n-th fitting occurrence (from 0) goes wrong.

        >>> from imagestore.testing.faults.bodies import Reset
        >>> [FaultRule(Reset(), skip=1, times=2, every=2).is_due(n) for n in range(6)]
        [False, True, False, True, False, False]
        """
        index = occurrence - self.skip
        if index < 0 or index % self.every:
            return False
        return self.times == 0 or index // self.every < self.times

    def to_table(self) -> dict[str, str | int | float | bool]:
        """Members for a tape; those at their default are left out."""
        out: dict[str, str | int | float | bool] = {"what": self.what.name}
        for part in (self.what, self.where, self):
            for member in dataclasses.fields(part):
                value = getattr(part, member.name)
                if value not in (member.default, self.what, self.where):
                    out[member.name] = value
        return out


class FaultPlan:
    """Applies rules to answers and counts occurrences; used under the engine's lock."""

    def __init__(self, rules: Sequence[FaultRule]) -> None:
        self.rules = tuple(rules)
        self._seen = [0] * len(self.rules)
        # An effect on an answer that another rule then replaces would be lost, and yet count as done.
        self._order = sorted(range(len(self.rules)), key=lambda index: not self.rules[index].what.is_replacing)

    def inject(self, request: Request, reply: Reply) -> Reply:
        """The answer after every rule that is due."""
        first = reply
        for index in self._order:
            rule = self.rules[index]
            if not rule.where.fits(request, first) or not rule.what.fits(request, reply):
                continue
            occurrence = self._seen[index]
            self._seen[index] += 1
            if rule.is_due(occurrence):
                reply = rule.what.apply(request, reply)
        return reply

    def unused(self) -> tuple[FaultRule, ...]:
        """Rules that never happened; a strict test wants none."""
        return tuple(rule for rule, seen in zip(self.rules, self._seen, strict=True) if seen <= rule.skip)
