"""A pull: resolve, select, fetch, record.

1. The handler's platform was decided before anything is sent (``config``).
2. *Resolve*: the registry says which target the reference names now; the image verifier may refuse it.
3. If the record is up to date and its content whole, that is all.
4. *Select*: the handler's matcher chooses a manifest from the target.
5. *Fetch*: config and layers that are missing come in parallel, under a lease.
6. *Record*: documents are stored, then the record and its edges are written in one transaction.

A failure before step 6 leaves every record as it was. Blobs that came since then are deleted again, unless trying again
could use them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import imagestore.platforms as platforms
from imagestore.errors import (
    AlreadyExistsError,
    ContentNotFoundError,
    DocumentError,
    IntegrityError,
    ReferenceNotFoundError,
    RegistryError,
)
from imagestore.events import Noticed, Resolved
from imagestore.oci.digest import Digest
from imagestore.oci.media_types import Kind
from imagestore.oci.reference import Reference
from imagestore.store import leases
from imagestore.store.pull.choice import ManifestChooser
from imagestore.store.pull.fetch import Fetcher
from imagestore.store.pull.fetch_pipeline import fetch_order, order_with, parallel_blobs
from imagestore.store.pull.plan import PullPlan, planned_blobs
from imagestore.store.pull.present import check_present, known_targets, make_names_durable
from imagestore.store.pull.sources import Documents, remove_damaged
from imagestore.store.pull.undo import undone_on_failure
from imagestore.store.pull.verify import NO_VERIFIER

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from imagestore.config import HandlerPlatform
    from imagestore.content.api import ContentStore
    from imagestore.events import Observer
    from imagestore.metadata.api import MetadataStore
    from imagestore.metadata.records import ImageRecord
    from imagestore.oci.descriptor import Descriptor
    from imagestore.platforms import Platform
    from imagestore.registry.client import RegistryClient
    from imagestore.registry.credentials.model import CredentialLookup
    from imagestore.store.parts import StoreParts
    from imagestore.store.pull.choice import Choice
    from imagestore.store.pull.verify import ImageVerifier
    from imagestore.util.cancel import CancelToken


def pull_work(
    parts: StoreParts,
    reference: Reference,
    runtime_handler: str,
    platform: str | Platform | None,
    observer: Observer,
    cancel: CancelToken,
    *,
    credentials: CredentialLookup | None = None,
    recorded_as: Reference | None = None,
    may_move: bool = True,
) -> PullWork:
    """A pull for one handler; what can be refused without a request is refused here.

    Raises:
        InvalidPlatformError, UnknownRuntimeHandlerError.
    """
    config = parts.config
    handler = config.handler(runtime_handler).name
    return PullWork(
        reference=reference,
        handler=handler,
        wanted=config.handler_platform(handler, host=parts.host, explicit=parts.platform(platform)),
        content=parts.content,
        metadata=parts.metadata,
        client=parts.client(observer, credentials),
        observer=observer,
        cancel=cancel,
        parallel=config.settings.max_concurrent_downloads,
        verifier=parts.verifier,
        recorded_as=recorded_as,
        may_move=may_move,
    )


@dataclass(slots=True)
class PullWork:
    """One pull, which runs or is planned once.

    Attributes:
        handler: resolved name of the runtime handler, never empty.
        wanted: the platform its matcher works for.
        parallel: blobs in flight at once, as in containerd's max_concurrent_downloads; None for the default.
        verifier: called with the target before anything else is fetched or stored.
        recorded_as: the name that the record gets; by default the reference.
        may_move: whether that name may lead to other content before.
    """

    reference: Reference
    handler: str
    wanted: HandlerPlatform
    content: ContentStore
    metadata: MetadataStore
    client: RegistryClient
    observer: Observer
    cancel: CancelToken
    parallel: int | None = None
    verifier: ImageVerifier = NO_VERIFIER
    recorded_as: Reference | None = None
    may_move: bool = True
    _documents: Documents = field(init=False)
    _chooser: ManifestChooser = field(init=False)

    def __post_init__(self) -> None:
        self._documents = Documents(self.content, self.client, self.reference, self.cancel)
        self._chooser = ManifestChooser(str(self.reference), self.handler, self.wanted, self.observer)

    @property
    def name(self) -> str:
        """The name of the record."""
        return str(self.recorded_as or self.reference)

    def run(self) -> ImageRecord:
        """Pull and return the record.

        Raises:
            ImageDeniedError: the verifier refuses the image.
            AlreadyExistsError: the name leads to other content, and may not be moved.
            NoMatchingManifestError: the image has nothing for the wanted platform; carries the explanation.
            RegistryError, IntegrityError, DocumentError, StoreError, OperationCancelledError.
        """
        target = self._resolve()
        self.check_free(target)
        current = self.current(target)
        if current is None:
            return self._fetch(target)
        for warning in current.warnings:
            self.observer(Noticed(warning))
        return current

    def plan(self, planned: AbstractSet[Digest] = frozenset()) -> PullPlan:
        """Say what run() would fetch, without storing anything.

        Args:
            planned: what other planned pulls bring already.

        Raises:
            The same as run(), but for what only fetching can show.
        """
        target, documents = self._resolve(), self._documents
        choice = self._chooser.complete(self._chooser.choose(target, documents), documents)
        is_current = self.current(target) is not None
        # A record that is up to date is taken as it is.
        damaged = frozenset[Digest]() if is_current else documents.take_damaged()
        blobs = planned_blobs(choice, self.content, planned, damaged)
        return PullPlan(str(self.reference), self.handler, self.wanted_text, choice, blobs, is_current)

    @property
    def wanted_text(self) -> str:
        """Text form of the wanted platform."""
        return platforms.format_all(self.wanted.platform)

    def _resolve(self) -> Descriptor:
        """What the reference leads to now."""
        known = known_targets(self.metadata, self.content, self.reference)
        target, raw = self.client.resolve_whole(self.reference, known=known, cancel=self.cancel)
        self.observer(Resolved(str(self.reference), target))
        if target.kind is Kind.SCHEMA1:
            fault = "is a schema 1 manifest, a format from before 2017 that can't be verified"
            raise DocumentError(str(self.reference), [f"{fault}; push the image again with today's tools"])
        if target.kind not in (Kind.INDEX, Kind.MANIFEST):
            raise DocumentError(
                str(self.reference), [f"leads to {target.media_type!r}, neither an index nor a manifest"]
            )
        if self.reference.tag and self.reference.digest is not None:
            self._report_drift(target)
        self.verifier.verify(self.name, target, cancel=self.cancel)
        if raw is not None:
            self._documents.remember(target, raw)
        return target

    def check_free(self, target: Descriptor) -> None:
        """Check that the name leads to no other content, unless it may be moved.

        Raises:
            AlreadyExistsError: it does.
        """
        there = None if self.may_move else self.metadata.images.get(self.name, self.handler)
        if there is not None and there.target.digest != target.digest:
            message = f"{self.name} ({self.handler}): is in the store with {there.target.digest}, not {target.digest}"
            raise AlreadyExistsError(message, hint="--replace moves the name")

    def _report_drift(self, target: Descriptor) -> None:
        """Say when the tag next to a digest no longer (or never) leads to it."""
        by_tag = Reference(self.reference.host, self.reference.path, self.reference.tag)
        try:
            now = self.client.resolve(by_tag, known=[target], cancel=self.cancel).digest
        except ReferenceNotFoundError:
            self.observer(Noticed(f"{by_tag} does not exist (any more); fetched by digest"))
            return
        except RegistryError as error:
            self.observer(Noticed(f"whether {by_tag} still leads to this digest could not be asked: {error}"))
            return
        if now != target.digest:
            self.observer(Noticed(f"{by_tag} now leads to {now}; fetched {target.digest} as asked"))

    def current(self, target: Descriptor) -> ImageRecord | None:
        """The stored record, if it is what this pull would make and all its content is here."""
        record = self.metadata.images.get(self.name, self.handler)
        if record is None or record.target.digest != target.digest or record.wanted != self.wanted_text:
            return None
        if record.warnings and self.wanted.is_declared:
            return None  # taken with a warning when only the host's platform applied: now that may be an error
        return record if self._is_whole(record) else None

    def _is_whole(self, record: ImageRecord) -> bool:
        """Whether everything that a record needs is here, each blob with the size that its parent gives."""
        documents = Documents(self.content, None, None, self.cancel)
        known = {each.digest: each for each in (record.target, record.manifest)}
        needed = set(record.roots)
        try:
            for digest in record.roots:  # each index before what it lists
                root = known.get(digest)
                if root is None:
                    return False
                if root.kind is Kind.INDEX:
                    children = documents.index(root).manifests
                else:
                    children = documents.manifest(root).children
                    needed.update(child.digest for child in children)
                known.update((child.digest, child) for child in children)
            here = self.content.sizes(needed)
            return all(here.get(digest) == known[digest].size for digest in needed)
        except (ContentNotFoundError, IntegrityError, DocumentError):
            return False

    def _fetch(self, target: Descriptor) -> ImageRecord:
        """Select, fetch and record."""
        documents = self._documents
        choice = self._chooser.choose(target, documents)
        needed = [descriptor.digest for descriptor in choice.descriptors]
        self.content.check_room()
        with (
            leases.held(self.metadata, purpose="pull", digests=needed, content=self.content) as held,
            undone_on_failure(self.metadata, self.content, held, choice.descriptors, held.here),
            self.content.small_blobs(self.cancel) as small_blobs,
        ):
            fetcher = Fetcher(
                self.content,
                self.client,
                self.reference,
                self.observer,
                held.renew,
                small_blobs,
                parallel=parallel_blobs(self.parallel, choice.manifest.layers),
            )
            fetcher.check(choice.manifest.children, held.here)
            remove_damaged(self.content, documents.take_damaged())
            choice = self._bring(choice, fetcher)
            documents.check_stored_layers(choice.manifest)
            make_names_durable(self.content, choice.descriptors)
            with held.recording([(self.name, self.handler)]):
                check_present(self.content, choice.descriptors, what=str(self.reference))
                # Another process may have taken the name since it was looked at.
                self.check_free(target)
                record = choice.record(self.name, self.handler, self.wanted_text)
                former = self.metadata.images.get(record.reference, record.handler)
                return self.metadata.images.put(
                    # Clients put labels on a name; a tag that moves takes none away.
                    record if former is None else replace(record, labels=former.labels),
                    {choice.chosen.digest: [child.digest for child in choice.manifest.children]},
                )

    def _bring(self, choice: Choice, fetcher: Fetcher) -> Choice:
        """Fetch everything, the config in parallel with the layers (docs/decisions/0010)."""
        documents, config, layers = self._documents, choice.manifest.config, choice.manifest.layers

        def _complete(raw: bytes | None) -> None:
            nonlocal choice
            if raw is not None:
                documents.remember(config, raw)
            choice = self._chooser.complete(choice, documents)
            if config.digest in documents.take_damaged():
                remove_damaged(self.content, [config.digest])
                fetcher.keep(config, documents.raw(config), cancel=pipeline.cancel, pipeline=pipeline)

        with fetcher.pipeline(self.cancel, document=config, on_document=_complete) as pipeline:
            for descriptor in (*choice.documents, config):
                known = documents.remembered(descriptor)
                if known is not None:
                    fetcher.keep(descriptor, known, cancel=pipeline.cancel, pipeline=pipeline)
            if documents.remembered(config) is not None:
                _complete(None)
                pipeline.receive(fetch_order(layers))
            else:
                pipeline.receive(order_with(config, layers, parallel=fetcher.parallel))
        return choice
