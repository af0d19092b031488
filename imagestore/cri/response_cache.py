"""Answers that are kept between CRI calls: serialized list entries, image statuses, and the disk usage of content."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from typing import TYPE_CHECKING, Final

import imagestore.cri.records as records
from imagestore.oci.digest import Digest
from imagestore.protos.cri import api_pb2
from imagestore.store import record_lookup
from imagestore.store.maintenance.usage import content_use

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from imagestore.cri.model import FilesystemUsage, ServedImage
    from imagestore.metadata.records import ListedImage
    from imagestore.store.image_groups import Group
    from imagestore.store.image_store import ImageStore
    from imagestore.store.workers import StoreWorkers


#: A thousand entries take about 0.7 MB.
_MOST_ENTRIES: Final = 20_000


class ImageMessageCache:
    """Serialized list entries. Thread-safe.

    The key is everything that an entry shows, read from the store each time, so a change of a record in any process is
    another key. Only the user comes from the image config, which never changes under its id.
    """

    def __init__(self, users: records.ImageUsers, *, names_handlers: bool = True) -> None:
        self._users = users
        self._names_handlers = names_handlers
        self._lock = threading.Lock()
        self._known: dict[tuple[tuple[ListedImage, ...], bool], bytes] = {}

    def listed(self, groups: Iterable[Group], store: ImageStore) -> bytes:
        """A serialized ``ListImagesResponse``: concatenated messages add up the items of a repeated field."""
        pinned = record_lookup.pinned_by(store.config)
        return b"".join([self._entry(tuple(group), pinned, store) for group in groups])

    def image(self, group: Group, store: ImageStore) -> api_pb2.Image:
        """The message of one entry."""
        return api_pb2.ListImagesResponse.FromString(self.listed([group], store)).images[0]

    def is_permanent(self, image: api_pb2.Image) -> bool:
        """Whether a message is valid as long as the records are: an unreadable config may be repaired."""
        return self._users.knows(Digest.parse(image.id))

    def _entry(self, group: tuple[ListedImage, ...], pinned: frozenset[str], store: ImageStore) -> bytes:
        key = (group, bool(pinned) and not pinned.isdisjoint(each.reference for each in group))
        known = self._known.get(key)
        if known is not None:
            return known
        (entry,) = records.served_images([group], store, self._users)
        image = image_message(entry)
        if not self._names_handlers:
            image.spec.ClearField("runtime_handler")
        made = api_pb2.ListImagesResponse(images=[image]).SerializeToString()
        if self.is_permanent(image):
            with self._lock:
                self._known[key] = made
                if len(self._known) > _MOST_ENTRIES:
                    del self._known[next(iter(self._known))]
        return made


class StatusCache:
    """Answers of ``ImageStatus``, kept until a record changes; for one event loop."""

    def __init__(self) -> None:
        self._state: tuple[int, int] | None = None
        self._known: dict[tuple[str, str, bool], api_pb2.ImageStatusResponse] = {}

    def get(self, state: tuple[int, int] | None, key: tuple[str, str, bool]) -> api_pb2.ImageStatusResponse | None:
        """The answer for a name and a handler in a state of the store; None if it isn't cached."""
        return self._known.get(key) if state is not None and state == self._state else None

    def put(
        self, state: tuple[int, int] | None, key: tuple[str, str, bool], answer: api_pb2.ImageStatusResponse
    ) -> None:
        """Keep an answer; the state must have been read before it was made."""
        if state is None:
            return
        if state != self._state or len(self._known) >= _MOST_ENTRIES:
            self._known = {}
            self._state = state
        self._known[key] = answer


def image_message(entry: ServedImage) -> api_pb2.Image:
    """``runtime.v1.Image``."""
    message = api_pb2.Image(
        id=entry.id,
        repo_tags=entry.repo_tags,
        repo_digests=entry.repo_digests,
        size=entry.size,
        spec=api_pb2.ImageSpec(image=entry.spec.image, runtime_handler=entry.spec.runtime_handler),
        pinned=entry.is_pinned,
        username=entry.username,
    )
    if entry.uid is not None:
        message.uid.value = entry.uid
    return message


#: Reading the sizes of 50,000 blobs takes half a second, and kubelets ask every 10 s.
KEPT_SECONDS: Final = 10.0


class FilesystemUse:
    """The disk usage of content as ``ImageFsInfo`` reports it; for one event loop.

    The sum over all blobs is as old as containerd lets its numbers become, and carries its time. It is renewed after a
    change of records in any process and after a collection in this one. The kubelet doesn't use it: eviction and image
    collection look at the free bytes of the disk, and only need its mountpoint.

    """

    def __init__(self, workers: StoreWorkers, clock: Callable[[], float] = time.monotonic) -> None:
        self._workers = workers
        self._clock = clock
        self._sum: asyncio.Task[api_pb2.FilesystemUsage] | None = None
        self._until = 0.0
        self._belongs_to: tuple[object, int] = (None, 0)

    def forget(self) -> None:
        """A call has added or removed content: measure again for the next caller."""
        self._sum = None

    async def usage(self) -> api_pb2.FilesystemUsage:
        """The sum, unfinished downloads included.

        Raises:
            StoreError: a folder can't be read.
        """
        current = self._sum
        now = (self._workers.state(), self._workers.collections)
        if current is None or self._clock() >= self._until or now != self._belongs_to:
            self._belongs_to = now
            current = self._sum = asyncio.create_task(self._workers.quick(_measured))
            self._until = self._clock() + KEPT_SECONDS
        try:
            # Shielded, because other callers may wait for it too.
            return await asyncio.shield(current)
        except Exception:
            if self._sum is current:
                self._sum = None
            raise


def _measured(store: ImageStore) -> api_pb2.FilesystemUsage:
    measured_at = time.time_ns()
    root, use = store.content.name, content_use(store.content)
    return api_pb2.FilesystemUsage(
        timestamp=measured_at,
        fs_id=api_pb2.FilesystemIdentifier(mountpoint=os.fsencode(root).decode("utf-8", "replace")),
        used_bytes=api_pb2.UInt64Value(value=use.size),
        inodes_used=api_pb2.UInt64Value(value=use.inodes),
    )


def added(others: Sequence[FilesystemUsage], own: api_pb2.FilesystemUsage) -> list[api_pb2.FilesystemUsage]:
    """The runtime's file systems as messages; the store's use is added to the first one on the same device."""
    shown = []
    for number, each in enumerate(others):
        is_shared = number == 0 and _device(each.mountpoint) == _device(own.fs_id.mountpoint)
        shown.append(
            api_pb2.FilesystemUsage(
                timestamp=each.timestamp_ns,
                fs_id=api_pb2.FilesystemIdentifier(mountpoint=each.mountpoint),
                used_bytes=api_pb2.UInt64Value(value=each.used_bytes + (own.used_bytes.value if is_shared else 0)),
                inodes_used=api_pb2.UInt64Value(
                    value=(each.inodes_used or 0) + (own.inodes_used.value if is_shared else 0)
                ),
            )
        )
    return shown


def _device(path: str) -> int | None:
    try:
        return os.stat(path).st_dev
    except OSError:
        return None
