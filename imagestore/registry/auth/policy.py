"""What an operator allows in authentication; known before anything is asked for."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


class RealmTrust(enum.Enum):
    """What to do when credentials would go to a token service on another host than the registry's."""

    WARN = "warn"
    STRICT = "strict"


@dataclass(frozen=True, slots=True)
class AuthPolicy:
    """What the operator allows.

    Attributes:
        realm_trust: about token services on another host than the registry's, when credentials would go there.
        trusted_realms: pairs (registry host, token service host) that belong together.
        credential_hosts: host of a mirror to the registry whose credentials it may see; nobody else's are shown to it.
    """

    realm_trust: RealmTrust = RealmTrust.WARN
    trusted_realms: frozenset[tuple[str, str]] = frozenset()
    credential_hosts: Mapping[str, str] = field(default_factory=dict, hash=False)

    def token_hosts(self, registry: str) -> frozenset[str]:
        """Hosts of token services that the operator trusts a registry host to name."""
        return frozenset(realm for named, realm in self.trusted_realms if named == registry)
