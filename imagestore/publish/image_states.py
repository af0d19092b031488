"""What a publisher knows of each image id: its state, the work that runs on it, when a failed one is tried again."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from imagestore.publish.model import ImageState
from imagestore.publish.owner_state import ImageNote

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
    """One image id. What isn't said to be otherwise is read and changed under the table's lock.

    Attributes:
        state: where it is.
        reason: why it failed or can't run.
        checked_at: the store's change number with which it was last found as wanted; None if it must be looked at.
        checked_in: the epoch in which that look began.
        failed_at: the change number with which it last failed, or was found not to run.
        tries: that failed, one after the other.
        next_try: seconds since 1970; None if nothing is planned.
        running: the publish that runs.
        is_asked: somebody joined the running publish, which has to look once more.
        ways: bytes of layers by the way they came.
        work: held by whoever changes this image in containerd.
        begun: what was brought, until its lease has ended; changed while ``work`` is held.
    """

    state: ImageState = ImageState.WANTED
    reason: str = ""
    checked_at: int | None = None
    checked_in: int = 0
    failed_at: int | None = None
    tries: int = 0
    next_try: float | None = None
    running: Future[None] | None = None
    is_asked: bool = False
    ways: Counter[ContentWay] | None = None
    begun: Publication | None = None
    work: threading.Lock = field(default_factory=threading.Lock)

    @property
    def is_running(self) -> bool:
        """Whether a publish of it runs, or waits for a thread."""
        return self.running is not None and not self.running.done()

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
        self._epoch = 0

    @property
    def epoch(self) -> int:
        """Moves when containerd's records may have changed by other hands; looks that began before count no more."""
        with self._lock:
            return self._epoch

    def doubt(self) -> None:
        """containerd's records may have changed by other hands: every image must be looked at again."""
        with self._lock:
            self._epoch += 1

    def is_known_met(self, image_id: str, number: int | None) -> bool:
        """Whether containerd has an image as the store wants it at this change number, without asking it."""
        with self._lock:
            entry = self._entries.get(image_id)
            return (
                entry is not None
                and entry.checked_at is not None
                and (entry.checked_at, entry.checked_in) == (number, self._epoch)
            )

    def entry(self, image_id: str) -> Entry:
        """The entry of an id, a new one for an id that isn't known."""
        with self._lock:
            return self._entries.setdefault(image_id, Entry())

    def join(self, image_id: str, begin: Callable[[], Future[None]], *, urgent: bool = False) -> Future[None]:
        """The publish of an id that ``begin`` starts, or the one that runs, which then looks once more.

        What it did before may have been for records of the store, or of containerd, that have changed since.

        Args:
            image_id: of the image.
            begin: submits a publish.
            urgent: a publish that still waits for a thread isn't joined. It finds later that nothing is left to do.
        """
        with self._lock:
            entry = self._entries.setdefault(image_id, Entry())
            running = entry.running
            if running is not None and (running.running() or not (urgent or running.done())):
                entry.is_asked = True
            else:
                running, entry.is_asked = begin(), False
                entry.running = running
            return running

    def is_asked_again(self, entry: Entry) -> bool:
        """Whether the running publish has to look once more; if not, nobody joins it from now on."""
        with self._lock:
            is_asked, entry.is_asked = entry.is_asked, False
            if not is_asked:
                entry.running = None
            return is_asked

    def take(self, image_id: str) -> Entry | None:
        """The entry of an id whose ``work`` is held from now on; None if somebody holds it."""
        with self._lock:
            entry = self._entries.setdefault(image_id, Entry())
            return entry if entry.work.acquire(blocking=False) else None

    def working(self, entry: Entry) -> int:
        """A publish looks at it, in the epoch that is returned."""
        with self._lock:
            entry.state, entry.next_try = ImageState.PUBLISHING, None
            return self._epoch

    def met(self, entry: Entry, number: int | None, epoch: int, ways: Counter[ContentWay] | None = None) -> None:
        """containerd has it as the store wanted it at this change number, by a look that began in this epoch."""
        with self._lock:
            _met(entry, number, epoch)
            if ways:
                entry.ways = ways

    def found_met(self, image_ids: Collection[str], number: int | None, epoch: int) -> None:
        """As met(), for what a comparison found; not of those on which somebody works, who knows better."""
        with self._lock:
            for image_id in image_ids:
                entry = self._entries.setdefault(image_id, Entry())
                if not (entry.is_running or entry.work.locked() or entry.begun is not None):
                    _met(entry, number, epoch)

    def cannot_run(self, entry: Entry, reason: str, number: int | None) -> None:
        """No container can be made of what the store had at this change number."""
        with self._lock:
            entry.state, entry.reason, entry.failed_at = ImageState.NOT_RUNNABLE, reason, number
            entry.checked_at, entry.tries, entry.next_try = None, 0, None

    def gone(self, entry: Entry) -> None:
        """The store doesn't have it any more; the next keep() forgets it."""
        with self._lock:
            entry.state, entry.reason = ImageState.REMOVING, ""
            entry.checked_at, entry.tries, entry.next_try = None, 0, None

    def failed(self, entry: Entry, reason: str, number: int | None) -> None:
        """A publish failed, begun at this change number; plans the next one."""
        with self._lock:
            delay = min(FIRST_RETRY_SECONDS * 2**entry.tries, LAST_RETRY_SECONDS)
            entry.state, entry.reason, entry.failed_at = ImageState.FAILED, reason, number
            entry.tries, entry.next_try, entry.checked_at = entry.tries + 1, self._clock() + delay, None

    def ended(self, entry: Entry) -> None:
        """The running publish raises, for all who joined it."""
        with self._lock:
            entry.running, entry.is_asked = None, False

    def unmet(self, image_ids: Collection[str]) -> None:
        """containerd doesn't have these as they are wanted."""
        with self._lock:
            for image_id in image_ids:
                entry = self._entries.setdefault(image_id, Entry())
                entry.checked_at = None
                if entry.state is ImageState.PUBLISHED:
                    entry.state = ImageState.STALE

    def unknown(self) -> None:
        """Nothing is known of containerd any more."""
        with self._lock:
            self._epoch += 1
            known = list(self._entries)
        self.unmet(known)

    def waiting(self, image_ids: Collection[str], number: int | None) -> set[str]:
        """Those that would fail again: no try is due, and the store hasn't changed since the last one."""
        now = self._clock()
        with self._lock:
            found = {key: self._entries[key] for key in image_ids if key in self._entries}
        return {
            key
            for key, entry in found.items()
            if entry.state in (ImageState.FAILED, ImageState.NOT_RUNNABLE)
            and entry.failed_at == number
            and (entry.next_try is None or entry.next_try > now)
        }

    def keep(self, wanted: Collection[str]) -> list[Entry]:
        """Forget the ids that aren't wanted any more and on which nothing works.

        Returns:
            Entries of those of which something was begun that nobody goes on with; ``work`` is held for the caller.
        """
        abandoned = []
        with self._lock:
            for image_id, entry in list(self._entries.items()):
                if image_id in wanted or entry.is_running or not entry.work.acquire(blocking=False):
                    continue
                if entry.begun is not None:
                    abandoned.append(entry)
                else:
                    del self._entries[image_id]
                    entry.work.release()
        return abandoned

    def due(self) -> list[str]:
        """The ids whose next try is due."""
        now = self._clock()
        with self._lock:
            return [key for key, each in self._entries.items() if each.next_try is not None and each.next_try <= now]

    def published(self) -> set[str]:
        """The ids that were found as wanted, and of which nothing else was heard since."""
        with self._lock:
            return {key for key, each in self._entries.items() if each.state is ImageState.PUBLISHED}

    def left_over(self) -> set[str]:
        """The ids of images of which something was begun that nobody works on: their leases are to be ended."""
        with self._lock:
            return {
                key
                for key, each in self._entries.items()
                if each.begun is not None and not (each.is_running or each.work.locked())
            }

    def images_at_work(self) -> set[str]:
        """The ids of images of which something was begun, and may have a lease."""
        with self._lock:
            return {key for key, each in self._entries.items() if each.begun is not None}

    def notes(self) -> dict[str, ImageNote]:
        """What other processes should know of each id; nothing of one that was found published."""
        with self._lock:
            return {
                key: ImageNote(each.state, each.reason, each.next_try, dict(each.ways or {}))
                for key, each in self._entries.items()
                if each.state is not ImageState.PUBLISHED or each.ways
            }

    def counts(self) -> dict[ImageState, int]:
        """How many ids are in each state."""
        found = dict.fromkeys(ImageState, 0)
        with self._lock:
            for entry in self._entries.values():
                found[entry.state] += 1
        return found


def _met(entry: Entry, number: int | None, epoch: int) -> None:
    entry.state, entry.reason, entry.checked_at, entry.checked_in = ImageState.PUBLISHED, "", number, epoch
    entry.failed_at, entry.tries, entry.next_try = None, 0, None
