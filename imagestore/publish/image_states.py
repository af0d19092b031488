"""What a publisher knows of each image id: its state, the work that runs on it, when a failed one is tried again."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from imagestore.publish.model import ImageState

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from concurrent.futures import Future

    from imagestore.publish.model import ContentWay
    from imagestore.publish.publication import Publication

#: Between two tries of an image that failed: doubled each time, up to the second.
FIRST_RETRY_SECONDS: Final = 1.0
LAST_RETRY_SECONDS: Final = 300.0


@dataclass(slots=True, eq=False)
class Entry:
    """One image id. All but ``work`` is read and changed under the table's lock.

    Attributes:
        state: where it is.
        reason: why it failed or can't run.
        checked_at: the store's change number with which it was last found as wanted; None if it must be looked at.
        tries: that failed, one after the other.
        next_try: seconds since 1970; None if nothing is planned.
        running: the publish that runs.
        begun: what a pull brought before its end.
        ways: bytes of layers by the way they came.
        work: held by whoever changes this image in containerd.
    """

    state: ImageState = ImageState.WANTED
    reason: str = ""
    checked_at: int | None = None
    tries: int = 0
    next_try: float | None = None
    running: Future[None] | None = None
    begun: Publication | None = None
    ways: Counter[ContentWay] | None = None
    work: threading.Lock = field(default_factory=threading.Lock)

    @property
    def can_run(self) -> bool:
        """Whether a container could be made of it, as far as that is known."""
        return self.state is not ImageState.NOT_RUNNABLE


class PublishTotals:
    """What a publisher did since it began; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bytes: Counter[ContentWay] = Counter()
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._images = 0

    def published(self, ways: Counter[ContentWay]) -> None:
        """An image was published, its layers by these ways."""
        with self._lock:
            self._images += 1
            self._bytes.update(ways)

    @contextlib.contextmanager
    def timed(self, step: str) -> Iterator[None]:
        """Adds a block's duration to its step."""
        began_at = time.monotonic()
        try:
            yield
        finally:
            with self._lock:
                self._seconds[step] += time.monotonic() - began_at

    def now(self) -> tuple[int, dict[ContentWay, int], dict[str, float]]:
        """Images published, bytes of layers by way, seconds by step."""
        with self._lock:
            return self._images, dict(self._bytes), dict(self._seconds)


class ImageStates:
    """The table of all image ids; thread-safe."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._entries: dict[str, Entry] = {}

    def entry(self, image_id: str) -> Entry:
        """The entry of an id, a new one for an id that isn't known."""
        with self._lock:
            return self._entries.setdefault(image_id, Entry())

    def find(self, image_id: str) -> Entry | None:
        """The entry of an id, if there is one."""
        with self._lock:
            return self._entries.get(image_id)

    def join(self, image_id: str, begin: Callable[[], Future[None]]) -> Future[None]:
        """The publish of an id that runs, or the one that ``begin`` starts."""
        entry = self.entry(image_id)
        with self._lock:
            if entry.running is None or entry.running.done():
                entry.running = begin()
            return entry.running

    def working(self, image_id: str) -> None:
        """A publish has begun."""
        self._set(image_id, ImageState.PUBLISHING)

    def met(self, image_id: str, number: int | None, ways: Counter[ContentWay] | None = None) -> None:
        """containerd has it as the store wanted it at this change number."""
        entry = self._set(image_id, ImageState.PUBLISHED)
        entry.checked_at, entry.tries, entry.next_try = number, 0, None
        if ways:
            entry.ways = ways

    def cannot_run(self, image_id: str, number: int | None, reason: str) -> None:
        """No container can be made of it."""
        entry = self._set(image_id, ImageState.NOT_RUNNABLE, reason)
        entry.checked_at, entry.tries, entry.next_try = number, 0, None

    def failed(self, image_id: str, reason: str) -> None:
        """A publish failed; plans the next one."""
        entry = self._set(image_id, ImageState.FAILED, reason)
        delay = min(FIRST_RETRY_SECONDS * 2**entry.tries, LAST_RETRY_SECONDS)
        entry.tries, entry.next_try, entry.checked_at = entry.tries + 1, self._clock() + delay, None

    def unmet(self, image_ids: Collection[str]) -> None:
        """containerd doesn't have these as they are wanted."""
        with self._lock:
            for image_id in image_ids:
                entry = self._entries.setdefault(image_id, Entry())
                entry.checked_at = None
                if entry.state in (ImageState.PUBLISHED, ImageState.NOT_RUNNABLE):
                    entry.state = ImageState.STALE

    def unknown(self) -> None:
        """Nothing is known of containerd any more."""
        with self._lock:
            known = list(self._entries)
        self.unmet(known)

    def keep(self, wanted: Collection[str]) -> None:
        """Forget the ids that aren't wanted any more and on which nothing works."""
        with self._lock:
            for image_id, entry in list(self._entries.items()):
                is_idle = entry.running is None or entry.running.done()
                if image_id not in wanted and is_idle and entry.begun is None:
                    del self._entries[image_id]

    def forget(self, image_id: str) -> None:
        """The store doesn't have it any more."""
        with self._lock:
            self._entries.pop(image_id, None)

    def due(self) -> list[str]:
        """The ids whose next try is due."""
        now = self._clock()
        with self._lock:
            return [key for key, each in self._entries.items() if each.next_try is not None and each.next_try <= now]

    def leases_held(self) -> set[str]:
        """The ids of leases that running work holds."""
        with self._lock:
            begun = [each.begun for each in self._entries.values() if each.begun is not None]
        return {each.lease for each in begun if each.has_lease}

    def counts(self) -> dict[ImageState, int]:
        """How many ids are in each state."""
        found = dict.fromkeys(ImageState, 0)
        with self._lock:
            for entry in self._entries.values():
                found[entry.state] += 1
        return found

    def _set(self, image_id: str, state: ImageState, reason: str = "") -> Entry:
        entry = self.entry(image_id)
        with self._lock:
            entry.state, entry.reason = state, reason
        return entry
