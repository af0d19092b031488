"""What a configuration says about registries, as the policies of the parts that obey it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from imagestore.oci.reference import api_host
from imagestore.registry.auth.policy import AuthPolicy, RealmTrust
from imagestore.registry.policy import TransferPolicy

if TYPE_CHECKING:
    from imagestore.config.model import RegistrySettings


def transfer_policy(settings: RegistrySettings) -> TransferPolicy:
    """Limits of transfers; what isn't set keeps its default."""
    default = TransferPolicy()
    return TransferPolicy(
        connections_per_host=settings.connections_per_host or default.connections_per_host,
        parallel_ranges=settings.parallel_ranges or default.parallel_ranges,
        bytes_per_second=settings.bytes_per_second,
        foreign_hosts=settings.foreign_layer_hosts,
    )


def auth_policy(settings: RegistrySettings) -> AuthPolicy:
    """Whom credentials may be shown to."""
    return AuthPolicy(
        realm_trust=RealmTrust.STRICT if settings.is_realm_strict else RealmTrust.WARN,
        # A registry is judged by the host that speaks its API.
        trusted_realms=frozenset((api_host(registry), realm) for registry, realm in settings.trusted_realms),
        credential_hosts=settings.mirror_credentials,
    )
