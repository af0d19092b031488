"""What an operator does with a store: pins, uses, leases, accounts, reasons, collections, checks, repairs, backups."""

from __future__ import annotations

import abc
import contextlib
from typing import TYPE_CHECKING

from imagestore.content.disk import translated
from imagestore.errors import (
    ImageNotFoundError,
    InvalidInputError,
    UndeletableError,
    UnknownRuntimeHandlerError,
    UnsupportedError,
)
from imagestore.oci.reference import Reference
from imagestore.store import leases, record_lookup
from imagestore.store.image import Image

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from imagestore.config import Config
    from imagestore.content.api import ContentStore
    from imagestore.metadata.api import MetadataStore
    from imagestore.metadata.records import ImageRecord
    from imagestore.oci.digest import Digest
    from imagestore.registry.client import RegistryClient
    from imagestore.registry.events import Observer
    from imagestore.store.garbage import GarbageReport
    from imagestore.store.leases import HeldLease
    from imagestore.store.maintenance.check import CheckReport
    from imagestore.store.maintenance.eviction import EvictionPolicy, EvictionReport
    from imagestore.store.maintenance.hashing import CheckOptions
    from imagestore.store.maintenance.removal import Removal, Removals
    from imagestore.store.maintenance.repair import RepairReport
    from imagestore.store.maintenance.usage import StoreUsage
    from imagestore.store.maintenance.why import Chain
    from imagestore.store.pull.verify import ImageVerifier
    from imagestore.util.cancel import CancelToken


