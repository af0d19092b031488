"""Typed reading of the members of a ``hosts.toml`` table; every refusal names file, line and member."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NoReturn

from imagestore.config.connection import CAPABILITIES, ConnectionSettings
from imagestore.config.findings import Severity, dotted, refusal, shorten, show
from imagestore.config.tree import Location
from imagestore.errors import InvalidInputError
from imagestore.util.durations import Duration
from imagestore.util.logins import without_login
from imagestore.util.members import Members, kind_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from imagestore.config.findings import Finding, RefusalError
    from imagestore.config.toml_lines import KeyLines

_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
# Visible ASCII and Latin-1, blanks and tabs inside; no control characters (header injection).
_FIELD_VALUE: Final = re.compile(r"[!-~\x80-\xff](?:[ \t!-~\x80-\xff]*[!-~\x80-\xff])?|")
# Headers of framing and of ranges, which differ between requests.
_OF_EACH_REQUEST: Final = frozenset({"connection", "content-length", "range", "te", "transfer-encoding", "upgrade"})
#: Sockets can't wait for any number of seconds.
_LONGEST_DIAL_SECONDS: Final = 24 * 60 * 60


class Fields(Members):
    """One table: the root of the file, or one host's; every refusal names file, line and member.

    Args:
        table: its members as TOML gives them.
        keys: key path of the table in the file.
        file: the file's path; relative file names are relative to its folder.
        lines: where keys are set.
    """

    OBJECT = "a table"
    __slots__ = ("file", "keys", "lines")

    def __init__(self, table: object, keys: tuple[str, ...], file: str, lines: KeyLines) -> None:
        self.keys, self.file, self.lines = keys, file, lines
        super().__init__(table, dotted(keys), lambda _, text: self.refusal("", text))

    def refusal(self, member: str, text: str, hint: str = "") -> RefusalError:
        """A refusal of a member; an empty name means the table."""
        path = (*self.keys, member) if member else self.keys
        return refusal(Location(self.file, self.lines.find(path)), dotted(path), text, hint)

    def refuse(self, name: str, text: str) -> NoReturn:
        """Refuse a member."""
        raise self.refusal(name, text)

    def table(self, *names: str) -> Fields:
        """A table inside this one; empty when it isn't there."""
        found = self
        for name in names:
            found = Fields(found.values.get(name), (*found.keys, name), self.file, self.lines)
        return found

    def capabilities(self) -> frozenset[str]:
        """What the host may be asked, in any case; everything when absent or empty, as in containerd."""
        words = self._texts("capabilities")
        for word in words:
            if word.lower() not in CAPABILITIES:
                known = ", ".join(sorted(CAPABILITIES))
                text = f"expected words out of {known}; got {show(word)}"
                raise self.refusal("capabilities", text, 'write for example capabilities = ["pull", "resolve"]')
        return frozenset(word.lower() for word in words) or CAPABILITIES

    def headers(self) -> tuple[tuple[str, str], ...]:
        """Header fields in file order; a list of values repeats the field."""
        inner = self.table("header")
        found: list[tuple[str, str]] = []
        for name in inner.values:
            if not _TOKEN.fullmatch(name):
                inner.refuse(name, "is no header field name")
            if name.lower() in _OF_EACH_REQUEST:
                inner.refuse(name, "belongs to each request, and can't be the same for all")
            for value in inner._texts(name):
                if not _FIELD_VALUE.fullmatch(value):
                    # The value may be a secret.
                    inner.refuse(name, "the value has characters that a header field can't hold")
                found.append((name, value))
        return tuple(found)

    def connection(self) -> ConnectionSettings:
        """TLS and dialling."""
        authorities, pairs = tuple(self._file(name) for name in self._texts("ca")), self._client_pairs()
        return ConnectionSettings(
            ca_files=authorities,
            client_pairs=pairs,
            skip_verify=bool(self.flag("skip_verify")),
            dial_timeout_seconds=self._duration("dial_timeout"),
            places={
                **dict.fromkeys(authorities, self._place("ca")),
                **dict.fromkeys((certificate for certificate, _ in pairs), self._place("client")),
            },
        )

    def only_read_here(self) -> Iterator[Finding]:
        """Warnings of values whose type containerd can't decode; it then ignores the whole file."""
        words = self.values.get("capabilities")
        if isinstance(words, str):
            text = "expected a list, got a text; containerd can't decode that and passes over the whole file"
            yield self._warning("capabilities", text, f"write capabilities = [{_toml(words)}]")
        pairs = self.values.get("client")
        for item in pairs if isinstance(pairs, list) else ():
            if isinstance(item, list) and (len(item) == 1 or "" in item[1:]):
                text = "expected certificate and key, got a list of one file; containerd can't use that, nor the file"
                yield self._warning("client", text, f"write {_toml(item[0])} without the inner brackets")

    def _warning(self, member: str, text: str, hint: str) -> Finding:
        return replace(self.refusal(member, text, hint).finding, severity=Severity.WARNING)

    def _place(self, member: str) -> Location:
        return Location(self.file, self.lines.find((*self.keys, member)))

    def _texts(self, member: str) -> tuple[str, ...]:
        """A text or a list of texts."""
        value = self.values.get(member, [])
        found = value if isinstance(value, list) else [value]
        for item in found:
            if not isinstance(item, str):
                raise self.refusal(member, f"expected a text or a list of texts, got {kind_of(item)}")
        return tuple(found)

    def _client_pairs(self) -> tuple[tuple[str, str], ...]:
        """One file with both, a list of such files, or a list of [certificate, key]; the two kinds may be mixed."""
        value = self.values.get("client", [])
        pairs: list[tuple[str, str]] = []
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, str):
                pairs.append((self._file(item), ""))
            elif isinstance(item, list) and 1 <= len(item) <= 2 and all(isinstance(name, str) for name in item):
                key = item[1] if len(item) == 2 else ""
                pairs.append((self._file(item[0]), self._file(key) if key else ""))
            else:
                raise self.refusal("client", f"expected files or pairs of certificate and key, got {kind_of(item)}")
        return tuple(pairs)

    def _file(self, name: str) -> str:
        if not name or "\0" in name:
            raise self.refusal("", f"expected a file name, got {show(name)}")
        return os.path.normpath(os.path.join(os.path.dirname(self.file), name))

    def _duration(self, member: str) -> float | None:
        """Seconds of a Go duration; None when absent or zero."""
        text = self.text(member)
        if not text or text in {"0", "+0", "-0"}:
            return None
        try:
            seconds = Duration.parse(text).seconds
        except InvalidInputError:
            seconds = 0.0
        if seconds <= 0:
            raise self.refusal(member, f'expected a duration above zero such as "3s" or "500ms", got {show(text)}')
        return min(seconds, _LONGEST_DIAL_SECONDS)


def _toml(text: str) -> str:
    """A text as a file has it; ASCII, so that a terminal can show it."""
    return json.dumps(shorten(without_login(text)))
