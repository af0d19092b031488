"""Findings about a configuration: where, which key, what is wrong, and the hint; and how messages quote its values.

A finding is an *error* exactly if loading refuses the file for it. Warnings and notes never stop a load.
"""

from __future__ import annotations

import enum
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from imagestore.errors import ConfigError
from imagestore.util.logins import without_login
from imagestore.util.text import cut

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from imagestore.config.tree import Location


_BARE_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")
#: Longest text from a file that a message repeats, in characters.
_SHOWN_CHARACTERS: Final = 120


class Severity(enum.Enum):
    """How much a finding matters."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault or remark.

    Attributes:
        severity: an error if loading refuses the file for it.
        location: of the key.
        key: dotted key as TOML would write it; empty for the whole file.
        text: what is wrong: what was expected, and what was found.
        hint: what to change; empty if nothing needs to.
    """

    severity: Severity
    location: Location
    key: str
    text: str
    hint: str = ""

    def __str__(self) -> str:
        return f"{self.location}: {self.key}: {self.text}" if self.key else f"{self.location}: {self.text}"


class RefusalError(ConfigError):
    """A ConfigError with the finding that it reports."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(str(finding), hint=finding.hint)
        self.finding = finding


def refusal(location: Location, key: str, text: str, hint: str = "") -> RefusalError:
    """An error to raise."""
    return RefusalError(Finding(Severity.ERROR, location, key, text, hint))


def raise_first(findings: Iterable[Finding]) -> None:
    """Raise the first error of these.

    Raises:
        ConfigError: says how many there are more.
    """
    errors = [finding for finding in findings if finding.severity is Severity.ERROR]
    if errors:
        first, more = errors[0], len(errors) - 1
        raise ConfigError(f"{first} (and {more} more)" if more else str(first), hint=first.hint)


def dotted(path: Sequence[str]) -> str:
    """Write a key path as TOML does, in ASCII, quoting only the parts that need it and hiding logins.

    >>> dotted(["plugins", "io.containerd.cri.v1.runtime", "containerd"])
    'plugins."io.containerd.cri.v1.runtime".containerd'
    """
    return ".".join(part if _BARE_KEY.fullmatch(part) else json.dumps(shorten(without_login(part))) for part in path)


def shorten(text: str) -> str:
    """Cut a text from a file for a message."""
    return cut(text, _SHOWN_CHARACTERS)


def show(value: str | int) -> str:
    """Quote the value of a known key for a message, on one short line, without the login of an address.

    >>> show("a\\nb"), show(1)
    ("'a\\\\nb'", '1')
    """
    return repr(shorten(without_login(value))) if isinstance(value, str) else shorten(repr(value))
