"""Where the numbers are published: ``HOST:PORT`` on the loopback interface only, since nobody is asked who they are."""

from __future__ import annotations

import ipaddress
import re
from typing import Final

from imagestore.errors import InvalidInputError

_PORT: Final = re.compile(r"[0-9]{1,5}")


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
