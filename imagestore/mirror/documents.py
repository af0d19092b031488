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
    RegistryError,
)
from imagestore.oci.index import Index
from imagestore.oci.manifest import Manifest
from imagestore.oci.media_types import Kind
from imagestore.store.pull.fetch_order import ingest_ref

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from imagestore.mirror.catalogue import CachedTag, Catalogue
    from imagestore.mirror.keeping import Keeper
    from imagestore.mirror.numbers import MirrorNumbers
    from imagestore.mirror.upstreams import Repository, Upstreams
    from imagestore.oci.descriptor import Descriptor
    from imagestore.oci.digest import Digest
    from imagestore.oci.reference import Reference
    from imagestore.store.image_store import ImageStore
    from imagestore.util.cancel import CancelToken

_log = logging.getLogger(__name__)

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


class DocumentSource:
    """Finds documents; its calls block. Thread-safe.

    Args:
        catalogue: what is here.
        keeper: holds it.
        numbers: hears of bytes that came.
        clock: seconds since 1970.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        keeper: Keeper,
        numbers: MirrorNumbers,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._catalogue = catalogue
        self._keeper = keeper
        self._numbers = numbers
        self._clock = clock

    def find(
        self,
        store: ImageStore,
        upstreams: Upstreams,
        repository: Repository,
        reference: Reference,
        *,
        is_for_replica: bool,
        cancel: CancelToken,
    ) -> ServedDocument:
        """What a tag or a digest of a repository leads to.

        Args:
            store: where documents are kept.
            upstreams: whom to ask.
            repository: of the reference.
            reference: with a tag or a digest.
            is_for_replica: another replica asks.
            cancel: ends it.

        Raises:
            ReferenceNotFoundError: it isn't there.
            RegistryError, IntegrityError, DocumentError: the upstream can't be asked, or lies.
            StoreError, OperationCancelledError: it can't be kept, or was cancelled.
        """
        if reference.digest is not None:
            here = self._by_digest(store, repository, reference.digest)
            return here or self._ask(store, upstreams, repository, reference, (), is_for_replica, cancel)
        cached = self._catalogue.tag(repository.name, reference.tag)
        raw = None if cached is None else self._read(store, cached.target)
        if cached is None or raw is None:
            return self._ask(store, upstreams, repository, reference, (), is_for_replica, cancel)
        if upstreams.settings.is_offline or self._is_fresh(repository, reference.tag, cached):
            return ServedDocument(cached.target, raw, self._age(cached))
        try:
            return self._ask(store, upstreams, repository, reference, [cached.target], is_for_replica, cancel)
        except ReferenceNotFoundError:
            self._catalogue.drop_tag(repository.name, reference.tag)
            raise
        except (RegistryError, IntegrityError, DocumentError) as error:
            if not repository.upstream.serves_stale:
                raise
            _log.warning("%s is stale: %s", reference, error, extra={"upstream": repository.upstream.name})
            return ServedDocument(cached.target, raw, self._age(cached), is_stale=True)

    def parts(self, document: ServedDocument) -> tuple[Descriptor, ...]:
        """What a document names."""
        return _parts(document.descriptor, document.raw)

    def _by_digest(self, store: ImageStore, repository: Repository, digest: Digest) -> ServedDocument | None:
        known = self._catalogue.member(repository.name, digest)
        if known is None or known.kind not in (Kind.INDEX, Kind.MANIFEST):
            return None
        raw = self._read(store, known)
        if raw is None:
            return None
        if self._catalogue.document(repository.name, digest) is None:
            # Another repository, or a pull, has brought it: from now on it is ours too.
            self._note(store, repository, known, raw, tag="")
        return ServedDocument(known, raw)

    def _ask(
        self,
        store: ImageStore,
        upstreams: Upstreams,
        repository: Repository,
        reference: Reference,
        known: Collection[Descriptor],
        is_for_replica: bool,
        cancel: CancelToken,
    ) -> ServedDocument:
        if upstreams.settings.is_offline:
            raise ReferenceNotFoundError(f"{reference}: is not here, and this mirror is offline")
        upstreams.admit(repository.upstream, cancel=cancel)
        thing = str(reference.digest or reference)
        client = upstreams.client(repository.upstream, thing, is_for_replica=is_for_replica)
        target, raw = client.resolve_whole(reference, known=known, cancel=cancel)
        is_new = raw is not None
        if raw is None:
            raw = store.content.read(target.digest, limit_bytes=MAX_DOCUMENT_BYTES)
        else:
            self._numbers.count_fetched(repository.upstream.name, len(raw))
        self._note(store, repository, target, raw, tag="" if reference.digest is not None else reference.tag)
        self._keep(store, target, raw, cancel)
        return ServedDocument(target, raw, is_new=is_new)

    def _note(self, store: ImageStore, repository: Repository, target: Descriptor, raw: bytes, *, tag: str) -> None:
        """Hold a document and all that it names, and remember it."""
        parts = _parts(target, raw)
        self._keeper.hold(store, repository.upstream.name, [target.digest, *(part.digest for part in parts)])
        self._catalogue.put_document(repository.upstream.name, repository.name, target, parts, tag=tag)

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
            return store.content.read(document.digest, limit_bytes=MAX_DOCUMENT_BYTES)
        except ContentNotFoundError:
            return None
        except IntegrityError:
            store.content.delete_damaged(document.digest)
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
        _log.warning("a document is served without what it names: %s", error)
        return ()
    return manifest.children
