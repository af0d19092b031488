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
        try:
            given: Mapping[str, object] = psycopg.conninfo.conninfo_to_dict(url)
        except psycopg.Error as error:
            raise ConfigError(
                "a store at postgresql://: the address can't be read",
                hint="write postgresql://USER@HOST:PORT/DATABASE; other characters in names as %XX",
            ) from error
        #: For psycopg.connect(); may contain a password.
        self.parameters: dict[str, str] = {**_DEFAULTS, **{name: str(value) for name, value in given.items() if value}}
        self.parameters.setdefault("application_name", _application())
        #: For messages: no password, no user and no option.
        self.name = _name({name: str(value) for name, value in given.items() if name in _SHOWN and value})

    def __repr__(self) -> str:
        return f"DatabaseAddress({self.name!r})"


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
