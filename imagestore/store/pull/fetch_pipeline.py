"""Fetching several blobs at once: how many, in which order, and the threads that do it.

Receiving and committing (verify, sync, name) have threads of their own, so that a connection never idles during fsync.
A fixed number of blobs is received at a time, and few may wait for the commit, which bounds the memory that they hold.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from imagestore.util.executors import begin, take

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import TracebackType
    from typing import Self

    from imagestore.oci.descriptor import Descriptor
    from imagestore.util.cancel import CancelToken

#: Blobs of one pull in flight at once, as with skopeo: containerd's default of three leaves distant registries idle.
PARALLEL_BLOBS: Final = 6
#: A config and a single layer of fewer bytes come one after the other: with TLS a second connection could take longer.
_WORTH_A_CONNECTION: Final = 1024 * 1024
#: However many the configuration allows.
MOST_PARALLEL_BLOBS: Final = 64
_COMMITTERS: Final = 2
# Being committed, or waiting for it.
_MOST_UNCOMMITTED: Final = 3
_LOOK_SECONDS: Final = 0.001
T = TypeVar("T")
R = TypeVar("R")


def parallel_blobs(configured: int | None, layers: Sequence[Descriptor]) -> int:
    """How many blobs of one pull are in flight at once; ``configured`` is containerd's max_concurrent_downloads.

    >>> [parallel_blobs(configured, ()) for configured in (None, 5, 0, 1000)]
    [6, 5, 64, 64]
    """
    if configured is None:
        return 1 if len(layers) == 1 and layers[0].size < _WORTH_A_CONNECTION else PARALLEL_BLOBS
    # As in containerd, zero and less is no limit; threads are not free, so there is one.
    return min(configured, MOST_PARALLEL_BLOBS) if configured > 0 else MOST_PARALLEL_BLOBS


def fetch_order(descriptors: Iterable[Descriptor]) -> list[Descriptor]:
    """Each digest once, the largest first: the longest download decides when the pull ends."""
    wanted = {descriptor.digest: descriptor for descriptor in descriptors}
    return sorted(wanted.values(), key=lambda descriptor: -descriptor.size)


def order_with(config: Descriptor, layers: Iterable[Descriptor], *, parallel: int) -> list[Descriptor]:
    """As fetch_order(), with the config, which is needed soon: first, or second if that doesn't make it wait.

    The connection that is open already serves the largest layer, which decides when the pull ends.
    """
    ordered = [each for each in fetch_order(layers) if each.digest != config.digest]
    ordered.insert(min(parallel - 1, 1), config)
    return ordered


class FetchPipeline(Generic[T, R]):
    """Receives and commits items while the block runs; at its end all that were received are committed.

    Leaving the block raises the first failure of any step, once the other steps under way have ended.

    Args:
        receive: the first step; None where there is nothing to commit.
        commit: the second step; it is taken for everything that was received.
        cancel: ended by the first failure.
    """

    def __init__(
        self,
        *,
        receive: Callable[[T], R | None],
        commit: Callable[[R], object],
        parallel: int,
        cancel: CancelToken,
    ) -> None:
        self._receive = receive
        self._commit = commit
        self._parallel = parallel
        #: Ended by the first failure.
        self.cancel = cancel
        self._todo: deque[T] = deque()
        self._received: deque[R] = deque()
        self._room = threading.Semaphore(_MOST_UNCOMMITTED)
        self._receivers = ThreadPoolExecutor(parallel, "imagestore-fetch")
        self._committers = ThreadPoolExecutor(_COMMITTERS, "imagestore-commit")
        self._steps: deque[Future[None]] = deque()
        self._failures: deque[BaseException] = deque()
        # Threads that are at a step, from before they take it. An executor that was interrupted while it started a
        # thread doesn't know that one.
        self._busy: deque[int] = deque()

    def commit(self, item: R) -> None:
        """Commit an item that was received elsewhere."""
        # First of all: whatever happens now, the end of the block finds it.
        self._received.append(item)
        self._begin(self._committers, self._commit_one)
        self._room.acquire()

    def receive(self, items: Sequence[T]) -> None:
        """Receive and commit items, begun in this order; committing may go on afterwards."""
        self._todo.extend(items)
        if len(items) == 1:
            self._receive_all()
            return
        count = min(self._parallel, len(items))
        wait([self._begin(self._receivers, self._receive_all) for _ in range(count)])

    def _begin(self, executor: ThreadPoolExecutor, work: Callable[[], None]) -> Future[None]:
        step = begin(executor, work)
        self._steps.append(step)
        return step

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None, /
    ) -> None:
        if error is not None:
            self._fail(error)
        while not self._has_ended():
            pass
        failure = self._error_to_raise(error)
        # An error refers to the frames it passed, and they to what was received: these must not refer to the error.
        self._failures.clear()
        try:
            if failure is not None:
                raise failure
        finally:
            del failure

    def _has_ended(self) -> bool:
        """Wait until every step has; False when that was interrupted."""
        try:
            while self._steps:
                wait([self._steps[0]])
                self._steps.popleft()
            self._receivers.shutdown()
            self._committers.shutdown()
            while self._received or self._others_are_busy():
                self._commit_one()
                time.sleep(_LOOK_SECONDS)
        except BaseException as error:  # noqa: BLE001 - raised at the end of the block, when no step is under way
            self._fail(error)
            return False
        return True

    def _others_are_busy(self) -> bool:
        return any(each != threading.get_ident() for each in tuple(self._busy))

    def _error_to_raise(self, error: BaseException | None) -> BaseException | None:
        """What the end of the block raises in place of its error; an interrupt goes before any failure."""
        if not self._failures or not isinstance(error, Exception | None):
            return None
        interrupts = (each for each in self._failures if not isinstance(each, Exception))
        failure = next(interrupts, self._failures[0])
        return None if failure is error else failure

    def _receive_all(self) -> None:
        self._busy.append(threading.get_ident())
        try:
            while (item := take(self._todo)) is not None:
                try:
                    received = self._receive(item)
                except BaseException as error:  # noqa: BLE001 - raised at the end of the block
                    self._fail(error)
                    return
                if received is not None:
                    self.commit(received)
        finally:
            self._busy.remove(threading.get_ident())

    def _commit_one(self) -> None:
        self._busy.append(threading.get_ident())
        try:
            item = take(self._received)
            if item is not None:
                self._commit_item(item)
        finally:
            self._busy.remove(threading.get_ident())

    def _commit_item(self, item: R) -> None:
        try:
            self._commit(item)
        except BaseException as error:  # noqa: BLE001 - raised at the end of the block
            self._fail(error)
        finally:
            self._room.release()

    def _fail(self, error: BaseException) -> None:
        self._failures.append(error)
        self._todo.clear()
        self.cancel.cancel("another part of the pull failed")
