"""The queue of pulls: what is joined, what ends, who waits."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace

import pytest

from imagestore import CancelToken, Descriptor, Digest
from imagestore.cri import NoMeter
from imagestore.cri.pull_queue import FIRST_PULLS, FairSlots, PullKey, PullOutcome, PullQueue
from imagestore.errors import OperationCancelledError, RegistryUnavailableError, StoreBusyError
from imagestore.events import BlobAdvanced, BlobDone, BlobStarted, Event, Observer
from tests.support.patience import until_in_loop

KEY = PullKey(1, "registry.example/app:1", "runc", "")
LAYER = Descriptor("application/vnd.oci.image.layer.v1.tar", Digest.of(b"layer"), 5)
OTHER = Descriptor("application/vnd.oci.image.layer.v1.tar", Digest.of(b"another"), 7)


@dataclass
class Numbers(NoMeter):
    """A meter that remembers."""

    events: list[tuple[object, ...]] = field(default_factory=list)

    def pulls_waiting(self, count: int) -> None:
        self.events.append(("waiting", count))

    def pull_joined(self, handler: str) -> None:
        self.events.append(("joined", handler))

    def pull_began(self, handler: str) -> None:
        self.events.append(("began", handler))

    def pull_ended(self, handler: str, *, outcome: PullOutcome, bytes_fetched: int, seconds: float) -> None:
        assert seconds >= 0
        self.events.append(("ended", handler, outcome, bytes_fetched))


@dataclass
class Job:
    """Work that a test lets go on; ends like real work when its token is cancelled."""

    runs: int = 0
    token: CancelToken | None = None
    go: asyncio.Event = field(default_factory=asyncio.Event)
    error: Exception | None = None
    events: tuple[Event, ...] = (BlobDone(LAYER, 5),)

    async def __call__(self, token: CancelToken, observer: Observer) -> str:
        self.runs += 1
        self.token = token
        for event in self.events:
            observer(event)
        while not self.go.is_set():
            token.check()
            await asyncio.sleep(0.001)
        if self.error is not None:
            raise self.error
        return f"sha256:{self.runs}"


async def soon(condition: object) -> None:
    """Let the loop run until a condition holds."""
    assert callable(condition)
    await until_in_loop(condition, "the condition")


def test_identical_pulls_are_one_and_share_its_outcome() -> None:
    async def scenario() -> None:
        numbers = Numbers()
        queue, job = PullQueue(meter=numbers), Job()
        callers = [asyncio.create_task(queue.pull(KEY, job)) for _ in range(3)]
        await soon(lambda: job.runs)
        job.go.set()
        assert await asyncio.gather(*callers) == ["sha256:1"] * 3
        assert (job.runs, queue.in_progress) == (1, 0)
        assert numbers.events == [
            ("joined", "runc"),
            ("joined", "runc"),
            ("began", "runc"),
            ("ended", "runc", PullOutcome.SUCCESS, 5),
        ]
        await queue.pull(KEY, job)
        assert job.runs == 2

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("events", "fetched"),
    [
        ((), 0),
        ((BlobStarted(LAYER, 0),), 0),
        ((BlobStarted(LAYER, 1), BlobAdvanced(LAYER.digest, 4)), 3),
        ((BlobStarted(LAYER, 1), BlobAdvanced(LAYER.digest, 4), BlobDone(LAYER, 4)), 4),
        ((BlobStarted(LAYER, 1), BlobAdvanced(LAYER.digest, 3), BlobAdvanced(LAYER.digest, 5)), 4),
        ((BlobStarted(LAYER, 0), BlobAdvanced(LAYER.digest, 2), BlobDone(OTHER, 7), BlobDone(OTHER, 0)), 9),
        # It came damaged, and is fetched again.
        ((BlobStarted(LAYER, 1), BlobAdvanced(LAYER.digest, 5), BlobStarted(LAYER, 0)), 4),
        (
            (
                BlobStarted(LAYER, 1),
                BlobAdvanced(LAYER.digest, 5),
                BlobStarted(LAYER, 0),
                BlobAdvanced(LAYER.digest, 2),
            ),
            6,
        ),
    ],
)
def test_what_came_of_unfinished_blobs_is_counted_once(events: tuple[Event, ...], fetched: int) -> None:
    async def scenario() -> None:
        numbers = Numbers()
        queue, job = PullQueue(meter=numbers), Job(events=events)
        caller = asyncio.create_task(queue.pull(KEY, job))
        await soon(lambda: job.runs)
        caller.cancel()
        await soon(lambda: not queue.in_progress)
        assert numbers.events[-1] == ("ended", "runc", PullOutcome.CANCELLED, fetched)

    asyncio.run(scenario())


def test_a_failure_reaches_everyone_who_joined() -> None:
    async def scenario() -> None:
        queue, job = PullQueue(), Job(error=RegistryUnavailableError("down"))
        callers = [asyncio.create_task(queue.pull(KEY, job)) for _ in range(2)]
        job.go.set()
        outcomes = await asyncio.gather(*callers, return_exceptions=True)
        assert [str(each) for each in outcomes] == ["down", "down"]

    asyncio.run(scenario())


@pytest.mark.parametrize("change", [{"store": 2}, {"reference": "other"}, {"handler": "kata"}, {"fingerprint": "x"}])
def test_pulls_that_differ_are_not_joined(change: dict[str, object]) -> None:
    async def scenario() -> None:
        queue, job = PullQueue(), Job()
        other = replace(KEY, **change)  # type: ignore[arg-type]
        callers = [asyncio.create_task(queue.pull(key, job)) for key in (KEY, other)]
        await soon(lambda: job.runs == 2)
        job.go.set()
        await asyncio.gather(*callers)

    asyncio.run(scenario())


@pytest.mark.parametrize("leaver", [0, 1])
def test_who_leaves_takes_nothing_from_the_others(leaver: int) -> None:
    async def scenario() -> None:
        queue, job = PullQueue(), Job()
        callers = [asyncio.create_task(queue.pull(KEY, job)) for _ in range(2)]
        await soon(lambda: job.runs)
        callers[leaver].cancel()
        with pytest.raises(asyncio.CancelledError):
            await callers[leaver]
        assert job.token is not None
        assert not job.token.is_cancelled
        job.go.set()
        assert await callers[1 - leaver] == "sha256:1"

    asyncio.run(scenario())


def test_the_last_caller_to_leave_cancels_the_pull_and_no_caller_joins_it_then() -> None:
    async def scenario() -> None:
        numbers = Numbers()
        queue, first, second = PullQueue(meter=numbers), Job(), Job()
        callers = [asyncio.create_task(queue.pull(KEY, first)) for _ in range(2)]
        await soon(lambda: first.runs)
        for caller in callers:
            caller.cancel()
        await asyncio.wait(callers)
        assert first.token is not None
        assert first.token.is_cancelled
        again = asyncio.create_task(queue.pull(KEY, second))
        await soon(lambda: second.runs)
        second.go.set()
        assert await again == "sha256:1"
        await soon(lambda: not queue.in_progress)
        assert ("ended", "runc", PullOutcome.CANCELLED, 5) in numbers.events

    asyncio.run(scenario())


def test_so_many_pulls_work_and_the_others_wait_in_turn() -> None:
    async def scenario() -> None:
        numbers = Numbers()
        queue = PullQueue(limit=2, meter=numbers)
        jobs = [Job() for _ in range(5)]
        callers = [asyncio.create_task(queue.pull(replace(KEY, reference=str(at)), job)) for at, job in enumerate(jobs)]
        await soon(lambda: numbers.events.count(("began", "runc")) == 2)
        assert [job.runs for job in jobs] == [1, 1, 0, 0, 0]
        assert ("waiting", 3) in numbers.events
        jobs[1].go.set()
        await soon(lambda: jobs[2].runs)
        assert [job.runs for job in jobs] == [1, 1, 1, 0, 0]
        for job in jobs:
            job.go.set()
        await asyncio.gather(*callers)
        assert ("waiting", 0) in numbers.events

    asyncio.run(scenario())


@pytest.mark.parametrize("limit", [1, 16, 64])
@pytest.mark.parametrize("slow_hosts", [1, 4, 16, 64])
def test_slow_registries_leave_room_for_another_one(slow_hosts: int, limit: int) -> None:
    async def scenario() -> None:
        queue = PullQueue(limit=limit)
        stuck = [(f"127.0.0.{host}:5000/app:{at}", Job()) for host in range(slow_hosts) for at in range(40)]
        callers = [asyncio.create_task(queue.pull(replace(KEY, reference=name), job)) for name, job in stuck]
        await soon(lambda: queue.in_progress == len(stuck))
        for host in range(slow_hosts):
            # Each of them works.
            jobs = [job for name, job in stuck if name.startswith(f"127.0.0.{host}:")]
            await soon(lambda jobs=jobs: any(job.runs for job in jobs))
        assert sum(job.runs for _, job in stuck) <= limit + FIRST_PULLS
        quick = Job()
        quick.go.set()
        for at in range(3):
            await queue.pull(replace(KEY, reference=f"127.0.1.1:5000/app:{at}"), quick)
        assert quick.runs == 3
        for _, job in stuck:
            job.go.set()
        await asyncio.gather(*callers)
        assert [job.runs for _, job in stuck] == [1] * len(stuck)

    asyncio.run(scenario())


@pytest.mark.parametrize("form", ["127.0.0.1:{port}/app:1", "[::1]:{port}/app:1", "registry.example:{port}/app:1"])
def test_all_ports_of_a_machine_are_one_registry(form: str) -> None:
    async def scenario() -> None:
        queue, jobs = PullQueue(limit=4), [Job() for _ in range(40)]
        names = [form.format(port=5000 + at) for at in range(40)]
        calls = [queue.pull(replace(KEY, reference=name), job) for name, job in zip(names, jobs, strict=True)]
        callers = [asyncio.create_task(call) for call in calls]
        await soon(lambda: queue.in_progress == len(jobs))
        await soon(lambda: jobs[2].runs)
        # Three of four: the further ones are for other registries.
        assert sum(job.runs for job in jobs) == 3
        for job in jobs:
            job.go.set()
        await asyncio.gather(*callers)

    asyncio.run(scenario())


def test_a_registry_that_fills_the_line_leaves_places_in_it_for_others() -> None:
    async def scenario() -> None:
        queue, stuck = PullQueue(limit=1, waiting=8), Job()

        def pull(name: str) -> asyncio.Task[str]:
            return asyncio.create_task(queue.pull(replace(KEY, reference=name), stuck))

        crowd = [pull(f"slow.example/app:{at}") for at in range(20)]
        await soon(lambda: sum(task.done() for task in crowd) == 14)
        assert all(isinstance(task.exception(), StoreBusyError) for task in crowd if task.done())
        others = [pull(f"other.example/app:{at}") for at in range(3)]
        await soon(lambda: queue.in_progress == 9)
        assert not any(task.done() for task in others)
        stuck.go.set()
        await asyncio.gather(*others, *(task for task in crowd if not task.done()))

    asyncio.run(scenario())


def test_only_so_many_first_pulls_run_beyond_the_limit() -> None:
    slots = FairSlots(2, first=3)
    assert [slots.try_acquire(host) for host in "abcdefg"] == [True] * 5 + [False] * 2
    slots.release("a")
    assert not slots.try_acquire("b")
    assert slots.try_acquire("f")


def test_places_are_handed_out_in_turn_and_never_lost() -> None:
    async def scenario() -> None:
        slots = FairSlots(2)
        assert slots.try_acquire("a.example")
        assert slots.try_acquire("a.example")
        assert not slots.try_acquire("b.example")
        waits = [asyncio.create_task(slots.acquire(host)) for host in ("a.example", "b.example", "c.example")]
        await asyncio.sleep(0)
        # The last one leaves the line in the moment in which a place becomes free for another.
        waits[0].cancel()
        slots.release("a.example")
        await soon(waits[1].done)
        assert [wait.cancelled() for wait in waits[:1]] == [True]
        assert waits[1].done()
        assert not waits[2].done()
        slots.release("a.example")
        await waits[2]
        slots.release("b.example")
        slots.release("c.example")
        assert slots.try_acquire("d.example")
        assert slots.try_acquire("d.example")

    asyncio.run(scenario())


def test_who_gives_up_in_the_line_frees_the_place_there() -> None:
    async def scenario() -> None:
        queue = PullQueue(limit=1, waiting=1)
        working, waiting, third = Job(), Job(), Job()
        worker = asyncio.create_task(queue.pull(KEY, working))
        await soon(lambda: working.runs)
        waiter = asyncio.create_task(queue.pull(replace(KEY, reference="registry.example/waiting"), waiting))
        await soon(lambda: queue.in_progress == 2)
        await asyncio.sleep(0.01)
        with pytest.raises(StoreBusyError, match="1 are waiting already"):
            await queue.pull(replace(KEY, reference="registry.example/third"), third)
        waiter.cancel()
        await soon(lambda: queue.in_progress == 1)
        later = asyncio.create_task(queue.pull(replace(KEY, reference="registry.example/third"), third))
        working.go.set()
        third.go.set()
        await asyncio.gather(worker, later)
        assert (waiting.runs, third.runs) == (0, 1)

    asyncio.run(scenario())


def test_closing_ends_what_works_and_what_waits() -> None:
    async def scenario() -> None:
        queue = PullQueue(limit=1)
        jobs = [Job(), Job()]
        callers = [asyncio.create_task(queue.pull(replace(KEY, reference=str(at)), job)) for at, job in enumerate(jobs)]
        await soon(lambda: jobs[0].runs)
        await queue.close()
        outcomes = await asyncio.gather(*callers, return_exceptions=True)
        assert [type(each) for each in outcomes] == [OperationCancelledError] * 2
        assert (jobs[1].runs, queue.in_progress) == (0, 0)

    asyncio.run(scenario())
