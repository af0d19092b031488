"""ImageStore: the one object embedders hold.

Any number of processes and threads may use one root at the same time. Calls block; a CancelToken ends them early. A
child that is forked while a store is open can use none.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import imagestore.config as configuration
import imagestore.platforms as platforms
from imagestore.content.disk import translated
from imagestore.errors import ImageNotFoundError, InvalidInputError, UnknownRuntimeHandlerError
from imagestore.metadata.sqlite.failures import closed
from imagestore.oci.reference import Reference
from imagestore.store import record_lookup
from imagestore.store.adapters import StorePlace, open_adapters
from imagestore.store.archive.service import Archives
from imagestore.store.image import Image
from imagestore.store.maintenance.service import Upkeep
from imagestore.util.cancel import CancelGroup

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from types import TracebackType
    from typing import Self

    from imagestore.config import Config
    from imagestore.config.model import BucketSettings
    from imagestore.content.api import ContentStore
    from imagestore.metadata.api import MetadataStore
    from imagestore.metadata.records import ImageRecord
    from imagestore.oci.digest import Digest
    from imagestore.oci.select import Selection
    from imagestore.platforms import Platform
    from imagestore.registry.client import RegistryClient
    from imagestore.registry.client_factory import Transport
    from imagestore.registry.credentials.model import CredentialLookup
    from imagestore.registry.events import Event, Observer
    from imagestore.registry.policy import TransferPolicy
    from imagestore.store.pull.plan import PullPlan
    from imagestore.store.pull.pull_work import PullWork
    from imagestore.store.pull.verify import ImageVerifier
    from imagestore.store.unpack.apply import UnpackLimits
    from imagestore.store.unpack.bundle import BundleOptions
    from imagestore.store.unpack.unpack import UnpackReport
    from imagestore.util.cancel import CancelToken


#: For what ends when a store is closed: it has to give back what it brought.
_PATIENCE_SECONDS: Final = 10


def _unheard(_: Event) -> None:
    """The observer of work without one; that of ``registry.events`` would load all events with every store."""


class ImageStore(Archives, Upkeep):
    """Images by (reference, runtime handler) in one folder.

    Args:
        root: the store's folder, made (readable by its owner only) when missing; or the address of a store that
            machines share, ``postgresql://USER@HOST/DATABASE``.
        config: runtime handlers and their platforms; without one there is a single, default handler.
        host: the node's platform; detected by default.
        credentials: where logins are looked up; by default the places that Docker's and the containers tools use.
        transfer: limits of transfers; by default those of the configuration.
        transport: answers requests to registries instead of the network, as ``httpx.MockTransport`` does.
        observer: hears of every work that has no observer of its own.
        registry: asked for images; by default a client made at the first pull.
        sources: folders with ``blobs`` (containerd's content, OCI layouts) to adopt content from instead of fetching.
        verifier: asked before an image is fetched; by default the programs the configuration names.
        clock: seconds since 1970.
        is_making: make the store where there is none.
        is_freeing: open a full disk's store with the space kept back for removals; else it can only be read there, and
            for as long as it is open this process writes no store.
        content: where blobs are, instead of the folder's files; closed by who gives it. Of a shared store a bucket,
            ``s3://BUCKET/PREFIX`` or its settings.
        metadata: where records are, instead of the folder's database; closed by who gives it.
        scope: of a shared store, whose images and leases are meant; by default ``"default"``.

    Raises:
        InvalidInputError: an empty text for a folder; the current one is ``"."``. Or a shared store without a bucket.
        ConfigError, PreconditionError: a shared store's database or bucket isn't there, or refuses the credentials.
        StoreError: the folder can't be used (StoreReadOnlyError, StoreFullError, StoreCorruptError, StoreMissingError,
            if that is why).
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
        is_making: bool = True,
        is_freeing: bool = True,
        content: ContentStore | BucketSettings | str | None = None,
        metadata: MetadataStore | None = None,
        scope: str = "",
    ) -> None:
        if not all(os.fspath(folder) for folder in (root, *sources)):
            raise InvalidInputError("the store's folder, or a source: expected a path, it is empty")
        self.host = host or platforms.host.detect()
        self.config = config or configuration.default(self.host)
        self._clock = clock
        self._credentials = credentials
        self._transfer = transfer
        self._transport = transport
        self.observer = observer or _unheard
        self._registry = registry
        self._given_verifier = verifier
        self._own_registry: RegistryClient | None = None
        self._lock = threading.Lock()
        self._operations = CancelGroup()
        self._place = StorePlace(root, content, metadata, scope, tuple(Path(source).absolute() for source in sources))
        self._adapters = open_adapters(
            self._place, config=self.config, clock=clock, is_making=is_making, is_freeing=is_freeing
        )
        #: This machine's folder; of an embedded store all of it.
        self.root = self._adapters.folder
        #: The folder, or a shared store's address and scope.
        self.name = self._adapters.name
        self.is_shared = self._adapters.is_shared
        self.content = self._adapters.content
        self.metadata = self._adapters.metadata

    def reopened(self) -> ImageStore:
        """The same store, opened once more for long work that nobody should wait for; close it."""
        place = self._place
        return ImageStore(
            place.root,
            config=self.config,
            host=self.host,
            sources=place.sources,
            content=place.content,
            metadata=place.metadata,
            scope=place.scope,
        )

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

        Args:
            reference: ``python``, ``registry.example/base/nano:1``, with or without a digest.
            runtime_handler: whose platform decides; empty means the configured default.
            platform: instead of the handler's platform, for this pull.
            credentials: instead of the store's, for this pull; they and the tokens they buy are forgotten with it.
            observer: hears of progress, from several threads.
            cancel: ends the pull; what came so far can be resumed.

        Raises:
            InvalidReferenceError, InvalidPlatformError, UnknownRuntimeHandlerError: before anything is sent.
            NoMatchingManifestError: the image has nothing for that platform; says what it has and why not.
            RegistryError, IntegrityError, DocumentError, StoreError, OperationCancelledError: it failed on the way.
        """
        with self._operation(cancel) as token:
            heard = observer or self.observer
            work = self._work(Reference.parse(reference), runtime_handler, platform, heard, token, credentials)
            record = work.run()
            self.metadata.images.touch(record.reference, record.handler)
        return Image(record, self.content)

    def plan(
        self,
        pulls: Iterable[tuple[str, str]],
        *,
        platform: str | Platform | None = None,
        tell: Callable[[PullPlan], object] | None = None,
        cancel: CancelToken | None = None,
    ) -> list[PullPlan]:
        """What pulling would fetch, without storing anything; a blob that several pulls need is counted once.

        Args:
            pulls: reference and runtime handler of each; an empty handler means the default.
            platform: instead of the handlers' platforms.
            tell: gets each plan at once, so also those before a failure.
            cancel: ends the work.

        Raises:
            ImageStoreError: as pull(), but for what only fetching can show.
        """
        plans: list[PullPlan] = []
        planned: set[Digest] = set()
        with self._operation(cancel) as token:
            for reference, handler in pulls:
                work = self._work(Reference.parse(reference), handler, platform, _unheard, token)
                plans.append(work.plan(planned))
                planned |= {blob.descriptor.digest for blob in plans[-1].blobs}
                if tell is not None:
                    tell(plans[-1])
        return plans

    def pull_sandbox_image(
        self, *, runtime_handler: str = "", observer: Observer | None = None, cancel: CancelToken | None = None
    ) -> Image:
        """Fetch the pause image that the handler's pods share, for the same platform as their own images.

        Args:
            runtime_handler: whose; empty means the configured default.
            observer: hears of progress.
            cancel: ends the pull.

        Raises:
            ConfigError: no sandbox image is configured.
            ImageStoreError: as pull().
        """
        reference = self.config.sandbox_image(runtime_handler)
        return self.pull(reference, runtime_handler=runtime_handler, observer=observer, cancel=cancel)

    def get(self, name: str, *, runtime_handler: str | None = None) -> Image:
        """One image by reference, image id, beginning of an id, or ``name@digest``.

        Args:
            name: which image.
            runtime_handler: which handler's; empty means the default handler. None (not given) means the default
                handler's by name, and by id any handler's if the default has none.

        Raises:
            ImageNotFoundError: there is none.
            UnknownRuntimeHandlerError: neither configured nor in any record.
            InvalidInputError: the beginning of an id fits several images.
        """
        handler = self._known(runtime_handler)
        record = record_lookup.find(self.metadata, name, handler, self.config.default_handler)
        if record is not None:
            return Image(record, self.content)
        others = ", ".join(sorted({each.handler for each in record_lookup.by_name(self.metadata, name)}))
        under = f" under runtime handler {handler!r}" if handler is not None else ""
        hint = f"it is there under: {others}" if others else record_lookup.missing_hint(name)
        raise ImageNotFoundError(f"image {name!r} is not in the store{under}", hint=hint)

    def list(
        self,
        *,
        name: str | None = None,
        runtime_handler: str | None = None,
        after: tuple[str, str] | None = None,
        limit: int | None = None,
    ) -> Iterator[Image]:
        """Images ordered by reference and handler.

        Args:
            name: only this reference or image id (or its beginning).
            runtime_handler: only this handler's; empty means the default handler.
            after: only those behind this (reference, handler): the last one of the page before.
            limit: so many at most; a page costs what it has, not what the store has.

        Raises:
            UnknownRuntimeHandlerError: neither configured nor in any record.
            InvalidInputError: the beginning of an id fits several images, or a page of less than one.
        """
        if limit is not None and limit < 1:
            raise InvalidInputError(f"a page of {limit} images: expected at least 1")
        handler = self._known(runtime_handler)
        if name is None:
            records = self.metadata.images.find(handler=handler, after=after, limit=limit)
        else:
            found = record_lookup.by_name(self.metadata, name) or record_lookup.by_id(self.metadata, name)
            fitting = (record for record in found if handler is None or record.handler == handler)
            records = [each for each in fitting if after is None or (each.reference, each.handler) > after][:limit]
        return (Image(record, self.content) for record in records)

    def remove(
        self, name: str, *, runtime_handler: str | None = None, all_handlers: bool = False, only_name: bool = False
    ) -> tuple[tuple[str, str], ...]:
        """Remove records; collect_garbage() then frees their bytes. Removing what isn't there is no error.

        As in CRI, an image goes with all its references, unless ``only_name`` says otherwise.

        Args:
            name: reference, image id, beginning of an id, or ``name@digest``.
            runtime_handler: only this handler's records; empty means the default handler. None (not given): by id
                every handler's, by name the default handler's, or the others' if the default has none.
            all_handlers: every handler's, by name too.
            only_name: a reference means its own record, ``name@digest`` those of its repository, ``name:tag@digest``
                the tag's if it leads there; other references of the same image stay (see names_of()). An id or a
                digest alone means all references all the same.

        Returns:
            (reference, runtime handler) of what was removed.

        Raises:
            UnknownRuntimeHandlerError: neither configured nor in any record.
            InvalidInputError: the beginning of an id fits several images, or handler and all_handlers are both given.
        """
        records = self._doomed(name, runtime_handler, all_handlers=all_handlers, only_name=only_name)
        with self.metadata.exclusive():
            removed = self.metadata.images.remove((record.reference, record.handler) for record in records)
            keys = tuple((record.reference, record.handler) for record in removed)
            record_lookup.drop_hidden(self.metadata, keys, self.config.default_handler)
        return keys

    def _meant(self, name: str, runtime_handler: str | None, all_handlers: bool) -> Sequence[ImageRecord]:
        if all_handlers and runtime_handler is not None:
            raise InvalidInputError("give a runtime handler or all handlers, not both")
        if not name:
            raise InvalidInputError("an empty name means no image")
        if all_handlers:
            return record_lookup.by_name(self.metadata, name) or record_lookup.by_id(self.metadata, name)
        return record_lookup.meant(self.metadata, name, self._known(runtime_handler), self.config.default_handler)

    def _doomed(
        self, name: str, runtime_handler: str | None, *, all_handlers: bool, only_name: bool = False
    ) -> Sequence[ImageRecord]:
        records = self._meant(name, runtime_handler, all_handlers)
        own = record_lookup.by_own_name(records, name) if only_name else None
        if own is not None:
            return own
        if not all_handlers:
            return record_lookup.with_namesakes(self.metadata, records)
        owners = sorted({each.handler for each in records})
        each_owners = ([each for each in records if each.handler == owner] for owner in owners)
        return [each for owned in each_owners for each in record_lookup.with_namesakes(self.metadata, owned)]

    def unpack(
        self,
        name: str,
        folder: str | os.PathLike[str],
        *,
        runtime_handler: str | None = None,
        bundle: BundleOptions | None = None,
        limits: UnpackLimits | None = None,
        is_rootless: bool = False,
        observer: Observer | None = None,
        cancel: CancelToken | None = None,
    ) -> UnpackReport:
        """Unpack an image of the store: its root filesystem, or a bundle that an OCI runtime starts.

        Args:
            name: reference or id.
            folder: isn't there yet, or is empty; it appears when all is in it.
            runtime_handler: whose image; None as for get().
            bundle: make a bundle, with ``rootfs`` and ``config.json``, and what a pod says of the container.
            limits: what all layers together may take.
            is_rootless: for users other than root: all files are theirs, and devices are left out.
            observer: hears of progress (LayerUnpacking, LayerUnpacked).
            cancel: ends it.

        Raises:
            ImageNotFoundError, UnknownRuntimeHandlerError: as get().
            ImageStoreError: as :meth:`imagestore.store.unpack.unpack.UnpackWork.run`; nothing is left then.
        """
        with translated("load what unpacks from it", self.content.name):
            from imagestore.store import leases
            from imagestore.store.unpack.apply import UnpackLimits
            from imagestore.store.unpack.unpack import UnpackWork

        with self._operation(cancel) as token, leases.held_to_read(self.metadata, purpose="unpack") as held:
            image = self.get(name, runtime_handler=runtime_handler)
            held.hold([each.digest for each in (image.manifest, image.manifest_document.config, *image.layers)])
            work = UnpackWork(
                image, self.content, limits or UnpackLimits(), is_rootless, observer or self.observer, token
            )
            return work.run(folder) if bundle is None else work.run_bundle(folder, bundle)

    def match(
        self,
        reference: str,
        *,
        runtime_handlers: Iterable[str] | None = None,
        offline: bool = False,
        cancel: CancelToken | None = None,
    ) -> dict[str, Selection]:
        """Which manifest each handler would get, and why; no layer is fetched and nothing is stored.

        Args:
            reference: the image; offline also its id, or the beginning of one.
            runtime_handlers: whom to ask for; every configured handler by default.
            offline: use only what the store has.
            cancel: ends the work.

        Raises:
            UnknownRuntimeHandlerError: before anything is sent.
            ImageNotFoundError: offline, and no handler has this image.
            InvalidInputError: offline, and several handlers have other content under this name.
            RegistryError, IntegrityError, DocumentError: the documents can't be had.
        """
        with self._loading():
            from imagestore.store.pull.choice import match_handlers, wanted_platforms
            from imagestore.store.pull.present import known_targets
            from imagestore.store.pull.sources import Documents

        if not offline:
            Reference.parse(reference)
        handlers = wanted_platforms(self.config, runtime_handlers, host=self.host)
        with self._operation(cancel) as token:
            if offline:
                target = record_lookup.target(self.metadata, reference, handlers)
                return match_handlers(target, Documents(self.content, None, None, token), handlers)
            parsed = Reference.parse(reference)
            known = known_targets(self.metadata, self.content, parsed)
            target, raw = self.registry.resolve_whole(parsed, known=known, cancel=token)
            documents = Documents(self.content, self.registry, parsed, token)
            if raw is not None:
                documents.remember(target, raw)
            return match_handlers(target, documents, handlers)

    @property
    def registry(self) -> RegistryClient:
        """The registry client in use."""
        if self._registry is not None:
            return self._registry
        with self._lock:
            if self._own_registry is None:
                with self._loading():
                    from imagestore.registry.client_factory import connect
                    from imagestore.registry.mirrors import STATE_FOLDER

                self._own_registry = connect(
                    config=self.config,
                    credentials=self._credentials,
                    policy=self._transfer,
                    state_folder=str(self.root / STATE_FOLDER),
                    transport=self._transport,
                )
            return self._own_registry

    def close(self) -> None:
        """End what other threads do with this store, then close its database and the connections it opened itself.

        Pulls, matches, imports, exports, checks and repairs end as cancelled ones do, and are waited for, up to
        10 seconds; what only works on the database ends with a StoreError. So this isn't for observers of theirs, nor
        for a thread that one of these waits for. In a forked child it ends and closes nothing of the parent's.
        """
        if self.metadata.is_inherited:
            # A fork: what runs is the parent's, and so is who would let go of the locks.
            self._adapters.closing.close()
            return
        with contextlib.ExitStack() as stack:
            stack.callback(self._adapters.closing.close)
            if self._own_registry is not None:
                stack.callback(self._own_registry.close)
            self._operations.end("this store was closed", patience_seconds=_PATIENCE_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None, /
    ) -> None:
        self.close()

    def _operation(self, cancel: CancelToken | None) -> contextlib.AbstractContextManager[CancelToken]:
        if self._operations.is_ended:
            raise closed(self.name)
        self.metadata.check_process()
        return self._operations.joined(cancel)

    def _work(
        self,
        reference: Reference,
        runtime_handler: str,
        platform: str | Platform | None,
        observer: Observer,
        cancel: CancelToken,
        credentials: CredentialLookup | None = None,
    ) -> PullWork:
        with self._loading():
            from imagestore.store.pull.pull_work import PullWork

        # Everything that can be refused without asking anybody is refused here.
        handler = self.config.handler(runtime_handler).name
        wanted = self.config.handler_platform(handler, host=self.host, explicit=self.explicit_platform(platform))
        client = self.registry.observed_by(observer)
        if credentials is not None:
            client = client.with_credentials(credentials)
        return PullWork(
            reference=reference,
            handler=handler,
            wanted=wanted,
            content=self.content,
            metadata=self.metadata,
            client=client,
            observer=observer,
            cancel=cancel,
            parallel=self.config.settings.max_concurrent_downloads,
            verifier=self.verifier,
        )

    @functools.cached_property
    def verifier(self) -> ImageVerifier:
        """Asked before an image is fetched or imported: the given one, or the programs the configuration names."""
        with self._loading():
            from imagestore.store.pull.verify import NO_VERIFIER, ProgramVerifiers

        settings = self.config.settings.image_verifier
        given = self._given_verifier
        return given or (ProgramVerifiers(settings, dict(os.environ)) if settings is not None else NO_VERIFIER)

    def explicit_platform(self, platform: str | Platform | None) -> Platform | None:
        """The platform that a call names.

        Raises:
            InvalidPlatformError: it can't be read.
        """
        return platforms.parse(platform, host=self.host) if isinstance(platform, str) else platform

    def _known(self, handler: str | None) -> str | None:
        """The handler a request means; one that left the configuration is known while it has records."""
        if handler is None:
            return None
        name = handler or self.config.default_handler
        if name not in self.config.handlers and not self.metadata.images.find(handler=name, limit=1):
            raise UnknownRuntimeHandlerError(name, list(self.config.handlers))
        return name
