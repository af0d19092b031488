"""Texts for messages without the logins of addresses in them.

Nothing between ``//`` and the host is shown, also if the address is malformed: a password that isn't percent-encoded
may have any characters, so everything before the last ``@`` counts as the login.
"""

from __future__ import annotations

import re
import string
from typing import Final

_DIGEST: Final = re.compile(r"@sha(?:256|384|512):[^@/\s]*\Z")
#: What may stand before a login: a variable, and a scheme, which may have lost a character.
_BEFORE_LOGIN: Final = re.compile(
    r"(?:-{0,2}[A-Za-z_][A-Za-z0-9_-]*=(?=[^@=]))?"
    r"(?P<scheme>[a-z][a-z0-9+.-]{0,20}:[/\\]{2,}|[htps]{2,6}[:;.]?[/\\]+|https?:|:?[/\\]{2,})?",
    re.IGNORECASE,
)
#: Files and sockets of this machine: there an @ is a part of a name.
_LOCAL: Final = re.compile(
    r"(?:unix|npipe|file)://(?=[/@])[^\s:]*|\.{0,2}/(?!/)[^\s:]*(?::/[^\s:]*)*|[A-Za-z]:\\[^\s:]*|\\\\\.\\[^\s:]*"
)
#: A port that is none: a login whose ``@`` is missing or encoded.
_NO_PORT: Final = re.compile(r"(//[^/?#:@\[\]\s]+:)(?![0-9]*(?:[/?#]|\Z))[^/?#:\s]*(?=[/?#]|\Z)")
#: What stands behind the @ of a login, and not behind that of a digest.
_HOST: Final = re.compile(r"(?:[\w-]+\.)+[\w-]+(?::[0-9]+)?|localhost|[\w-]+:[0-9]{1,5}|\[[0-9A-Fa-f:.]+\](?::[0-9]+)?")
_SCHEME: Final = f"{string.ascii_letters}{string.digits}+.-"
#: What an address without a scheme may stand behind in a message.
_OPENING: Final = "'\"`(<[{=,"
_CLOSING: Final = "'\"`)>]},;:.?"
_WORD: Final = re.compile(r"\S+")


def without_login(address: str) -> str:
    """An address without its login and the values of its query.

    >>> without_login("https://user:word@mirror.example/v2?token=word")
    'https://***@mirror.example/v2?***'
    >>> without_login("user:wo/rd@mirror.example"), without_login("https://user:word")
    ('***@mirror.example', 'https://user:***')
    """
    digest = _DIGEST.search(address)
    if digest is not None:
        return without_login(address[: digest.start()]) + digest[0]
    before = _BEFORE_LOGIN.match(address)
    shown, has_scheme = address, before is not None and before["scheme"] is not None
    head, at, after = address.rpartition("@")
    if at and before is not None and len(head) > before.end() and not _LOCAL.fullmatch(address):
        shown = f"{before[0]}***@{after}"
    elif has_scheme:
        shown = _NO_PORT.sub(r"\1***", address, count=1)
    place, mark, query = _parted(shown)
    return f"{place}{mark}***" if mark and (has_scheme or at or "=" in query) else shown


def reference_without_login(reference: str) -> str:
    """A text that should have been an image's reference, in which an ``@`` may stand before a digest, without a login.

    >>> reference_without_login("https://user:word@registry.example/a:1")
    'https://***@registry.example/a:1'
    >>> reference_without_login("debian:12@latest")
    'debian:12@latest'
    """
    head, at, after = reference.rpartition("@")
    is_login = "//" in head or (":" in head and ("/" in after or "@" in head or _HOST.fullmatch(after) is not None))
    return without_login(reference) if at and is_login else reference


def without_logins(message: str) -> str:
    """A message without the logins of the addresses that it quotes, and their queries, which may be signed.

    As far as they have no spaces.

    >>> without_logins("upstream 'https://user:word@m.example': not known, nor is https://m.example")
    "upstream 'https://***@m.example': not known, nor is https://m.example"
    >>> without_logins("https://bucket.example/blob?X-Amz-Signature=word: 403; is it https://m.example?")
    'https://bucket.example/blob?***: 403; is it https://m.example?'
    """
    has_any = "@" in message or "?" in message
    return _WORD.sub(lambda found: _word_without_login(found[0]), message) if has_any else message


def _word_without_login(word: str) -> str:
    before, mark, _ = word.partition(":/")
    start = len(before.rstrip(_SCHEME)) if mark else word.find("//")
    is_address = start >= 0 and (bool(mark) or word[:start].endswith(tuple(_OPENING)) or start == 0)
    end = len(word.rstrip(_CLOSING))
    if not is_address or not {"@", "?"} & {*word[start:end]}:
        return word
    return word[:start] + without_login(word[start:end]) + word[end:]


def _parted(address: str) -> tuple[str, str, str]:
    """An address, and its query or fragment."""
    found = re.search(r"[?#]", address)
    return (address, "", "") if found is None else (address[: found.start()], found[0], address[found.end() :])
