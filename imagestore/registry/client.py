"""The registry client: resolve a reference, fetch a document, stream a blob, list tags and referrers, write.

Answers are checked: the status, the size before and while reading, the digest of documents, and that the server's media
type agrees with the descriptor's (OCI distribution specification 1.1, "Pull"). The digest of a blob is checked by its
writer, over the bytes of all runs.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

import imagestore.registry.manifests as manifests
from imagestore.errors import ReferenceNotFoundError
from imagestore.events import ignore
from imagestore.oci import digest as digests
from imagestore.registry.auth.access import Access, NoLogin
from imagestore.registry.blob_ranges import ParallelStream
from imagestore.registry.blob_sources import allowed_sources, inline_body, open_blob, range_field
from imagestore.registry.blobs import BlobStream, ByteRange
from imagestore.registry.endpoints import PULL, REFERRERS, RESOLVE
from imagestore.registry.limits import TransferSlots
from imagestore.registry.listing import Referrers, list_referrers, list_repositories, list_tags
from imagestore.registry.manifests import ask_head, confirm_by_digest, read_document, read_verified, unheard
from imagestore.registry.mirrors import Breaker, first_served
from imagestore.registry.operation import Operations
from imagestore.registry.policy import TransferPolicy
from imagestore.registry.push import RepositoryWriter, writable
from imagestore.registry.retry import HostPauses, Timing
from imagestore.registry.session import Call, ClientContext, Session

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from collections.abc import Set as AbstractSet
    from typing import Self

    from imagestore.events import Observer
    from imagestore.oci.descriptor import Descriptor
    from imagestore.oci.digest import Digest
    from imagestore.oci.reference import Reference
    from imagestore.registry.blobs import BlobReader, Body
    from imagestore.registry.credentials.model import CredentialLookup
    from imagestore.registry.endpoints import Endpoint
    from imagestore.registry.operation import Operation
    from imagestore.registry.transport.messages import Sender
    from imagestore.util.cancel import CancelToken

T = TypeVar("T")


class AccessProvider(Protocol):
    """The access to each endpoint."""

    def __call__(self, endpoint: Endpoint) -> Access:
        """The access to an endpoint, the same object every time."""

    def with_credentials(self, credentials: CredentialLookup) -> AccessProvider:
        """Access over the same connections with these credentials only, and no other caller's tokens."""


