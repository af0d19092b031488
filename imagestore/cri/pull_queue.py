"""The queue of pulls: identical pulls are joined, a limited number runs at a time, the others wait.

Two requests are identical if they have the same store, reference, runtime handler and credentials. A request with
other credentials is a pull of its own, since the registry must judge them; it still uses blobs that the other pull
downloaded, because access to an image is decided at its manifest. Joined requests share the result. A caller that
leaves (deadline, cancelled call) doesn't affect the others; when the last one has left, the pull is cancelled, and its
unfinished downloads stay as ingests for the next pull.

A registry without a running pull doesn't wait for those of others: its first pull begins at once, beyond the limit if
that is reached, as long as fewer than ``FIRST_PULLS`` run beyond it. It gets a further slot only while at least as many
slots are free as it holds. So any number of slow registries leaves room for the next one. Places in the line of waiting
pulls are shared in the same way. All ports of an address are one registry.

Everything here runs on one event loop; only the work of a pull runs in a thread.
"""

from __future__ import annotations

import asyncio
import enum
import itertools
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from imagestore.errors import OperationCancelledError, StoreBusyError
from imagestore.events import BlobAdvanced, BlobDone, BlobStarted
from imagestore.oci.reference import Reference
from imagestore.registry.transport.addresses import machine
from imagestore.util.cancel import CancelToken

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from imagestore.events import Event, Observer
    from imagestore.oci.digest import Digest

    Work = Callable[[CancelToken, Observer], Awaitable[str]]

#: Running pulls; each has threads for its blobs.
PULLS_AT_ONCE: Final = 16
#: Further running pulls, each the first one of its registry.
FIRST_PULLS: Final = 128
#: Waiting pulls; a node has a few hundred pods at most.
MOST_WAITING: Final = 4096


@dataclass(frozen=True, slots=True)
class PullKey:
    """The identity of a pull.

    Attributes:
        store: identity of the store object (a reloaded configuration is another object).
        reference: canonical text.
        handler: resolved name of the runtime handler.
        fingerprint: of the request's credentials; empty without any.
    """

    store: int
    reference: str
    handler: str
    fingerprint: str


class PullOutcome(enum.Enum):
    """The result of a pull."""

    SUCCESS = "success"
    FAILURE = "failure"
    CANCELLED = "cancelled"


class CriMeter(Protocol):
    """Counts pulls, and the size of lists; the port keeps Prometheus' library out of servers without metrics.

    Called from the event loop and from worker threads; must return quickly. Handlers are configured ones, so few. A
    pull that joins another one is counted as joined only.
    """

    def pulls_waiting(self, count: int) -> None:
        """This many pulls are waiting."""

    def pull_joined(self, handler: str) -> None:
        """A caller joined a running pull."""

    def pull_began(self, handler: str) -> None:
        """A pull got its slot and starts."""

    def pull_ended(self, handler: str, *, outcome: PullOutcome, bytes_fetched: int, seconds: float) -> None:
        """A started pull has ended, with the bytes from the network and its duration without waiting."""

    def images_listed(self, size: int) -> None:
        """A list of all images has so many bytes as a message."""


class NoMeter:
    """Counts nothing."""

    def pulls_waiting(self, count: int) -> None:
        """See CriMeter."""

    def pull_joined(self, handler: str) -> None:
        """See CriMeter."""

    def pull_began(self, handler: str) -> None:
        """See CriMeter."""

    def pull_ended(self, handler: str, *, outcome: PullOutcome, bytes_fetched: int, seconds: float) -> None:
        """See CriMeter."""

    def images_listed(self, size: int) -> None:
        """See CriMeter."""


class FairSlots:
    """Slots for running pulls, granted in the order of requests as far as the registries' shares allow.

    Args:
        limit: slots that are shared.
        first: further ones, each for a registry that holds none.
    """

    def __init__(self, limit: int, *, first: int = 0) -> None:
        # Below zero: so many of the further ones are granted.
        self._free = limit
        self._first = first
        self._held: Counter[str] = Counter()
        # By registry, and numbered in the order of requests.
        self._waiting: dict[str, dict[asyncio.Future[None], int]] = {}
        self._numbers = itertools.count()

    def try_acquire(self, host: str) -> bool:
        """Acquire a slot if that is possible at once."""
        if not self._may_acquire(host):
            return False
        self._grant(host)
        return True

    async def acquire(self, host: str) -> None:
        """Wait for a slot; a cancelled wait takes none."""
        if self.try_acquire(host):
            return
        granted = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(host, {})[granted] = next(self._numbers)
        try:
            await granted
        except asyncio.CancelledError:
            if granted in self._waiting.get(host, ()):
                self._leave(host, granted)
            elif not granted.cancelled():
                # The slot was granted in the same moment.
                self.release(host)
            raise

    def release(self, host: str) -> None:
        """Free a slot for the first waiting pulls that may have one."""
        self._free += 1
        self._held[host] -= 1
        if not self._held[host]:
            del self._held[host]
        while may_have := [each for each in self._waiting if self._may_acquire(each)]:
            first = min(may_have, key=lambda each: next(iter(self._waiting[each].values())))
            granted = next(iter(self._waiting[first]))
            self._leave(first, granted)
            if not granted.done():
                self._grant(first)
                granted.set_result(None)

    def _leave(self, host: str, waiting: asyncio.Future[None]) -> None:
        del self._waiting[host][waiting]
        if not self._waiting[host]:
            del self._waiting[host]

    def _may_acquire(self, host: str) -> bool:
        held = self._held[host]
        return self._free >= held if held else self._free > -self._first

    def _grant(self, host: str) -> None:
        self._free -= 1
        self._held[host] += 1


