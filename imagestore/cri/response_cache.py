"""Entries of a list as CRI's messages; each is serialised once, and kept with all that it was made from."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from typing import TYPE_CHECKING, Final

from imagestore.cri import records
from imagestore.cri._proto import api_pb2
from imagestore.oci.digest import Digest
from imagestore.store import record_lookup
from imagestore.store.maintenance.accounting import content_use

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from imagestore.cri.model import ServedImage
    from imagestore.cri.records import Group
    from imagestore.metadata.records import ListedImage
    from imagestore.store.image_store import ImageStore
    from imagestore.store.workers import StoreWorkers


#: A thousand take some 0.7 MB.
_MOST_ENTRIES: Final = 20_000


class ImageMessages:
    """Entries as serialised messages, from memory where they were made before. Thread-safe.

    The key is what an entry shows, read from the store each time: a change of a record, in whichever process, is
    another key. Only the user comes from elsewhere, the config, which never changes under its id.
    """

    def __init__(self) -> None:
        self._users = records.Users()
        self._lock = threading.Lock()
        self._known: dict[tuple[tuple[ListedImage, ...], bool], bytes] = {}

    def listed(self, groups: Iterable[Group], store: ImageStore) -> bytes:
        """A serialised ``ListImagesResponse``: messages of a repeated field put together are all of the field.

        Args:
            groups: for each entry its references.
            store: has the content and names the pinned images.
        """
        pinned = record_lookup.pinned_by(store.config)
        return b"".join([self._entry(tuple(group), pinned, store) for group in groups])

    def image(self, group: Group, store: ImageStore) -> api_pb2.Image:
        """The message of one entry."""
        return api_pb2.ListImagesResponse.FromString(self.listed([group], store)).images[0]

    def lasts(self, image: api_pb2.Image) -> bool:
        """Whether a message stands as long as the records do: a config that can't be read may be repaired."""
        return self._users.knows(Digest.parse(image.id))

    def _entry(self, group: tuple[ListedImage, ...], pinned: frozenset[str], store: ImageStore) -> bytes:
        key = (group, bool(pinned) and not pinned.isdisjoint(each.reference for each in group))
        known = self._known.get(key)
        if known is not None:
            return known
        (entry,) = records.served([group], store, self._users)
        image = image_message(entry)
        made = api_pb2.ListImagesResponse(images=[image]).SerializeToString()
        if self.lasts(image):
            with self._lock:
                self._known[key] = made
                if len(self._known) > _MOST_ENTRIES:
                    del self._known[next(iter(self._known))]
        return made


class Statuses:
    """Answers of ``ImageStatus``, from memory while no record changes; for one event loop."""

    def __init__(self) -> None:
        self._state: tuple[int, int] | None = None
        self._known: dict[tuple[str, str], api_pb2.ImageStatusResponse] = {}

    def get(self, state: tuple[int, int] | None, key: tuple[str, str]) -> api_pb2.ImageStatusResponse | None:
        """The answer to a name and a handler in a state of the store; None where it isn't known."""
        return self._known.get(key) if state is not None and state == self._state else None

    def put(self, state: tuple[int, int] | None, key: tuple[str, str], answer: api_pb2.ImageStatusResponse) -> None:
        """Remember an answer; the state was read before it was made."""
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


#: A walk through 50,000 blobs takes half a second, and kubelets ask every 10 s.
KEPT_SECONDS: Final = 10.0


class FilesystemUse:
    """Adds up what content takes, once for all who ask within some seconds; for one event loop.

    Args:
        workers: the store and the threads for it.
        clock: in seconds.
    """

    def __init__(self, workers: StoreWorkers, clock: Callable[[], float] = time.monotonic) -> None:
        self._workers = workers
        self._clock = clock
        self._sum: asyncio.Task[api_pb2.FilesystemUsage] | None = None
        self._until = 0.0
        self._belongs_to: tuple[object, int] = (None, 0)

    def forget(self) -> None:
        """A call has brought or removed something, which whoever asks next should see."""
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
            # Others may wait for it, so who leaves doesn't end it.
            return await asyncio.shield(current)
        except Exception:
            if self._sum is current:
                self._sum = None
            raise


def _measured(store: ImageStore) -> api_pb2.FilesystemUsage:
    measured_at = time.time_ns()
    root, use = store.content.root, content_use(store.content)
    return api_pb2.FilesystemUsage(
        timestamp=measured_at,
        fs_id=api_pb2.FilesystemIdentifier(mountpoint=os.fsencode(root).decode("utf-8", "replace")),
        used_bytes=api_pb2.UInt64Value(value=use.size),
        inodes_used=api_pb2.UInt64Value(value=use.inodes),
    )
