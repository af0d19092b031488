"""Letting a publisher follow its store and its containerd, in two threads of its own.

What begins a reconciliation: the store's change number, which any process's change of a record moves; containerd's
events about images; the (re)connection of the event stream; a timer; an image whose next try is due. The stream is
opened before the first look at containerd's records, so that no change between the two is missed.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from typing import TYPE_CHECKING, Final

from imagestore.errors import ImageStoreError, OperationCancelledError, ServiceUnavailableError, StoreError
from imagestore.publish.in_use import note_images_in_use
from imagestore.util.cancel import CancelToken

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from imagestore.publish.publisher import Publisher
    from imagestore.store import ImageStore

log = logging.getLogger(__name__)

#: Between two looks at the store's change number.
LOOK_SECONDS: Final = 0.25
#: After a lost connection, doubled up to the second.
_FIRST_WAIT_SECONDS: Final = 0.1
_LAST_WAIT_SECONDS: Final = 5.0
#: After a comparison in which containerd was away.
_AWAY_SECONDS: Final = 1.0
#: After a comparison.
_PAUSE_SECONDS: Final = 0.1
#: Least time between two states for other processes to read.
_STATE_SECONDS: Final = 1.0
#: A stream of events doesn't say when it begins, so what containerd has is looked at once more after this.
_SECOND_LOOK_SECONDS: Final = 1.0
#: containerd's events are of all namespaces; the namespace is judged here.
_IMAGES: Final = 'topic~="^/images/"'
#: Takes nothing away from what was found; most of these are of our own records.
_CREATED: Final = "/images/create"
_CONTAINERS: Final = 'topic=="/containers/create"'


class PublishFollower:
    """Keeps a publisher's containerd as its store wants it, until it is closed.

    Args:
        publisher: keeps containerd as the store wants it; closed with this.
        lend: gives the store of the moment.
        repair_seconds: between two complete comparisons.
        heard: called, from another thread, whenever something may have changed, some times a second.
    """

    def __init__(
        self,
        publisher: Publisher,
        lend: Callable[[], AbstractContextManager[ImageStore]],
        *,
        repair_seconds: float,
        heard: Callable[[], None] = lambda: None,
    ) -> None:
        self._publisher = publisher
        self._lend = lend
        self._repair_seconds = repair_seconds
        self._heard = heard
        self._cancel = CancelToken()
        self._wake = threading.Event()
        self._images_changed = threading.Event()
        self._containers_changed = threading.Event()
        # Set when containerd was away, or a comparison failed: nothing of what was seen before counts.
        self._must_compare = threading.Event()
        self._must_compare.set()
        #: Set while the stream of events stands.
        self._listening = threading.Event()
        # Held to say that containerd is followed, or that the stream was lost: the other thread must not unsay that.
        self._saying = threading.Lock()
        #: Why containerd can't be used; empty while it can.
        self.reason = "not connected yet"
        self.reconciles = 0
        # Of the thread that follows: the change number of the last comparison, and when the next ones are due.
        self._number: int | None = None
        self._full_at = 0.0
        self._second_at: float | None = None
        # The reason in the last state for other processes, and when the next one may be written without another reason.
        self._said: str | None = None
        self._state_at = 0.0
        self._threads = [
            threading.Thread(target=self._listen, name="publish-events", daemon=True),
            threading.Thread(target=self._follow, name="publish-follow", daemon=True),
        ]

    @property
    def is_connected(self) -> bool:
        """Whether containerd answers, and its events are heard."""
        return not self.reason and self._listening.is_set()

    def start(self) -> None:
        """Begin; returns at once, whether containerd runs or not."""
        for thread in self._threads:
            thread.start()

    def reload(self) -> None:
        """The store's configuration changed: compare everything."""
        self._publisher.disconnected()
        self._wake.set()

    def close(self) -> None:
        """End both threads, and close the publisher."""
        self._cancel.cancel("the publisher was closed")
        self._wake.set()
        # First: a thread may wait for an answer of containerd.
        self._publisher.close()
        for thread in self._threads:
            thread.join()

    def _listen(self) -> None:
        """Hear containerd's events; a stream that ends is opened again."""
        wait = _FIRST_WAIT_SECONDS
        while not self._cancel.is_cancelled:
            began_at = time.monotonic()
            try:
                self._publisher.client.version()
                for topic, namespace in self._publisher.client.events([_IMAGES, _CONTAINERS], self._cancel):
                    self._take(topic, namespace)
                reason = "containerd ended the stream of events"
            except ImageStoreError as error:
                reason = str(error)
            except Exception as error:
                log.exception("hearing containerd's events failed")
                reason = repr(error)
            if self._stopped_within(0):
                break
            self._lost(reason)
            if time.monotonic() - began_at > _LAST_WAIT_SECONDS:
                wait = _FIRST_WAIT_SECONDS
            if self._stopped_within(wait):
                break
            wait = min(wait * 2, _LAST_WAIT_SECONDS)
        self._listening.clear()

    def _take(self, topic: str, namespace: str) -> None:
        if not topic:
            self._listening.set()
        elif namespace != self._publisher.client.namespace:
            return
        elif topic.startswith("/images/"):
            if topic != _CREATED:
                self._publisher.states.doubt()
            self._images_changed.set()
        else:
            self._containers_changed.set()
        self._wake.set()

    def _lost(self, reason: str) -> None:
        if self.reason != reason:
            log.warning("containerd is away", extra={"reason": reason})
        with self._saying:
            self.reason = reason
            self._listening.clear()
        self._must_compare.set()
        self._publisher.disconnected()
        self._heard()

    def _state(self) -> None:
        """Let other processes read how it stands, also before containerd answers."""
        if self.reason == self._said and time.monotonic() < self._state_at:
            return
        with contextlib.suppress(ImageStoreError):  # such as PublisherRunningError; the next connection says so
            self._publisher.note(self.reason)
        self._said, self._state_at = self.reason, time.monotonic() + _STATE_SECONDS

    def _follow(self) -> None:
        while not self._cancel.is_cancelled:
            self._wake.wait(LOOK_SECONDS)
            self._wake.clear()
            try:
                self._state()
                if not self._listening.is_set():
                    continue
                has_compared = self._look()
            except ImageStoreError as error:
                if self._stopped_within(0):
                    return
                self._failed(error, error.hint)
                wait = _AWAY_SECONDS if isinstance(error, ServiceUnavailableError) else _LAST_WAIT_SECONDS
            except Exception as error:
                log.exception("a comparison with containerd failed")
                self._failed(error, "")
                wait = _LAST_WAIT_SECONDS
            else:
                self._followed()
                self._state()
                self._heard()
                # A publish causes several events, which one comparison is enough for.
                wait = _PAUSE_SECONDS if has_compared else 0.0
            if self._stopped_within(wait):
                return

    def _look(self) -> bool:
        """Do what has become due; returns whether that was a comparison."""
        now = time.monotonic()
        with self._lend() as store:
            number = store.metadata.generation()
        is_new = self._must_compare.is_set() or self._publisher.known_connection is None
        is_full = is_new or now >= self._full_at
        is_second = self._second_at is not None and now >= self._second_at
        has_changed = self._images_changed.is_set() or number != self._number or number is None
        has_compared = is_full or is_second or has_changed
        if has_compared:
            # Before the comparison: a change during it asks for another one.
            self._images_changed.clear()
            self._must_compare.clear()
            self._publisher.begin_reconcile(full=is_full)
            self.reconciles += 1
            self._number = number
        if is_second:
            self._second_at = None
        if is_full or self._containers_changed.is_set():
            self._containers_changed.clear()
            self._note_in_use()
        for image_id in self._publisher.states.due():
            self._publisher.begin(image_id)
        if is_full:
            if is_new:
                self._second_at = now + _SECOND_LOOK_SECONDS
            self._full_at = time.monotonic() + self._repair_seconds
        return has_compared

    def _note_in_use(self) -> None:
        try:
            with self._lend() as store:
                note_images_in_use(self._publisher.client, store)
        except StoreError as error:
            # A store that can't be written: nothing is evicted from it, and its images are published all the same.
            log.warning("images in use aren't noted", extra={"error": str(error)})

    def _followed(self) -> None:
        with self._saying:
            is_news = bool(self.reason) and self._listening.is_set()
            if is_news:
                self.reason = ""
        if is_news:
            log.info("containerd is followed", extra={"address": self._publisher.client.address})

    def _failed(self, error: Exception, hint: str) -> None:
        if self.reason != str(error):
            log.error("can't publish", extra={"error": str(error), "hint": hint})
        self.reason = str(error)
        self._must_compare.set()
        self._publisher.disconnected()
        self._state()
        self._heard()

    def _stopped_within(self, seconds: float) -> bool:
        """Wait; returns whether the follower was closed."""
        try:
            self._cancel.wait(seconds)
        except OperationCancelledError:
            return True
        return False
