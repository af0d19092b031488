"""What an operator does with a store: account for its space, evict, collect garbage, check and repair."""

from __future__ import annotations

from typing import TYPE_CHECKING

from imagestore.content import disk
from imagestore.errors import UndeletableError, UnsupportedError
from imagestore.store import garbage
from imagestore.store.maintenance import eviction, usage
from imagestore.store.maintenance.check import check
from imagestore.store.maintenance.hashing import CheckOptions
from imagestore.store.maintenance.repair import Repairer
from imagestore.store.maintenance.why import explain

if TYPE_CHECKING:
    from imagestore.events import Observer
    from imagestore.oci.digest import Digest
    from imagestore.store.garbage import GarbageReport
    from imagestore.store.maintenance.check import CheckReport
    from imagestore.store.maintenance.eviction import EvictionPolicy, EvictionReport
    from imagestore.store.maintenance.repair import RepairReport
    from imagestore.store.maintenance.usage import StoreUsage
    from imagestore.store.maintenance.why import Chain
    from imagestore.store.parts import StoreParts
    from imagestore.util.cancel import CancelToken


class Maintenance:
    """The part of ImageStore that maintains it."""

    def __init__(self, parts: StoreParts) -> None:
        self._parts = parts

    def usage(self) -> StoreUsage:
        """See ImageStore.usage()."""
        parts = self._parts
        return usage.measure(parts.metadata, parts.content, None if parts.is_shared else parts.root)

    def why(self, digest: Digest) -> tuple[Chain, ...]:
        """See ImageStore.why()."""
        return explain(self._parts.metadata, digest)

    def evict(self, policy: EvictionPolicy, *, dry_run: bool) -> EvictionReport:
        """See ImageStore.evict()."""
        return eviction.evict(self._parts, self.usage(), policy, dry_run=dry_run)

    def collect_garbage(self, *, dry_run: bool) -> GarbageReport:
        """See ImageStore.collect_garbage()."""
        parts = self._parts
        report = garbage.collect(parts.metadata, parts.content, dry_run=dry_run, clock=parts.clock)
        if not dry_run:
            disk.clear(parts.root, before=parts.clock() - garbage.STALE_INGEST_SECONDS)
        if report.failures:
            raise UndeletableError(report.failures, report)
        return report

    def sweep_strays(self, older_seconds: float) -> int:
        """See ImageStore.sweep_strays()."""
        parts = self._parts
        with parts.loading():
            from imagestore.content.shared_store import SharedContentStore

        if not isinstance(parts.content, SharedContentStore):
            raise UnsupportedError(f"{parts.root}: is no shared store, and has no objects that its records don't name")
        return parts.content.sweep_strays(parts.clock() - older_seconds)

    def check(self, options: CheckOptions | None, cancel: CancelToken | None) -> CheckReport:
        """See ImageStore.check()."""
        parts = self._parts
        with parts.operation(cancel) as token:
            return check(parts.metadata, parts.content, options=options or CheckOptions(), cancel=token)

    def repair(self, report: CheckReport, observer: Observer | None, cancel: CancelToken | None) -> RepairReport:
        """See ImageStore.repair()."""
        parts = self._parts
        with parts.operation(cancel, observer) as token:
            heard = observer or parts.observer
            return Repairer(parts.metadata, parts.content, parts.registry, heard, token).run(report)
