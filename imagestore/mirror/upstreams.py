"""The closed table of upstreams: which one a request means, and the clients that ask it.

A request names its upstream by ``?ns=`` (containerd's hosts.toml), by the first part of its path (skopeo, crane), or
not at all (dockerd's ``registry-mirrors``), which means the default one. What isn't in the table is never dialled.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from imagestore.config.connection import ConnectionSettings, HostConfig, RegistryHosts
from imagestore.config.hosts import reader_for
from imagestore.errors import ReferenceNotFoundError
from imagestore.mirror.owners import REPLICA_HEADER, owner_of
from imagestore.oci.reference import Reference
from imagestore.registry import connect
from imagestore.registry.policy import transfer_policy

if TYPE_CHECKING:
    from collections.abc import Callable

    from imagestore.config import Config
    from imagestore.config.model import MirrorSettings, Upstream
    from imagestore.registry import RegistryClient
    from imagestore.util.cancel import CancelToken

#: A replica is near: one that doesn't take a connection by then is down.
_REPLICA_DIAL_SECONDS: Final = 2.0
_PULLING: Final = frozenset({"pull", "resolve", "referrers"})


class Bucket:
    """Lets so much pass in a second, and as much at once; thread-safe."""

    def __init__(self, per_second: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_second = per_second
        self._clock = clock
        self._lock = threading.Lock()
        self._free_at = clock()

    def take(self, amount: int, *, cancel: CancelToken) -> None:
        """Wait until so much may pass.

        Raises:
            OperationCancelledError: cancelled, or past the deadline.
        """
        with self._lock:
            now = self._clock()
            # What wasn't used in the last second may pass at once.
            self._free_at = max(self._free_at, now - 1.0) + amount / self._per_second
            wait = self._free_at - now
        if wait > 0:
            cancel.wait(wait)


@dataclass(frozen=True, slots=True)
class Repository:
    """A repository of an upstream.

    Attributes:
        upstream: which has it.
        path: as the upstream calls it.
    """

    upstream: Upstream
    path: str

    @property
    def name(self) -> str:
        """The whole name."""
        return f"{self.upstream.name}/{self.path}"

    def reference(self, tag_or_digest: str) -> Reference:
        """What a client asks for.

        Raises:
            InvalidInputError: it is neither a tag nor a digest.
        """
        mark = "@" if ":" in tag_or_digest else ":"
        return Reference.parse(f"{self.name}{mark}{tag_or_digest}")


class Upstreams:
    """The table, with the clients of each upstream; thread-safe. Close it.

    Args:
        config: has the table, credentials of configured hosts, and how hosts are reached.
        state_folder: where dead hosts are remembered.
    """

    def __init__(self, config: Config, state_folder: str) -> None:
        self.settings: MirrorSettings = config.settings.mirror
        self._config = config
        self._state_folder = state_folder
        self._lock = threading.Lock()
        self._clients: dict[tuple[str, str], RegistryClient] = {}
        # Read when it is needed: where containerd's folders say that a host's mirror is this one, they would make a
        # circle, so what the table says goes first.
        self._read = reader_for(config)
        limits = self.settings.upstreams.values()
        self._requests = {each.name: Bucket(each.requests_per_second) for each in limits if each.requests_per_second}
        self._bytes = {each.name: Bucket(each.bytes_per_second) for each in limits if each.bytes_per_second}

    def repository(self, path: str, namespace: str) -> Repository:
        """The repository that a request means.

        Args:
            path: between ``/v2/`` and what is asked of it.
            namespace: value of ``ns``; empty where there is none.

        Raises:
            ReferenceNotFoundError: no upstream of this table.
            InvalidReferenceError: it is no repository's name.
        """
        table = self.settings.upstreams
        first, _, rest = path.partition("/")
        if namespace:
            found, inner = table.get(namespace), path
        elif first in table and rest:
            found, inner = table[first], rest
        else:
            found, inner = table.get(self.settings.default_upstream), path
        if found is None:
            named = f"upstream {namespace!r}" if namespace else f"an upstream for {path!r}"
            raise ReferenceNotFoundError(f"this mirror doesn't have {named}", hint="its table says which it serves")
        # Docker Hub's short names become whole ones.
        return Repository(found, Reference.parse(f"{found.name}/{inner}").path)

    def owner(self, thing: str, *, is_for_replica: bool) -> str:
        """The other replica that is asked for a thing first; empty where upstream is; see client()."""
        owner = "" if is_for_replica else owner_of(thing, self.settings.replicas)
        return "" if owner == self.settings.replica else owner

    def client(self, upstream: Upstream, thing: str, *, is_for_replica: bool) -> RegistryClient:
        """The client to ask for a thing: its owner first, where that is another replica.

        Args:
            upstream: whose it is.
            thing: what its owner is found by: a digest, or a whole reference.
            is_for_replica: another replica asks; then upstream is asked, and no third one.
        """
        owner = self.owner(thing, is_for_replica=is_for_replica)
        with self._lock:
            client = self._clients.get((upstream.name, owner))
            if client is None:
                client = self._clients[upstream.name, owner] = self._connect(upstream, owner)
            return client

    def admit(self, upstream: Upstream, *, cancel: CancelToken) -> None:
        """Wait until the upstream may be asked for one thing more."""
        bucket = self._requests.get(upstream.name)
        if bucket is not None:
            bucket.take(1, cancel=cancel)

    def throttle(self, upstream: Upstream, byte_count: int, *, cancel: CancelToken) -> None:
        """Wait until so many bytes may have come from the upstream."""
        bucket = self._bytes.get(upstream.name)
        if bucket is not None:
            bucket.take(byte_count, cancel=cancel)

    def close(self) -> None:
        """Close all connections."""
        with self._lock:
            clients, self._clients = self._clients, {}
        for client in clients.values():
            client.close()

    def _connect(self, upstream: Upstream, owner: str) -> RegistryClient:
        policy = transfer_policy(self._config.settings.registry)
        return connect(
            config=self._config,
            policy=replace(policy, connections_per_host=upstream.max_connections),
            state_folder=self._state_folder,
            hosts=lambda host: self._hosts(upstream, owner, host),
        )

    def _hosts(self, upstream: Upstream, owner: str, host: str) -> RegistryHosts:
        if upstream.endpoints:
            *before, last = [HostConfig(f"{base}/v2", _PULLING) for base in upstream.endpoints]
            found = RegistryHosts(tuple(before), last)
        else:
            found = self._read(host)
        if not owner:
            return found
        ca_files = (self.settings.replica_ca,) if self.settings.replica_ca else ()
        connection = ConnectionSettings(ca_files=ca_files, dial_timeout_seconds=_REPLICA_DIAL_SECONDS)
        headers = ((REPLICA_HEADER, self.settings.replica),)
        first = HostConfig(f"{owner}/v2", _PULLING, headers, connection, "replicas")
        return replace(found, mirrors=(first, *found.mirrors))
