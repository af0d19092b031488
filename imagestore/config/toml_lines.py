"""TOML 1.0 texts: decoded, parsed, and which line sets a key, which the standard library's parser doesn't say.

Lines come from a lax scanner over the grammar (toml.io, sections Keys, Table, Inline Table). It accepts everything
legal and some things that aren't, and stops at the first character it can't place; the strict parser runs after it and
decides. Running first, the scanner also refuses hostile texts cheaply: key paths and brackets nested deeper than
MAX_DEPTH, and integers of thousands of digits.
"""

from __future__ import annotations

import bisect
import codecs
import re
import tomllib
from typing import TYPE_CHECKING, Final

from imagestore.config.findings import Finding, Severity, dotted, refusal
from imagestore.config.redaction import quoted_without_logins
from imagestore.config.tree import Location

if TYPE_CHECKING:
    from imagestore.config.tree import Plain

#: Deepest key path, and deepest nesting of brackets in a value. containerd's own files need eight.
MAX_DEPTH: Final = 32
#: Longest decimal integer handed to the parser; 64 bits need nineteen digits.
MAX_DIGITS: Final = 100
_POSITION: Final = re.compile(r" \(at (?:line ([0-9]+), column ([0-9]+)|end of document)\)$")

_BLANK: Final = re.compile(r"[ \t]*+")
# Groups are atomic instead of possessive: before Python 3.11.5 a possessive group matches wrong.
_BLANK_LINES: Final = re.compile(r"(?>(?:[ \t\r\n]++|#[^\n]*+)*)")
_KEY: Final = re.compile(r'[A-Za-z0-9_-]++|"(?>(?:[^"\\\n]++|\\.)*)"|' + r"'[^'\n]*+'")
_STRING: Final = re.compile(
    r'"""(?>(?:[^"\\]++|\\.|"{1,2}(?!"))*)"{3,5}|' + r"'''(?>(?:[^']++|'{1,2}(?!'))*)'{3,5}|"
    r'"(?>(?:[^"\\\n]++|\\.)*)"|' + r"'[^'\n]*+'",
    re.DOTALL,
)
_INTEGER: Final = re.compile(r"[+-]?([0-9][0-9_]*+)")
_BARE_VALUE: Final = re.compile(r"[^,\[\]{}#\n\"']++")

Path = tuple[str, ...]


def parse_toml(raw: bytes, file: str, findings: list[Finding]) -> tuple[dict[str, Plain], KeyLines]:
    """Parse a file's bytes, UTF-8 with or without a byte-order mark.

    Args:
        raw: the file's content.
        file: its name, for locations.
        findings: gets a warning for a byte-order mark, which containerd 2 refuses.

    Raises:
        RefusalError: not UTF-8, not TOML, or nested too deeply.
    """
    if raw.startswith(codecs.BOM_UTF8):
        mark = "begins with a byte-order mark, which containerd 2 refuses"
        hint = "save the file as UTF-8 without one (BOM)"
        findings.append(Finding(Severity.WARNING, Location(file, 1), "", mark, hint))
        raw = raw.removeprefix(codecs.BOM_UTF8)
    try:
        text = raw.decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise refusal(Location(file, line), "", "is not UTF-8", "save the file as UTF-8") from error
    lines = KeyLines(text, file)
    try:
        return tomllib.loads(text), lines
    except (ValueError, RecursionError) as error:
        message = str(error)
        found = _POSITION.search(message)
        at = int(found[1]) if found is not None and found[1] else text.count("\n") + 1 if found else None
        where = f" (column {found[2]})" if found is not None and found[2] else ""
        reason = quoted_without_logins(_POSITION.sub("", message))
        raise refusal(Location(file, at), "", f"is not TOML: {reason}{where}") from error


