"""Which proxy a request goes through: the environment variables, read as Go's tools read them.

``HTTP_PROXY``, ``HTTPS_PROXY``, ``NO_PROXY`` and their lower-case forms. ``NO_PROXY`` takes names (``example`` covers
its subdomains, ``.example`` only those), addresses, CIDR networks, a port behind any of them, and ``*``. This machine
itself is never reached through a proxy. (Python's HTTP libraries don't know CIDR here; users of container tools rely
on it.)
"""

from __future__ import annotations

import ipaddress
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, unquote_to_bytes, urlsplit

from imagestore.errors import ConfigError
from imagestore.registry.transport import addresses

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

    from imagestore.registry.transport.addresses import Origin

#: What to do about a proxy that answers 407.
PROXY_LOGIN: Final = (
    "it wants a login, or another one than it was given: http://USER:PASSWORD@HOST:PORT in HTTP_PROXY or HTTPS_PROXY"
)
#: What to do about a proxy that can't be used.
PROXY_VARIABLES: Final = "proxies are named in HTTP_PROXY and HTTPS_PROXY, hosts that need none in NO_PROXY"
_SCHEMES: Final = frozenset({"http", "https", "socks5", "socks5h"})
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_PORT: Final = re.compile(r"[0-9]{1,5}")


@dataclass(frozen=True, slots=True)
class ProxyRules:
    """Proxies by scheme, and who is reached directly.

    Attributes:
        http: proxy URL for plain http, or empty.
        https: proxy URL for https, or empty.
        no_proxy: the exceptions, in NO_PROXY's comma-separated form.

    >>> rules = ProxyRules(https="http://proxy.example:3128", no_proxy="10.0.0.0/8,.internal.example")
    >>> from imagestore.registry.transport.addresses import Origin
    >>> rules.proxy_for(Origin("https", "10.1.2.3", 443))
    ''
    >>> rules.proxy_for(Origin("https", "registry.example", 443))
    'http://proxy.example:3128'
    """

    http: str = ""
    https: str = ""
    no_proxy: str = ""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Self:
        """Read the variables.

        Raises:
            ConfigError: a proxy variable isn't a proxy URL.
        """
        variables = os.environ if environment is None else environment

        def first(*names: str) -> tuple[str, str]:
            return next(((name, variables[name]) for name in names if variables.get(name)), ("", ""))

        # Under CGI a request header "Proxy" arrives as HTTP_PROXY (httpoxy, CVE-2016-5385).
        http_names = ("http_proxy",) if "REQUEST_METHOD" in variables else ("HTTP_PROXY", "http_proxy")
        return cls(
            _proxy_url(*first(*http_names)),
            _proxy_url(*first("HTTPS_PROXY", "https_proxy")),
            first("NO_PROXY", "no_proxy")[1],
        )

    def proxy_for(self, origin: Origin) -> str:
        """Proxy URL for a destination; empty for a direct connection."""
        proxy = self.https if origin.scheme == "https" else self.http
        return "" if not proxy or addresses.is_loopback_name(origin.host) or self._is_exempt(origin) else proxy

    def _is_exempt(self, origin: Origin) -> bool:
        address = addresses.parse(origin.host)
        return any(
            _covers(entry.strip().lower(), origin.host.lower().rstrip("."), origin.port, address)
            for entry in self.no_proxy.split(",")
            if entry.strip()
        )


def _proxy_url(name: str, value: str) -> str:
    """The variable's URL in standard form, its login percent-encoded.

    People write passwords as they are. No proxy's host has an ``@``, so everything before the last one is the login,
    also where it has characters that would end a URL's authority (RFC 3986 section 3.2).
    """
    value = value.strip()
    if not value:
        return ""
    found = _SCHEME.match(value)
    scheme, rest = (found[1].lower(), value[found.end() :]) if found else ("http", value)
    login, at, place = rest.rpartition("@")
    host = re.split(r"[/?#]", place, maxsplit=1)[0]
    if scheme not in _SCHEMES or not _is_host_port(host):
        # The value may hold a password.
        hint = f"set {name} to, for example, http://proxy.example:3128"
        if at:
            hint += "; in the login, write characters like '@', '/' and '#' percent-encoded: %40, %2F, %23"
        raise ConfigError(
            f"environment variable {name}: expected a proxy URL (http, https or socks5), found something else",
            hint=hint,
        )
    user, colon, password = login.partition(":")
    return f"{scheme}://{_encoded(user)}{colon}{_encoded(password)}{at}{host}"


def _is_host_port(text: str) -> bool:
    try:
        parts = urlsplit(f"//{text}")
        is_port = parts.port is None or parts.port > 0
    except ValueError:
        return False
    return is_port and bool(parts.hostname) and text.isascii() and text.isprintable() and " " not in text


def _encoded(text: str) -> str:
    """Percent-encoded once, whether it was already or not; a ``%`` that begins no escape means itself."""
    return quote(unquote_to_bytes(text.encode("utf-8", "surrogateescape")), safe="")


def _covers(entry: str, host: str, port: int, address: addresses.Address | None) -> bool:
    if entry == "*":
        return True
    if "/" in entry:
        return address is not None and _in_network(address, entry)
    name, wanted_port = _split_port(entry)
    if wanted_port is not None and wanted_port != port:
        return False
    literal = addresses.parse(name)
    if literal is not None or address is not None:
        return literal is not None and literal == address
    name = name.removeprefix("*").rstrip(".")
    return host.endswith(name) if name.startswith(".") else host == name or host.endswith(f".{name}")


def _split_port(entry: str) -> tuple[str, int | None]:
    """``host:port`` in parts; a bare IPv6 address has colons and no port."""
    if addresses.parse(entry) is not None:
        return entry, None
    name, colon, port = entry.rpartition(":")
    return (name, int(port)) if colon and _PORT.fullmatch(port) else (entry, None)


def _in_network(address: addresses.Address, entry: str) -> bool:
    try:
        network = ipaddress.ip_network(entry, strict=False)
    except ValueError:
        return False
    return network.version == address.version and address in network
