"""containerd's filter language, for every List: which objects a caller wants (containerd, pkg/filters).

    filter    selector ("," selector)*            all of them must fit; of several filters one must
    selector  path [operator value]               without operator: the field is there
    operator  "==" | "!=" | "~="                  ~= is a regular expression, found anywhere in the value
    path      name ("." name)*                    a name is [A-Za-z0-9_]+ or quoted: labels."containerd.io/gc.root"
    value     a bare word or "quoted"; after ~= also /quoted/ or |quoted|

A field that isn't there differs from every value, and is empty text to a regular expression. A field nobody has heard
of is only absent. A regular expression that can't be used fits nothing, as in containerd, and is logged; which can be
used, and that none can run away, is the matter of ``expressions``.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from imagestore.containerd.expressions import Expression
from imagestore.errors import InvalidInputError
from imagestore.patterns import pattern

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_log: Final = logging.getLogger(__name__)

#: Gives an object's field by its path, or None when it has none.
Fields = Callable[[tuple[str, ...]], str | None]

_NAME: Final = pattern(r"[A-Za-z0-9_]+")
_WORD: Final = pattern(r"[^\s,]+")
# The whole run of such characters, so that "===" is none and what begins with one needs quotes, as in containerd.
_OPERATOR: Final = pattern(r"(?:==|!=|~=)(?![=!~])")
_BLANKS: Final = pattern(r"\s*")
_ESCAPE: Final = pattern(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_SIMPLE: Final = {
    "a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "\\": "\\", '"': '"', "'": "'",
}  # fmt: skip
_LONGEST_FILTER: Final = 16 * 1024
_MOST_FILTERS: Final = 1024
#: Of all expressions of a request, since each object pays for each of them.
_MOST_STEPS: Final = 4096


@dataclass(frozen=True, slots=True)
class _Selector:
    """One condition; an empty operator asks whether the field is there."""

    path: tuple[str, ...]
    operator: str = ""
    value: str = ""
    expression: Expression | None = None

    def fits(self, fields: Fields) -> bool:
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

    >>> Filter.parse(["name~=^a,size==1", "name==b"]).fits({("name",): "b"}.get)
    True
    """

    alternatives: tuple[tuple[_Selector, ...], ...]

    @classmethod
    def parse(cls, texts: Sequence[str]) -> Filter:
        """Read them; no filter at all, or an empty one, fits everything.

        Raises:
            InvalidInputError: one breaks the grammar; says where.
        """
        if len(texts) > _MOST_FILTERS:
            raise InvalidInputError(f"{len(texts)} filters: at most {_MOST_FILTERS} in a request")
        found, steps = [], 0
        for text in texts:
            found.append(_Parser(text).parse())
            steps += sum(each.expression.size for each in found[-1] if each.expression is not None)
            if steps > _MOST_STEPS:
                raise InvalidInputError(
                    f"filters: expected regular expressions of at most {_MOST_STEPS} steps in all",
                    hint="ask in several requests",
                )
        return cls(tuple(found))

    def fits(self, fields: Fields) -> bool:
        """Whether an object is wanted.

        Args:
            fields: its fields by path.
        """
        if not self.alternatives:
            return True
        return any(all(selector.fits(fields) for selector in each) for each in self.alternatives)


def labelled(plain: Mapping[str, str], **maps: Mapping[str, str]) -> Fields:
    """Fields of an object that has plain ones and maps by key, such as labels.

    Args:
        plain: values by dotted path, for example ``target.digest``.
        maps: named maps; what follows the name, joined by dots, is the key.
    """

    def field(path: tuple[str, ...]) -> str | None:
        if len(path) > 1 and path[0] in maps:
            return maps[path[0]].get(".".join(path[1:]))
        return plain.get(".".join(path))

    return field


class _Parser:
    """One filter text."""

    def __init__(self, text: str) -> None:
        if len(text) > _LONGEST_FILTER:
            raise InvalidInputError(f"filter of {len(text)} characters: at most {_LONGEST_FILTER}")
        self._text = text
        self._position = 0

    def parse(self) -> tuple[_Selector, ...]:
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
        value = self._value('"/|' if operator[0] == "~=" else '"')
        expression = _usable(value) if operator[0] == "~=" else None
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

    def _value(self, quotes: str) -> str:
        start = self._text[self._position : self._position + 1]
        if start and start in quotes:
            return self._quoted(start)
        found = _WORD.match(self._text, self._position)
        if found is None:
            raise self._error("expected a value")
        self._position = found.end()
        return found[0]

    def _quoted(self, quote: str) -> str:
        end = self._position + 1
        while end < len(self._text) and self._text[end] != quote:
            end += 2 if self._text[end] == "\\" else 1
        if end >= len(self._text):
            raise self._error(f"expected a closing {quote}")
        inner = self._text[self._position + 1 : end]
        self._position = end + 1
        # The other quotes are there so that an expression keeps its backslashes.
        return _ESCAPE.sub(self._unescaped, inner) if quote == '"' else inner.replace(f"\\{quote}", quote)

    def _unescaped(self, found: re.Match[str]) -> str:
        code = found[1] or found[2]
        if code:
            return chr(int(code, 16))
        if found[3] not in _SIMPLE:
            raise self._error(f"no escape \\{found[3]}")
        return _SIMPLE[found[3]]

    def _skip(self) -> int:
        blanks = _BLANKS.match(self._text, self._position)
        self._position = blanks.end() if blanks else self._position
        return self._position

    def _error(self, reason: str) -> InvalidInputError:
        shown = f"{self._text[: self._position]} >>>> {self._text[self._position :]}"[:300]
        return InvalidInputError(f"filter [{shown}]: at position {self._position}: {reason}")


def _usable(text: str) -> Expression | None:
    try:
        return Expression(text)
    except InvalidInputError as error:
        _log.warning("a filter fits nothing", extra={"reason": str(error)})
        return None
