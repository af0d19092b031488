"""ImageStore: the one object that embedders hold.

Any number of processes and threads may use one root at the same time. Calls block; a CancelToken ends them early. A
child that is forked while a store is open can't use it.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import imagestore.config as configuration
import imagestore.platforms as platforms
from imagestore.errors import InvalidInputError, UndeletableError, UnsupportedError
from imagestore.oci.reference import Reference
from imagestore.store import garbage, in_use, leases, record_lookup
from imagestore.store.adapters import open_adapters
from imagestore.store.image import Image
from imagestore.store.maintenance import removal
from imagestore.store.parts import StoreParts
from imagestore.store.record_lookup import RemovalRule
from imagestore.store.tagging import further_reference, tag_records
from imagestore.util.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from types import TracebackType
    from typing import Self

    from imagestore.config import Config
    from imagestore.config.model import BucketSettings
    from imagestore.content.api import ContentStore
    from imagestore.events import Event, Observer
    from imagestore.metadata.api import MetadataStore
    from imagestore.metadata.records import ImageRecord
    from imagestore.oci.digest import Digest
    from imagestore.oci.select import Selection
    from imagestore.platforms import Platform
    from imagestore.registry.client import RegistryClient
    from imagestore.registry.client_factory import Transport
    from imagestore.registry.credentials.model import CredentialLookup
    from imagestore.registry.policy import TransferPolicy
    from imagestore.store.archive.exporting import ExportOptions, ExportReport
    from imagestore.store.archive.importing import ImportOptions, ImportReport
    from imagestore.store.copy.options import CopyOptions, CopyReport
    from imagestore.store.garbage import GarbageReport
    from imagestore.store.image_groups import ImageGroup
    from imagestore.store.leases import HeldLease
    from imagestore.store.maintenance.check import CheckReport
    from imagestore.store.maintenance.eviction import EvictionPolicy, EvictionReport
    from imagestore.store.maintenance.hashing import CheckOptions
    from imagestore.store.maintenance.removal import Removal
    from imagestore.store.maintenance.repair import RepairReport
    from imagestore.store.maintenance.usage import StoreUsage
    from imagestore.store.maintenance.why import Chain
    from imagestore.store.pull.plan import PullPlan
    from imagestore.store.pull.verify import ImageVerifier
    from imagestore.store.unpack.bundle import BundleOptions
    from imagestore.store.unpack.limits import UnpackLimits
    from imagestore.store.unpack.unpack import UnpackReport
    from imagestore.util.cancel import CancelToken

    #: (reference, runtime handler) of records.
    Keys = tuple[tuple[str, str], ...]


def _ignore(_: Event) -> None:
    """The observer of work without one; that of ``registry.events`` would load all events with every store."""


class ImageStore:
    """Images by (reference, runtime handler) in one folder.

    In all methods ``cancel`` ends the work early, ``observer`` receives its events from several threads, and
    ``credentials`` are used instead of the store's. An empty ``runtime_handler`` means the default handler.

    All raise ImageNotFoundError for a name that no image has, UnknownRuntimeHandlerError for a handler that is neither
    configured nor in any record, InvalidInputError for the beginning of an id that fits several images,
    OperationCancelledError, and StoreError if the store can't be used.

    Args:
        root, config, credentials, transport, observer, content, metadata, scope: as for :func:`imagestore.open`.
        host: the node's platform; detected by default.
        transfer: limits of transfers; by default those of the configuration.
        registry: the client that pulls; by default one is made at the first pull.
        sources: folders with ``blobs`` (containerd's content, OCI layouts) to adopt content from instead of fetching.
        verifier: asked before an image is fetched; by default the programs that the configuration names.
        clock: seconds since 1970.
        create: make the store where there is none.
        use_reserve: open a full disk's store with the space kept back for removals; otherwise it can only be read, and
            as long as it is open this process writes to no store.

    Raises:
        InvalidInputError, ConfigError, PreconditionError, StoreError: as for :func:`imagestore.open`.
        StoreMissingError: there is no store, and none was to be made.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        config: Config | None = None,
        host: Platform | None = None,
        credentials: CredentialLookup | None = None,
        transfer: TransferPolicy | None = None,
        transport: Transport | None = None,
        observer: Observer | None = None,
        registry: RegistryClient | None = None,
        sources: Sequence[str | os.PathLike[str]] = (),
        verifier: ImageVerifier | None = None,
        clock: Callable[[], float] = time.time,
        create: bool = True,
        use_reserve: bool = True,
        content: ContentStore | BucketSettings | str | None = None,
        metadata: MetadataStore | None = None,
        scope: str = "",
    ) -> None:
        if not all(os.fspath(folder) for folder in (root, *sources)):
            raise InvalidInputError("the store's folder, or a source: expected a path, it is empty")
        self.host = host or platforms.host.detect()
        self.config = config or configuration.default(self.host)
        folders = tuple(Path(source).absolute() for source in sources)
        self._parts = StoreParts(
            open_adapters(root, content, metadata, scope, folders, clock=clock, create=create, use_reserve=use_reserve),
            self.config,
            self.host,
            clock=clock,
            observer=observer or _ignore,
            registry=registry,
            credentials=credentials,
            transfer=transfer,
            transport=transport,
            verifier=verifier,
        )
        #: This machine's folder; of an embedded store all of it.
        self.root = self._parts.root
        #: The folder, or a shared store's address and scope.
        self.name = self._parts.name
        self.is_shared = self._parts.is_shared
        self.content = self._parts.content
        self.metadata = self._parts.metadata
        self._reopen = functools.partial(
            ImageStore,
            root,
            config=self.config,
            host=self.host,
            sources=folders,
            content=content,
            metadata=metadata,
            scope=scope,
        )

    @property
    def id(self) -> str:
        """What tells this store from any other: 32 hex digits, which a copy or a restored backup has too.

        Raises:
            StoreReadOnlyError: an older version wrote it, and its disk is read-only, so it has no id yet.
        """
        return self.metadata.store_id

    @property
    def pinned_references(self) -> frozenset[str]:
        """The references that the configuration pins, in canonical form."""
        return record_lookup.pinned_by(self.config)

    @property
    def registry(self) -> RegistryClient:
        """The registry client in use."""
        return self._parts.registry

    @property
    def verifier(self) -> ImageVerifier:
        """Asked before an image is fetched or imported."""
        return self._parts.verifier

    def reopened(self) -> ImageStore:
        """The same store, opened once more so that long work keeps no other waiting; close it."""
        return self._reopen()

    # What only some calls need is imported when it is needed: it is most of the package.

    def pull(
        self,
        reference: str,
        *,
        runtime_handler: str = "",
        platform: str | Platform | None = None,
        credentials: CredentialLookup | None = None,
        observer: Observer | None = None,
        cancel: CancelToken | None = None,
    ) -> Image:
        """Fetch what the handler's sandbox can run, and record it under (reference, runtime handler).

        The next pull resumes one that failed or was cancelled. ``platform`` takes the place of the handler's.

        Raises:
            InvalidReferenceError, InvalidPlatformError, UnknownRuntimeHandlerError: before anything is sent.
            NoMatchingManifestError: the image has nothing for that platform; says what it has and why not.
            RegistryError, IntegrityError, DocumentError, StoreError, OperationCancelledError: it failed on the way.
        """
        parts = self._parts
        with parts.loading():
            from imagestore.store.pull.pull_work import pull_work

        with parts.operation(cancel, observer) as token:
            heard, parsed = observer or parts.observer, Reference.parse(reference)
            work = pull_work(parts, parsed, runtime_handler, platform, heard, token, credentials=credentials)
            record = work.run()
            self.metadata.images.touch(record.reference, record.handler)
            self.metadata.keep_copy()
        return Image(record, self.content)

    def plan(
        self,
        pulls: Iterable[tuple[str, str]],
        *,
        platform: str | Platform | None = None,
        tell: Callable[[PullPlan], object] | None = None,
        cancel: CancelToken | None = None,
    ) -> list[PullPlan]:
        """What pulls, given as (reference, runtime handler), would fetch; a blob that several need is counted once.

        ``tell`` is called with each plan at once, so that plans made before a failure are known. Raises what pull()
        raises, except for what only fetching can show.
        """
        parts = self._parts
        with parts.loading():
            from imagestore.store.pull.pull_work import pull_work

        plans: list[PullPlan] = []
        planned: set[Digest] = set()
        with parts.operation(cancel) as token:
            for reference, handler in pulls:
                work = pull_work(parts, Reference.parse(reference), handler, platform, _ignore, token)
                plan = work.plan(planned)
                plans.append(plan)
                planned |= {blob.descriptor.digest for blob in plan.blobs}
                if tell is not None:
                    tell(plan)
        return plans

    def pull_sandbox_image(
        self, *, runtime_handler: str = "", observer: Observer | None = None, cancel: CancelToken | None = None
    ) -> Image:
        """Fetch the pause image of the handler's pods, for their platform; ConfigError if none is configured."""
        reference = self.config.sandbox_image(runtime_handler)
        return self.pull(reference, runtime_handler=runtime_handler, observer=observer, cancel=cancel)

    def match(
        self,
        reference: str,
        *,
        runtime_handlers: Iterable[str] | None = None,
        offline: bool = False,
        cancel: CancelToken | None = None,
    ) -> dict[str, Selection]:
        """Which manifest each handler (by default every configured one) would get, and why; nothing is stored.

        Offline only what the store has is used; then the image may be named by its id, or the beginning of one.

        Raises:
            ImageNotFoundError: offline, and no handler has this image.
            InvalidInputError: offline, and several handlers have other content under this name.
            RegistryError, IntegrityError, DocumentError: the documents can't be had.
        """
        with self._parts.loading():
            from imagestore.store.pull.choice import match_handlers, wanted_platforms
            from imagestore.store.pull.present import known_targets
            from imagestore.store.pull.sources import Documents

        parsed = None if offline else Reference.parse(reference)
        handlers = wanted_platforms(self.config, runtime_handlers, host=self.host)
        with self._parts.operation(cancel) as token:
            if parsed is None:
                target = record_lookup.target(self.metadata, reference, handlers)
                return match_handlers(target, Documents(self.content, None, None, token), handlers)
            known = known_targets(self.metadata, self.content, parsed)
            target, raw = self.registry.resolve_whole(parsed, known=known, cancel=token)
            documents = Documents(self.content, self.registry, parsed, token)
            if raw is not None:
                documents.remember(target, raw)
            return match_handlers(target, documents, handlers)

    def get(self, name: str, *, runtime_handler: str | None = None) -> Image:
        """One image by reference, image id, beginning of an id, or ``name@digest``.

        Without a handler: by name the default handler's, by id any handler's if the default has none.
        """
        handler, metadata = self._parts.known_handler(runtime_handler), self.metadata
        record = record_lookup.find(metadata, name, handler, self.config.default_handler)
        if record is None:
            others = ", ".join(sorted({each.handler for each in record_lookup.by_name(metadata, name)}))
            raise record_lookup.not_found(name, handler, hint=f"it is there under: {others}" if others else "")
        return Image(record, self.content)

    def list(
        self,
        *,
        name: str | None = None,
        runtime_handler: str | None = None,
        after: tuple[str, str] | None = None,
        limit: int | None = None,
    ) -> Iterator[Image]:
        """Images ordered by reference and handler; with a name or id (or its beginning) or a handler only those of it.

        ``after`` is (reference, handler) of the last image of the page before; a page costs what it has. A list is read
        while it is walked through, page by page: what comes or goes in that time may be in it or not.
        """
        if limit is not None and limit < 1:
            raise InvalidInputError(f"a page of {limit} images: expected at least 1")
        handler = self._parts.known_handler(runtime_handler)
        records: Iterable[ImageRecord]
        if name is None and limit is None:
            records = self.metadata.images.walk(handler=handler, after=after)
        elif name is None:
            records = self.metadata.images.find(handler=handler, after=after, limit=limit)
        else:
            found = record_lookup.by_name_or_id(self.metadata, name)
            fitting = (record for record in found if handler is None or record.handler == handler)
            records = [each for each in fitting if after is None or (each.reference, each.handler) > after][:limit]
        return (Image(record, self.content) for record in records)

    def images_by_id(self) -> dict[str, ImageGroup]:
        """All records by image id (in text form), with their references, handlers and pins; reads no document."""
        return self._grouped(None)

    def image_group(self, image_id: Digest) -> ImageGroup | None:
        """The records of one image id, under all runtime handlers; None if there are none."""
        return self._grouped(str(image_id)).get(str(image_id))

    def _grouped(self, image_id: str | None) -> dict[str, ImageGroup]:
        with self._parts.loading():
            from imagestore.store.image_groups import by_image

        return by_image(self.metadata.images.find_listed(image_id=image_id), self.pinned_references)

    def remove(
        self,
        *names: str,
        runtime_handler: str | None = None,
        all_handlers: bool = False,
        all_names: bool = False,
        collect: bool = False,
        dry_run: bool = False,
    ) -> Removal:
        """Remove records, with few transactions for many names. Removing what isn't there is no error.

        Args:
            names: references, image ids, beginnings of ids, or digests. A reference means its own record,
                ``name@digest`` those of its repository, ``name:tag@digest`` the tag's if it leads there; other
                references of the same image stay. An id or a digest alone means the image with all its references.
            runtime_handler: only this handler's records. None: by id every handler's, by name the default handler's,
                or the others' if the default has none.
            all_handlers: every handler's, by name too; not together with a handler.
            all_names: a reference means its image with all its references too, as in CRI.
            collect: free what only these records needed at once; otherwise collect_garbage() does.
            dry_run: change nothing, and return what each name means now.

        Raises:
            InvalidInputError: a name is refused. The records of the names before it are removed, as the error's
                ``report`` says, and the next collection frees their content; those after it stay.
            UndeletableError: some content can't be deleted; its ``report`` says what was done all the same.
            StoreCorruptError: the database's indexes are damaged; nothing is removed.
        """
        rule = self._rule(runtime_handler, all_handlers, all_names)
        if dry_run:
            meant = {name: record_lookup.to_remove(self.metadata, name, rule) for name in names}
            return removal.Removal({name: record_lookup.keys(records) for name, records in meant.items()})
        return removal.remove(self.metadata, self.content, names, rule, collect=collect)

    def pin(self, name: str, *, runtime_handler: str | None = None) -> tuple[tuple[str, str], ...]:
        """Spare images from eviction, named as for remove() with ``all_names``.

        Returns (reference, runtime handler) of their records.
        """
        return self._pin(name, runtime_handler, is_pinned=True)

    def unpin(self, name: str, *, runtime_handler: str | None = None) -> tuple[tuple[str, str], ...]:
        """Undo pin()."""
        return self._pin(name, runtime_handler, is_pinned=False)

    def _pin(self, name: str, runtime_handler: str | None, *, is_pinned: bool) -> Keys:
        records = record_lookup.to_remove(self.metadata, name, self._rule(runtime_handler, all_names=True))
        changed = self.metadata.images.pin(record_lookup.keys(records), is_pinned=is_pinned)
        if not changed:
            raise record_lookup.not_found(name, runtime_handler)
        self.metadata.keep_copy()
        return record_lookup.keys(changed)

    def tag(
        self,
        name: str,
        reference: str,
        *,
        runtime_handler: str | None = None,
        all_handlers: bool = False,
        cancel: CancelToken | None = None,
    ) -> tuple[Image, ...]:
        """Give images, named as for remove(), another reference (without digest) under the same runtime handlers.

        Nothing is copied. Another image loses that reference. A pin isn't passed on; one that the reference has stays.

        Raises:
            InvalidReferenceError, InvalidInputError: the reference can't be read, or has a digest.
            ImageDeniedError: an image verifier refuses the image under this reference.
            StoreBusyError: an image was removed or changed since it was read.
        """
        rule, further = self._rule(runtime_handler, all_handlers), further_reference(reference)
        records = record_lookup.meant(self.metadata, name, rule)
        if not records:
            raise record_lookup.not_found(name, rule.handler)
        with self._parts.operation(cancel) as token:
            for target in {each.target for each in records}:
                self.verifier.verify(str(further), target, cancel=token)
        tagged = tag_records(self.metadata, records, further)
        self.metadata.keep_copy()
        return tuple(Image(each, self.content) for each in tagged)

    def untag(
        self, reference: str, *, runtime_handler: str | None = None, all_handlers: bool = False
    ) -> tuple[tuple[str, str], ...]:
        """Remove a reference (no id) of images that have another one under the same runtime handler.

        If an image has no other, nothing is removed, and InvalidInputError is raised.
        """
        return removal.untag(self.metadata, reference, self._rule(runtime_handler, all_handlers))

    def _rule(self, runtime_handler: str | None, all_handlers: bool = False, all_names: bool = False) -> RemovalRule:
        """How a call understands a name."""
        if all_handlers and runtime_handler is not None:
            raise InvalidInputError("give a runtime handler or all handlers, not both")
        handler = self._parts.known_handler(runtime_handler)
        return RemovalRule(handler, self.config.default_handler, is_for_all=all_handlers, all_names=all_names)

    def touch(self, reference: str, *, runtime_handler: str = "") -> None:
        """Note that a sandbox or container starts from an image, given by its canonical reference; for eviction by age.

        Cheap: at most one unsynced write a minute for each image. An image that isn't there is no error.
        """
        self.metadata.images.touch(reference, runtime_handler or self.config.default_handler)

    def note_in_use(
        self, images: Iterable[tuple[str, str]], *, holder: str, seconds: float = in_use.IN_USE_SECONDS
    ) -> tuple[tuple[str, str], ...]:
        """Note which images containers use now, so that no policy evicts them for some hours; a removal still does.

        As touch() for all their records, and a lease names them until the holder's next call, or its end.

        Args:
            images: (image id in text form, runtime handler) of all that are in use; an empty handler means every one.
            holder: who says so, such as a runtime; other holders' notes stay.
            seconds: how long it lasts without another call.

        Returns:
            (reference, runtime handler) of the records.

        Raises:
            StoreError: the store can't be written.
        """
        default = self.config.default_handler
        return in_use.note(self.metadata, images, holder=holder, seconds=seconds, default_handler=default)

    def import_images(
        self,
        archive: str | os.PathLike[str],
        *,
        options: ImportOptions | None = None,
        observer: Observer | None = None,
        cancel: CancelToken | None = None,
    ) -> ImportReport:
        """Import images from an OCI layout (folder or tar, gzip or not) or a docker-archive, verified as a pull is.

        ``archive`` is a path, or ``-`` for standard input. By default all images come, for the default handler. If
        :meth:`imagestore.store.archive.importing.ImportWork.run` raises, the store is as it was.
        """
        with self._parts.loading():
            from imagestore.store.archive.importing import opened

        with opened(self._parts, archive, options, observer, cancel) as work:
            return work.run()

    def export_images(
        self,
        names: Iterable[str],
        archive: str | os.PathLike[str],
        *,
        options: ExportOptions | None = None,
        observer: Observer | None = None,
        cancel: CancelToken | None = None,
    ) -> ExportReport:
        """Write images (by reference or id) into an archive; the same images give the same bytes.

        ``archive`` is the path of a file (replaced when complete) or a new folder, or ``-`` for standard output. By
        default it is an OCI archive with the default handler's images. Raises what
        :meth:`imagestore.store.archive.exporting.export` raises.
        """
        with self._parts.loading():
            from imagestore.store.archive import exporting, source

        chosen, path = options or exporting.ExportOptions(), source.path_of(archive)
        self._refuse_own_files(path)
        heard = observer or self._parts.observer
        with self._parts.operation(cancel, observer) as token:
            return exporting.export(self._parts, names, path, chosen, heard, token)

    def _refuse_own_files(self, path: str) -> None:
        """An archive that replaces the store's database or a blob would destroy the images it is made from."""
        inside, root = os.path.realpath(path), os.path.realpath(self.root)
        if path != "-" and os.path.commonpath((inside, root)) == root:
            raise InvalidInputError(
                f"archive {path}: is inside the store {self.root}", hint="name a place outside the store's folder"
            )

    def push(
        self,
        name: str,
        destination: str = "",
        *,
        options: CopyOptions | None = None,
        credentials: CredentialLookup | None = None,
        observer: Observer | None = None,
        cancel: CancelToken | None = None,
    ) -> CopyReport:
        """Copy an image of the store into a registry, by default to its own reference and the default handler's alone.

        A push that ended early sends only what is missing. Raises what copy() raises, and InvalidInputError if no
        destination is given and the image has several names.
        """
        if not destination:
            with self._parts.loading():
                from imagestore.store.copy.opening import find_stored
                from imagestore.store.copy.options import CopyOptions

            default, chosen = self.config.default_handler, options or CopyOptions()
            destination, _ = find_stored(self.metadata, name, chosen, default_handler=default)
        return self.copy(
            f"store:{name}", destination, options=options, credentials=credentials, observer=observer, cancel=cancel
        )

    def copy(
        self,
        source: str,
        destination: str,
        *,
        options: CopyOptions | None = None,
        credentials: CredentialLookup | None = None,
        observer: Observer | None = None,
        cancel: CancelToken | None = None,
    ) -> CopyReport:
        """Copy an image between registries, this store, OCI layouts and archives, verified on both sides.

        Args:
            source: a reference means its registry; ``store:NAME`` this store, ``oci:FOLDER`` a layout,
                ``oci-archive:FILE`` and ``docker-archive:FILE`` an archive.
            destination: the same; in the store and in a registry it is the name that the image gets.
            options: whose manifests; by default all from one registry into another, else the default handler's alone.

        Raises:
            InvalidReferenceError, InvalidInputError: a place can't be read, or the two don't go together.
            ImageNotFoundError, NoMatchingManifestError: the source has no such image, or nothing for a handler.
            PreconditionError: the registry may not be pushed to (``capabilities`` in its ``hosts.toml``).
            RegistryError, IntegrityError, DocumentError, StoreError: it failed on the way.
        """
        with self._parts.loading():
            from imagestore.store.copy.copying import copy
            from imagestore.store.copy.options import CopyOptions, ImageLocation

        origin, target = ImageLocation.parse(source), ImageLocation.parse(destination)
        if target.is_archive:
            self._refuse_own_files(target.name)
        heard = observer or self._parts.observer
        return copy(self._parts, origin, target, options or CopyOptions(), credentials, heard, cancel)

    def unpack(
        self,
        name: str,
        folder: str | os.PathLike[str],
        *,
        runtime_handler: str | None = None,
        bundle: BundleOptions | None = None,
        limits: UnpackLimits | None = None,
        rootless: bool = False,
        observer: Observer | None = None,
        cancel: CancelToken | None = None,
    ) -> UnpackReport:
        """Unpack an image, named as for get(): its root filesystem, or a bundle that an OCI runtime starts.

        Memory is bounded, whatever the layers are (docs/unpack.md). If it raises, nothing is left; errors, and what a
        cancellation may leave, are those of :meth:`imagestore.store.unpack.unpack.UnpackWork.run`.

        Args:
            folder: isn't there yet, or is empty; it appears when all is in it.
            bundle: make a bundle, with ``rootfs`` and ``config.json``, and what a pod says of the container.
            limits: what all layers together may take, and each of their entries.
            rootless: for users other than root: all files are theirs, and devices are left out.
        """
        with self._parts.loading():
            from imagestore.store.unpack.limits import UnpackLimits
            from imagestore.store.unpack.unpack import UnpackWork

        heard, held_to_read = observer or self._parts.observer, leases.held_to_read(self.metadata, purpose="unpack")
        with self._parts.operation(cancel, observer) as token, held_to_read as held:
            image = self.get(name, runtime_handler=runtime_handler)
            held.hold([each.digest for each in (image.manifest, image.manifest_document.config, *image.layers)])
            work = UnpackWork(
                image=image,
                content=self.content,
                limits=limits or UnpackLimits(),
                rootless=rootless,
                observer=heard,
                cancel=token,
            )
            return work.run(folder) if bundle is None else work.run_bundle(folder, bundle)

    @contextlib.contextmanager
    def hold(self, digests: Iterable[Digest], *, purpose: str = "embedder") -> Iterator[HeldLease]:
        """Keep content (and what it points at) from collection while the block runs; renews the lease as long.

        Content that is gone before the block begins is not brought back: look for it inside the block. ``purpose`` is
        the first part of the lease's id.
        """
        with leases.held(self.metadata, purpose=purpose, digests=[*digests]) as held, leases.renewed(held):
            yield held

    def usage(self) -> StoreUsage:
        """How much space each image takes."""
        with self._parts.loading():
            from imagestore.store.maintenance import usage

        return usage.measure(self.metadata, self.content, None if self.is_shared else self.root)

    def why(self, digest: Digest) -> tuple[Chain, ...]:
        """What keeps some content: a chain from each root; empty when the next collection frees it."""
        with self._parts.loading():
            from imagestore.store.maintenance.why import explain

        return explain(self.metadata, digest)

    def evict(self, rules: EvictionPolicy, *, dry_run: bool = False) -> EvictionReport:
        """Remove the records that a policy gives up, and free their content; UndeletableError as collect_garbage().

        Records that the configuration pins or a lease names stay. What the next collection frees counts as free.
        """
        with self._parts.loading():
            from imagestore.store.maintenance import eviction

        return eviction.evict(self._parts, self.usage(), rules, dry_run=dry_run)

    def collect_garbage(self, *, dry_run: bool = False) -> GarbageReport:
        """Free content that no record and no lease needs; safe while any process pulls.

        A dry run counts as kept what a collection drops first: images whose gc.expire is past, and content records
        that nothing in their namespace reaches.

        Raises:
            UndeletableError: something can't be deleted; everything else was, as its ``report`` says.
        """
        with self._parts.loading():
            from imagestore.content import disk

        report = garbage.collect(self.metadata, self.content, dry_run=dry_run, clock=self._parts.clock)
        if not dry_run:
            disk.clear(self.root, before=self._parts.clock() - garbage.STALE_INGEST_SECONDS)
        if report.failures:
            raise UndeletableError(report.failures, report)
        return report

    def sweep_strays(self, *, older_seconds: float = 86400.0) -> int:
        """Delete what a restored database backup left in a shared store's bucket: objects that no row names.

        Returns how many. Younger objects stay: an upload has no row before it ends. In another store it raises
        UnsupportedError.
        """
        with self._parts.loading():
            from imagestore.content.shared_store import SharedContentStore

        if not isinstance(self.content, SharedContentStore):
            raise UnsupportedError(f"{self.root}: is no shared store, and has no objects that its records don't name")
        return self.content.sweep_strays(self._parts.clock() - older_seconds)

    def check(self, *, options: CheckOptions | None = None, cancel: CancelToken | None = None) -> CheckReport:
        """Hash every blob again, and compare every edge and record with the content; only reads."""
        with self._parts.loading():
            from imagestore.store.maintenance.check import check
            from imagestore.store.maintenance.hashing import CheckOptions

        with self._parts.operation(cancel) as token:
            return check(self.metadata, self.content, options=options or CheckOptions(), cancel=token)

    def repair(
        self, report: CheckReport, *, observer: Observer | None = None, cancel: CancelToken | None = None
    ) -> RepairReport:
        """Fetch again what a check found damaged or missing, and hash what came."""
        with self._parts.loading():
            from imagestore.store.maintenance.repair import Repairer

        with self._parts.operation(cancel, observer) as token:
            heard = observer or self._parts.observer
            return Repairer(self.metadata, self.content, self.registry, heard, token).run(report)

    def backup(self, target: Path) -> None:
        """Copy the records, without content, to a new file; other work goes on.

        An existing file raises AlreadyExistsError, an unwritable one InvalidInputError or PreconditionError.
        """
        self.metadata.backup(target)

    def close(self) -> None:
        """End what other threads do with this store, then close its database and the connections it opened itself.

        Long work ends as if it were cancelled, and close() waits for it, up to 10 seconds; what only works on the
        database ends with a StoreError. So don't call it from an observer, nor from a thread that such work waits for.
        In a forked child it ends and closes nothing of the parent's.
        """
        self._parts.close()

    def __repr__(self) -> str:
        return f"<ImageStore {printable(self.name)}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None, /
    ) -> None:
        self.close()
