"""Entries of a Docker configuration in a pull secret, read as the kubelet reads them.

Rule (Kubernetes, package credentialprovider): ``auth`` (base64 of ``user:password``, padded or not) beats ``username``
and ``password``. A secret that can't be read ends the look-up with an error; it is not skipped.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import TYPE_CHECKING, Final

from imagestore.errors import ConfigError
from imagestore.oci.digest import Digest
from imagestore.registry.credentials.cri import AuthConfig
from imagestore.registry.credentials.files import member
from imagestore.util.secret import Secret

if TYPE_CHECKING:
    from collections.abc import Mapping

_MAX_BYTES: Final = 1024 * 1024  # of a Kubernetes secret
_ESCAPED: Final = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def parse_entries(data: bytes, what: str, *, is_legacy: bool) -> dict[str, AuthConfig]:
    """The entries by their keys as written.

    Args:
        data: the secret's content.
        what: names the secret in errors; its content is never quoted.
        is_legacy: ``.dockercfg``: the whole object is what ``auths`` is in the newer form.

    Raises:
        ConfigError: it isn't what its type says.
    """
    if len(data) > _MAX_BYTES:
        raise ConfigError(f"{what}: larger than {_MAX_BYTES} bytes")
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        # What the parser says may quote the content.
        raise ConfigError(f"{what}: error occurred while trying to unmarshal json") from None
    entries = value if is_legacy else (member(value, "auths") if isinstance(value, dict) else None)
    if entries is None and isinstance(value, dict):
        return {}
    if not isinstance(entries, dict):
        raise ConfigError(f"{what}: error occurred while trying to unmarshal json")
    return {key: _entry(entry, f"{what}: entry {key[:200]!r}") for key, entry in entries.items()}


def _entry(entry: object, what: str) -> AuthConfig:
    if not isinstance(entry, dict):
        raise ConfigError(f"{what}: expected an object")
    texts: dict[str, str] = {}
    for name in ("username", "password", "auth", "identitytoken", "registrytoken"):
        text = member(entry, name)
        if text is not None and not isinstance(text, str):
            raise ConfigError(f"{what}: member {name} is no text")
        texts[name] = text or ""
    username, password = texts["username"], texts["password"]
    if texts["auth"]:
        username, password = _decode_pair(texts["auth"], what)
    return AuthConfig(
        username=username,
        password=Secret(password),
        identity_token=Secret(texts["identitytoken"]),
        registry_token=Secret(texts["registrytoken"]),
    )


def _decode_pair(encoded: str, what: str) -> tuple[str, str]:
    fault = ConfigError(f"{what}: unable to parse auth field, must be formatted as base64 encoded username:password")
    stripped = encoded.strip().replace("\r", "").replace("\n", "")
    # Go takes either full padding or none.
    padded = stripped if stripped.endswith("=") else stripped + "=" * (-len(stripped) % 4)
    try:
        text = base64.b64decode(padded, validate=True).decode("utf-8")
    except (ValueError, binascii.Error):
        raise fault from None
    username, colon, password = text.partition(":")
    if not colon:
        raise fault
    return username, password


def credential_hash(auth: AuthConfig) -> str:
    """The hash by which pull records know a credential: SHA-256 of its JSON form without empty members."""
    members: Mapping[str, str] = {
        "username": auth.username,
        "password": auth.password.reveal(),
        "auth": auth.auth.reveal(),
        "serveraddress": auth.server_address,
        "identitytoken": auth.identity_token.reveal(),
        "registrytoken": auth.registry_token.reveal(),
    }
    text = json.dumps(
        {name: value for name, value in members.items() if value}, separators=(",", ":"), ensure_ascii=False
    )
    for character, escaped in _ESCAPED.items():
        text = text.replace(character, escaped)
    return Digest.of(text.encode("utf-8", "surrogatepass")).encoded
