"""The closed table of upstreams: which one a request means, and the clients that ask it.

A request names its upstream by ``?ns=`` (containerd's hosts.toml), by the first part of its path (skopeo, crane), or
not at all (dockerd's ``registry-mirrors``), which means the default one. What isn't in the table is never dialled.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeVar

from imagestore.config.connection import ConnectionSettings, HostConfig, RegistryHosts
from imagestore.config.hosts import reader_for
from imagestore.errors import (
    DocumentError,
    IntegrityError,
    InvalidReferenceError,
    OperationCancelledError,
    ReferenceNotFoundError,
    RegistryError,
)
from imagestore.mirror.owners import INSTANCE_HEADER, REPLICA_HEADER, owner_of
from imagestore.oci.reference import Reference
from imagestore.registry import connect
from imagestore.registry.policy import transfer_policy

if TYPE_CHECKING:
    from collections.abc import Callable

    from imagestore.config import Config
    from imagestore.config.model import MirrorSettings, Upstream
    from imagestore.registry import RegistryClient
    from imagestore.util.cancel import CancelToken

T = TypeVar("T")

#: What a replica has of the time in which a client has to be answered.
_OWNERS_SHARE: Final = 0.5
#: A replica that failed so often in a row isn't asked for so long.
_STRIKES: Final = 3
_REST_SECONDS: Final = 10.0
#: Tries of one request at an upstream.
_ATTEMPTS: Final = 3
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
        #: What this mirror's own requests carry.
        self.instance = secrets.token_hex(8)
        self._config = config
        self._state_folder = state_folder
        self._lock = threading.Lock()
        self._clients: dict[tuple[str, str], RegistryClient] = {}
        self._resting: dict[str, float] = {}
        self._strikes: Counter[str] = Counter()
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
        if ":" in inner or "@" in inner:
            raise InvalidReferenceError(inner, 0, "a repository has neither a tag nor a digest in its name")
        # Docker Hub's short names become whole ones.
        return Repository(found, Reference.parse(f"{found.name}/{inner}").path)

    def refuse_offline(self, what: str) -> None:
        """An offline mirror asks no upstream.

        Raises:
            ReferenceNotFoundError: it is one.
        """
        if self.settings.is_offline:
            raise ReferenceNotFoundError(f"{what}: is not here, and this mirror is offline")

    def owner(self, thing: str, *, is_for_replica: bool) -> str:
        """The other replica that is asked for a thing first; empty where upstream is.

        Args:
            thing: what its owner is found by: a digest, or a whole reference.
            is_for_replica: another replica asks; then upstream is asked, and no third one.
        """
        owner = "" if is_for_replica else owner_of(thing, self.settings.replicas)
        if owner == self.settings.replica or time.monotonic() < self._resting.get(owner, 0.0):
            return ""
        return owner

    def blame(self, owner: str) -> None:
        """A replica hasn't helped; if that is so again and again, it isn't asked for some seconds."""
        with self._lock:
            self._strikes[owner] += 1
            if self._strikes[owner] >= _STRIKES:
                self._strikes[owner] = 0
                self._resting[owner] = time.monotonic() + _REST_SECONDS

    def praise(self, owner: str) -> None:
        """A replica has helped."""
        with self._lock:
            self._strikes[owner] = 0

    def ask(
        self, upstream: Upstream, owner: str, work: Callable[[RegistryClient, CancelToken], T], *, cancel: CancelToken
    ) -> tuple[T, bool]:
        """Ask the owner of a thing, in short time, and upstream if that doesn't help.

        Args:
            upstream: whose the thing is.
            owner: see owner().
            work: asks a client.
            cancel: ends it.

        Returns:
            The answer, and whether it is the owner's.

        Raises:
            RegistryError, IntegrityError, DocumentError: upstream doesn't have it, can't be asked, or lies.
            OperationCancelledError: cancelled, or past the deadline.
        """
        if owner:
            try:
                with cancel.child(deadline_seconds=self.owner_seconds) as part:
                    answer = work(self.client(upstream, owner), part)
                self.praise(owner)
                return answer, True
            except (RegistryError, IntegrityError, DocumentError, OperationCancelledError) as error:
                cancel.check()
                if not isinstance(error, ReferenceNotFoundError):
                    self.blame(owner)
        self.admit(upstream, cancel=cancel)
        return work(self.client(upstream, ""), cancel), False

    @property
    def owner_seconds(self) -> float:
        """How long a replica has to answer; then there is time left for upstream."""
        return self.settings.answer_seconds * _OWNERS_SHARE

    def client(self, upstream: Upstream, owner: str) -> RegistryClient:
        """The client that asks another replica, or the upstream's own hosts."""
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
        limits = replace(policy, connections_per_host=upstream.max_connections)
        if owner:
            limits = replace(limits, attempts=1, longest_wait_seconds=0.5)
        else:
            # Clients wait, and ask again themselves.
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
        # On a node that uses this mirror, its own hosts.toml leads back here.
        own = {f"{url}/v2" for url in self.settings.replicas}
        mirrors = tuple(self._marked(each) for each in found.mirrors if each.base not in own)
        return replace(found, mirrors=mirrors, server=self._marked(found.server))

    def _marked(self, host: HostConfig) -> HostConfig:
        """With a header by which this mirror knows a request of its own."""
        return replace(host, headers=(*host.headers, (INSTANCE_HEADER, self.instance)))
