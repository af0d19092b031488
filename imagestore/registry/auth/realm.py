"""Which token services a registry may name.

Credentials are sent to the realm that a registry names, so it isn't trusted until checked (CVE-2026-33540,
CVE-2026-48978, GHSA-28r5-37g7-p6mp). The rules:

- an https URL without userinfo and fragment; plain http only for a registry that is itself reached by plain http, and
  then only on its own host, or loopback to loopback;
- no literal address that isn't public, except the registry's own host;
- with credentials, a realm on another host (on loopback: or port) is named in the log (the default) or refused (strict
  mode), unless the pair is configured or built in.

The sender checks the address again when it connects: a name may resolve to any address.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from imagestore.errors import AuthenticationError, ProtocolError
from imagestore.registry.transport import addresses, urls

if TYPE_CHECKING:
    from typing import Self

    from imagestore.registry.transport.addresses import Origin

_MAX_LENGTH: Final = 2048

#: Registry host and token service host that belong together although their names don't show it.
BUILT_IN_PAIRS: Final = frozenset(
    {
        ("registry-1.docker.io", "auth.docker.io"),
        ("index.docker.io", "auth.docker.io"),
        ("registry.gitlab.com", "gitlab.com"),
    }
)


@dataclass(frozen=True, slots=True)
class Realm:
    """URL of a token service. Its query is kept when parameters are added, and never shown: it may be secret."""

    origin: Origin
    path: str
    query: str = ""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a realm."""
        if len(text) > _MAX_LENGTH or "#" in text:
            raise AuthenticationError(
                f"token service address: expected a URL of at most {_MAX_LENGTH} characters without a fragment"
            )
        try:
            parts = urls.split(text)
            return cls(urls.origin_of(text), parts.path or "/", parts.query)
        except ProtocolError as error:
            raise AuthenticationError(f"token service address: {error}") from error

    def __repr__(self) -> str:
        return f"Realm({self.origin}{self.path})"

    def url(self, extra_query: str = "") -> str:
        """The absolute URL; further query parameters follow the registry's."""
        query = "&".join(part for part in (self.query, extra_query) if part)
        return f"{self.origin}{self.path}" + (f"?{query}" if query else "")


def check_address(realm: Realm, registry: Origin, trusted: frozenset[tuple[str, str]] = frozenset()) -> None:
    """Apply the rules that hold with and without credentials; ``trusted`` has pairs (registry host, realm host).

    Raises:
        AuthenticationError: names the realm's origin and the rule.
    """
    target = realm.origin
    if target.host == registry.host or (registry.host, target.host) in trusted:
        if target.scheme == "http" and registry.scheme != "http":
            raise _refusal(registry, target, "an https registry may not name a plain http token service")
        return
    both_loopback = addresses.is_loopback_name(registry.host) and addresses.is_loopback_name(target.host)
    if target.scheme == "http" and not (registry.scheme == "http" and both_loopback):
        raise _refusal(registry, target, "a token service on another host must use https")
    if both_loopback:
        return
    address = addresses.parse(target.host)
    if addresses.is_address_in_disguise(target.host):
        raise _refusal(registry, target, "its host is neither a name nor a plain address")
    is_local_name = target.host == "localhost" or target.host.endswith(".localhost")
    if is_local_name or (address is not None and not addresses.is_public(address)):
        raise _refusal(registry, target, "a token service on another host may not have a private or local address")


def is_same_party(realm: Realm, registry: Origin, trusted: frozenset[tuple[str, str]] = frozenset()) -> bool:
    """Whether credentials for the registry may go to this token service without a warning.

    Hosts are compared exactly. Under a shared suffix (``jfrog.io``, ``me.uk``) another host may be another owner's, and
    which suffixes are shared changes every week. On loopback every port may be another user's.

    >>> from imagestore.registry.transport.addresses import Origin
    >>> docker = Realm.parse("https://auth.docker.io/token")
    >>> is_same_party(docker, Origin("https", "registry-1.docker.io", 443))
    True
    >>> is_same_party(docker, Origin("https", "registry.docker.io", 443))
    False
    """
    pair = (registry.host, realm.origin.host)
    if pair in trusted or pair in BUILT_IN_PAIRS:
        return True
    is_same_port = registry.port == realm.origin.port or not addresses.is_loopback_name(registry.host)
    return pair[0] == pair[1] and is_same_port


def _refusal(registry: Origin, target: Origin, rule: str) -> AuthenticationError:
    return AuthenticationError(
        f"{registry}: names token service {target}, refused: {rule}",
        host=registry.host,
        hint=f"if this pair is right, allow token service {target.host} for {registry.host} in the configuration",
    )
