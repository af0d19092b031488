"""Limits of transfers, and what the operator allows in authentication, each as one value."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from imagestore.oci.reference import api_host

if TYPE_CHECKING:
    from collections.abc import Mapping

    from imagestore.config.model import RegistrySettings


@dataclass(frozen=True, slots=True)
class TransferPolicy:
    """Limits of retries, waits and waste.

    Attributes:
        attempts: tries of one request at the last host, the first included.
        mirror_attempts: tries at a host that another one follows; more than one, because a kept connection may have
            been closed unnoticed.
        first_backoff_seconds: upper bound of the first random wait; it doubles with each further one.
        longest_backoff_seconds: upper bound of any such wait.
        first_limited_seconds: the wait, plus or minus a half, if a registry limits requests and names no time; it
            doubles with each further one.
        longest_limited_seconds: bound of that wait, plus or minus a half.
        head_seconds: a HEAD that isn't answered by then is given up, and GET is sent.
        longest_wait_seconds: a registry that asks for a longer wait than this is an error at once.
        mirror_wait_seconds: the same for a host that another one follows.
        total_retries: for one operation (one cancel token) altogether.
        progress_bytes: after as many bytes since its last break, a transfer's tries are counted from zero.
        wasted_share: how much of a blob's size may be received twice, because a host ignores Range.
        redirects: hops followed for one request.
        connections_per_host: transfers of blobs that one host serves at a time, over all pulls of a client; uploads
            are counted on their own.
        parallel_ranges: parts of one large blob that are fetched at a time; 1 for one stream. A host that doesn't prove
            Range support by its first answer is asked for one stream in any case.
        range_bytes: size of such a part; twice as many parts as are fetched at a time may be in memory.
        least_bytes_for_ranges: smaller blobs come in one stream.
        bytes_per_second: of blobs, for one operation altogether; None for no limit.
        foreign_hosts: hosts (with the port when it isn't 443) that a layer's own addresses may lead to.
    """

    attempts: int = 5
    mirror_attempts: int = 2
    first_backoff_seconds: float = 0.2
    longest_backoff_seconds: float = 10.0
    first_limited_seconds: float = 2.0
    longest_limited_seconds: float = 60.0
    head_seconds: float = 5.0
    longest_wait_seconds: float = 120.0
    mirror_wait_seconds: float = 1.0
    total_retries: int = 100
    progress_bytes: int = 1024 * 1024
    wasted_share: float = 1.0
    redirects: int = 5
    connections_per_host: int = 8
    parallel_ranges: int = 1
    range_bytes: int = 4 * 1024 * 1024
    least_bytes_for_ranges: int = 32 * 1024 * 1024
    bytes_per_second: int | None = None
    foreign_hosts: frozenset[str] = frozenset()


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
    """Which hosts credentials may be sent to."""
    return AuthPolicy(
        realm_trust=RealmTrust.STRICT if settings.is_realm_strict else RealmTrust.WARN,
        # A registry is judged by the host that speaks its API.
        trusted_realms=frozenset((api_host(registry), realm) for registry, realm in settings.trusted_realms),
        credential_hosts=settings.mirror_credentials,
    )


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
        credential_hosts: host of a mirror to the registry whose credentials are sent to it; others are not.
    """

    realm_trust: RealmTrust = RealmTrust.WARN
    trusted_realms: frozenset[tuple[str, str]] = frozenset()
    credential_hosts: Mapping[str, str] = field(default_factory=dict, hash=False)

    def token_hosts(self, registry: str) -> frozenset[str]:
        """Hosts of token services that the operator trusts a registry host to name."""
        return frozenset(realm for named, realm in self.trusted_realms if named == registry)
