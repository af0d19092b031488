"""The publisher: a controller that makes a store's images runnable in one containerd.

*Wanted* are the store's records, *actual* are containerd's records with this store's labels. Whatever the state is,
each reconciliation brings the second nearer to the first. A server lets it follow both (following); a program may call
it once. One publisher for each store and containerd at a time: it holds a lock in the store's folder.
"""

from __future__ import annotations

import contextlib
import logging
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from imagestore.errors import ImageStoreError, InvalidInputError, PreconditionError, ServiceUnavailableError
from imagestore.events import ignore
from imagestore.publish.connection import CONTENT_MODES
from imagestore.publish.connections import Connections
from imagestore.publish.containerd import Containerd
from imagestore.publish.image_publisher import ImagePublisher
from imagestore.publish.image_records import RecordKeeper
from imagestore.publish.image_states import ImageStates, PublishTotals
from imagestore.publish.owner_lock import OwnerLock
from imagestore.publish.publication import relink_layers
from imagestore.publish.pull_delivery import Deliveries
from imagestore.publish.reconciling import RunningReconcile, results
from imagestore.publish.status import StatusReader, image_ids_of
from imagestore.publish.waiting import OwnerWatch
from imagestore.publish.wanted import Owner
from imagestore.util.cancel import CancelToken
from imagestore.util.machine import machine_mark

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Set
    from contextlib import AbstractContextManager
    from types import TracebackType
    from typing import Self

    from imagestore.events import Observer
    from imagestore.oci import Digest
    from imagestore.publish.connection import Connection
    from imagestore.publish.model import PublisherStatus, ReconcileReport
    from imagestore.store import ImageStore

log = logging.getLogger(__name__)

NAMESPACE: Final = "k8s.io"
#: Images that are published at a time by reconciliations, and those that pods wait for.
RECONCILED_AT_ONCE: Final = 4
ENSURED_AT_ONCE: Final = 8


