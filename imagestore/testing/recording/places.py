"""Where logical hosts really are, as people write it: ``registry.example=http://127.0.0.1:5000``."""

from __future__ import annotations

import re
import urllib.parse
from typing import TYPE_CHECKING

from imagestore.errors import InvalidInputError
from imagestore.util.text import without_login

if TYPE_CHECKING:
    from collections.abc import Iterable


def upstream_map(pairs: Iterable[str]) -> dict[str, str]:
    """Read ``host=address`` pairs.

    >>> upstream_map(["registry.example=http://127.0.0.1:5000/"])
    {'registry.example': 'http://127.0.0.1:5000'}

    Raises:
        InvalidInputError: not of this form.
    """
    out: dict[str, str] = {}
    for pair in pairs:
        host, _, address = pair.partition("=")
        if not host or not _is_base(address):
            raise InvalidInputError(f"upstream {without_login(pair)!r}: expected logical.host=http://address:port")
        out[host.lower()] = address.rstrip("/")
    return out


def _is_base(address: str) -> bool:
    """Whether somebody can be asked there; the system would take the rest of a port that is too large."""
    try:
        parts = urllib.parse.urlsplit(address)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def port_map(pairs: Iterable[str]) -> dict[str, int]:
    """Read ``host=port`` pairs.

    >>> port_map(["registry.example=5000"])
    {'registry.example': 5000}

    Raises:
        InvalidInputError: not of this form.
    """
    out: dict[str, int] = {}
    for pair in pairs:
        host, _, text = pair.rpartition("=")
        if not host or not re.fullmatch(r"[0-9]{1,5}", text, re.ASCII) or int(text) > 65535:
            raise InvalidInputError(f"port {pair!r}: expected logical.host=port")
        out[host.lower()] = int(text)
    return out