class KeyLines:
    """Line numbers of the keys and table headers of one text.

    Args:
        text: the file's text, with ``\\n`` line ends.
        file: its name, for refusals.

    Raises:
        RefusalError: a key path or a value is nested deeper than MAX_DEPTH, or an integer longer than MAX_DIGITS.

    >>> lines = KeyLines('[a."b.c"]\\nd = {e = 1}\\n', "test")
    >>> lines.find(("a", "b.c", "d", "e")), lines.find(("a", "b.c")), lines.find(("z",))
    (2, 1, None)
    """

    def __init__(self, text: str, file: str) -> None:
        self._text = text
        self._file = file
        self._ends = [match.start() for match in re.finditer("\n", text)]
        self._lines: dict[Path, int] = {}
        self._implied: dict[Path, int] = {}
        try:
            self._scan()
        except _LostError:
            # Not TOML from here on; the strict parser reports why and where.
            return

    def find(self, path: Path) -> int | None:
        """The line that sets a key or opens a table; None if the scanner didn't reach it.

        A table without a header of its own has the line of the first header below it.
        """
        return self._lines.get(path) or self._implied.get(path)

    def line_at(self, position: int) -> int:
        """The 1-based line of a character offset."""
        return bisect.bisect_left(self._ends, position) + 1

    def _scan(self) -> None:
        position = self._skip(0, _BLANK_LINES)
        table: Path = ()
        while position < len(self._text):
            start = position
            if self._text[position] == "[":
                doubled = self._text.startswith("[[", position)
                table, position = self._key_path(position + 1 + doubled, ())
                position = self._expect(position, "]]" if doubled else "]")
                self._lines.setdefault(table, self.line_at(start))
                for length in range(1, len(table)):
                    self._implied.setdefault(table[:length], self.line_at(start))
            else:
                position = self._pair(position, table, 0)
            position = self._skip(position, _BLANK_LINES)

    def _pair(self, position: int, table: Path, depth: int) -> int:
        start = position
        path, position = self._key_path(position, table)
        for length in range(len(table) + 1, len(path) + 1):
            self._lines.setdefault(path[:length], self.line_at(start))
        position = self._skip(self._expect(position, "="), _BLANK)
        return self._value(position, path, depth)

    def _key_path(self, position: int, table: Path) -> tuple[Path, int]:
        parts: list[str] = []
        start = position
        while True:
            match = _KEY.match(self._text, self._skip(position, _BLANK))
            if match is None:
                raise _LostError
            parts.append(_unquote(match.group()))
            if len(parts) > MAX_DEPTH:
                raise self._too_deep(start)
            position = self._skip(match.end(), _BLANK)
            if not self._text.startswith(".", position):
                return (*table, *parts), position
            position += 1

    def _value(self, position: int, path: Path, depth: int) -> int:
        if depth > MAX_DEPTH:
            raise self._too_deep(position)
        first = self._text[position : position + 1]
        if first == "[":
            return self._items(position + 1, "]", path, depth + 1)
        if first == "{":
            return self._items(position + 1, "}", path, depth + 1)
        match = (_STRING if first in {'"', "'"} else _BARE_VALUE).match(self._text, position)
        if match is None:
            raise _LostError
        digits = _INTEGER.fullmatch(match.group().strip())
        count = 0 if digits is None else len(digits[1].replace("_", ""))
        if count > MAX_DIGITS:
            text = f"expected an integer of 64 bits, got one of {count} digits"
            raise refusal(Location(self._file, self.line_at(position)), dotted(path), text)
        return match.end()

    def _items(self, position: int, close: str, path: Path, depth: int) -> int:
        """The inside of an array or an inline table, up to and with its closing bracket."""
        while True:
            position = self._skip(position, _BLANK_LINES)
            if self._text.startswith(close, position):
                return position + 1
            # Keys of tables inside an array are found under the array's path.
            position = self._value(position, path, depth) if close == "]" else self._pair(position, path, depth)
            position = self._skip(position, _BLANK_LINES)
            if self._text.startswith(",", position):
                position += 1
            elif not self._text.startswith(close, position):
                raise _LostError

    def _expect(self, position: int, literal: str) -> int:
        if not self._text.startswith(literal, position):
            raise _LostError
        return position + len(literal)

    def _skip(self, position: int, pattern: re.Pattern[str]) -> int:
        match = pattern.match(self._text, position)
        return match.end() if match is not None else position

    def _too_deep(self, position: int) -> Exception:
        location = Location(self._file, self.line_at(position))
        return refusal(location, "", f"nested deeper than the {MAX_DEPTH} levels allowed")


class _LostError(Exception):
    """The scanner can't place a character."""


def _unquote(key: str) -> str:
    if key[0] == "'":
        return key[1:-1]
    if key[0] != '"':
        return key
    if "\\" not in key:
        return key[1:-1]
    try:
        value = tomllib.loads(f"key = {key}")["key"]
    except ValueError:
        raise _LostError from None
    return str(value)
