"""Pulls in progress: identical ones are one, a few work at a time, the others wait in line (``pull_places.py``).

Two requests are identical when they ask the same store for the same reference, for the same runtime handler, and show
the same credentials. With other credentials a request goes its own way: the registry has to judge them. (It then finds
the blobs that the other pull brought: access to an image is decided at its manifest.) Who joins shares the outcome. Who
leaves (a deadline, a cancelled call) takes nothing from the others; when the last one has left, the pull is cancelled,
and what it had downloaded waits as an ingest for whoever comes next.

Everything here runs on one event loop; only the work itself has a thread.
"""

from __future__ import annotations

import asyncio
import enum
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from imagestore.errors import OperationCancelledError, StoreBusyError
from imagestore.oci.reference import Reference
from imagestore.registry.events import BlobAdvanced, BlobDone, BlobStarted
from imagestore.util.cancel import CancelToken

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from imagestore.oci.digest import Digest
    from imagestore.registry.events import Event, Observer

    Work = Callable[[CancelToken, Observer], Awaitable[str]]

#: Pulls that work at a time; each has threads of its own for its blobs.
PULLS_AT_ONCE: Final = 16
#: Pulls in the line; a node has a few hundred pods at most.
MOST_WAITING: Final = 1000


@dataclass(frozen=True, slots=True)
class PullKey:
    """What makes two pulls the same.

    Attributes:
        store: identity of the store object (another configuration is another object).
        reference: canonical text.
        handler: resolved name of the runtime handler.
        fingerprint: of the credentials shown; empty when none were.
    """

    store: int
    reference: str
    handler: str
    fingerprint: str


class _Tally:
    """Adds up what came over the network, of blobs that weren't finished too; called from several threads.

    No lock is needed: the events of one blob come one after the other, and each step on a table is one of the
    interpreter's.
    """

    def __init__(self) -> None:
        self._fetched: dict[Digest, int] = {}
        #: What is taken off the bytes that are here to know those that were fetched: what was here before.
        self._bases: dict[Digest, int] = {}

    def __call__(self, event: Event) -> None:
        match event:
            case BlobStarted(descriptor, offset):
                # What came damaged before was fetched, too.
                self._bases[descriptor.digest] = offset - self._fetched.get(descriptor.digest, 0)
            case BlobAdvanced(digest, received):
                self._fetched[digest] = received - self._bases.get(digest, 0)
            case BlobDone(descriptor, fetched):
                # 0 when it is asked for again, as documents are.
                self._fetched[descriptor.digest] = max(fetched, self._fetched.get(descriptor.digest, 0))

    @property
    def total(self) -> int:
        """Up to the last event; one of an unfinished blob is 0.05 s old at most."""
        return sum(list(self._fetched.values()))


@dataclass(slots=True, eq=False)
class _Shared:
    """A pull and how many callers wait for it."""

    token: CancelToken
    callers: int = 0
    task: asyncio.Task[str] | None = field(default=None)


