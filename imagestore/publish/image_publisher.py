"""One image's way into containerd, in a thread: is it there already, what is to be done, once more, how it ended."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from imagestore.errors import (
    ContentNotFoundError,
    ImageNotFoundError,
    ImageStoreError,
    IntegrityError,
    NotFoundError,
    PreconditionError,
    ServiceUnavailableError,
)
from imagestore.publish.model import PublishError
from imagestore.publish.publication import NotRunnableError, Publication, repair_image

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from imagestore.publish.connection import Connection
    from imagestore.publish.connections import Connections
    from imagestore.publish.image_records import RecordKeeper
    from imagestore.publish.image_states import Entry, ImageStates, PublishTotals
    from imagestore.publish.model import ContentWay
    from imagestore.publish.wanted import WantedImage
    from imagestore.store import ImageStore
    from imagestore.util.cancel import CancelToken

log = logging.getLogger(__name__)


class ImagePublisher:
    """Publishes images of a store, each by one thread at a time; thread-safe.

    Args:
        connections: to containerd.
        records: containerd's image records.
        states: of the images.
        totals: counts what was done.
        lend: gives the store of the moment.
        cancel: ends the work.
    """

    def __init__(
        self,
        connections: Connections,
        records: RecordKeeper,
        states: ImageStates,
        totals: PublishTotals,
        lend: Callable[[], AbstractContextManager[ImageStore]],
        cancel: CancelToken,
    ) -> None:
        self._connections = connections
        self._records = records
        self._states = states
        self._totals = totals
        self._lend = lend
        self._cancel = cancel

    def run(self, image_id: str) -> None:
        """Publish an image id, and look again as long as somebody has asked meanwhile.

        Raises:
            PublishError: it failed; says why.
        """
        entry = self._states.entry(image_id)
        try:
            with entry.work:
                self._look(image_id, entry)
                while self._states.is_asked_again(entry):
                    self._look(image_id, entry)
        except BaseException:
            self._states.ended(entry)
            raise

    def _look(self, image_id: str, entry: Entry) -> None:
        epoch = self._states.working(entry)
        number = None
        try:
            with self._lend() as store:
                number = store.metadata.generation()
                self._publish(store, image_id, entry, number, epoch)
        except NotRunnableError as error:
            if entry.reason != str(error):  # said once, though every status call looks again
                log.info("not runnable", extra={"image_id": image_id, "reason": str(error)})
            self._states.cannot_run(entry, str(error), number)
        except ImageNotFoundError as error:
            self._states.gone(entry)
            raise PublishError(f"image {image_id}: not published into containerd: {error}") from error
        except ImageStoreError as error:
            if isinstance(error, ServiceUnavailableError):
                self._connections.check()
            self._states.failed(entry, str(error), number)
            log.warning("not published", extra={"image_id": image_id, "error": str(error), "hint": error.hint})
            raise PublishError(
                f"image {image_id}: pulled, but not published into containerd: {error}", hint=error.hint
            ) from error
        except BaseException as error:
            self._states.failed(entry, repr(error), number)
            raise

    def _publish(self, store: ImageStore, image_id: str, entry: Entry, number: int | None, epoch: int) -> None:
        wanted = self._records.wanted(store, image_id).get(image_id)
        if wanted is None:
            self._end_begun(entry)
            raise ImageNotFoundError(f"image {image_id} was removed from the store")
        connection = self._connections.current(store)
        missing = [each for each in wanted.snapshotters if each not in connection.plugins.snapshotters]
        if missing:
            raise PreconditionError(
                f"containerd has no snapshotter {', '.join(missing)}, which runtime handlers of the image have:"
                f" {', '.join(wanted.handlers)}",
                hint="is it in containerd's configuration, and does 'ctr plugins ls' say ok?",
            )
        unmet = self._records.unmet_names(wanted)
        if not unmet and entry.begun is None and connection.unpacked.is_ready(store.content, wanted):
            self._states.met(entry, number, epoch)
            return
        ways = self._run(store, connection, wanted, entry)
        self._states.met(entry, number, epoch, ways)
        log.info(
            "published",
            extra={
                "image_id": image_id,
                "handlers": list(wanted.handlers),
                "bytes": {way.value: size for way, size in ways.items()},
            },
        )

    def _run(self, store: ImageStore, connection: Connection, wanted: WantedImage, entry: Entry) -> Counter[ContentWay]:
        """Publish, going on with what the pull began; once more if the lease was lost or blobs were repaired."""
        context = self._connections.context(store, connection)
        for is_last in (False, True):
            publication = entry.begun or Publication(context, wanted.image_id, self._cancel)
            entry.begun = publication
            try:
                self._bring(publication, wanted)
                with self._totals.timed("records"):
                    publication.wait_until_known()
                self._totals.published(publication.ways)
                return publication.ways
            except (IntegrityError, ContentNotFoundError):
                if is_last or not repair_image(store, wanted, self._cancel):
                    raise
            except NotFoundError as error:
                # Somebody ended the lease, or what was there went between two steps: from the start.
                if is_last or isinstance(error, ImageNotFoundError):
                    raise
                log.info("publish begins again", extra={"image_id": wanted.image_id, "error": str(error)})
            finally:
                with self._totals.timed("collection"):
                    self._end_begun(entry)
        raise AssertionError("unreachable: the last try returns or raises")

    def _bring(self, publication: Publication, wanted: WantedImage) -> None:
        """Content and records; once more what has become wanted meanwhile, as for another handler."""
        left: WantedImage | None = wanted
        while left is not None:
            with self._totals.timed("content"):
                publication.bring(left)
            with self._totals.timed("records"):
                left = self._records.make(publication, left)

    @staticmethod
    def _end_begun(entry: Entry) -> None:
        if entry.begun is None:
            return
        try:
            entry.begun.end()
            entry.begun = None
        except ImageStoreError as error:
            # The image runs, or what stopped it is to be said. The next comparison finds what was left over.
            log.warning("lease stays until the next comparison", extra={"error": str(error)})
