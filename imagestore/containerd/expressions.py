"""Regular expressions from callers, in time linear in text and expression, as Go's (RE2) are.

Python's own matcher backtracks: an expression of twenty characters can hold a thread for years. This one follows all
alternatives at once (Thompson's construction): no expression costs more than its length times that of the text.

Known is what Go's ``regexp`` knows (the Debian one's Unicode aside: Python has its own), but for Unicode classes other
than the general categories (``\\pL``, ``\\p{Lu}``), and within bounds. What Go knows and isn't supported is told from
what it wouldn't read either.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from imagestore.containerd.expression_characters import WORD, CharacterSet
from imagestore.containerd.expression_syntax import Choice, Node, Parser, Place, Sequence, UnsupportedExpressionError
from imagestore.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_LONGEST_EXPRESSION: Final = 1024
_LONGEST_TEXT: Final = 4096
#: A tenth of a second at most, of the largest expression.
_CHECKED_CHARACTERS: Final = 128
#: What an expression may grow to.
_MOST_STEPS: Final = 1024


@dataclass(slots=True)
class _Step:
    """One state: what is read (nothing for a fork), and where to go on."""

    reads: CharacterSet | Place | None
    targets: list[int]


class Expression:
    """A compiled expression.

    Raises:
        UnsupportedExpressionError: it isn't supported, or too big.
        InvalidInputError: Go couldn't read it either.

    >>> Expression("a+b").is_found_in("xaab"), Expression("^(a|aa)*$").is_found_in("a" * 4000 + "b")
    (True, False)
    """

    def __init__(self, text: str) -> None:
        if len(text) > _LONGEST_EXPRESSION:
            raise UnsupportedExpressionError(
                f"regular expression of {len(text)} characters: at most {_LONGEST_EXPRESSION}"
            )
        if any("\ud800" <= each <= "\udfff" for each in text):
            raise InvalidInputError(f"regular expression {text!r}: isn't UTF-8")
        tree = Parser(text).parse()
        self._steps: list[_Step] = []
        self._emitted = 0
        self._start = self._emit(tree, self._add(None, []))

    @property
    def size(self) -> int:
        """How many steps a character costs at most."""
        return len(self._steps)

    def is_found_in(self, text: str, check: Callable[[], None] = lambda: None) -> bool:
        """Whether it fits anywhere in the text, of which the first 4096 characters count.

        Args:
            text: what is searched.
            check: called now and then; what it raises ends the search.
        """
        text = text[:_LONGEST_TEXT]
        waiting: set[int] = set()
        for position in range(len(text) + 1):
            if position % _CHECKED_CHARACTERS == 0:
                check()
            # Starting anew at every character is what makes it unanchored.
            active, is_done = self._closure([*waiting, self._start], text, position)
            if is_done:
                return True
            if position == len(text):
                break
            waiting = set()
            for number in active:
                step = self._steps[number]
                if isinstance(step.reads, CharacterSet) and step.reads.has(text[position]):
                    waiting.update(step.targets)
        return False

    def _closure(self, numbers: Iterable[int], text: str, position: int) -> tuple[set[int], bool]:
        """Everywhere that can be reached without reading, and whether the end is among it."""
        seen: set[int] = set()
        waiting = list(numbers)
        while waiting:
            number = waiting.pop()
            if number in seen:
                continue
            seen.add(number)
            step = self._steps[number]
            if number == 0:
                return seen, True
            if step.reads is None or (isinstance(step.reads, Place) and _holds(step.reads, text, position)):
                waiting.extend(step.targets)
        return seen, False

    def _add(self, reads: CharacterSet | Place | None, targets: list[int]) -> int:
        if len(self._steps) >= _MOST_STEPS:
            raise _too_big()
        self._steps.append(_Step(reads, targets))
        return len(self._steps) - 1

    def _emit(self, node: Node, after: int) -> int:
        """The step a node begins with, when ``after`` follows it; step 0 is the end."""
        self._emitted += 1
        if self._emitted > 4 * _MOST_STEPS:
            raise _too_big()
        if isinstance(node, CharacterSet | Place):
            return self._add(node, [after])
        if isinstance(node, Sequence):
            for part in reversed(node.parts):
                after = self._emit(part, after)
            return after
        if isinstance(node, Choice):
            return self._add(None, [self._emit(branch, after) for branch in node.branches])
        if node.most is None:
            fork = self._add(None, [after])
            self._steps[fork].targets.append(self._emit(node.body, fork))
            after = fork
        else:
            end = after
            for _ in range(node.most - node.least):
                after = self._add(None, [end, self._emit(node.body, after)])
        for _ in range(node.least):
            after = self._emit(node.body, after)
        return after


def _too_big() -> UnsupportedExpressionError:
    return UnsupportedExpressionError("regular expression: its repetitions make it too big")


def _holds(place: Place, text: str, position: int) -> bool:
    if place in (Place.BEGIN, Place.LINE_BEGIN):
        return position == 0 or (place is Place.LINE_BEGIN and text[position - 1] == "\n")
    if place in (Place.END, Place.LINE_END):
        return position == len(text) or (place is Place.LINE_END and text[position] == "\n")
    before = position > 0 and text[position - 1] in WORD
    behind = position < len(text) and text[position] in WORD
    return (before != behind) == (place is Place.WORD_EDGE)
