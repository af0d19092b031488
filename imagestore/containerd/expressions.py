"""Regular expressions from clients, in RE2: the syntax of Go's ``regexp``, in time linear in the text.

Python's own matcher backtracks: an expression of twenty characters can block a thread for years. google-re2 also
releases the interpreter lock while it searches. ``Expressions`` bounds the cost of one request.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from imagestore.errors import InvalidInputError, UnsupportedError
from imagestore.util.distribution import install_hint

if TYPE_CHECKING:
    from collections.abc import Callable

#: Characters of one expression.
LONGEST_EXPRESSION: Final = 1024
#: Expressions of one request; each has a cache of up to its memory.
MOST_EXPRESSIONS: Final = 64
#: Of one compiled expression; RE2 refuses what doesn't fit.
MEMORY_BYTES: Final = 256 * 1024
#: Characters of a text that are searched: more than containerd lets a label have.
LONGEST_TEXT: Final = 4096
#: Of one request: instructions of an expression times bytes of a text, added up over all texts. RE2 follows at least
#: 50 million a second, and thousands of millions of usual expressions.
MOST_STEPS: Final = 1_000_000_000

#: RE2's message for a valid expression that is too big.
_TOO_LARGE: Final = b"pattern too large"
_QUOTED_OR_ESCAPE: Final = re.compile(r"\\Q.*?(?:\\E|\Z)|\\(.)", re.DOTALL)


class UnsupportedExpressionError(InvalidInputError):
    """A valid expression that exceeds the bounds here."""


class Expressions:
    """The expressions of one request, which share a limit of steps.

    >>> expressions = Expressions()
    >>> expressions.add("^(a|aa)*$").is_found_in("a" * 4000 + "b"), expressions.add("a+b").is_found_in("xaab")
    (False, True)
    """

    def __init__(self, most_steps: int = MOST_STEPS) -> None:
        self._count = 0
        self._most_steps = most_steps
        self._left = most_steps

    def add(self, text: str) -> Expression:
        """Compile one.

        Raises:
            UnsupportedError: google-re2 isn't installed.
            UnsupportedExpressionError: it is too big, or one too many.
            InvalidInputError: Go can't read it either.
        """
        self._count += 1
        if self._count > MOST_EXPRESSIONS:
            raise UnsupportedExpressionError(
                f"filters: expected at most {MOST_EXPRESSIONS} regular expressions", hint="ask in several requests"
            )
        return Expression(_compiled(text), self._spend)

    def _spend(self, steps: int) -> None:
        self._left -= steps
        if self._left < 0:
            raise UnsupportedExpressionError(
                f"filters: the regular expressions need more than {self._most_steps} steps",
                hint="use == where it does, or shorter expressions",
            )


class Expression:
    """A compiled expression of google-re2; before each search, ``spend`` counts its steps and may raise."""

    def __init__(self, pattern: Any, spend: Callable[[int], None]) -> None:
        self._pattern = pattern
        self._spend = spend

    def is_found_in(self, text: str) -> bool:
        """Whether it matches anywhere in the first 4096 characters of the text.

        Raises:
            UnsupportedExpressionError: the request has used up its steps.
        """
        data = text[:LONGEST_TEXT].encode("utf-8", "replace")
        self._spend(self._pattern.programsize * (len(data) + 1))
        return self._pattern.search(data) is not None


def _compiled(text: str) -> Any:
    try:
        import re2
    except ImportError:
        raise UnsupportedError(
            "filters: regular expressions (~=) need the package google-re2",
            hint=f"{install_hint('filters')}, or use ==",
        ) from None
    if len(text) > LONGEST_EXPRESSION:
        raise UnsupportedExpressionError(
            f"regular expression of {len(text)} characters: expected at most {LONGEST_EXPRESSION}"
        )
    options = re2.Options()
    options.max_mem = MEMORY_BYTES
    options.log_errors = False  # to standard error, past our log
    try:
        # \C, a single byte, is RE2's alone.
        if any(found[1] == "C" for found in _QUOTED_OR_ESCAPE.finditer(text)):
            raise InvalidInputError(f"regular expression {text!r}: invalid escape sequence: \\C")
        return re2.compile(text, options)
    except UnicodeEncodeError:
        raise InvalidInputError(f"regular expression {text!r}: isn't UTF-8") from None
    except re2.error as error:
        reason = error.args[0] if error.args and isinstance(error.args[0], bytes) else str(error).encode()
        fault = f"regular expression {text!r}: {reason.decode('utf-8', 'replace')}"
        if reason.startswith(_TOO_LARGE):
            raise UnsupportedExpressionError(fault, hint="repeat less") from None
        raise InvalidInputError(fault) from None
