"""Indexes and manifests for a mirror's clients: from the store while they are fresh, else from upstream.

A digest never changes, so what is here is served. A tag is fresh for the upstream's time, or for ever where the table
says that such tags never move; then the upstream is asked by HEAD whether it still leads to what is here. An upstream
that can't be asked leaves what is here stale, and served as such where the table allows it.
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
from imagestore.oci.index import Index
from imagestore.oci.manifest import Manifest
from imagestore.oci.media_types import Kind
from imagestore.store.pull.fetch_pipeline import ingest_ref

if TYPE_CHECKING:
    from collections.abc import Callable

    from imagestore.config.model import MirrorSettings
    from imagestore.mirror.blobs import StoreBlobs
    from imagestore.mirror.catalogue import Catalogue
    from imagestore.mirror.catalogue_rows import CachedTag
    from imagestore.mirror.keeping import Keeper
    from imagestore.mirror.numbers import MirrorNumbers
    from imagestore.mirror.upstreams import Repository, Upstreams
    from imagestore.oci.descriptor import Descriptor
    from imagestore.oci.digest import Digest
    from imagestore.oci.reference import Reference
    from imagestore.registry import RegistryClient
    from imagestore.store.image_store import ImageStore
    from imagestore.util.cancel import CancelToken

log = logging.getLogger(__name__)

#: The longest index or manifest that is kept; registries and pullers agree on 4 MiB.
MAX_DOCUMENT_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ServedDocument:
    """An index or a manifest as it goes to a client.

    Attributes:
        descriptor: of it.
        raw: its bytes, verified.
        age_seconds: since its upstream said that the tag leads here; 0 for one asked for by digest.
        is_stale: the upstream couldn't be asked.
        is_new: the upstream was asked just now, and sent it.
    """

    descriptor: Descriptor
    raw: bytes
    age_seconds: float = 0.0
    is_stale: bool = False
    is_new: bool = False


@dataclass(frozen=True, slots=True)
class CachedDocument:
    """A document that is here; one that isn't fresh is served only if its upstream can't be asked."""

    document: ServedDocument
    is_fresh: bool


class DocumentSource:
    """Finds documents; its calls block. Thread-safe.

    Args:
        catalogue: what is here.
        keeper: holds it.
        numbers: hears of bytes that came.
        stored: reads what is here.
        clock: seconds since 1970.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        keeper: Keeper,
        numbers: MirrorNumbers,
        stored: StoreBlobs,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._catalogue = catalogue
        self._keeper = keeper
        self._numbers = numbers
        self._stored = stored
        self._clock = clock

    def cached(
        self, store: ImageStore, settings: MirrorSettings, repository: Repository, reference: Reference
    ) -> CachedDocument | None:
        """What is here of a reference, without asking anybody.

        Raises:
            StoreError: it can't be read.
        """
        if reference.digest is not None:
            return self._by_digest(store, repository, reference.digest)
        tag = self._catalogue.tag(repository.name, reference.tag)
        raw = None if tag is None else self._read(store, tag.target)
        if tag is None or raw is None:
            return None
        is_fresh = settings.is_offline or self._is_fresh(repository, reference.tag, tag)
        return CachedDocument(ServedDocument(tag.target, raw, self._age(tag)), is_fresh)

    def ask(
        self,
        store: ImageStore,
        upstreams: Upstreams,
        repository: Repository,
        reference: Reference,
        *,
        owner: str,
        known: Descriptor | None,
        cancel: CancelToken,
    ) -> ServedDocument:
        """What a reference leads to by its upstream's word; kept here.

        Args:
            store: where documents are kept.
            upstreams: asks.
            repository: of the reference.
            reference: with a tag or a digest.
            owner: the replica to ask first; empty for none.
            known: what the tag led to before, and is here.
            cancel: ends it.

        Raises:
            ReferenceNotFoundError: it isn't there.
            RegistryError, IntegrityError, DocumentError: the upstream can't be asked, or lies.
            StoreError, OperationCancelledError: it can't be kept, or was cancelled.
        """

        def resolve(client: RegistryClient, token: CancelToken) -> tuple[Descriptor, bytes | None]:
            return client.resolve_whole(reference, known=() if known is None else [known], cancel=token)

        try:
            (target, raw), is_from_replica = upstreams.ask(repository.upstream, owner, resolve, cancel=cancel)
        except ReferenceNotFoundError:
            if reference.digest is None:
                self._catalogue.drop_tag(repository.name, reference.tag)
            raise
        is_new = raw is not None
        if raw is None:
            raw = self._stored.read(store, target.digest, limit_bytes=MAX_DOCUMENT_BYTES)
        else:
            self._numbers.count_fetched(repository.upstream.name, len(raw), is_from_replica=is_from_replica)
        self._note(store, repository, target, raw, tag="" if reference.digest is not None else reference.tag)
        self._keep(store, target, raw, cancel)
        return ServedDocument(target, raw, is_new=is_new)

    def parts(self, document: ServedDocument) -> tuple[Descriptor, ...]:
        """What a document names."""
        return _parts(document.descriptor, document.raw)

    def _by_digest(self, store: ImageStore, repository: Repository, digest: Digest) -> CachedDocument | None:
        found = self._catalogue.known(repository.upstream.name, repository.name, digest)
        if found is None or not found.is_earned or found.descriptor.kind not in (Kind.INDEX, Kind.MANIFEST):
            return None
        known = found.descriptor
        raw = self._read(store, known)
        if raw is None:
            return None
        if self._catalogue.document(repository.name, digest) is None:
            # Another repository of the upstream has brought it: from now on it is this one's too.
            self._note(store, repository, known, raw, tag="")
        return CachedDocument(ServedDocument(known, raw), is_fresh=True)

    def _note(self, store: ImageStore, repository: Repository, target: Descriptor, raw: bytes, *, tag: str) -> None:
        """Remember a document, and hold it and all that it names."""
        parts = _parts(target, raw)
        self._catalogue.put_document(repository.upstream.name, repository.name, target, parts, tag=tag)
        self._keeper.hold(store, repository.upstream.name, [target.digest, *(part.digest for part in parts)])

    def _keep(self, store: ImageStore, target: Descriptor, raw: bytes, cancel: CancelToken) -> None:
        if store.content.exists(target.digest):
            return
        with contextlib.suppress(AlreadyExistsError):
            ref = ingest_ref(target)
            with store.content.writer(ref, expected=target.digest, total=len(raw), cancel=cancel) as writer:
                writer.truncate()
                writer.write(raw)
                writer.commit(target.digest, len(raw))

    def _read(self, store: ImageStore, document: Descriptor) -> bytes | None:
        """A document's verified bytes; None where it isn't here any more. A damaged one is thrown away."""
        try:
            return self._stored.read(store, document.digest, limit_bytes=MAX_DOCUMENT_BYTES)
        except ContentNotFoundError:
            pass
        except IntegrityError:
            store.content.delete_damaged(document.digest)
        self._catalogue.forget_content(document.digest, lambda: not store.content.exists(document.digest))
        return None

    def _is_fresh(self, repository: Repository, tag: str, cached: CachedTag) -> bool:
        upstream = repository.upstream
        if any(fnmatch.fnmatchcase(tag, pattern) for pattern in upstream.immutable_tags):
            return True
        # A clock that was set back makes nothing fresh.
        return 0 <= self._clock() - cached.checked_at < upstream.fresh_seconds

    def _age(self, cached: CachedTag) -> float:
        return max(0.0, self._clock() - cached.checked_at)


def _parts(document: Descriptor, raw: bytes) -> tuple[Descriptor, ...]:
    """What a document names; nothing where it can't be read, since a mirror serves what its upstream has."""
    try:
        if document.kind is Kind.INDEX:
            return Index.parse(raw, media_type=document.media_type).manifests
        manifest = Manifest.parse(raw, media_type=document.media_type)
    except DocumentError as error:
        log.warning("a document is served without what it names: %s", error)
        return ()
    return manifest.children
