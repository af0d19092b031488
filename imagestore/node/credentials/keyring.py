"""Keyrings: the credentials to try for a repository, in order, with where each came from.

Order (kubelet): pull secrets of the pod, then the node's own configuration, then credential provider plugins. Each
credential is one attempt to pull; without any there is one anonymous attempt.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from imagestore.node.credentials.docker_entries import credential_hash, parse_entries
from imagestore.node.credentials.matching import matching, normalized_key
from imagestore.registry.credentials.cri import AuthConfig
from imagestore.registry.credentials.model import Target
from imagestore.util.cancel import CancelToken

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from imagestore.registry.credentials.model import CredentialLookup

DOCKER_CONFIG_JSON: Final = "kubernetes.io/dockerconfigjson"
DOCKER_CFG: Final = "kubernetes.io/dockercfg"
_KEYS: Final = {DOCKER_CONFIG_JSON: ".dockerconfigjson", DOCKER_CFG: ".dockercfg"}


@dataclass(frozen=True, slots=True)
class PullSecret:
    """A Kubernetes secret that a pod pulls with (``imagePullSecrets``).

    Attributes:
        namespace, name, uid: its coordinates.
        type: ``kubernetes.io/dockerconfigjson`` or ``kubernetes.io/dockercfg``; others are passed over.
        data: decoded content by key; never shown.
    """

    namespace: str
    name: str
    uid: str
    type: str
    data: Mapping[str, bytes]

    def __repr__(self) -> str:
        return f"PullSecret({self.namespace!r}, {self.name!r}, {self.uid!r}, {self.type!r})"


@dataclass(frozen=True, slots=True)
class SecretSource:
    """The secret a credential came from."""

    uid: str
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class ServiceAccountSource:
    """The service account whose token a plugin turned into a credential."""

    uid: str
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class TrackedCredential:
    """A credential and its source.

    Attributes:
        auth: what a pull sends.
        source: None means the node itself: any pod may use what was pulled with it.
    """

    auth: AuthConfig
    source: SecretSource | ServiceAccountSource | None = None

    @property
    def hash(self) -> str:
        """By which pull records know it."""
        return credential_hash(self.auth)


class Keyring(Protocol):
    """Where credentials are looked up."""

    def lookup(self, repository: str) -> Sequence[TrackedCredential]:
        """Credentials for a completed repository name, in the order in which they are tried.

        Raises:
            ConfigError: a source can't be read.
        """


class EntriesKeyring:
    """Entries of Docker configurations, matched as in `matching`.

    Args:
        entries: (key as written, credential, source), several for a key in the order given.
    """

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
    """The node's own logins: the files and helpers that `imagestore pull` uses too; at most one credential.

    Args:
        credentials: where logins are looked up.
    """

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
    """Several keyrings, one behind the other; all that match count.

    Args:
        keyrings: the first is asked first.
    """

    def __init__(self, *keyrings: Keyring) -> None:
        self._keyrings = keyrings

    def lookup(self, repository: str) -> Sequence[TrackedCredential]:
        """See Keyring."""
        return [each for keyring in self._keyrings for each in keyring.lookup(repository)]


def with_secrets(secrets: Sequence[PullSecret], node: Keyring) -> Keyring:
    """The keyring for one pod: its secrets before the node's.

    Args:
        secrets: the pod's, in its order.
        node: of the node, plugins behind it.

    Raises:
        ConfigError: a secret of a known type can't be read.
    """
    entries: list[tuple[str, AuthConfig, SecretSource | None]] = []
    for secret in secrets:
        key = _KEYS.get(secret.type)
        data = secret.data.get(key, b"") if key is not None else b""
        if not data:
            continue
        what = f"secret {secret.namespace}/{secret.name}"
        source = SecretSource(secret.uid, secret.namespace, secret.name)
        found = parse_entries(data, what, is_legacy=secret.type == DOCKER_CFG)
        entries += [(each, auth, source) for each, auth in found.items()]
    return ChainedKeyring(EntriesKeyring(entries), node) if entries else node