class RegistryClient:
    """Reads images from registries and their mirrors; thread-safe, one for a process is enough.

    Every method that takes a cancel token raises RegistryError if there is no access or no host answers properly,
    ConfigError if the host's configuration can't be used, and OperationCancelledError if the operation is cancelled or
    past its deadline.

    Args:
        access: how to reach each endpoint and authenticate there.
        endpoints: which hosts serve the references of a registry host, in the order to ask them.
        policy: limits of retries, waits and waste.
        observer: called at waits and changes of host.
        foreign_sender: sends to hosts that only a document names; without it no such host is asked.
        breaker: remembers unreachable mirrors; its own by default.
        timing: clocks, random numbers and sleep.
        on_close: run by close().
    """

    def __init__(
        self,
        *,
        access: AccessProvider,
        endpoints: Callable[[str], tuple[Endpoint, ...]],
        policy: TransferPolicy | None = None,
        observer: Observer = ignore,
        foreign_sender: Sender | None = None,
        breaker: Breaker | None = None,
        timing: Timing | None = None,
        on_close: Callable[[], None] | None = None,
    ) -> None:
        used_timing = timing or Timing()
        self._access = access
        self._endpoints = endpoints
        self._shared = ClientContext(policy or TransferPolicy(), used_timing, HostPauses(used_timing), observer)
        self._breaker = breaker or Breaker(clock=used_timing.monotonic)
        self._on_close = on_close
        self._operations = Operations(self._shared.policy, used_timing)
        self._slots = TransferSlots(self._shared.policy.connections_per_host)
        # Separate slots: an upload that held a download slot could wait forever for its source in the same registry.
        self._upload_slots = TransferSlots(self._shared.policy.connections_per_host)
        self._foreign_sender = foreign_sender

    @property
    def policy(self) -> TransferPolicy:
        """The limits in force."""
        return self._shared.policy

    def observed_by(self, observer: Observer) -> RegistryClient:
        """This client, with its connections, tokens and memory of unreachable hosts, for another observer."""
        client = copy.copy(self)
        client._shared = replace(self._shared, observer=observer)
        return client

    def with_credentials(self, credentials: CredentialLookup) -> RegistryClient:
        """This client, with its connections, limits and memory of unreachable hosts, for other credentials."""
        client = copy.copy(self)
        client._access = self._access.with_credentials(credentials)
        return client

    def resolve(self, reference: Reference, *, known: Collection[Descriptor] = (), cancel: CancelToken) -> Descriptor:
        """What a reference leads to; as resolve_whole(), without the document."""
        return self.resolve_whole(reference, known=known, cancel=cancel)[0]

    def resolve_whole(
        self,
        reference: Reference,
        *,
        known: Collection[Descriptor] = (),
        answered: Callable[[Mapping[str, str]], None] = unheard,
        cancel: CancelToken,
    ) -> tuple[Descriptor, bytes | None]:
        """The index or manifest that a reference leads to, and its bytes. A digest decides, whatever the tag says.

        The document is fetched with one GET, and its bytes decide; a header is only a hint. If the caller has documents
        (``known``), a HEAD is sent first, which registries don't count as a pull: if it names one of them, that one is
        returned, without bytes. A HEAD that fails or names another digest is followed by the GET at once.

        Args:
            reference: with a tag or a digest.
            known: documents that the caller has.
            answered: called with the headers of each answer; the last ones belong to the document that is returned.
            cancel: ends it.

        Raises:
            IntegrityError: the server has something else under this digest.
            DocumentError: the registry doesn't name the document's type, and its bytes don't either.
            InvalidDigestError: the reference's digest can't be verified here.
        """
        what, wanted = str(reference), reference.digest
        if wanted is not None:
            manifests.check_digest(wanted, what)
        path = f"manifests/{wanted or reference.tag}"
        call = Call("GET", reference.path, path, what, accept=manifests.accepted())
        known_by_digest = {descriptor.digest: descriptor for descriptor in known}

        def _ask(session: Session) -> tuple[Descriptor, bytes | None]:
            claimed = ask_head(session, call, wanted, answered) if known_by_digest else None
            if claimed in known_by_digest:
                return known_by_digest[claimed], None
            target, body, claimed = session.call(call, lambda response: read_document(response, wanted, what, answered))
            if claimed is not None and claimed.is_verifiable and wanted is None and claimed != target.digest:
                confirm_by_digest(session, call, target, claimed)
            return target, body

        needed = {PULL} if wanted is not None else {PULL, RESOLVE}
        return self._first(reference.host, needed, _ask, what, cancel)

    def document(self, reference: Reference, descriptor: Descriptor, *, cancel: CancelToken) -> bytes:
        """Fetch an index (at most 16 MiB), a manifest or a config (4 MiB), verified against size and digest.

        Content that the descriptor carries inline is taken from there.

        Raises:
            IntegrityError: every host has other bytes than the descriptor says.
        """
        what = f"{reference.name}@{descriptor.digest}"
        if descriptor.data is not None:
            digests.verify(descriptor.data, descriptor.digest, descriptor.size, what=f"inline data of {what}")
            return descriptor.data
        manifests.check_size(descriptor, what)
        if manifests.is_document(descriptor):
            path, accept = f"manifests/{descriptor.digest}", manifests.accepted(descriptor.media_type)
        else:
            path, accept = f"blobs/{descriptor.digest}", ()
        call = Call("GET", reference.path, path, what, accept=accept)

        def _ask(session: Session) -> bytes:
            return session.call(call, lambda response: read_verified(response, descriptor, what))

        return self._first(reference.host, {PULL}, _ask, what, cancel)

    def blob(
        self,
        reference: Reference,
        descriptor: Descriptor,
        *,
        offset: int = 0,
        avoid: Collection[str] = (),
        cancel: CancelToken,
    ) -> BlobReader:
        """Open a blob for reading; look at the stream's ``start`` before writing, and close it.

        Content that the descriptor carries inline is taken from there.

        Args:
            reference: names the registry and the repository.
            descriptor: of the blob.
            offset: how many bytes the caller has already.
            avoid: hosts to ask last, because their content was wrong.
            cancel: ends it.

        Raises:
            IntegrityError: every host announces another size.
        """
        what = f"blob {descriptor.digest} of {reference.name}"
        call = Call("GET", reference.path, f"blobs/{descriptor.digest}", what)
        shared, operation = self._shared, self._operations.of(cancel)

        opener = partial(self._body, reference.host, call, descriptor, operation, avoid)
        make = partial(BlobStream, descriptor, opener=opener, shared=shared, operation=operation)
        policy, size = shared.policy, descriptor.size
        is_large = size - offset >= policy.least_bytes_for_ranges and descriptor.data is None
        if policy.parallel_ranges < 2 or not is_large:
            return make(ByteRange(offset, size), cancel)
        first = make(ByteRange(offset, min(offset + policy.range_bytes, size)), cancel)
        if first.end == size:
            return first
        return ParallelStream(first, size, make=make, policy=policy, cancel=cancel)

    def find_blob(self, reference: Reference, digest: Digest, *, cancel: CancelToken) -> Descriptor:
        """Find the size of a blob by its digest; the media type of the descriptor is application/octet-stream."""
        what = f"blob {digest} of {reference.name}"
        call = Call("GET", reference.path, f"blobs/{digest}", what)

        def _ask(session: Session) -> Descriptor:
            return manifests.described_blob(session, call, digest)

        return self._first(reference.host, {PULL}, _ask, what, cancel)

    def tags(
        self, reference: Reference, *, limit: int | None = None, after: str = "", cancel: CancelToken
    ) -> tuple[str, ...]:
        """The tags of a reference's repository, in the registry's order: at most ``limit``, those ``after`` a name.

        Raises:
            DocumentError: a page is no tag list.
        """
        what, ask = f"tags of {reference.name}", partial(list_tags, reference=reference, limit=limit, after=after)
        return self._first(reference.host, {PULL, RESOLVE}, partial(ask, what=what), what, cancel)

    def repositories(
        self, host: str, *, limit: int | None = None, after: str = "", cancel: CancelToken
    ) -> tuple[str, ...]:
        """The paths of a registry's repositories, if it lists them; ``host`` as in references, the rest as in tags().

        Raises:
            DocumentError: a page is no list.
        """
        what = f"repositories of {host}"
        ask = partial(list_repositories, what=what, limit=limit, after=after)
        return self._first(host, {PULL, RESOLVE}, ask, what, cancel)

    def referrers(
        self, reference: Reference, digest: Digest, *, artifact_type: str = "", cancel: CancelToken
    ) -> Referrers:
        """The documents in a repository whose subject has this digest (signatures, bills of materials).

        With an ``artifact_type``, only those of this type. An answer that isn't understood is an error, never "none".

        Raises:
            DocumentError: a page is no index.
        """
        what = f"referrers of {reference.name}@{digest}"

        def _ask(session: Session) -> Referrers:
            return list_referrers(session, reference, digest, artifact_type, what)

        return self._first(reference.host, {PULL, REFERRERS}, _ask, what, cancel)

    def writer(self, reference: Reference, *, cancel: CancelToken) -> RepositoryWriter:
        """A writer for a reference's repository, at the first host that may be pushed to, and at no other.

        Raises:
            PreconditionError: the configuration lets no host be pushed to.
        """
        operation = self._operations.of(cancel)
        endpoint = writable(operation.endpoints(reference.host, self._endpoints), reference.host)
        session = Session(endpoint, self._access(endpoint), self._shared, operation, cancel)
        return RepositoryWriter(session, reference, self._upload_slots)

    def close(self) -> None:
        """Close all connections, those in use when their answer ends; the client is not usable afterwards.

        Transfers in other threads are ended by their own tokens, not by this.
        """
        if self._on_close is not None:
            self._on_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _body(
        self,
        host: str,
        call: Call,
        descriptor: Descriptor,
        operation: Operation,
        avoid: Collection[str],
        byte_range: ByteRange,
        suspects: AbstractSet[str],
        cancel: CancelToken,
    ) -> Body:
        """A blob's bytes from one of the registry's hosts, or for a foreign layer from its URLs."""
        offset = byte_range.start
        if descriptor.data is not None:
            return inline_body(descriptor, descriptor.data, offset, call.what)
        asked = replace(call, range_header=range_field(offset, byte_range.end, descriptor.size))
        ask = partial(
            open_blob, call=asked, descriptor=descriptor, offset=offset, slots=self._slots, is_exact=byte_range.is_exact
        )
        try:
            return self._first(host, {PULL}, ask, call.what, cancel, avoid={*avoid, *suspects})
        except ReferenceNotFoundError:
            sources = allowed_sources(descriptor, self._shared.policy.foreign_hosts)
            if self._foreign_sender is None or not sources:
                raise
        access = Access(self._foreign_sender, NoLogin())
        return first_served(
            sources,
            lambda session: open_blob(
                session, replace(asked, url=session.endpoint.base), descriptor, offset, self._slots
            ),
            session=lambda endpoint, _: Session(endpoint, access, self._shared, operation, cancel),
            what=call.what,
            breaker=self._breaker,
            observer=self._shared.observer,
        )

    def _first(
        self,
        host: str,
        needed: AbstractSet[str],
        ask: Callable[[Session], T],
        what: str,
        cancel: CancelToken,
        *,
        avoid: Collection[str] = (),
    ) -> T:
        """Ask a registry host's able endpoints in order; hosts to avoid come last."""
        operation = self._operations.of(cancel)
        able = [one for one in operation.endpoints(host, self._endpoints) if needed <= one.capabilities]
        if avoid:
            # If a mirror sent the first part and the registry the rest, the mirror is more likely wrong.
            able.sort(key=lambda one: 0 if one.host not in avoid else 1 if one.is_upstream else 2)

        def _session(endpoint: Endpoint, is_last: bool) -> Session:
            return Session(endpoint, self._access(endpoint), self._shared, operation, cancel, is_last)

        observer = self._shared.observer
        return first_served(able, ask, session=_session, what=what, breaker=self._breaker, observer=observer)
