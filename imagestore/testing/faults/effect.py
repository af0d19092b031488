"""What every effect has in common: a name for tapes, a test of whether it fits an answer, and the change itself."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from imagestore.errors import InvalidInputError
from imagestore.testing.engine.messages import has_body

if TYPE_CHECKING:
    from collections.abc import Mapping

    from imagestore.testing.engine.messages import Reply, Request

#: What pauses and paces may be, in seconds and in bytes per second; a tape takes no other numbers either.
FINITE: tuple[int, int] = (0, 10**9)
#: Answers that carry content.
CONTENT: frozenset[int] = frozenset({200, 206})


@dataclass(frozen=True, slots=True)
class Effect:
    """One way an answer can go wrong. Members are strings, numbers or flags, so that a tape can hold them.

    Attributes:
        name: how tapes and ledgers call it.
        statuses: answers that it can change.
        is_replacing: another answer comes instead; such effects go first, so that no other one is lost by them.
        is_on_body: nothing of it can be seen in a head, so an answer without a body (to HEAD, say) can't go wrong.
        choices, ranges: what text and number members may be.
    """

    name: ClassVar[str] = ""
    statuses: ClassVar[frozenset[int]] = CONTENT
    is_replacing: ClassVar[bool] = False
    is_on_body: ClassVar[bool] = False
    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    ranges: ClassVar[Mapping[str, tuple[int, int]]] = {}

    def __post_init__(self) -> None:
        """Check the members.

        Raises:
            InvalidInputError: one is none of its choices, or outside its range.
        """
        for member, allowed in self.choices.items():
            value = getattr(self, member)
            if value not in allowed:
                raise InvalidInputError(
                    f"fault {self.name}: {member}: expected one of {', '.join(allowed)}; got {value!r}"
                )
        for member, (least, most) in self.ranges.items():
            value = getattr(self, member)
            if not least <= value <= most:
                raise InvalidInputError(f"fault {self.name}: {member}: expected {least} to {most}; got {value}")

    def fits(self, request: Request, reply: Reply) -> bool:
        """Whether this answer can go wrong in this way."""
        return reply.status in self.statuses and (not self.is_on_body or has_body(request.method, reply.status))

    def apply(self, request: Request, reply: Reply) -> Reply:
        """The changed answer."""
        raise NotImplementedError


def from_end(position: int, length: int) -> int:
    """A position in a body; negative ones count from the end.

    >>> from_end(-1, 10)
    9
    """
    return max(0, min(length, position if position >= 0 else length + position))


def put(reply: Reply, name: str, value: str) -> Reply:
    """The reply with one header replaced."""
    return replace(reply, fields=reply.fields.put(name, value))
