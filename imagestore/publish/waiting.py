"""Waiting beside a running publisher, until containerd has what the store wants.

Two processes that publish one store into one containerd would end each other's leases. So who comes second looks on: at
containerd's records, and at what the first one says of its work.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from imagestore.errors import DeadlineExceededError, StoreCorruptError
from imagestore.publish.model import ImageState, ReconcileReport
from imagestore.publish.owner_lock import describe_process
from imagestore.publish.owner_state import OwnerState
from imagestore.publish.wanted import difference, left_to_others

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from contextlib import AbstractContextManager

    from imagestore.publish.containerd import Containerd
    from imagestore.publish.image_records import RecordKeeper
    from imagestore.publish.owner_lock import OwnerLock
    from imagestore.publish.wanted import Difference, Owner
    from imagestore.store import ImageStore
    from imagestore.util.cancel import CancelToken

_LOOK_SECONDS: Final = 0.25
_MOST_NAMED: Final = 3


class OwnerWatch:
    """Looks on at the publisher of one store and one containerd, until it is done.

    Args:
        client: of containerd.
        owner: whose records are the store's.
        records: those that are wanted.
        lock: of the process that publishes.
        lend: gives the store of the moment.
        image_ids: only these; None for all, and for what is to be taken away.
    """

    def __init__(
        self,
        client: Containerd,
        owner: Owner,
        records: RecordKeeper,
        lock: OwnerLock,
        lend: Callable[[], AbstractContextManager[ImageStore]],
        image_ids: Collection[str] | None,
    ) -> None:
        self._client = client
        self._owner = owner
        self._records = records
        self._lock = lock
        self._lend = lend
        self._image_ids = image_ids
        self._count = 0

    def wait(self, cancel: CancelToken) -> ReconcileReport | None:
        """Wait; returns what was done meanwhile, or None if no process publishes any more.

        An image that had failed before counts as failed when its next try did, or when the time is over.

        Raises:
            DeadlineExceededError: the time is over, and images are still on their way.
            ServiceUnavailableError: containerd can't be reached.
        """
        first = self._look()
        working = self._working()
        tried = {key: note.next_try for key, note in working.images.items()} if working is not None else {}
        found = first
        while working is not None:
            said = {key: working.images[key] for key in found.to_publish if key in working.images}
            not_runnable = {key: note.reason for key, note in said.items() if note.state is ImageState.NOT_RUNNABLE}
            failed = {key: note.reason for key, note in said.items() if note.state is ImageState.FAILED}
            anew = {key for key in failed if said[key].next_try != tried.get(key)}
            left = set(found.to_publish) - not_runnable.keys() - anew
            if not left and not found.to_remove:
                return self._report(first, found, failed, not_runnable)
            try:
                cancel.wait(_LOOK_SECONDS)
            except DeadlineExceededError as error:
                if left <= failed.keys() and not found.to_remove:
                    return self._report(first, found, failed, not_runnable)
                raise _late(working, found, left) from error
            working, found = self._working(), self._look()
        return None

    def _look(self) -> Difference:
        with self._lend() as store:
            wanted = self._records.wanted(store)
        if self._image_ids is not None:
            wanted = {key: image for key, image in wanted.items() if key in self._image_ids}
        self._count = len(wanted)
        actual = {image.name: image for image in self._client.images()}
        accepted = left_to_others(wanted.values(), actual, self._owner, self._client.cri_names())
        found = difference(wanted, actual.values(), self._owner, accepted)
        # With some of the images only, the others' records look unwanted.
        return found if self._image_ids is None else replace(found, to_remove=())

    def _working(self) -> OwnerState | None:
        try:
            return self._lock.owner()
        except StoreCorruptError:
            return OwnerState(0, "", "")

    def _report(
        self, first: Difference, found: Difference, failed: dict[str, str], not_runnable: dict[str, str]
    ) -> ReconcileReport:
        return ReconcileReport(
            published=tuple(sorted(set(first.to_publish) - set(found.to_publish))),
            unchanged=max(0, self._count - len(set(first.to_publish).union(found.to_publish))),
            removed=tuple(sorted(set(first.to_remove) - set(found.to_remove))),
            failed=failed,
            not_runnable=not_runnable,
        )


def _late(working: OwnerState, found: Difference, left: Collection[str]) -> DeadlineExceededError:
    waits = [*sorted(left), *found.to_remove]
    more = f" and {len(waits) - _MOST_NAMED} more" if len(waits) > _MOST_NAMED else ""
    return DeadlineExceededError(
        f"{describe_process(working.process_id)} publishes this store and isn't done yet with"
        f" {', '.join(waits[:_MOST_NAMED])}{more}",
        hint="it goes on; 'imagestore publish --status' shows how far it is",
    )