class Upkeep(abc.ABC):
    """The part of ImageStore that looks after what is there."""

    root: Path
    is_shared: bool
    content: ContentStore
    metadata: MetadataStore
    config: Config
    observer: Observer
    _clock: Callable[[], float]

    @property
    @abc.abstractmethod
    def registry(self) -> RegistryClient:
        """The registry client in use."""

    @property
    @abc.abstractmethod
    def verifier(self) -> ImageVerifier:
        """Asked before a name gets an image."""

    @abc.abstractmethod
    def _known(self, handler: str | None) -> str | None:
        """The handler a request means."""

    @abc.abstractmethod
    def _operation(self, cancel: CancelToken | None) -> contextlib.AbstractContextManager[CancelToken]:
        """A long work, which ends when the store is closed."""

    @abc.abstractmethod
    def _meant(self, name: str, runtime_handler: str | None, all_handlers: bool) -> Sequence[ImageRecord]:
        """The records that a change means, without other references of the same images."""

    @abc.abstractmethod
    def _doomed(
        self, name: str, runtime_handler: str | None, *, all_handlers: bool, only_name: bool = False
    ) -> Sequence[ImageRecord]:
        """The records that a removal of this name means."""

    def pin(self, name: str, *, runtime_handler: str | None = None) -> tuple[tuple[str, str], ...]:
        """Spare images from policies until unpinned; the rules for names are those of remove().

        Returns:
            (reference, runtime handler) of the records.

        Raises:
            ImageNotFoundError: there is none.
            UnknownRuntimeHandlerError, InvalidInputError: as remove().
        """
        return self._pinned(name, runtime_handler, is_pinned=True)

    def unpin(self, name: str, *, runtime_handler: str | None = None) -> tuple[tuple[str, str], ...]:
        """Undo pin().

        Raises:
            ImageNotFoundError, UnknownRuntimeHandlerError, InvalidInputError: as pin().
        """
        return self._pinned(name, runtime_handler, is_pinned=False)

    def tag(
        self,
        name: str,
        reference: str,
        *,
        runtime_handler: str | None = None,
        all_handlers: bool = False,
        cancel: CancelToken | None = None,
    ) -> tuple[Image, ...]:
        """Give images another reference, under the same runtime handlers; what had that reference loses it.

        Nothing is copied. A pin isn't passed on, and one that the reference has stays.

        Args:
            name: whose images; the rules are those of remove(), but other references of the same images don't count.
            reference: the further one, without a digest.
            runtime_handler, all_handlers: as for remove().
            cancel: ends it early, while image verifiers are asked.

        Returns:
            The images under their further reference.

        Raises:
            ImageNotFoundError: there is none of this name.
            InvalidReferenceError, InvalidInputError: the reference can't be read, or has a digest; or as remove().
            UnknownRuntimeHandlerError: as remove().
            ImageDeniedError: an image verifier refuses the image under this reference.
            StoreBusyError: an image was removed or changed since then.
            OperationCancelledError: the token was cancelled.
            StoreError: the store can't be read or written.
        """
        with self._loading():
            from imagestore.store.maintenance import tags

        further = tags.further_reference(reference)
        records = self._meant(name, runtime_handler, all_handlers)
        if not records:
            raise _missing(name, runtime_handler)
        with self._operation(cancel) as token:
            for target in {each.target for each in records}:
                self.verifier.verify(str(further), target, cancel=token)
        return tuple(Image(each, self.content) for each in tags.tag(self.metadata, records, further))

    def untag(
        self, reference: str, *, runtime_handler: str | None = None, all_handlers: bool = False
    ) -> tuple[tuple[str, str], ...]:
        """Take a reference away from images that have another one under the same runtime handler.

        Args:
            reference: no image id.
            runtime_handler, all_handlers: as for remove().

        Returns:
            (reference, runtime handler) of what was removed.

        Raises:
            ImageNotFoundError: no image has it.
            InvalidInputError: an image has no other; nothing was removed. Or as remove().
            InvalidReferenceError, UnknownRuntimeHandlerError, StoreError.
        """
        with self._loading():
            from imagestore.store.maintenance import tags

        exact = str(Reference.parse(reference))
        records = [each for each in self._meant(exact, runtime_handler, all_handlers) if each.reference == exact]
        if not records:
            raise _missing(reference, runtime_handler)
        return tags.untag(self.metadata, records, self.config.default_handler)

    def touch(self, reference: str, *, runtime_handler: str = "") -> None:
        """Say that an image is used now (a sandbox or container starts from it), for policies that ask for that.

        Cheap: at most one unsynced write a minute for each image. An image that isn't there is no error.

        Args:
            reference: canonical, as in Image.reference.
            runtime_handler: whose image; empty means the default handler.
        """
        self.metadata.images.touch(reference, runtime_handler or self.config.default_handler)

    @contextlib.contextmanager
    def hold(self, digests: Iterable[Digest], *, purpose: str = "embedder") -> Iterator[HeldLease]:
        """Keep content (and what it points at) from collection while the block runs.

        Content that is gone before the block begins is not brought back: look for it inside the block. The lease is
        renewed for as long as the block runs.

        Args:
            digests: what to keep.
            purpose: first part of the lease's id, for people who list leases.
        """
        with leases.held(self.metadata, purpose=purpose, digests=list(digests)) as held, leases.renewed(held):
            yield held

    def usage(self) -> StoreUsage:
        """Who takes how much space.

        Raises:
            StoreError: a folder can't be read.
        """
        with self._loading():
            from imagestore.store.maintenance import usage

        return usage.measure(self.metadata, self.content, None if self.is_shared else self.root)

    def why(self, digest: Digest) -> tuple[Chain, ...]:
        """What keeps some content: a chain from each root; empty when the next collection frees it."""
        with self._loading():
            from imagestore.store.maintenance import why

        return why.explain(self.metadata, digest)

    def evict(self, rules: EvictionPolicy, *, dry_run: bool = False) -> EvictionReport:
        """Remove the records that a policy lets go, and free their content.

        What the configuration pins, and what a lease names, is spared too.
        What the next collection frees anyway counts as free already: no image goes for the sake of garbage.

        Args:
            rules: what to spare and when to evict.
            dry_run: only say what would go.

        Raises:
            UndeletableError: something can't be deleted; its ``report`` says what was done all the same.
            StoreError: the store can't be read or written.
        """
        with self._loading():
            from imagestore.store.maintenance.evict import EvictionWork

        work = EvictionWork(self.metadata, self.content, self.config, self._clock)
        return work.run(self.usage(), rules, dry_run=dry_run)

    def names_of(
        self, name: str, *, runtime_handler: str | None = None, all_handlers: bool = False, only_name: bool = False
    ) -> tuple[tuple[str, str], ...]:
        """What remove() would remove, as (reference, runtime handler); empty when there is nothing.

        Args:
            name, runtime_handler, all_handlers, only_name: as for remove().

        Raises:
            UnknownRuntimeHandlerError, InvalidInputError: as remove().
        """
        records = self._doomed(name, runtime_handler, all_handlers=all_handlers, only_name=only_name)
        return tuple((record.reference, record.handler) for record in records)

    def delete(
        self, name: str, *, runtime_handler: str | None = None, all_handlers: bool = False, only_name: bool = False
    ) -> Removal:
        """Remove records and free what only they needed; only a process's first removal costs what the store has.

        Args:
            name, runtime_handler, all_handlers, only_name: as for remove().

        Raises:
            UnknownRuntimeHandlerError, InvalidInputError: as remove().
            UndeletableError: as delete_each().
            StoreError: the store can't be read or written.
        """
        removals = self.delete_each(
            [name], runtime_handler=runtime_handler, all_handlers=all_handlers, only_name=only_name
        )
        from imagestore.store.maintenance.removal import Removal

        return Removal(removals.removed[name], removals.bytes_freed)

    def delete_each(
        self,
        names: Iterable[str],
        *,
        runtime_handler: str | None = None,
        all_handlers: bool = False,
        only_name: bool = False,
    ) -> Removals:
        """As delete() for several names, with few transactions and one sweep for all.

        Args:
            names, runtime_handler, all_handlers, only_name: as for remove().

        Raises:
            UnknownRuntimeHandlerError, InvalidInputError: as remove(). When a name is refused, the records of those
                before it are gone, as its ``report`` says, and the next collection frees their content; those after
                it stay.
            UndeletableError: something can't be deleted; its ``report`` says what was done all the same.
            StoreError: the store can't be read or written, or its indexes are damaged: then nothing is removed.
        """
        if all_handlers and runtime_handler is not None:
            raise InvalidInputError("give a runtime handler or all handlers, not both")
        with self._loading():
            from imagestore.store import garbage
            from imagestore.store.maintenance import removal

        handler = self._known(runtime_handler)
        self.metadata.graph.refuse_damaged_indexes()
        remover = removal.Remover(
            self.metadata,
            record_lookup.RemovalRule(
                handler, self.config.default_handler, is_for_all=all_handlers, only_name=only_name
            ),
            lambda name: self._doomed(name, runtime_handler, all_handlers=all_handlers, only_name=only_name),
        )
        try:
            removed, roots = remover.remove(names)
        except (InvalidInputError, UnknownRuntimeHandlerError) as error:
            error.report = removal.Removals(remover.removed, 0)
            raise
        swept = garbage.collect_from(self.metadata, self.content, roots)
        report = removal.Removals(removed, sum(swept.freed.values()))
        swept.check(report)
        return report

    def collect_garbage(self, *, dry_run: bool = False) -> GarbageReport:
        """Free content that no record and no lease needs; safe while any process pulls.

        Args:
            dry_run: only say what would be freed, at least: what a collection drops first (images whose gc.expire is
                past, content records that nothing in their namespace reaches) counts as kept.

        Raises:
            UndeletableError: something can't be deleted; everything else was, as its ``report`` says.
            StoreError: the store can't be read or written.
        """
        with self._loading():
            from imagestore.content import disk
            from imagestore.store import garbage

        report = garbage.collect(self.metadata, self.content, dry_run=dry_run, clock=self._clock)
        if not dry_run:
            disk.clear(self.root, before=self._clock() - garbage.STALE_INGEST_SECONDS)
        if report.failures:
            raise UndeletableError(report.failures, report)
        return report

    def sweep_strays(self, *, older_seconds: float = 86400.0) -> int:
        """Delete objects of a shared store's bucket that no row names: what a restored backup of its database leaves.

        Args:
            older_seconds: only those that were stored so long ago: an upload has no row before it ends.

        Returns:
            How many there were.

        Raises:
            UnsupportedError: this is no shared store.
            PreconditionError, StoreError: the bucket or the database can't be asked.
        """
        with self._loading():
            from imagestore.content.shared_store import SharedContentStore

        if not isinstance(self.content, SharedContentStore):
            raise UnsupportedError(f"{self.root}: is no shared store, and has no objects that its records don't name")
        return self.content.sweep_strays(self._clock() - older_seconds)

    def check(self, *, options: CheckOptions | None = None, cancel: CancelToken | None = None) -> CheckReport:
        """Hash every blob again, compare every edge and record with the content; only reads.

        Args:
            options: rate, progress, resuming.
            cancel: ends the work.

        Raises:
            StoreError: the store can't be read.
            OperationCancelledError: cancelled.
        """
        with self._loading():
            from imagestore.store.maintenance import check, hashing

        options = options or hashing.CheckOptions()
        with self._operation(cancel) as token:
            return check.check(self.metadata, self.content, options=options, cancel=token)

    def repair(
        self, report: CheckReport, *, observer: Observer | None = None, cancel: CancelToken | None = None
    ) -> RepairReport:
        """Fetch again what a check found damaged or missing, and hash what came.

        Args:
            report: the check's.
            observer: hears of progress.
            cancel: ends the work.

        Raises:
            StoreError: the store can't be written.
            OperationCancelledError: cancelled.
        """
        with self._loading():
            from imagestore.store.maintenance.repair import Repairer

        with self._operation(cancel) as token:
            return Repairer(self.metadata, self.content, self.registry, observer or self.observer, token).run(report)

    def backup(self, target: Path) -> None:
        """Copy the records to a new file while others go on; the content is not in it.

        Raises:
            AlreadyExistsError, InvalidInputError, PreconditionError: the file exists already or can't be written.
            StoreError: the records can't be read.
        """
        self.metadata.backup(target)

    def _loading(self) -> translated:
        """For modules that are imported in mid-work: the system may have no descriptor left to read them."""
        return translated("load what works on it", self.root)

    def _pinned(self, name: str, handler: str | None, *, is_pinned: bool) -> tuple[tuple[str, str], ...]:
        records = record_lookup.doomed(self.metadata, name, self._known(handler), self.config.default_handler)
        changed = self.metadata.images.pin(((each.reference, each.handler) for each in records), is_pinned=is_pinned)
        if not changed:
            raise _missing(name, handler)
        return tuple((record.reference, record.handler) for record in changed)


def _missing(name: str, handler: str | None) -> ImageNotFoundError:
    under = f" under runtime handler {handler!r}" if handler else ""
    return ImageNotFoundError(f"image {name!r} is not in the store{under}", hint=record_lookup.missing_hint(name))
