"""Indexes and manifests for a mirror's clients: from the store while they are fresh, else from upstream.

A document asked for by digest is always fresh. A tag is fresh for the upstream's ``tag_freshness``, or for ever if the
table says that it is immutable; after that the upstream is asked by HEAD whether it still leads to the same document.
If the upstream can't be asked, a document in the store is stale, and is served as such if the table allows it.
"""

from __future__ import annotations

import contextlib
import fnmatch
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from imagestore.errors import (
    AlreadyExistsError,
    ContentNotFoundError,
    DocumentError,
    IntegrityError,
    ReferenceNotFoundError,
)
from imagestore.mirror.freshness import FRESH, Freshness
from imagestore.oci import Index, Kind, Manifest, limit_of
from imagestore.platforms import parse
from imagestore.store import Documents, match_handlers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from imagestore.config import HandlerPlatform
    from imagestore.mirror.blobs import StoreBlobs
    from imagestore.mirror.catalogue import Catalogue
    from imagestore.mirror.catalogue_values import CachedTag
    from imagestore.mirror.counters import MirrorCounters
    from imagestore.mirror.retention import Retention
    from imagestore.mirror.settings import Upstream
    from imagestore.mirror.upstreams import Repository
    from imagestore.oci import Descriptor, Digest, Reference
    from imagestore.registry import RegistryClient
    from imagestore.store import ImageStore
    from imagestore.util.cancel import CancelToken

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServedDocument:
    """An index or a manifest as it goes to a client.

    Attributes:
        descriptor: of the document.
        raw: its bytes, verified.
        freshness: since when its upstream says that the tag leads to it, and whether it has to be asked again.
        is_new: the upstream sent it just now.
    """

    descriptor: Descriptor
    raw: bytes
    freshness: Freshness = FRESH
    is_new: bool = False


