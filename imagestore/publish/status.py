"""How publishing stands: what containerd has of what the store wants, and what the process that publishes says of it.

A look needs no lock and changes nothing, but for the short trial by which the way of content is found while nobody
publishes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from imagestore.errors import (
    ContentNotFoundError,
    DocumentError,
    ImageStoreError,
    IntegrityError,
    OperationCancelledError,
    StoreCorruptError,
)
from imagestore.publish.advice import store_findings
from imagestore.publish.connection import find_way
from imagestore.publish.in_use import containers_by_image
from imagestore.publish.model import ImageState, ImageStatus, PublisherStatus
from imagestore.publish.owner_state import ImageNote, OwnerState
from imagestore.publish.publication import ImageDocuments, NotRunnableError
from imagestore.publish.unpacked import UnpackedImages
from imagestore.publish.wanted import difference, left_to_others
from imagestore.store import not_found

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from imagestore.publish.containerd import Containerd
    from imagestore.publish.image_records import RecordKeeper
    from imagestore.publish.model import ContentWay
    from imagestore.publish.owner_lock import OwnerLock
    from imagestore.publish.wanted import ActualImage, Difference, Owner, WantedImage
    from imagestore.store import ImageStore

#: States that only the process at work knows.
_OF_WORK = frozenset({ImageState.PUBLISHING, ImageState.FAILED, ImageState.REMOVING})


@dataclass(frozen=True, slots=True)
class _Seen:
    """What containerd answered.

    Attributes:
        version: its version.
        loaded: its snapshotters.
        way: how layers come into it, and why not by a cheaper way.
        found: what is wanted against its records.
        actual: its records by name.
        accepted: others' records that don't stand against an image; see left_to_others().
        known: the image ids that its CRI plugin knows.
        containers: ids of containers by image id.
        lacking: the snapshotters for which an image isn't unpacked, by image id.
    """

    version: str
    loaded: frozenset[str]
    way: tuple[ContentWay, str]
    found: Difference
    actual: Mapping[str, ActualImage]
    accepted: Collection[tuple[str, str, str]]
    known: frozenset[str]
    containers: Mapping[str, list[str]]
    lacking: Mapping[str, tuple[str, ...]]


class StatusReader:
    """Looks at one store and one containerd.

    Args:
        client: of containerd.
        owner: whose records are the store's.
        records: those that are wanted.
        lock: of the process that publishes.
        mode: one of connection.CONTENT_MODES.
    """

    def __init__(self, client: Containerd, owner: Owner, records: RecordKeeper, lock: OwnerLock, mode: str) -> None:
        self._client = client
        self._owner = owner
        self._records = records
        self._lock = lock
        self._mode = mode

    def read(
        self, store: ImageStore, own: OwnerState | None, image_ids: Collection[str] | None = None
    ) -> PublisherStatus:
        """Look; raises nothing because containerd is away.

        Args:
            store: whose images are published.
            own: what this process says, if it publishes or did so before.
            image_ids: only these images, and nothing about others.
        """
        working, warnings = self._working(own)
        says = working or own
        wanted = self._records.wanted(store)
        shown = [image for key, image in wanted.items() if image_ids is None or key in image_ids]
        notes = says.images if says is not None else {}
        process_id = working.process_id if working is not None else None
        try:
            seen = self._look(store, wanted, shown, says)
        except OperationCancelledError:
            raise
        except ImageStoreError as error:
            return PublisherStatus(
                address=self._client.address,
                namespace=self._client.namespace,
                store_id=self._owner.store_id,
                is_connected=False,
                reason=str(error),
                process_id=process_id,
                images=tuple(_unseen(image, notes.get(image.image_id)) for image in shown),
                warnings=tuple(warnings),
            )
        if image_ids is None:
            warnings += [str(each) for each in store_findings(store)]
            warnings += self._warnings(store, seen)
        return PublisherStatus(
            address=self._client.address,
            namespace=self._client.namespace,
            store_id=self._owner.store_id,
            # It answers this process; the one that publishes may not be able to use it.
            is_connected=working is None or not working.reason,
            reason=working.reason if working is not None else "",
            process_id=process_id,
            version=seen.version,
            way=seen.way[0],
            way_reason=seen.way[1],
            images=tuple(self._image(store, image, seen, notes.get(image.image_id)) for image in shown),
            unwanted=seen.found.to_remove if image_ids is None else (),
            foreign=_foreign(seen, self._owner) if image_ids is None else (),
            warnings=tuple(warnings),
        )

    def _working(self, own: OwnerState | None) -> tuple[OwnerState | None, list[str]]:
        """What the process that publishes says."""
        if self._lock.is_held:
            return own, []
        try:
            return self._lock.owner(), []
        except StoreCorruptError as error:
            return OwnerState(0, "", ""), [str(error)]

    def _look(
        self,
        store: ImageStore,
        wanted: Mapping[str, WantedImage],
        shown: Collection[WantedImage],
        says: OwnerState | None,
    ) -> _Seen:
        version, plugins = self._client.version(), self._client.plugins()
        if says is not None and says.way is not None:
            way = says.way, says.way_reason
        else:
            way = find_way(self._client, store.content, plugins, self._owner.store_id, self._mode)[1:]
        actual = {image.name: image for image in self._client.images()}
        cri_names = self._client.cri_names()
        accepted = left_to_others(wanted.values(), actual, self._owner, cri_names)
        return _Seen(
            version=version,
            loaded=plugins.snapshotters,
            way=way,
            found=difference(wanted, actual.values(), self._owner, accepted),
            actual=actual,
            accepted=accepted,
            known=frozenset(cri_names.values()),
            containers=containers_by_image(self._client),
            lacking=UnpackedImages(self._client, plugins.snapshotters).lacking(store.content, shown),
        )

    def _image(self, store: ImageStore, image: WantedImage, seen: _Seen, note: ImageNote | None) -> ImageStatus:
        missing = image.unmet_names(seen.actual, self._owner, seen.accepted)
        lacking = seen.lacking[image.image_id]
        is_whole = not missing and not lacking and image.image_id in seen.known
        state, reason = ImageState.PUBLISHED, ""
        if not is_whole:
            has_some = any(name in seen.actual and seen.actual[name].is_of(self._owner) for name in image.names)
            state, reason = ImageState.STALE if has_some else ImageState.WANTED, _why_not_runnable(store, image)
            if reason:
                state = ImageState.NOT_RUNNABLE
            elif note is not None and note.state in _OF_WORK:
                state, reason = note.state, note.reason
        return _status(
            image,
            state,
            reason,
            note,
            missing_names=tuple(missing),
            missing_snapshotters=lacking,
            containers=tuple(sorted(seen.containers.get(image.image_id, ()))),
        )

    def _warnings(self, store: ImageStore, seen: _Seen) -> list[str]:
        made = [
            f"runtime handler {handler}: containerd has no snapshotter {snapshotter}"
            for handler in store.config.handlers
            for snapshotter in store.config.snapshotters(handler)
            if snapshotter not in seen.loaded
        ]
        if seen.found.from_elsewhere:
            count = len(seen.found.from_elsewhere)
            made.append(f"{count} records are of a store with this store's id on another machine; see --take-over")
        return made


def image_ids_of(store: ImageStore, name: str, runtime_handler: str | None) -> set[str]:
    """The ids of the images that a name means, under one handler or all.

    Raises:
        ImageNotFoundError: there is none.
    """
    found = {str(image.id) for image in store.list(name=name, runtime_handler=runtime_handler)}
    if not found:
        raise not_found(name, runtime_handler)
    return found


def _why_not_runnable(store: ImageStore, image: WantedImage) -> str:
    """Why no container can be made of it; empty if one can, or if that isn't known."""
    try:
        for manifest in image.manifests:
            ImageDocuments.read(store.content, manifest)
    except NotRunnableError as error:
        return str(error)
    except (ContentNotFoundError, IntegrityError, DocumentError):
        return ""
    return ""


