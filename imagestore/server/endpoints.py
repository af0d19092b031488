"""Where a server listens, as text: ``unix:///PATH``, ``unix:/PATH``, or an absolute path alone.

CRI's endpoint rules (a bare path is a socket's path; TCP is refused, since CRI has no authentication of its own). The
metrics port is ``HOST:PORT`` on the loopback interface only, for the same reason.
"""

from __future__ import annotations

import ipaddress
import os
from typing import Final

from imagestore.errors import InvalidInputError
from imagestore.patterns import pattern

#: Bytes of ``sun_path`` on Linux, less the terminating zero (unix(7)).
LONGEST_PATH_BYTES: Final = 107
_PORT: Final = pattern(r"[0-9]{1,5}")


def socket_path(text: str) -> str:
    """The path of a socket that an endpoint names.

    Args:
        text: the endpoint.

    Raises:
        InvalidInputError: it names no unix socket, or one whose path the system can't hold.

    >>> socket_path("unix:///run/imagestore/imagestore.sock")
    '/run/imagestore/imagestore.sock'
    """
    path = text
    scheme, colon, rest = text.partition(":")
    if colon and "/" not in scheme:
        if scheme != "unix":
            raise InvalidInputError(
                f"endpoint {text!r}: expected unix:///PATH, got scheme {scheme!r}",
                hint="the services have no authentication of their own; use a socket and its permissions",
            )
        path = rest[2:] if rest.startswith("//") else rest
    if not path.startswith("/") or "\0" in path or path.endswith("/"):
        raise InvalidInputError(f"endpoint {text!r}: expected an absolute path, got {path!r}")
    size = len(os.fsencode(path))
    if size > LONGEST_PATH_BYTES:
        raise InvalidInputError(f"endpoint {text!r}: expected at most {LONGEST_PATH_BYTES} bytes of path, got {size}")
    return path


def loopback_address(text: str) -> tuple[str, int]:
    """Host and port of ``127.0.0.1:9090`` or ``[::1]:9090``.

    Args:
        text: the address; port 0 lets the system choose.

    Raises:
        InvalidInputError: it can't be read, or other machines could reach it.

    >>> loopback_address("127.0.0.1:9090")
    ('127.0.0.1', 9090)
    """
    host, _, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    try:
        address = ipaddress.ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError:
        raise InvalidInputError(f"metrics address {text!r}: expected ADDRESS:PORT, such as 127.0.0.1:9090") from None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped  # Python before 3.13 doesn't know it for loopback
    if not address.is_loopback:
        raise InvalidInputError(
            f"metrics address {text!r}: expected a loopback address, got {address}",
            hint="the numbers are for this machine's collector; use 127.0.0.1 or [::1]",
        )
    if _PORT.fullmatch(port) is None or int(port) > 65535:
        raise InvalidInputError(f"metrics address {text!r}: expected a port from 0 to 65535, got {port!r}")
    return str(address), int(port)
