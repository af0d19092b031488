"""Addresses of shared stores: PostgreSQL's URLs, shown without their secrets."""

from __future__ import annotations

import os
import re
import socket
from typing import TYPE_CHECKING, Final

import psycopg

from imagestore.errors import ConfigError, InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Mapping

_SCOPE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,99}")
#: The scope if none is given.
DEFAULT_SCOPE: Final = "default"
#: Parts of an address that messages show.
_SHOWN: Final = ("host", "hostaddr", "port", "dbname")
_FORM: Final = "write postgresql://USER@HOST:PORT/DATABASE; other characters in names must be percent-encoded, as %XX"
_RESERVED: Final = re.compile(r"[@/?#]")
_BRACKETS: Final = re.compile(r"\[[^\[\]]*\]")
#: In hosts with their ports: something else in the place of a port, such as a password whose ``@`` is missing.
_NO_PORT: Final = re.compile(r":[0-9]*[^0-9,]")
#: So that a lost server is noticed within half a minute.
_DEFAULTS: Final = {
    "connect_timeout": "5",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "20000",
}


def checked_scope(scope: str) -> str:
    """A scope's name.

    Raises:
        InvalidInputError: it has other characters than expected, or too many.

    >>> checked_scope("zone-a/mirror")
    'zone-a/mirror'
    """
    if not _SCOPE.fullmatch(scope):
        raise InvalidInputError(
            f"scope {scope[:100]!r}: expected at most 100 letters, digits and any of '._/-', no sign first"
        )
    return scope


class DatabaseAddress:
    """A parsed address.

    Args:
        url: ``postgresql://USER@HOST:PORT/DATABASE?...``, as libpq takes it; without a password, libpq looks for one in
            PGPASSWORD and ~/.pgpass.

    Raises:
        ConfigError: psycopg can't read the address.
    """

    def __init__(self, url: str) -> None:
        _refuse_ambiguous(url)
        try:
            given: Mapping[str, object] = psycopg.conninfo.conninfo_to_dict(url)
        except psycopg.Error:
            # The library's message may repeat a part of the password.
            raise ConfigError("a store at postgresql://: the address can't be read", hint=_FORM) from None
        #: For psycopg.connect(); may contain a password.
        self.parameters: dict[str, str] = {**_DEFAULTS, **{name: str(value) for name, value in given.items() if value}}
        self.parameters.setdefault("application_name", _application())
        #: For messages: no password, no user and no option.
        self.name = _name({name: str(value) for name, value in given.items() if name in _SHOWN and value})

    def __repr__(self) -> str:
        return f"DatabaseAddress({self.name!r})"


def _refuse_ambiguous(url: str) -> None:
    """Refuse an address whose login may end at several places: libpq would take a part of the password for the host.

    Raises:
        ConfigError: without any part of the address.
    """
    rest = url.partition("://")[2]
    login, at, _ = rest.rpartition("@")
    if at and _RESERVED.search(login):
        raise ConfigError(
            "a store at postgresql://: where the login ends is ambiguous; '@', '/', '?' and '#' in it must be"
            " percent-encoded",
            hint="write %40 for '@', %2F for '/', %3F for '?', %23 for '#' and %25 for '%'",
        )
    places = _BRACKETS.sub("", re.split(r"[/?#]", rest, maxsplit=1)[0])
    if not at and _NO_PORT.search(places):
        raise ConfigError("a store at postgresql://: expected a port in digits", hint=_FORM)


def _name(parts: Mapping[str, str]) -> str:
    host = parts.get("host") or parts.get("hostaddr") or ""
    if host.startswith("/"):
        return f"postgresql:///{parts.get('dbname', '')}?host={host}"
    hosts, ports = host.split(","), parts.get("port", "").split(",")
    if len(ports) < len(hosts):
        ports = ports * len(hosts)
    places = [f"{each}:{port}" if port else each for each, port in zip(hosts, ports, strict=False)]
    return f"postgresql://{','.join(places)}/{parts.get('dbname', '')}"


def _application() -> str:
    """By which the server's list of sessions names this process; the server takes 63 bytes."""
    return f"imagestore/{socket.gethostname()[:40]}/{os.getpid()}"