class PullQueue:
    """Runs pulls; made and used on one event loop.

    Args:
        limit: pulls that work at a time.
        waiting: pulls that may stand in the line; further ones are refused.
        meter: hears of every pull.
    """

    def __init__(self, *, limit: int = PULLS_AT_ONCE, waiting: int = MOST_WAITING, meter: Meter | None = None) -> None:
        self._places = PullPlaces(limit)
        self._limit = limit
        self._most_waiting = waiting
        self._meter = meter or NoMeter()
        self._waiting = 0
        self._shared: dict[PullKey, _Shared] = {}
        self._tasks: set[asyncio.Task[str]] = set()

    @property
    def in_progress(self) -> int:
        """Pulls that work or stand in the line, those already cancelled too while they end."""
        return len(self._tasks)

    async def pull(self, key: PullKey, work: Work) -> str:
        """Run a pull, or join the identical one that goes on.

        Args:
            key: tells which pulls are identical.
            work: pulls with a token and an observer and returns the image id; unused when joining.

        Raises:
            StoreBusyError: the line is full.
            ImageStoreError: the pull's.
        """
        shared = self._shared.get(key)
        if shared is None or shared.task is None or shared.task.done():
            shared = self._begin(key, work)
        else:
            self._meter.pull_joined(key.handler)
        assert shared.task is not None
        shared.callers += 1
        try:
            return await asyncio.shield(shared.task)
        finally:
            shared.callers -= 1
            if not shared.callers and not shared.task.done():
                # Nobody new may join what is being given up.
                self._forget(key, shared)
                shared.token.cancel("everyone who asked for this pull went away")

    async def close(self) -> None:
        """Cancel every pull and wait until the last one has let go of the store."""
        for shared in list(self._shared.values()):
            shared.token.cancel("the server is being stopped")
        if self._tasks:
            await asyncio.wait(list(self._tasks))

    def _begin(self, key: PullKey, work: Work) -> _Shared:
        waiting = len(self._tasks) - self._limit
        if waiting >= self._most_waiting:
            raise StoreBusyError(
                f"{key.reference}: expected a place in the line of pulls, but {waiting} wait already",
                hint="try again later",
            )
        shared = _Shared(CancelToken())
        shared.task = asyncio.get_running_loop().create_task(self._run(key, work, shared.token))
        self._shared[key] = shared
        self._tasks.add(shared.task)

        def over(task: asyncio.Task[str]) -> None:
            self._tasks.discard(task)
            self._forget(key, shared)
            if not task.cancelled():
                task.exception()  # seen, even when everyone has left

        shared.task.add_done_callback(over)
        return shared

    def _forget(self, key: PullKey, shared: _Shared) -> None:
        if self._shared.get(key) is shared:
            del self._shared[key]

    async def _run(self, key: PullKey, work: Work, token: CancelToken) -> str:
        host = Reference.parse(key.reference).host
        await self._take_place(host, token)
        began_at, tally, outcome = time.monotonic(), _Tally(), PullOutcome.FAILURE
        self._meter.pull_began(key.handler)
        try:
            image_id = await work(token, tally)
            outcome = PullOutcome.SUCCESS
            return image_id
        except (OperationCancelledError, asyncio.CancelledError):
            outcome = PullOutcome.CANCELLED
            raise
        finally:
            self._places.give_back(host)
            seconds = time.monotonic() - began_at
            self._meter.pull_ended(key.handler, outcome=outcome, bytes_fetched=tally.total, seconds=seconds)

    async def _take_place(self, host: str, token: CancelToken) -> None:
        """Wait for a place in turn, but not once everyone who asked has left."""
        if self._places.try_take(host):
            return
        loop = asyncio.get_running_loop()
        waiter = asyncio.ensure_future(self._places.take(host))

        def leave_line() -> None:
            loop.call_soon_threadsafe(waiter.cancel)

        self._count(+1)
        try:
            with token.on_cancel(leave_line):
                await waiter
        except asyncio.CancelledError:
            token.check()
            raise
        finally:
            self._count(-1)

    def _count(self, change: int) -> None:
        self._waiting += change
        self._meter.pulls_waiting(self._waiting)


class PullOutcome(enum.Enum):
    """How a pull ended."""

    SUCCESS = "success"
    FAILURE = "failure"
    CANCELLED = "cancelled"


class Meter(Protocol):
    """Hears of every pull. A pull that joins another one is that other one, and is counted as joined only."""

    def pulls_waiting(self, count: int) -> None:
        """So many pulls stand in the line now."""

    def pull_joined(self, handler: str) -> None:
        """A caller shares a pull that goes on already."""

    def pull_began(self, handler: str) -> None:
        """A pull got its place and begins to work."""

    def pull_ended(self, handler: str, *, outcome: PullOutcome, bytes_fetched: int, seconds: float) -> None:
        """A pull that began is over.

        Args:
            handler: name of the runtime handler.
            outcome: how it ended.
            bytes_fetched: what came over the network for it.
            seconds: how long it worked, without its time in the line.
        """


class NoMeter:
    """Nobody counts."""

    def pulls_waiting(self, count: int) -> None:
        """See Meter."""

    def pull_joined(self, handler: str) -> None:
        """See Meter."""

    def pull_began(self, handler: str) -> None:
        """See Meter."""

    def pull_ended(self, handler: str, *, outcome: PullOutcome, bytes_fetched: int, seconds: float) -> None:
        """See Meter."""


class PullPlaces:
    """Hands out places in the order in which they were asked for, as far as the registries' shares allow.

    Args:
        limit: places in all.
    """

    def __init__(self, limit: int) -> None:
        self._free = limit
        self._held: Counter[str] = Counter()
        # In the order in which they came.
        self._waiting: dict[asyncio.Future[None], str] = {}

    def try_take(self, host: str) -> bool:
        """Take a place if that is possible at once."""
        if not self._may_take(host):
            return False
        self._take(host)
        return True

    async def take(self, host: str) -> None:
        """Wait for a place; cancelling the wait leaves the line.

        Args:
            host: the registry that the pull goes to.
        """
        if self.try_take(host):
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting[turn] = host
        try:
            await turn
        except asyncio.CancelledError:
            if self._waiting.pop(turn, None) is None and not turn.cancelled():
                # The place was handed over in the same moment.
                self.give_back(host)
            raise

    def give_back(self, host: str) -> None:
        """Free a place, for the first in the line that may have it."""
        self._free += 1
        self._held[host] -= 1
        if not self._held[host]:
            del self._held[host]
        for turn, waiting in list(self._waiting.items()):
            if self._may_take(waiting):
                del self._waiting[turn]
                if not turn.done():
                    self._take(waiting)
                    turn.set_result(None)

    def _may_take(self, host: str) -> bool:
        return self._free > 0 and self._free >= self._held[host]

    def _take(self, host: str) -> None:
        self._free -= 1
        self._held[host] += 1
