"""What a registry was sent must not come back in our messages: some servers, and proxies before them, quote the request
in their error texts, and messages end up in logs (pitfall row 21)."""

from __future__ import annotations

import base64
import binascii
import re
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from imagestore.registry.transport.urls import escape

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from imagestore.errors import RegistryError

# Shorter texts occur in ordinary words, where hiding them would give them away.
_LEAST_LENGTH: Final = 8
_HIDDEN: Final = "(hidden)"


def secrets_in(fields: Iterable[tuple[str, str]], *, signed: str = "") -> tuple[str, ...]:
    """Texts that must not be repeated, the longest first, since one may hold another.

    Args:
        fields: header fields that may be secret: ``Authorization``, and those configured for a registry.
        signed: address that a redirect named; every value in its query may be a signature.
    """
    values = {pair.partition("=")[2] for pair in signed.partition("?")[2].split("&")}
    found = values | {unquote(value) for value in values}
    for name, value in fields:
        found.add(value)
        if name.lower() == "authorization":
            scheme, _, argument = value.partition(" ")
            found.add(argument)
            if scheme.lower() == "basic":
                pair = _decoded(argument)
                found |= {pair, pair.partition(":")[2]}
    found |= {escape(text) for text in found}
    return tuple(sorted((text for text in found if len(text) >= _LEAST_LENGTH), key=len, reverse=True))


def without(text: str, secrets: Collection[str]) -> str:
    """A text with every secret in it hidden.

    >>> without("you sent Bearer abc.def", ["abc.def"])
    'you sent Bearer (hidden)'
    """
    folded = text.casefold()
    for secret in secrets:
        # A signed address may have a thousand values, and expressions are costly to make.
        if secret.casefold() in folded:
            text = re.sub(re.escape(secret), _HIDDEN, text, flags=re.IGNORECASE)
    return text


def hush(error: RegistryError, secrets: Collection[str]) -> None:
    """Hide secrets in what an error repeats of the registry's words; our own words hold none."""
    if error.said:
        said = without(error.said, secrets)
        error.args = (str(error).replace(error.said, said), *error.args[1:])
        error.said = said


def _decoded(argument: str) -> str:
    try:
        return base64.b64decode(argument).decode("utf-8", "replace")
    except (binascii.Error, ValueError):
        return ""
