"""Makes a registry client from its parts: connections, credentials, hosts.

Each endpoint gets its own sender and its own authenticator, so that connection settings, tokens and address checks
never mix between registries.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, TypeAlias

from imagestore.config.hosts import reader_for
from imagestore.registry.auth.access import Access
from imagestore.registry.auth.authenticate import RegistryAuthenticator
from imagestore.registry.client import RegistryClient
from imagestore.registry.credentials.lookup import CredentialResolver
from imagestore.registry.endpoints import default_endpoint, endpoints_from
from imagestore.registry.mirrors import Breaker
from imagestore.registry.policy import AuthPolicy
from imagestore.registry.policy import auth_policy as auth_policy_of
from imagestore.registry.policy import transfer_policy as transfer_policy_of

if TYPE_CHECKING:
    from collections.abc import Callable

    import httpx

    from imagestore.config import Config
    from imagestore.config.connection import ConnectionSettings, RegistryHosts
    from imagestore.registry.credentials.model import CredentialLookup
    from imagestore.registry.endpoints import Endpoint
    from imagestore.registry.policy import TransferPolicy
    from imagestore.registry.retry import Timing
    from imagestore.registry.transport.addresses import Origin
    from imagestore.registry.transport.http import HttpSender

    #: What may answer instead of the network.
    Transport: TypeAlias = httpx.BaseTransport


def connect(
    *,
    config: Config | None = None,
    credentials: CredentialLookup | None = None,
    policy: TransferPolicy | None = None,
    state_folder: str = "",
    transport: httpx.BaseTransport | None = None,
    unix_socket: str = "",
    timing: Timing | None = None,
    hosts: Callable[[str], RegistryHosts] | None = None,
) -> RegistryClient:
    """A registry client; close it.

    Args:
        config: host configuration, trust and limits; without it every registry is asked itself, with the defaults.
        credentials: where logins are looked up; by default the places that Docker's and the containers tools use.
        policy: limits of retries, waits and waste, instead of the configuration's.
        state_folder: remembers unreachable mirrors for other processes; without it, only this client does.
        transport: answers instead of the network (replay, tests).
        unix_socket: connect to this socket whatever the host, for servers under test.
        timing: clocks, random numbers and sleep.
        hosts: configuration of a registry host, instead of that in ``config``.

    Raises:
        ConfigError: a proxy variable can't be used.
    """
    # The HTTP library costs 100 ms to load and is only needed here.
    from imagestore.registry.transport.http import HttpSender

    sender = HttpSender(transport=transport, unix_socket=unix_socket)
    auth_policy = None
    read = hosts or (reader_for(config) if config is not None else None)

    def _endpoints(host: str) -> tuple[Endpoint, ...]:
        # Read for each operation, so that edits take effect.
        return (default_endpoint(host),) if read is None else endpoints_from(host, read(host))

    if config is not None:
        policy = policy or transfer_policy_of(config.settings.registry)
        auth_policy = auth_policy_of(config.settings.registry)
    return RegistryClient(
        access=EndpointAccess(sender, credentials, auth_policy),
        endpoints=_endpoints,
        policy=policy,
        foreign_sender=sender.public_only(),
        breaker=Breaker(state_folder) if state_folder else None,
        timing=timing,
        on_close=sender.close,
    )


class EndpointAccess:
    """Makes and keeps the access to each endpoint; thread-safe; an AccessProvider."""

    def __init__(
        self, sender: HttpSender, credentials: CredentialLookup | None, auth_policy: AuthPolicy | None
    ) -> None:
        self._sender = sender
        # One for all endpoints, with what its helpers remember.
        self._credentials = CredentialResolver.standard() if credentials is None else credentials
        self._auth_policy = auth_policy or AuthPolicy()
        self._lock = threading.Lock()
        self._access: dict[tuple[Origin, ConnectionSettings], Access] = {}

    def with_credentials(self, credentials: CredentialLookup) -> EndpointAccess:
        """Access over the same connections for another caller, who must not use this one's login."""
        return EndpointAccess(self._sender, credentials, self._auth_policy)

    def __call__(self, endpoint: Endpoint) -> Access:
        """The access to an endpoint, the same object every time."""
        key = (endpoint.origin, endpoint.connection)
        with self._lock:
            access = self._access.get(key)
            if access is None:
                trusted = self._auth_policy.token_hosts(endpoint.origin.host)
                bound = self._sender.bound(endpoint.origin, endpoint.connection, trusted_hosts=trusted)
                authenticator = RegistryAuthenticator(bound, self._credentials, policy=self._auth_policy)
                access = self._access[key] = Access(bound, authenticator)
            return access