class DocumentSource:
    """Finds documents; its calls block. Thread-safe."""

    def __init__(
        self,
        catalogue: Catalogue,
        retention: Retention,
        counters: MirrorCounters,
        stored: StoreBlobs,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._catalogue = catalogue
        self._retention = retention
        self._counters = counters
        self._stored = stored
        self._clock = clock

    def cached(self, store: ImageStore, repository: Repository, reference: Reference) -> ServedDocument | None:
        """The document of a reference, if it is in the store; the upstream isn't asked.

        Raises:
            StoreError: it can't be read.
        """
        if reference.digest is not None:
            return self._by_digest(store, repository, reference.digest)
        tag = self._catalogue.tag(repository.name, reference.tag)
        raw = None if tag is None else self._read(store, tag.target)
        if tag is None or raw is None:
            return None
        is_fresh = repository.table.settings.offline or self._is_fresh(repository, reference.tag, tag)
        age = max(0.0, self._clock() - tag.checked_at)
        return ServedDocument(tag.target, raw, Freshness(age, is_stale=not is_fresh))

    def ask(
        self,
        store: ImageStore,
        repository: Repository,
        reference: Reference,
        *,
        owner: str,
        known: Descriptor | None,
        cancel: CancelToken,
    ) -> ServedDocument:
        """Ask the upstream which document a reference leads to, and keep it in the store.

        Args:
            store: keeps it.
            repository: of the reference.
            reference: with a tag or a digest.
            owner: the replica to ask first; empty for none.
            known: the document in the store that the tag led to before.
            cancel: ends it.

        Raises:
            ReferenceNotFoundError: the upstream doesn't have it.
            RegistryError, IntegrityError, DocumentError: the upstream can't be asked, or its answer is wrong.
            StoreError, OperationCancelledError: it can't be kept, or was cancelled.
        """

        def _resolve(client: RegistryClient, token: CancelToken) -> tuple[Descriptor, bytes | None, Freshness]:
            headers: list[Mapping[str, str]] = []
            documents = () if known is None else [known]
            target, raw = client.resolve_whole(reference, known=documents, answered=headers.append, cancel=token)
            return target, raw, Freshness.of(headers[-1])

        # An age counts from the request on, not from the answer (RFC 9111, section 4.2.3).
        asked_at = self._clock()
        try:
            answer, is_from_replica = repository.table.ask(repository.upstream, owner, _resolve, cancel=cancel)
        except ReferenceNotFoundError:
            if reference.digest is None:
                self._catalogue.drop_tag(repository.name, reference.tag)
            raise
        target, raw, freshness = answer
        if reference.digest is not None or not (is_from_replica or freshness.is_stale):
            # It can't change; or a cache in front of the registry states its own age.
            freshness = FRESH
        is_new = raw is not None
        if raw is None:
            raw = self._stored.read(store, target.digest, limit_bytes=limit_of(target.kind))
        else:
            self._counters.count(
                "replicated_bytes" if is_from_replica else "fetched_bytes", repository.upstream.name, len(raw)
            )
        checked_at = asked_at - freshness.age_seconds
        tag = "" if reference.digest is not None else reference.tag
        if freshness.is_stale and self._is_newer(repository, tag, checked_at):
            tag = ""
        with self._retention.room(store, repository.upstream, target) if is_new else contextlib.nullcontext():
            named = self._note(store, repository, target, raw, tag=tag, checked_at=checked_at)
            self._keep(store, target, raw, cancel)
        self._release_if_evicted(store, repository, named)
        return ServedDocument(target, raw, freshness, is_new=is_new)

    def _by_digest(self, store: ImageStore, repository: Repository, digest: Digest) -> ServedDocument | None:
        found = self._catalogue.known(repository.upstream.name, repository.name, digest)
        if found is None or not (found.is_confirmed and found.is_here):
            return None
        known = found.descriptor
        if known.kind not in (Kind.INDEX, Kind.MANIFEST):
            return None
        raw = self._read(store, known)
        if raw is None:
            return None
        if self._catalogue.document(repository.name, digest) is None:
            # It was asked for as a blob; now what it names belongs to the repository, too.
            self._release_if_evicted(store, repository, self._note(store, repository, known, raw))
        return ServedDocument(known, raw)

    def _release_if_evicted(self, store: ImageStore, repository: Repository, named: list[Digest]) -> None:
        """Release what ``_note`` leased if another replica has evicted the document since it was noted."""
        if self._catalogue.document(repository.name, named[0], is_fresh=True) is None:
            self._retention.release_unwanted(store, repository.upstream.name, named)

    def _note(
        self,
        store: ImageStore,
        repository: Repository,
        target: Descriptor,
        raw: bytes,
        *,
        tag: str = "",
        checked_at: float | None = None,
    ) -> list[Digest]:
        """Note a document, and lease it and all that it names; their digests, the document's first."""
        parts, now = named_by(target, raw), self._clock()
        self._catalogue.put_document(
            repository.upstream.name, repository.name, target, parts, tag=tag, checked_at=checked_at, now=now
        )
        named = [target.digest, *(part.digest for part in parts)]
        self._retention.hold(store, repository.upstream.name, named)
        return named

    def _keep(self, store: ImageStore, target: Descriptor, raw: bytes, cancel: CancelToken) -> None:
        if store.content.exists(target.digest):
            return
        with contextlib.suppress(AlreadyExistsError):
            ref = target.ingest_ref
            with store.content.writer(ref, expected=target.digest, total=len(raw), cancel=cancel) as writer:
                writer.truncate()
                writer.write(raw)
                writer.commit(target.digest, len(raw))

    def _read(self, store: ImageStore, document: Descriptor) -> bytes | None:
        """A document's verified bytes; None if it isn't in the store any more. A damaged one is deleted."""
        try:
            return self._stored.read(store, document.digest, limit_bytes=limit_of(document.kind))
        except ContentNotFoundError:
            pass
        except IntegrityError:
            store.content.delete_damaged(document.digest)
        self._catalogue.forget_content(document.digest, lambda: not store.content.exists(document.digest))
        return None

    def _is_newer(self, repository: Repository, tag: str, checked_at: float) -> bool:
        """Whether the catalogue knows where a tag led at a later time."""
        cached = self._catalogue.tag(repository.name, tag)
        return cached is not None and cached.checked_at > checked_at

    def _is_fresh(self, repository: Repository, tag: str, cached: CachedTag) -> bool:
        upstream = repository.upstream
        if any(fnmatch.fnmatchcase(tag, pattern) for pattern in upstream.immutable_tags):
            return True
        # If the clock was set back, nothing is fresh.
        return 0 <= self._clock() - cached.checked_at < upstream.fresh_seconds


def named_by(document: Descriptor, raw: bytes) -> tuple[Descriptor, ...]:
    """The content that a document names; none if it can't be parsed, since it is served all the same."""
    try:
        if document.kind is Kind.INDEX:
            return Index.parse(raw, media_type=document.media_type).manifests
        manifest = Manifest.parse(raw, media_type=document.media_type)
    except DocumentError as error:
        log.warning("a document is served without what it names: %s", error)
        return ()
    return manifest.children


def wanted_manifests(
    store: ImageStore,
    upstream: Upstream,
    reference: Reference,
    document: ServedDocument,
    client: RegistryClient,
    cancel: CancelToken,
) -> tuple[Descriptor, ...]:
    """The manifests of an index that the upstream's ``handlers`` and ``platforms`` choose, each once.

    They are chosen as for a pull by (reference, runtime handler), so that only manifests that the nodes' handlers can
    run are prefetched.

    Args:
        store: has the configuration.
        upstream: of the index.
        reference: names the repository.
        document: an index; nothing is chosen of a manifest.
        client: asked for image configs if the index doesn't state platforms.
        cancel: ends it.

    Raises:
        RegistryError, IntegrityError, DocumentError: the documents can't be fetched.
    """
    if document.descriptor.kind is not Kind.INDEX:
        return ()
    wanted: dict[str, HandlerPlatform] = {
        name: store.config.handler_platform(name, host=store.host) for name in upstream.handlers
    }
    for text in upstream.platforms:
        explicit = parse(text, host=store.host)
        wanted[f"platform {text}"] = store.config.handler_platform("", host=store.host, explicit=explicit)
    documents = Documents(store.content, client, reference, cancel)
    documents.remember(document.descriptor, document.raw)
    chosen = (selection.chosen for selection in match_handlers(document.descriptor, documents, wanted).values())
    return tuple({each.descriptor.digest: each.descriptor for each in chosen if each is not None}.values())
