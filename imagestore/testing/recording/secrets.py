"""Which values are secret, and what is written in their place.

Everything is decided by name: a header, query parameter or JSON member is *plain* (kept), *secret* (replaced) or
unknown. Unknown headers and parameters are never written as they are; an unknown member in a token service's answer
stops the recording, because guessing there is how tokens leak. A value gets one placeholder wherever it occurs, so a
token in an answer and in the next request's header stay the same word, and the tape replays.
"""

from __future__ import annotations

import base64
import binascii
import re
import threading
import urllib.parse
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from imagestore.testing.engine.queries import PLAIN_PARAMETERS

if TYPE_CHECKING:
    from collections.abc import Callable

#: Response headers that are written; all others are left out.
PLAIN_HEADERS: Final = frozenset(
    {
        "accept-ranges",
        "content-disposition",
        "content-encoding",
        "content-range",
        "content-type",
        "docker-content-digest",
        "docker-distribution-api-version",
        "etag",
        "link",
        "location",
        "oci-chunk-min-length",
        "oci-filters-applied",
        "oci-namespace",
        "oci-subject",
        "oci-tag",
        "range",
        "ratelimit-limit",
        "ratelimit-remaining",
        "retry-after",
        "warning",
        "www-authenticate",
    }
)
#: Response headers whose value is replaced.
SECRET_HEADERS: Final = frozenset({"set-cookie", "docker-ratelimit-source"})
#: Members of a token service's answer: kept, and replaced.
PLAIN_MEMBERS: Final = frozenset({"expires_in", "issued_at", "scope", "token_type", "service", "not_before", "expires"})
SECRET_MEMBERS: Final = frozenset(
    {"token", "access_token", "refresh_token", "id_token", "identitytoken", "registrytoken", "password", "secret"}
)

# Marks a placeholder that has no number yet; numbers are given in the tape's order when it is written.
_MARK: Final = re.compile(r"tape-([a-z]+)-@([0-9]+)@")
# Values shorter than this are too common to look for in other places. A user's name or an unknown parameter may well be
# an ordinary word that occurs elsewhere for other reasons.
_LEAST: Final = 6
_LEAST_SEARCHED: Final = {"user": 1 << 30, "private": 1 << 30, "signed": 16}


@dataclass(slots=True)
class Vault:
    """Remembers every secret value that was seen, and its placeholder.

    Attributes:
        known: values given beforehand (passwords of the user, for example); they are searched for but need no place.
    """

    known: tuple[str, ...] = ()
    _marks: dict[tuple[str, str], str] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def mark(self, kind: str, value: str) -> str:
        """The placeholder for a value; always the same one for the same kind and value."""
        if not value:
            return ""
        with self._lock:
            return self._marks.setdefault((kind, value), f"tape-{kind}-@{len(self._marks)}@")

    def values(self) -> frozenset[str]:
        """Every secret, in each form that it could be written in."""
        with self._lock:
            seen = {value for kind, value in self._marks if len(value) >= _LEAST_SEARCHED.get(kind, _LEAST)}
        # A tape recorded from a replay holds placeholders from the start.
        seen = {value for value in seen | set(self.known) if not is_placeholder(value)}
        out: set[str] = set()
        for value in seen:
            out |= {value, urllib.parse.quote(value, safe=""), urllib.parse.quote_plus(value)}
            out.add(base64.b64encode(value.encode()).decode().rstrip("="))
            out |= parts_of_basic(value)
        return frozenset(one for one in out if len(one) >= _LEAST)


def parts_of_basic(value: str) -> set[str]:
    """The password inside the value of a Basic credential, in the forms to search for; empty when it is none."""
    try:
        user, colon, password = base64.b64decode(value, validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        return set()
    return {password, urllib.parse.quote(password, safe=""), f"{user}:{password}"} if colon else set()


class Numbering:
    """Gives placeholders their numbers, in the order in which they come up; one per kind from 1."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, str], int] = {}
        self._counts: dict[str, int] = {}

    def __call__(self, text: str) -> str:
        """The text with every mark numbered."""
        return _MARK.sub(self._number, text)

    def _number(self, found: re.Match[str]) -> str:
        kind, mark = found.groups()
        if (kind, mark) not in self._numbers:
            self._counts[kind] = self._counts.get(kind, 0) + 1
            self._numbers[kind, mark] = self._counts[kind]
        return f"tape-{kind}-{self._numbers[kind, mark]}"


def unmarked(text: str) -> str:
    """A text with placeholders made equal, for sorting independent of who came first."""
    return _MARK.sub(r"tape-\1-", text)


def is_placeholder(value: str) -> bool:
    """Whether a value was already replaced (a tape that is being recorded from a replay, say)."""
    return re.fullmatch(r"tape-[a-z]+-@?[0-9]+@?", value) is not None


def redact_query(query: str, vault: Vault, *, kind: str = "signed") -> str:
    """A query or form with the values of every parameter that isn't known to be plain replaced."""
    if not query:
        return ""
    return "&".join(_redact_pair(pair, vault, kind) for pair in query.split("&"))


def _redact_pair(pair: str, vault: Vault, kind: str) -> str:
    name, equals, value = pair.partition("=")
    plain_name = urllib.parse.unquote_plus(name).lower()
    if plain_name in PLAIN_PARAMETERS or not value:
        return pair
    specific = {
        "account": "user",
        "username": "user",
        "password": "password",
        "refresh_token": "token",
        "token": "token",
    }
    value = urllib.parse.unquote_plus(value)
    return f"{name}{equals}{vault.mark(specific.get(plain_name, kind), value)}"


def redact_address(address: str, vault: Vault) -> str:
    """An address (absolute or relative) without user info, its query redacted, its fragment dropped."""
    parts = urllib.parse.urlsplit(address)
    if parts.username is not None or parts.password is not None:
        vault.mark("user", parts.username or "")
        vault.mark("password", parts.password or "")
    place = parts.netloc.rpartition("@")[2]
    return urllib.parse.urlunsplit((parts.scheme, place, parts.path, redact_query(parts.query, vault), ""))


def redact_authorization(value: str, vault: Vault) -> str:
    """A credential as its scheme and a placeholder."""
    if not value:
        return ""
    scheme, _, secret = value.partition(" ")
    kinds = {"basic": "basic", "bearer": "token"}
    return f"{scheme} {vault.mark(kinds.get(scheme.lower(), 'credential'), secret.strip())}"


def redact_json(value: object, vault: Vault, refuse: Callable[[str], None] | None = None, path: str = "") -> object:
    """A JSON value with secret members replaced.

    Args:
        value: decoded JSON.
        vault: remembers what was replaced.
        refuse: called with the path of a string member that is neither plain nor secret; None lets it pass.
        path: of the value, for refuse.
    """
    if isinstance(value, dict):
        return {key: _redact_member(key, one, vault, refuse, f"{path}.{key}") for key, one in value.items()}
    if isinstance(value, list):
        return [redact_json(one, vault, refuse, f"{path}[{number}]") for number, one in enumerate(value)]
    if isinstance(value, str) and refuse is not None:
        refuse(path)
    return value


def _redact_member(key: str, value: object, vault: Vault, refuse: Callable[[str], None] | None, path: str) -> object:
    name = key.lower()
    if name in SECRET_MEMBERS and isinstance(value, str):
        return vault.mark("token" if "token" in name else "password", value)
    if name in PLAIN_MEMBERS:
        return value
    return redact_json(value, vault, refuse, path)