def _unseen(image: WantedImage, note: ImageNote | None) -> ImageStatus:
    """An image while containerd is away: what is known is what the process that publishes says."""
    has_failed = note is not None and note.state in {*_OF_WORK, ImageState.NOT_RUNNABLE}
    state, reason = (note.state, note.reason) if has_failed and note is not None else (ImageState.WANTED, "")
    return _status(image, state, reason, note)


def _status(
    image: WantedImage,
    state: ImageState,
    reason: str,
    note: ImageNote | None,
    *,
    missing_names: tuple[str, ...] = (),
    missing_snapshotters: tuple[str, ...] = (),
    containers: tuple[str, ...] = (),
) -> ImageStatus:
    return ImageStatus(
        image_id=image.image_id,
        state=state,
        records=tuple((record.reference, record.handler) for record in image.records),
        names={name: str(manifest.digest) for name, manifest in image.names.items()},
        snapshotters=image.snapshotters,
        missing_names=missing_names,
        missing_snapshotters=missing_snapshotters,
        ways=note.ways if note is not None else {},
        reason=reason,
        next_try=note.next_try if note is not None and state is ImageState.FAILED else None,
        containers=containers,
    )


def _foreign(seen: _Seen, owner: Owner) -> tuple[str, ...]:
    """Wanted names whose record is somebody else's, and records of ids that no other name leads to: as a removal that
    was cut off leaves them, with all that they hold.
    """
    holders: dict[str, int] = {}
    for image in seen.actual.values():
        holders[image.target] = holders.get(image.target, 0) + 1
    alone = {
        name
        for name, image in seen.actual.items()
        if name.startswith("sha256:") and holders[image.target] == 1 and not image.is_of(owner)
    }
    return tuple(sorted(alone.union(seen.found.foreign)))
