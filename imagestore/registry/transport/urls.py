"""URLs as they are compared and shown: origins, and forms without secrets."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import SplitResult, quote, urljoin, urlsplit

from imagestore.errors import ProtocolError
from imagestore.registry.transport import addresses
from imagestore.registry.transport.addresses import Origin
from imagestore.util.logins import without_login
from imagestore.util.text import cut, printable

_MAX_ESCAPED: Final = 2048


def escape(text: str) -> str:
    r"""Shorten a peer's text and escape what a terminal or a log would act on.

    >>> escape("denied\x1b[2J")
    'denied\\x1b[2J'
    """
    return printable(cut(text, _MAX_ESCAPED))


#: By scheme; there are no others.
DEFAULT_PORTS: Final = {"https": 443, "http": 80}
# What RFC 3986 allows in a URL at all; everything else must come percent-encoded.
_LEGAL: Final = re.compile(r"[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=%-]+")
_SAFE: Final = "._~:/?#[]@!$&'()*+,;=%-"
_NAME: Final = re.compile(r"[a-z0-9_](?:[a-z0-9._-]*[a-z0-9_])?\.?")
_MAX_LENGTH: Final = 8192
#: Characters of a URL in messages.
_MAX_SHOWN: Final = 300


def split(url: str) -> SplitResult:
    """Take an absolute http(s) URL apart.

    Raises:
        ProtocolError: no http(s) URL with a host, or one with user information.
    """
    if len(url) > _MAX_LENGTH:
        raise ProtocolError(f"URL {shown(url)}: longer than {_MAX_LENGTH} characters")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        # The parser's message may repeat a part of a login.
        raise ProtocolError(f"URL {shown(url)}: its host and port can't be read") from None
    if parts.scheme not in DEFAULT_PORTS:
        raise ProtocolError(f"URL {shown(url)}: expected http or https, found {parts.scheme or 'no scheme'!r}")
    host = parts.hostname or ""
    is_host = _NAME.fullmatch(host) is not None or (":" in host and addresses.parse(host) is not None)
    if not _LEGAL.fullmatch(url) or not is_host or port == 0:
        raise ProtocolError(f"URL {shown(url)}: no valid host and path")
    if "@" in parts.netloc:
        raise ProtocolError(f"URL {shown(url)}: holds user information, which is not allowed here")
    return parts


def origin_of(url: str) -> Origin:
    """Scheme, host and port of an absolute http(s) URL.

    Raises:
        ProtocolError: as split().

    >>> str(origin_of("https://Registry.example:443/v2/"))
    'https://registry.example'
    """
    parts = split(url)
    host = (parts.hostname or "").removesuffix(".")
    return Origin(parts.scheme, host, parts.port or DEFAULT_PORTS[parts.scheme])


def join(base: str, target: str) -> str:
    """The absolute URL that a server's reference means at an address, without a fragment.

    Raises:
        ProtocolError: it can't be read.

    >>> join("https://registry.example/v2/a", "/b?c#d")
    'https://registry.example/b?c'
    """
    try:
        joined = urljoin(base, target).partition("#")[0]
        if _LEGAL.fullmatch(joined):
            return joined
        # As other clients, encode what the server should have encoded. A header's characters are its bytes.
        return quote(joined, safe=_SAFE, encoding="latin-1" if max(joined) <= "\xff" else "utf-8")
    except ValueError:
        raise ProtocolError(f"URL {shown(target)}, named by {shown(base)}: can't be read") from None


def shown(url: str) -> str:
    """A URL for logs and messages: no user information, no query (signatures are secrets), bounded, printable.

    >>> shown("https://user:pass@storage.example/blob?signature=abc")
    'https://storage.example/blob'
    """
    bare = re.split(r"[?#]", without_login(url), maxsplit=1)[0]
    login = url.partition("://")[2].rpartition("@")[0]
    if not re.search(r"[/?#]", login):
        # Else the mark stays: perhaps it is a path's @, and the host isn't what follows it.
        bare = bare.replace("***@", "", 1)
    return cut(bare, _MAX_SHOWN).encode("unicode_escape").decode("ascii")


def host_port(origin: Origin) -> str:
    """Host, and port when it isn't the scheme's default; for messages.

    >>> host_port(Origin("http", "::1", 5000))
    '[::1]:5000'
    """
    return str(origin).partition("://")[2]
