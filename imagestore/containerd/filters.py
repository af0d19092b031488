"""containerd's filter language, for every List: which objects a caller wants (containerd, pkg/filters).

    filter    selector ("," selector)*            all selectors must match; of several filters, one must
    selector  path [operator value]               without operator: the field must exist
    operator  "==" | "!=" | "~="                  ~= is a regular expression, found anywhere in the value
    path      name ("." name)*                    a name is [A-Za-z0-9_]+ or quoted: labels."containerd.io/gc.root"
    value     a bare word or "quoted"; after ~= also /quoted/ or |quoted|, with which no other value may begin

All quotes are as those of Go's strings: ``/\\d/`` has to be written ``/\\\\d/``.

An absent field differs from every value, and a regular expression sees it as empty text. An unknown field counts as
absent. As in containerd, an invalid regular expression matches nothing; it is logged. A valid expression that exceeds
the bounds of ``expressions`` is refused.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from imagestore.containerd.expressions import Expression, Expressions, UnsupportedExpressionError
from imagestore.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from imagestore.util.cancel import CancelToken

_log: Final = logging.getLogger(__name__)

T = TypeVar("T")

#: Gives an object's field by its path, or None when it has none.
Fields = Callable[[tuple[str, ...]], str | None]

_NAME: Final = re.compile(r"[A-Za-z0-9_]+")
_WORD: Final = re.compile(r"[^\s,]+")
# The whole run of such characters, so that "===" is none and what begins with one needs quotes, as in containerd.
_OPERATOR: Final = re.compile(r"(?:==|!=|~=)(?![=!~])")
_BLANKS: Final = re.compile(r"\s*")
_ESCAPE: Final = re.compile(r"\\(?:x([0-9a-fA-F]{2})|([0-7]{3})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)
_SIMPLE: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "\\": "\\"}
_LONGEST_FILTER: Final = 16 * 1024
_MOST_FILTERS: Final = 1024
#: Limit of all filters of a request together, since each condition is parsed, kept and tested for each object.
_LONGEST_FILTERS: Final = 256 * 1024


@dataclass(frozen=True, slots=True)
class _Selector:
    """One condition; without an operator the field must exist."""

    path: tuple[str, ...]
    operator: str = ""
    value: str = ""
    expression: Expression | None = None

    def fits(self, fields: Fields) -> bool:
        """Whether an object with these fields meets the condition.

        Raises:
            UnsupportedExpressionError: matching the expression costs more than a request may.
        """
        value = fields(self.path)
        if self.operator == "==":
            return value == self.value
        if self.operator == "!=":
            return value != self.value
        if self.operator == "~=":
            return self.expression is not None and self.expression.is_found_in(value or "")
        return value is not None


@dataclass(frozen=True, slots=True)
class Filter:
    """Several filters of one request.

    >>> from imagestore.util.cancel import CancelToken
    >>> wanted = Filter.parse(["name~=^a,size==1", "name==b"])
    >>> list(wanted.among(["a", "b"], lambda name: {("name",): name}.get, CancelToken()))
    ['b']
    """

    alternatives: tuple[tuple[_Selector, ...], ...]

    @classmethod
    def parse(cls, texts: Sequence[str]) -> Filter:
        """Parse the filters. Without filters, or if one is empty, every object matches.

        Raises:
            InvalidInputError: one breaks the grammar; says where.
        """
        if len(texts) > _MOST_FILTERS:
            raise InvalidInputError(f"{len(texts)} filters: at most {_MOST_FILTERS} in a request")
        length = sum(map(len, texts))
        if length > _LONGEST_FILTERS:
            raise InvalidInputError(
                f"filters of {length} characters: at most {_LONGEST_FILTERS} in a request",
                hint="ask in several requests",
            )
        expressions = Expressions()
        return cls(tuple(_Parser(text, expressions).parse() for text in texts))

    def among(self, found: Iterable[T], fields: Callable[[T], Fields], cancel: CancelToken) -> Iterator[T]:
        """The objects that match.

        Expressions over many objects may take seconds, so this must not run on the event loop.

        Args:
            found: the objects.
            fields: gives an object's fields by path.
            cancel: checked before each object and each filter.

        Raises:
            OperationCancelledError: the caller has left.
            UnsupportedExpressionError: the expressions cost more than a request may.
        """
        for each in found:
            cancel.check()
            if self._fits(fields(each), cancel.check):
                yield each

    def _fits(self, fields: Fields, check: Callable[[], None]) -> bool:
        if not self.alternatives:
            return True
        for each in self.alternatives:
            check()
            if all(selector.fits(fields) for selector in each):
                return True
        return False


def labelled(plain: Mapping[str, str], **maps: Mapping[str, str]) -> Fields:
    """Fields of an object that has plain ones and maps by key, such as labels.

    Args:
        plain: values by dotted path, for example ``target.digest``.
        maps: named maps; what follows the name, joined by dots, is the key.
    """

    def _field(path: tuple[str, ...]) -> str | None:
        if len(path) > 1 and path[0] in maps:
            return maps[path[0]].get(".".join(path[1:]))
        return plain.get(".".join(path))

    return _field


class _Parser:
    """One filter text."""

    def __init__(self, text: str, expressions: Expressions) -> None:
        self._expressions = expressions
        if len(text) > _LONGEST_FILTER:
            raise InvalidInputError(f"filter of {len(text)} characters: at most {_LONGEST_FILTER}")
        self._text = text
        self._position = 0

    def parse(self) -> tuple[_Selector, ...]:
        """The selectors of the filter; none if it is empty.

        Raises:
            InvalidInputError: the text breaks the grammar.
            UnsupportedError: it has a regular expression, and google-re2 is not installed.
            UnsupportedExpressionError: a regular expression is beyond the bounds of ``expressions``.
        """
        if not self._text.strip():
            return ()
        selectors = [self._selector()]
        while self._skip() < len(self._text):
            if self._text[self._position] != ",":
                raise self._error("expected ',' or the end")
            self._position += 1
            selectors.append(self._selector())
        return tuple(selectors)

    def _selector(self) -> _Selector:
        path = [self._name()]
        while self._text.startswith(".", self._position):
            self._position += 1
            path.append(self._name())
        self._skip()
        operator = _OPERATOR.match(self._text, self._position)
        if operator is None:
            return _Selector(tuple(path))
        self._position = operator.end()
        self._skip()
        value = self._value(is_expression=operator[0] == "~=")
        expression = self._usable(value) if operator[0] == "~=" else None
        return _Selector(tuple(path), operator[0], value, expression)

    def _name(self) -> str:
        self._skip()
        if self._text.startswith('"', self._position):
            return self._quoted('"')
        found = _NAME.match(self._text, self._position)
        if found is None:
            raise self._error("expected a field's name")
        self._position = found.end()
        return found[0]

    def _value(self, *, is_expression: bool) -> str:
        start = self._text[self._position : self._position + 1]
        if start in ("/", "|") and not is_expression:
            raise self._error(f"{start} quotes regular expressions only, after ~=")
        if start in ('"', "/", "|"):
            return self._quoted(start)
        found = _WORD.match(self._text, self._position)
        if found is None:
            raise self._error("expected a value")
        self._position = found.end()
        return found[0]

    def _quoted(self, quote: str) -> str:
        end = self._position + 1
        while end < len(self._text) and self._text[end] not in (quote, "\n"):
            end += 2 if self._text[end] == "\\" else 1
        if end >= len(self._text) or self._text[end] != quote:
            raise self._error(f"expected a closing {quote}")
        inner = self._text[self._position + 1 : end]
        self._position = end + 1
        found = _ESCAPE.sub(lambda escape: self._unescaped(escape, quote), inner)
        # Escapes of single bytes may together form one UTF-8 character.
        return found.encode(errors="surrogateescape").decode(errors="surrogateescape")

    def _unescaped(self, escape: re.Match[str], quote: str) -> str:
        byte = int(escape[1], 16) if escape[1] else int(escape[2] or "0", 8)
        code = int(escape[3] or escape[4] or "0", 16)
        if byte > 0xFF or code > 0x10FFFF:
            raise self._error(f"no character {escape[0]}")
        if escape[5]:
            if escape[5] not in _SIMPLE and escape[5] != quote:
                raise self._error(f"no escape {escape[0]}")
            return _SIMPLE.get(escape[5], quote)
        if escape[1] or escape[2]:
            return bytes([byte]).decode(errors="surrogateescape")
        return "\ufffd" if 0xD800 <= code <= 0xDFFF else chr(code)

    def _skip(self) -> int:
        blanks = _BLANKS.match(self._text, self._position)
        self._position = blanks.end() if blanks else self._position
        return self._position

    def _error(self, reason: str) -> InvalidInputError:
        shown = f"{self._text[: self._position]} >>>> {self._text[self._position :]}"[:300]
        return InvalidInputError(f"filter [{shown}]: at position {self._position}: {reason}")

    def _usable(self, text: str) -> Expression | None:
        try:
            return self._expressions.add(text)
        except UnsupportedExpressionError:
            raise
        except InvalidInputError as error:
            _log.warning("a filter fits nothing", extra={"reason": str(error)})
            return None
