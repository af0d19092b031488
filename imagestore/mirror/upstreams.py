"""The closed table of upstreams: which one a request means, which replica owns a blob, and the clients that ask them.

A request names its upstream by ``?ns=`` (containerd's hosts.toml), by the first part of its path (skopeo, crane), or
not at all (dockerd's ``registry-mirrors``), which means the default one. Other registries are never dialled.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
import time
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeVar

from imagestore.config import ConnectionSettings, HostConfig, RegistryHosts, reader_for
from imagestore.errors import (
    DocumentError,
    IntegrityError,
    InvalidReferenceError,
    OperationCancelledError,
    ReferenceNotFoundError,
    RegistryError,
)
from imagestore.mirror.settings import MIRROR_PLUGIN
from imagestore.oci import Reference
from imagestore.registry import connect, transfer_policy
from imagestore.util.token_bucket import TokenBucket

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from imagestore.config import Config
    from imagestore.mirror.settings import MirrorSettings, Upstream
    from imagestore.registry import RegistryClient
    from imagestore.util.cancel import CancelToken

T = TypeVar("T")

#: Sent by a replica that asks another one, which then asks upstream and no third one.
REPLICA_HEADER: Final = "Imagestore-Replica"
#: Sent with every request of a mirror, with a value of its own: a request that comes back would loop.
INSTANCE_HEADER: Final = "Imagestore-Mirror"
#: The part of a client's answer time that a replica may use.
_OWNERS_SHARE: Final = 0.5
#: A replica that failed so often in a row isn't asked for ``_REST_SECONDS``.
_FAILURES: Final = 3
_REST_SECONDS: Final = 10.0
#: Attempts of one request at an upstream.
_ATTEMPTS: Final = 3
_PULLING: Final = frozenset({"pull", "resolve", "referrers"})


@dataclass(frozen=True, slots=True)
class Repository:
    """A repository that a client asks for.

    Attributes:
        found_in: the table when the request came.
        upstream: that has the repository.
        path: its name there.
        is_for_replica: the client is another replica; then no third replica is asked.
    """

    found_in: Upstreams
    upstream: Upstream
    path: str
    is_for_replica: bool = False

    @property
    def table(self) -> Upstreams:
        """The table now: a request outlives reloads, and each of its steps follows the newest configuration."""
        return self.found_in.newest()

    @property
    def name(self) -> str:
        """The name with the upstream: ``docker.io/library/python``."""
        return f"{self.upstream.name}/{self.path}"

    def reference(self, tag_or_digest: str) -> Reference:
        """The reference of a tag or digest.

        Raises:
            InvalidInputError: it is neither a tag nor a digest.
        """
        mark = "@" if ":" in tag_or_digest else ":"
        return Reference.parse(f"{self.name}{mark}{tag_or_digest}")

    def owner(self, key: str) -> str:
        """The other replica that is asked first for a digest or reference; empty if the upstream is."""
        return "" if self.is_for_replica else self.table.owner(key)


class Upstreams:
    """The table, with the clients of each upstream; thread-safe. Close it.

    Args:
        config: has the table, credentials, and how hosts are reached.
        state_folder: keeps which hosts don't answer.
    """

    def __init__(self, config: Config, state_folder: str) -> None:
        self.settings: MirrorSettings = config.plugin(MIRROR_PLUGIN)
        #: The value of ``INSTANCE_HEADER``.
        self.instance = secrets.token_hex(8)
        self._config = config
        self._state_folder = state_folder
        self._lock = threading.Lock()
        self._clients: dict[tuple[str, str], RegistryClient] = {}
        self._resting: dict[str, float] = {}
        self._successor: Upstreams | None = None
        self._failures: Counter[str] = Counter()
        self._read = reader_for(config)
        limits = self.settings.upstreams.values()
        # A second's amount may pass at once.
        self._requests = {each.name: TokenBucket(rate := each.requests_per_second or 0, rate) for each in limits}
        self._bytes = {each.name: TokenBucket(rate := each.bytes_per_second or 0, rate) for each in limits}

    def replace_by(self, successor: Upstreams) -> None:
        """Note the table of a reload, for requests that found their repository in this one."""
        self._successor = successor

    def newest(self) -> Upstreams:
        """The table that replaced this one, and so on; itself if none did."""
        table = self
        while table._successor is not None:
            table = table._successor
        return table

    def repository(self, path: str, namespace: str, *, is_for_replica: bool) -> Repository:
        """The repository that a request means.

        Args:
            path: between ``/v2/`` and what is asked of it.
            namespace: value of ``ns``; empty if there is none.
            is_for_replica: another replica asks.

        Raises:
            ReferenceNotFoundError: the table doesn't have the upstream.
            InvalidReferenceError: it isn't a repository's name.
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
            raise ReferenceNotFoundError(
                f"this mirror doesn't have {named}", hint="add it to the mirror's upstreams, or ask the registry itself"
            )
        if ":" in inner or "@" in inner:
            raise InvalidReferenceError(inner, 0, "a repository has neither a tag nor a digest in its name")
        # Completes Docker Hub's short names.
        return Repository(self, found, Reference.parse(f"{found.name}/{inner}").path, is_for_replica)

    def refuse_offline(self, what: str) -> None:
        """Refuse to ask an upstream if the mirror is offline.

        Raises:
            ReferenceNotFoundError: it is offline.
        """
        if self.settings.offline:
            raise ReferenceNotFoundError(f"{what}: is not here, and this mirror is offline")

    def owner(self, key: str) -> str:
        """The replica that owns a digest or reference; empty if it is this one."""
        now, own = time.monotonic(), self.settings.replica
        # What belongs to one that failed a moment ago belongs to the next in the order, for all that have noticed.
        awake = [each for each in self.settings.replicas if each == own or now >= self._resting.get(each, 0.0)]
        owner = owner_of(key, awake)
        return "" if owner == own else owner

    def note_failure(self, owner: str) -> None:
        """Count a failure of a replica; after some in a row it isn't asked for some seconds."""
        with self._lock:
            self._failures[owner] += 1
            if self._failures[owner] >= _FAILURES:
                self._failures[owner] = 0
                self._resting[owner] = time.monotonic() + _REST_SECONDS

    def note_success(self, owner: str) -> None:
        """A replica answered: its failures before count no more."""
        with self._lock:
            self._failures[owner] = 0

    def ask(
        self, upstream: Upstream, owner: str, work: Callable[[RegistryClient, CancelToken], T], *, cancel: CancelToken
    ) -> tuple[T, bool]:
        """Ask the replica ``owner``, if it isn't empty, for a short time; then the upstream if that failed.

        Returns:
            The answer, and whether it is the replica's.

        Raises:
            RegistryError, IntegrityError, DocumentError: the upstream doesn't have it, can't be asked, or its answer
                is wrong.
            OperationCancelledError: cancelled, or past the deadline.
        """
        if owner:
            try:
                with cancel.child(deadline_seconds=self.owner_seconds) as part:
                    answer = work(self.client(upstream, owner), part)
                self.note_success(owner)
                return answer, True
            except (RegistryError, IntegrityError, DocumentError, OperationCancelledError) as error:
                cancel.check()
                if not isinstance(error, ReferenceNotFoundError):
                    self.note_failure(owner)
        self.admit(upstream, cancel=cancel)
        return work(self.client(upstream, ""), cancel), False

    @property
    def owner_seconds(self) -> float:
        """How long a replica has to answer, so that there is time left for the upstream."""
        return self.settings.answer_seconds * _OWNERS_SHARE

    def client(self, upstream: Upstream, owner: str) -> RegistryClient:
        """The client that asks the replica ``owner``, or if that is empty the upstream's own hosts."""
        with self._lock:
            client = self._clients.get((upstream.name, owner))
            if client is None:
                client = self._clients[upstream.name, owner] = self._connect(upstream, owner)
            return client

    def admit(self, upstream: Upstream, *, cancel: CancelToken) -> None:
        """Wait until ``requests_per_second`` allows one more request to the upstream."""
        cancel.wait(self._requests[upstream.name].take(1))

    def throttle(self, upstream: Upstream, byte_count: int, *, cancel: CancelToken) -> None:
        """Wait until ``bytes_per_second`` allows that so many bytes came from the upstream."""
        cancel.wait(self._bytes[upstream.name].take(byte_count))

    def close(self) -> None:
        """Close all connections."""
        with self._lock:
            clients, self._clients = self._clients, {}
        for client in clients.values():
            client.close()

    def _connect(self, upstream: Upstream, owner: str) -> RegistryClient:
        policy = transfer_policy(self._config.settings.registry)
        limits = replace(policy, connections_per_host=upstream.max_connections)
        if owner:
            limits = replace(limits, attempts=1, longest_wait_seconds=0.5)
        else:
            # Clients wait for the answer, and retry themselves.
            limits = replace(
                limits,
                attempts=min(limits.attempts, _ATTEMPTS),
                longest_wait_seconds=min(limits.longest_wait_seconds, self.settings.answer_seconds),
            )
        return connect(
            config=self._config,
            policy=limits,
            state_folder=self._state_folder,
            hosts=lambda host: self._replica(owner) if owner else self._hosts(upstream, host),
        )

    def _replica(self, owner: str) -> RegistryHosts:
        settings = self.settings
        connection = ConnectionSettings(
            ca_files=(settings.replica_ca,) if settings.replica_ca else (),
            client_pairs=((settings.replica_certificate, settings.replica_key),)
            if settings.replica_certificate
            else (),
            dial_timeout_seconds=self.owner_seconds,
        )
        headers = ((REPLICA_HEADER, settings.replica), (INSTANCE_HEADER, self.instance))
        return RegistryHosts(server=HostConfig(f"{owner}/v2", _PULLING, headers, connection, "replicas"))

    def _hosts(self, upstream: Upstream, host: str) -> RegistryHosts:
        if upstream.endpoints:
            *before, last = [HostConfig(f"{base}/v2", _PULLING) for base in upstream.endpoints]
            found = RegistryHosts(tuple(before), last)
        else:
            found = self._read(host)
        # On a node that uses this mirror, hosts.toml names the mirror itself.
        own = {f"{url}/v2" for url in self.settings.replicas}
        mirrors = tuple(self._marked(each) for each in found.mirrors if each.base not in own)
        return replace(found, mirrors=mirrors, server=self._marked(found.server))

    def _marked(self, host: HostConfig) -> HostConfig:
        """The host with the header by which this mirror recognizes its own requests."""
        return replace(host, headers=(*host.headers, (INSTANCE_HEADER, self.instance)))


def owner_of(key: str, replicas: Sequence[str]) -> str:
    """The replica that fetches a digest or reference from upstream; empty if there are no replicas.

    Rendezvous hashing: the owner has the highest hash of (replica, key). All replicas with the same list agree without
    asking each other, and if a replica leaves the list, only what it owned moves. A dead owner costs a second transfer
    from upstream until it is noticed, and no failure.

    >>> owner_of("sha256:00", ["http://a:5000", "http://b:5000"]) == owner_of("sha256:00", ["http://b:5000", "http://a:5000"])
    True
    """
    return max(replicas, key=lambda replica: hashlib.sha256(f"{replica}\n{key}".encode()).digest(), default="")
