"""Layers go into containerd while their pull goes on: each as soon as it is committed and all below it are unpacked.

An observer of the pull's events. The work begins with the first layer and has the lease that the publish after the pull
goes on with, so only what is left then is waited for.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from imagestore.errors import ContentNotFoundError, ImageStoreError
from imagestore.events import BlobDone, Selected
from imagestore.oci import Reference
from imagestore.publish.publication import ImageDocuments, NotRunnableError, Publication
from imagestore.util.cancel import CancelToken

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Executor, Future

    from imagestore.events import Event, Observer
    from imagestore.oci import Descriptor, Digest
    from imagestore.publish.image_states import Entry, ImageStates
    from imagestore.publish.publication import PublishContext

log = logging.getLogger(__name__)

#: Running pulls whose layers are brought at a time; those of others wait for the end of their pull.
DELIVERIES_AT_ONCE: Final = 8


class PullDelivery:
    """Takes the events of one pull; thread-safe.

    Args:
        context: for publishing.
        snapshotters: for which the handler's images are unpacked.
        executor: runs the work.
        observer: gets every event, too.
        take: begins the work on an image id; None if other work has it.
    """

    def __init__(
        self,
        context: PublishContext,
        snapshotters: Sequence[str],
        executor: Executor,
        observer: Observer,
        take: Callable[[str], Entry | None],
    ) -> None:
        self._context = context
        self._snapshotters = snapshotters
        self._executor = executor
        self._observer = observer
        self._take = take
        self._lock = threading.Lock()
        self._reference: Reference | None = None
        self._manifest: Descriptor | None = None
        self._committed: set[Digest] = set()
        self._running: Future[None] | None = None
        self._is_over = False
        # Of the thread that works.
        self._documents: ImageDocuments | None = None
        self._seen = 0
        #: The image whose work was begun; None if none was.
        self.taken: Entry | None = None

    def __call__(self, event: Event) -> None:
        """Take an event, quickly: the work is done by another thread."""
        self._observer(event)
        match event:
            case Selected(reference, _, _, manifest, _):
                with self._lock:
                    self._reference, self._manifest = Reference.parse(reference), manifest
            case BlobDone(descriptor, _):
                with self._lock:
                    self._committed.add(descriptor.digest)
                    if self._manifest is not None and self._running is None and not self._is_over:
                        self._running = self._executor.submit(self._work)

    def finish(self) -> None:
        """No further event comes: wait for the work that runs; what waits for a thread isn't done any more."""
        with self._lock:
            self._is_over = True
            running = self._running
        if running is None or running.cancel():
            return
        error = running.exception()
        if error is not None:  # none that the pull should fail with: the publish after it meets it again
            log.error("layers weren't delivered", exc_info=error)

    def _work(self) -> None:
        """Unpack what can be, until there is nothing new."""
        try:
            while self._has_news():
                self._step()
        except NotRunnableError:
            self._give_up("")
        except ImageStoreError as error:
            # The publish after the pull tries again, and says what is wrong.
            self._give_up(str(error))

    def _has_news(self) -> bool:
        with self._lock:
            count = len(self._committed)
            if self._is_over or count == self._seen:
                self._running = None
                return False
            self._seen = count
            return True

    def _step(self) -> None:
        assert self._manifest is not None
        assert self._reference is not None
        if self._documents is None:
            try:
                self._documents = ImageDocuments.read(self._context.content, self._manifest)
            except ContentNotFoundError:
                return  # the config is still on its way
            self.taken = self._take(str(self._documents.manifest.config.digest))
        publication = None if self.taken is None else self.taken.begun
        if publication is None:
            self._give_up("")
            return
        layers = self._documents.layers
        with self._lock:
            committed = frozenset(self._committed)
        height = next((n for n, each in enumerate(layers) if each.blob.digest not in committed), len(layers))
        for target in publication.targets(self._snapshotters, [self._reference]).items():
            publication.unpack(*target, self._documents, upto=height)

    def _give_up(self, reason: str) -> None:
        if reason:
            log.info("layers wait for the end of the pull", extra={"reason": reason})
        with self._lock:
            self._is_over = True
            self._running = None


class Deliveries:
    """The deliveries of running pulls; thread-safe.

    Args:
        states: of the publisher; an image that other work has isn't delivered.
        cancel: ends the work.
    """

    def __init__(self, states: ImageStates, cancel: CancelToken) -> None:
        self._states = states
        self._cancel = cancel
        self._executor = ThreadPoolExecutor(DELIVERIES_AT_ONCE, thread_name_prefix="deliver")

    @contextlib.contextmanager
    def of_pull(
        self, context: PublishContext, snapshotters: Sequence[str], observer: Observer, cancel: CancelToken
    ) -> Iterator[PullDelivery]:
        """Around one pull. What is begun belongs to the next publish of the image; it ends with a pull that fails.

        Args:
            context: for publishing.
            snapshotters: for which the handler's images are unpacked.
            observer: gets every event, too.
            cancel: the pull's; ends also the wait for layers that are still being unpacked when it is over.
        """
        token = CancelToken()
        delivery = PullDelivery(
            context, snapshotters, self._executor, observer, functools.partial(self._take, context, token)
        )
        with (
            self._cancel.on_cancel(lambda: token.cancel("the publisher was closed")),
            cancel.on_cancel(lambda: token.cancel("the pull was cancelled")),
        ):
            try:
                yield delivery
            except BaseException:
                token.cancel("the pull failed")
                delivery.finish()
                if delivery.taken is not None:
                    self.end(delivery.taken)
                raise
            delivery.finish()
        if delivery.taken is not None:
            if delivery.taken.begun is not None:
                delivery.taken.begun.cancel = self._cancel
            delivery.taken.work.release()

    def end(self, entry: Entry) -> None:
        """End what was begun of an image and nobody goes on with; its work was held, and is let go."""
        try:
            if entry.begun is not None:
                entry.begun.end()
            entry.begun = None
        except ImageStoreError as error:
            log.warning("lease stays until the next publish or connection", extra={"error": str(error)})
        finally:
            entry.work.release()

    def close(self) -> None:
        """End the work and wait for it."""
        self._executor.shutdown(cancel_futures=True)

    def _take(self, context: PublishContext, token: CancelToken, image_id: str) -> Entry | None:
        entry = self._states.take(image_id)
        if entry is not None:
            entry.begun = Publication(context, image_id, token)
        return entry
