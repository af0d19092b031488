"""Credentials for the pulls of a pod: keyrings, pull secrets, and the hash by which pull records identify a credential.

Rules (kubelet): the pod's pull secrets come first, then the node's own configuration, then credential provider plugins.
In a secret's Docker configuration ``auth`` (base64 of ``user:password``, padded or not) takes precedence over
``username`` and ``password``. An unreadable secret ends the lookup with an error.
"""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from imagestore.errors import ConfigError
from imagestore.node.credential_matching import matching, normalized_key
from imagestore.oci import Digest
from imagestore.registry import AuthConfig, Target
from imagestore.util.cancel import CancelToken
from imagestore.util.known_members import login_members, member
from imagestore.util.secret import Secret

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from imagestore.registry import CredentialLookup


DOCKER_CONFIG_JSON: Final = "kubernetes.io/dockerconfigjson"
DOCKER_CFG: Final = "kubernetes.io/dockercfg"
#: The key of a secret's content by its type.
DATA_KEYS: Final = {DOCKER_CONFIG_JSON: ".dockerconfigjson", DOCKER_CFG: ".dockercfg"}
_MAX_BYTES: Final = 1024 * 1024  # of a Kubernetes secret
_ESCAPED: Final = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


@dataclass(frozen=True, slots=True)
class PullSecret:
    """A Kubernetes secret that a pod pulls with (``imagePullSecrets``).

    Attributes:
        namespace, name, uid: its coordinates.
        type: ``kubernetes.io/dockerconfigjson`` or ``kubernetes.io/dockercfg``; others are ignored.
        data: decoded content by key; never shown.
    """

    namespace: str
    name: str
    uid: str
    type: str
    data: Mapping[str, bytes] = field(repr=False)


@dataclass(frozen=True, slots=True)
class SecretSource:
    """The secret that a credential comes from."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True, order=True)
class ServiceAccountSource:
    """The service account whose token a plugin exchanged for a credential; ordered as in pull records."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class TrackedCredential:
    """A credential and its source.

    Attributes:
        auth: sent with a pull.
        source: None means the node itself: any pod may use the images pulled with it.
    """

    auth: AuthConfig
    source: SecretSource | ServiceAccountSource | None = None

    @property
    def hash(self) -> str:
        """The hash that pull records contain."""
        return credential_hash(self.auth)


class Keyring(Protocol):
    """A source of credentials."""

    def lookup(self, repository: str) -> Sequence[TrackedCredential]:
        """Credentials for a completed repository name, in the order to try them.

        Raises:
            ConfigError: a source can't be read.
        """


class EntriesKeyring:
    """Entries (key as written, credential, source) of Docker configurations, matched by `credential_matching`."""

    def __init__(self, entries: Iterable[tuple[str, AuthConfig, SecretSource | None]]) -> None:
        self._by_key: dict[str, list[TrackedCredential]] = {}
        for key, auth, source in entries:
            known = normalized_key(key)
            if known is not None:
                self._by_key.setdefault(known, []).append(TrackedCredential(auth, source))

    def lookup(self, repository: str) -> Sequence[TrackedCredential]:
        """See Keyring."""
        return [each for key in matching(self._by_key, repository) for each in self._by_key[key]]


class NodeKeyring:
    """The node's own logins, from the files and helpers of `imagestore pull`; at most one credential."""

    def __init__(self, credentials: CredentialLookup) -> None:
        self._credentials = credentials

    def lookup(self, repository: str) -> Sequence[TrackedCredential]:
        """See Keyring."""
        host, _, path = repository.partition("/")
        found = self._credentials.lookup(Target(host, path), cancel=CancelToken())
        if found is None:
            return ()
        credential = found.credential
        auth = AuthConfig(
            server_address=host,
            username=credential.username,
            password=credential.password,
            identity_token=credential.identity_token,
            registry_token=credential.registry_token,
        )
        return (TrackedCredential(auth),)


class ChainedKeyring:
    """Several keyrings; the credentials of all are used, in order."""

    def __init__(self, *keyrings: Keyring) -> None:
        self._keyrings = keyrings

    def lookup(self, repository: str) -> Sequence[TrackedCredential]:
        """See Keyring."""
        return [each for keyring in self._keyrings for each in keyring.lookup(repository)]


def with_secrets(secrets: Sequence[PullSecret], node: Keyring) -> Keyring:
    """The keyring for one pod: its secrets before the node's keyring.

    Raises:
        ConfigError: a secret of a known type can't be read.
    """
    entries: list[tuple[str, AuthConfig, SecretSource | None]] = []
    for secret in secrets:
        key = DATA_KEYS.get(secret.type)
        data = secret.data.get(key, b"") if key is not None else b""
        if not data:
            continue
        what = f"secret {secret.namespace}/{secret.name}"
        source = SecretSource(secret.namespace, secret.name, secret.uid)
        found = parse_entries(data, what, is_legacy=secret.type == DOCKER_CFG)
        entries += [(each, auth, source) for each, auth in found.items()]
    return ChainedKeyring(EntriesKeyring(entries), node) if entries else node


def parse_entries(data: bytes, what: str, *, is_legacy: bool) -> dict[str, AuthConfig]:
    """The entries of a pull secret by their keys as written.

    Args:
        data: the secret's content, never quoted in errors.
        what: names the secret in errors.
        is_legacy: ``.dockercfg``: the entries are at the top instead of in ``auths``.

    Raises:
        ConfigError: the content doesn't fit the secret's type.
    """
    if len(data) > _MAX_BYTES:
        raise ConfigError(f"{what}: larger than {_MAX_BYTES} bytes")
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        # The parser's message may quote the content.
        raise ConfigError(f"{what}: error occurred while trying to unmarshal json") from None
    entries = value if is_legacy else (member(value, "auths") if isinstance(value, dict) else None)
    if entries is None and isinstance(value, dict):
        return {}
    if not isinstance(entries, dict):
        raise ConfigError(f"{what}: error occurred while trying to unmarshal json")
    return {key: _entry(entry, f"{what}: entry {key[:200]!r}") for key, entry in entries.items()}


def _entry(entry: object, what: str) -> AuthConfig:
    found = login_members(entry, "", lambda path, text: ConfigError(f"{what}{path and ': '}{path}: {text}"))
    username, password = found.text("username"), found.text("password")
    if encoded := found.text("auth"):
        username, password = _decode_pair(encoded, what)
    return AuthConfig(
        username=username,
        password=Secret(password),
        identity_token=Secret(found.text("identitytoken")),
        registry_token=Secret(found.text("registrytoken")),
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
    """The hash of a credential in pull records: SHA-256 of its JSON form without empty members."""
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