class _FetchedBytes:
    """Adds up the bytes received from the network, also of unfinished blobs; called from several threads.

    No lock is needed: the events of one blob are sequential, and each operation on a dict is atomic.
    """

    def __init__(self) -> None:
        self._fetched: dict[Digest, int] = {}
        #: Bytes that were present before; subtracted from the present ones.
        self._bases: dict[Digest, int] = {}

    def __call__(self, event: Event) -> None:
        match event:
            case BlobStarted(descriptor, offset):
                # Bytes of a damaged earlier attempt were fetched too.
                self._bases[descriptor.digest] = offset - self._fetched.get(descriptor.digest, 0)
            case BlobAdvanced(digest, received):
                self._fetched[digest] = received - self._bases.get(digest, 0)
            case BlobDone(descriptor, fetched):
                # 0 if it is requested again, as documents are.
                self._fetched[descriptor.digest] = max(fetched, self._fetched.get(descriptor.digest, 0))

    @property
    def total(self) -> int:
        """Up to the last event, which is at most 0.05 s old."""
        return sum(list(self._fetched.values()))


@dataclass(slots=True, eq=False)
class _SharedPull:
    """A pull and the number of its callers."""

    token: CancelToken
    callers: int = 0
    task: asyncio.Task[str] | None = field(default=None)


class PullQueue:
    """Runs pulls; made and used on one event loop.

    Args:
        limit: pulls that run at a time, without the first ones of up to ``FIRST_PULLS`` registries.
        waiting: pulls that may wait; further ones are refused, from a registry with many of them earlier.
        meter: counts pulls.
    """

    def __init__(
        self, *, limit: int = PULLS_AT_ONCE, waiting: int = MOST_WAITING, meter: CriMeter | None = None
    ) -> None:
        self._slots = FairSlots(limit, first=FIRST_PULLS)
        self._line = FairSlots(waiting)
        self.meter = meter or NoMeter()
        self._waiting = 0
        self._shared: dict[PullKey, _SharedPull] = {}
        self._tasks: set[asyncio.Task[str]] = set()

    @property
    def in_progress(self) -> int:
        """Running and waiting pulls, including cancelled ones until they end."""
        return len(self._tasks)

    async def pull(self, key: PullKey, work: Work) -> str:
        """Run a pull, or join the identical one that is running.

        Args:
            key: identity of the pull.
            work: pulls with a token and an observer, and returns the image id; not called when joining.

        Raises:
            StoreBusyError: too many pulls wait.
            ImageStoreError: the pull's.
        """
        shared = self._shared.get(key)
        if shared is None or shared.task is None or shared.task.done():
            shared = self._begin(key, work)
        else:
            self.meter.pull_joined(key.handler)
        assert shared.task is not None
        shared.callers += 1
        try:
            return await asyncio.shield(shared.task)
        finally:
            shared.callers -= 1
            if not shared.callers and not shared.task.done():
                # No caller may join a pull that is being cancelled.
                self._forget(key, shared)
                shared.token.cancel("every caller of this pull has left")

    async def close(self) -> None:
        """Cancel every pull and wait until the last one has released the store."""
        for shared in list(self._shared.values()):
            shared.token.cancel("the server is being stopped")
        if self._tasks:
            await asyncio.wait(list(self._tasks))

    def _begin(self, key: PullKey, work: Work) -> _SharedPull:
        shared = _SharedPull(CancelToken())
        shared.task = asyncio.get_running_loop().create_task(self._run(key, work, shared.token))
        self._shared[key] = shared
        self._tasks.add(shared.task)

        def _forget_task(task: asyncio.Task[str]) -> None:
            self._tasks.discard(task)
            self._forget(key, shared)
            if not task.cancelled():
                task.exception()  # retrieved, also if every caller has left

        shared.task.add_done_callback(_forget_task)
        return shared

    def _forget(self, key: PullKey, shared: _SharedPull) -> None:
        if self._shared.get(key) is shared:
            del self._shared[key]

    async def _run(self, key: PullKey, work: Work, token: CancelToken) -> str:
        host = machine(Reference.parse(key.reference).host)
        await self._acquire_slot(key, host, token)
        began_at, fetched, outcome = time.monotonic(), _FetchedBytes(), PullOutcome.FAILURE
        self.meter.pull_began(key.handler)
        try:
            image_id = await work(token, fetched)
            outcome = PullOutcome.SUCCESS
            return image_id
        except (OperationCancelledError, asyncio.CancelledError):
            outcome = PullOutcome.CANCELLED
            raise
        finally:
            self._slots.release(host)
            seconds = time.monotonic() - began_at
            self.meter.pull_ended(key.handler, outcome=outcome, bytes_fetched=fetched.total, seconds=seconds)

    async def _acquire_slot(self, key: PullKey, host: str, token: CancelToken) -> None:
        """Wait for a slot, until every caller has left."""
        if self._slots.try_acquire(host):
            return
        if not self._line.try_acquire(host):
            raise StoreBusyError(
                f"{key.reference}: too many pulls, {self._waiting} are waiting already", hint="try again later"
            )
        loop = asyncio.get_running_loop()
        waiter = asyncio.ensure_future(self._slots.acquire(host))

        def _leave_line() -> None:
            loop.call_soon_threadsafe(waiter.cancel)

        self._count(+1)
        try:
            with token.on_cancel(_leave_line):
                await waiter
        except asyncio.CancelledError:
            token.check()
            raise
        finally:
            self._count(-1)
            self._line.release(host)

    def _count(self, change: int) -> None:
        self._waiting += change
        self.meter.pulls_waiting(self._waiting)