class Publisher:
    """Publishes the images of a store into one containerd; thread-safe.

    Nothing is done until a method is called; containerd need not run before that.

    Args:
        store: an embedded one. A server that replaces its store gives ``lend``, too.
        address: of containerd's socket, ``unix:///absolute/path``.
        namespace: containerd's, in which its CRI plugin looks: ``k8s.io``.
        content: ``auto`` (layers are linked, or written as files, or sent, and not kept), ``link`` or ``copy`` (kept).
        take_over: records that a store of this id made on another machine count as this store's.
        lend: gives the store of the moment, and keeps it open for a block.
        clock: seconds since 1970.

    Raises:
        InvalidInputError: the address, the namespace or the content mode can't be used.
        PreconditionError: the store is shared by machines; its records aren't one node's.
    """

    def __init__(
        self,
        store: ImageStore,
        address: str,
        *,
        namespace: str = NAMESPACE,
        content: str = "auto",
        take_over: bool = False,
        lend: Callable[[], AbstractContextManager[ImageStore]] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if content not in CONTENT_MODES:
            raise InvalidInputError(f"content {content!r}: expected one of {', '.join(CONTENT_MODES)}")
        if namespace != NAMESPACE:
            raise InvalidInputError(f"namespace {namespace!r}: expected {NAMESPACE}, the only one in which CRI looks")
        if store.is_shared:
            raise PreconditionError(
                f"{store.name}: a store that machines share can't be published: its records aren't one node's",
                hint="give the node a store of its own",
            )
        self._lend = lend or (lambda: contextlib.nullcontext(store))
        self._mode = content
        self._cancel = CancelToken()
        self.client = Containerd(address, namespace=namespace, cancel=self._cancel)
        self.owner = Owner(store.id, machine_mark("publish"))
        self.states = ImageStates(clock)
        self.totals = PublishTotals()
        self._lock = OwnerLock(store.root, self.client.address, namespace)
        self.records = RecordKeeper(self.client, self.owner, self._lend)
        self._connections = Connections(
            self.client,
            self.owner,
            self._lock,
            self.states,
            self.records,
            mode=content,
            take_over=take_over,
            clock=clock,
        )
        self._images = ImagePublisher(
            self._connections, self.records, self.states, self.totals, self._lend, self._cancel
        )
        self._status = StatusReader(self.client, self.owner, self.records, self._lock, content)
        self._executor = ThreadPoolExecutor(RECONCILED_AT_ONCE, thread_name_prefix="publish")
        # Apart: a pod's image must not wait behind a first reconciliation of hundreds.
        self._urgent = ThreadPoolExecutor(ENSURED_AT_ONCE, thread_name_prefix="ensure")
        # Apart: image collection waits for them, on a full disk, and must not wait for publishes.
        self._removals = ThreadPoolExecutor(1, thread_name_prefix="unpublish")
        self._deliveries = Deliveries(self.states, self._cancel)

    # Once, for programs.

    def reconcile(self, *, cancel: CancelToken | None = None, observer: Observer = ignore) -> ReconcileReport:
        """Publish what is wanted and isn't published, take away what isn't wanted, and wait until it is done.

        The observer gets an event for each image that ended.

        Raises:
            ServiceUnavailableError: containerd can't be reached.
            StoreBusyError: another process publishes this store into this containerd.
            OperationCancelledError: cancelled; what has begun goes on until the publisher is closed.
        """
        return self.begin_reconcile(full=True).finish(cancel or CancelToken(), observer)

    def publish_images(
        self, image_ids: Set[str], *, cancel: CancelToken | None = None, observer: Observer = ignore
    ) -> ReconcileReport:
        """As reconcile(), for some of the store's images; nothing is taken away."""
        with self._lend() as store:
            connection = self._connections.current(store)
            wanted = {key: image for key, image in self.records.wanted(store).items() if key in image_ids}
            unready = connection.unpacked.unready(store.content, wanted.values())
            unmet = unready.union(self.records.compare(wanted).to_publish)
        running = {key: self.begin(key) for key in sorted(unmet)}
        return RunningReconcile(self.states, running, len(wanted), ()).finish(cancel or CancelToken(), observer)

    def wait_for_owner(
        self, image_ids: Set[str] | None = None, *, cancel: CancelToken | None = None
    ) -> ReconcileReport | None:
        """Wait until the process that publishes this store has done it; None if none does (any more).

        Args:
            image_ids: only these images; by default all, and what is to be taken away.
            cancel: ends the wait, as at its deadline.

        Raises:
            DeadlineExceededError: images are still on their way.
            ServiceUnavailableError: containerd can't be reached.
        """
        watch = OwnerWatch(self.client, self.owner, self.records, self._lock, self._lend, image_ids)
        return watch.wait(cancel or CancelToken())

    def publish(self, name: str, *, runtime_handler: str | None = None, cancel: CancelToken | None = None) -> str:
        """Publish one image of the store, named as for ImageStore.get(), and wait for it; returns its id.

        Raises:
            ImageNotFoundError: the store doesn't have it.
            PreconditionError: no container can be made of it.
            PublishError: it failed; says why.
        """
        with self._lend() as store:
            image_id = str(store.get(name, runtime_handler=runtime_handler).id)
        results([self.begin(image_id, urgent=True)], cancel or CancelToken())[0].result()
        entry = self.states.entry(image_id)
        if not entry.can_run:
            raise PreconditionError(f"{name}: no container can be made of it: {entry.reason}")
        return image_id

    def unpublish(self, image_ids: Set[str]) -> tuple[str, ...]:
        """Take this store's records of images away from containerd, with what only they keep; returns their names.

        A publisher that follows the store would bring them back while the store has the images.
        """
        with self._lend() as store:
            self._connections.current(store)
            names = {
                name for key, image in self.records.wanted(store).items() if key in image_ids for name in image.names
            }
        return self.records.delete([image.name for image in self.records.own() if image.name in names])

    def unpublish_all(self) -> tuple[str, ...]:
        """Take all of this store's records away from containerd, as before imagestore is uninstalled."""
        with self._lend() as store:
            self._connections.current(store)
        return self.records.delete([image.name for image in self.records.own()])

    def status(self, name: str | None = None, *, runtime_handler: str | None = None) -> PublisherStatus:
        """How publishing stands, beside a running publisher too; nothing is published.

        Args:
            name: only of the images that ImageStore.list() finds by this name, and nothing about others.
            runtime_handler: only this handler's.

        Raises:
            ImageNotFoundError: the store has no such image.
        """
        with self._lend() as store:
            image_ids = None if name is None else image_ids_of(store, name, runtime_handler)
            return self._status.read(store, self._connections.state(""), image_ids)

    # For a server.

    def note(self, reason: str) -> None:
        """Let other processes read how it stands.

        Args:
            reason: why containerd can't be used; empty if it can.

        Raises:
            StoreBusyError: another process publishes this store into this containerd.
        """
        self._connections.note(reason)

    def ensure(self, image_id: Digest) -> Future[None]:
        """Make an image runnable; done at once if containerd is known to have it as it is wanted.

        Calls for one image share the work, which goes on when the caller leaves. It fails with PublishError.
        """
        if self._connections.known is not None:
            with self._lend() as store:
                if self.states.is_known_met(str(image_id), store.metadata.generation()):
                    done: Future[None] = Future()
                    done.set_result(None)
                    return done
        return self.begin(str(image_id), urgent=True)

    def removed(self) -> Future[None]:
        """Records were removed from the store: take away what isn't wanted any more, if containerd can be reached.

        What can't be done now, the next reconciliation does.
        """
        self._cancel.check()
        return self._removals.submit(self._follow_removal)

    @contextlib.contextmanager
    def pulling(
        self, runtime_handler: str, observer: Observer, cancel: CancelToken | None = None
    ) -> Iterator[Observer]:
        """Around a pull: gives the observer to pull with, by which layers come into containerd while it goes on.

        If the pull fails, what was begun is ended; else the next publish of the image goes on with it. While containerd
        is away, nothing is begun.

        Args:
            runtime_handler: for which the image is pulled.
            observer: gets every event, too.
            cancel: the pull's; ends the work on layers when the pull is over but for them.
        """
        connection = self._connections.known
        if connection is None:
            yield observer
            return
        with self._lend() as store:
            context = self._connections.context(store, connection)
            snapshotters = store.config.snapshotters(runtime_handler or store.config.default_handler)
            with self._deliveries.of_pull(context, snapshotters, observer, cancel or CancelToken()) as delivery:
                yield delivery

    def begin(self, image_id: str, *, urgent: bool = False) -> Future[None]:
        """Publish an image id in another thread, or join the publish that runs.

        Args:
            image_id: of an image of the store.
            urgent: a pod waits for it, and it waits for no reconciliation's publishes.

        Raises:
            OperationCancelledError: the publisher was closed.
        """
        self._cancel.check()
        executor = self._urgent if urgent else self._executor
        return self.states.join(image_id, lambda: executor.submit(self._images.run, image_id), urgent=urgent)

    def begin_reconcile(self, *, full: bool) -> RunningReconcile:
        """As reconcile(), without waiting for the publishes that it begins.

        Args:
            full: ask also which images the CRI plugin knows and which layers are unpacked; one call more for each
                snapshotter, and one for CRI.
        """
        with self._lend() as store:
            connection = self._connections.current(store)
            epoch, number = self.states.epoch, store.metadata.generation()
            wanted = self.records.wanted(store)
            unready: set[str] = set()
            if full:
                known = [each for each in wanted.values() if self.states.entry(each.image_id).can_run]
                unready = connection.unpacked.unready(store.content, known)
                if self._mode == "link":
                    relink_layers(self._connections.context(store, connection), wanted.values(), self._cancel)
            found = self.records.compare(wanted)
            removed = self.records.remove(store, number, found)
        self._forget_all_but(wanted)
        unmet = unready.union(found.to_publish, self.states.left_over() & wanted.keys())
        if not full:
            # Their records may be right and their layers gone.
            unmet |= wanted.keys() - self.states.published()
        self.states.unmet(unmet)
        self.states.found_met(wanted.keys() - unmet, number, epoch)
        waiting = set() if full else self.states.waiting(unmet, number)
        running = {key: self.begin(key) for key in sorted(unmet - waiting)}
        return RunningReconcile(self.states, running, len(wanted), removed)

    def disconnected(self) -> None:
        """The connection was lost: another containerd may answer the next time."""
        self._connections.lost()

    @property
    def known_connection(self) -> Connection | None:
        """What is known of containerd, without asking it."""
        return self._connections.known

    def cancel(self, reason: str) -> None:
        """End what runs, and every call to containerd, from another thread; only close() may follow."""
        self._cancel.cancel(reason)

    def close(self) -> None:
        """End what runs, wait for it, and let another process publish; containerd keeps what is published."""
        self.cancel("the publisher was closed")
        self._deliveries.close()
        self._urgent.shutdown(cancel_futures=True)
        self._executor.shutdown(cancel_futures=True)
        self._removals.shutdown(cancel_futures=True)
        self.client.close()
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None, /
    ) -> None:
        self.close()

    def _forget_all_but(self, wanted: Collection[str]) -> None:
        for entry in self.states.keep(wanted):
            self._deliveries.end(entry)

    def _follow_removal(self) -> None:
        try:
            with self._lend() as store:
                self._connections.current(store)
                number, wanted = store.metadata.generation(), self.records.wanted(store)
                found = self.records.compare(wanted)
                self.records.remove(store, number, found)
            self._forget_all_but(wanted)
        except ImageStoreError as error:
            # The store has removed them; the next reconciliation takes them away.
            if isinstance(error, ServiceUnavailableError):
                self.disconnected()
            log.warning("removal is not published yet", extra={"error": str(error)})
