"""What callers don't read is bounded, and those who have stopped reading are told from those who read slowly."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagestore.errors import StoreBusyError
from imagestore.metadata.sqlite import SqliteMetadataStore
from imagestore.server import connections
from imagestore.server import unread as module
from imagestore.server.deaf import STUCK_SECONDS, DeafConnections
from imagestore.server.unread import Unread
from tests.support.locks import locks_on


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@given(st.lists(st.tuples(st.integers(1, 150), st.booleans()), max_size=30))
def test_what_waits_stays_within_the_limit_unless_one_answer_is_larger(steps: list[tuple[int, bool]]) -> None:
    async def run() -> None:
        tasks = list[asyncio.Task[object]]()

        def relieve() -> None:
            # As cutting a connection does: the call ends.
            unread.end(tasks.pop(0))

        unread = Unread(relieve, 100)
        for size, is_taken in steps:
            task = asyncio.current_task()
            assert task is not None
            placeholder: asyncio.Task[object] = asyncio.create_task(asyncio.sleep(0))
            await unread.begin(placeholder, size)
            tasks.append(placeholder)
            assert unread.total <= max(100, size)
            if is_taken:
                unread.end(tasks.pop(0))
        for each in tasks:
            unread.end(each)
            unread.end(each)
        assert unread.total == 0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_LOOK_SECONDS", 0)
        asyncio.run(run())


def test_who_finds_no_room_in_time_is_refused() -> None:
    clock, looks = Clock(), list[float]()

    def relieve() -> None:
        looks.append(clock.now)
        clock.now += module.WAIT_SECONDS / 4

    async def run() -> None:
        unread = Unread(relieve, 100, clock)
        first, second = (asyncio.create_task(asyncio.sleep(0)) for _ in range(2))
        await unread.begin(first, 90)
        with pytest.raises(StoreBusyError, match="90 bytes wait"):
            await unread.begin(second, 250)
        assert unread.total == 90

    asyncio.run(run())
    assert len(looks) == 4


def test_answers_that_wait_for_long_keep_others_waiting_no_longer_up_to_a_last_limit() -> None:
    clock = Clock()

    def relieve() -> None:
        clock.now += 0.5

    async def run() -> None:
        unread = Unread(relieve, 100, clock)
        tasks = [asyncio.create_task(asyncio.sleep(0)) for _ in range(4)]
        await unread.begin(tasks[0], 90)
        await unread.begin(tasks[1], 90)
        assert module.OLD_SECONDS < clock.now <= module.OLD_SECONDS + 0.5
        await unread.begin(tasks[2], 80)
        assert unread.total == 260
        with pytest.raises(StoreBusyError, match="260 bytes wait"):
            await unread.begin(tasks[3], 30)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_LOOK_SECONDS", 0)
        asyncio.run(run())


def test_what_was_needed_for_a_moment_is_given_back_once_nothing_waits() -> None:
    async def run() -> None:
        emptied = list[int]()
        unread = Unread(lambda: None, 100, emptied=lambda: emptied.append(unread.total))
        for sizes, count in (([30], 0), ([30, 30], 1), ([30], 1)):
            tasks = [asyncio.create_task(asyncio.sleep(0)) for _ in sizes]
            for task, size in zip(tasks, sizes, strict=True):
                await unread.begin(task, size)
            for task in tasks:
                unread.end(task)
            assert len(emptied) == count

    asyncio.run(run())


class Pair:
    """A listener and one connection to it, both ends."""

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(self.name)
        self.listener.listen()
        self.client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.client.connect(self.name)
        self.accepted, _ = self.listener.accept()
        self.client.settimeout(5)

    def close(self) -> None:
        for each in (self.listener, self.client, self.accepted):
            each.close()


@pytest.fixture
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    made = Pair(tmp_path_factory.mktemp("d") / "s")
    yield made
    made.close()


def test_connection_that_nobody_reads_is_cut(pair: Pair) -> None:
    clock = Clock()
    deaf = DeafConnections([pair.name], clock)
    pair.accepted.send(b"hello")
    assert deaf.cut() == 0
    clock.now = STUCK_SECONDS * 0.9
    assert deaf.cut() == 0
    clock.now = STUCK_SECONDS
    assert deaf.cut() == 1
    assert pair.client.recv(100) == b"hello"
    assert pair.client.recv(100) == b""


def test_slow_reader_idle_connection_and_strangers_are_left_alone(pair: Pair) -> None:
    clock = Clock()
    deaf, elsewhere = DeafConnections([pair.name], clock), DeafConnections(["/other"], clock)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.send(b"unread, but not by our listener")
        pair.accepted.send(bytes(20_000))
        for _ in range(9):  # it reads a little between two looks
            assert deaf.cut() == elsewhere.cut() == 0
            clock.now += STUCK_SECONDS
            pair.accepted.send(bytes(1000))
            assert len(pair.client.recv(3000)) == 3000
        while pair.client.recv(65536, socket.MSG_PEEK) != b"end":
            pair.client.recv(65536)
            pair.accepted.send(b"end")
        pair.client.recv(3)
        for _ in range(2):  # idle
            clock.now += STUCK_SECONDS
            assert deaf.cut() == 0
        pair.accepted.send(b"still there")
        assert pair.client.recv(100) == b"still there"


def test_a_look_at_connections_costs_the_database_no_lock(pair: Pair, tmp_path: Path) -> None:
    """To close any descriptor of a file drops the process's locks on it; who comes next would delete SQLite's log."""
    with contextlib.closing(SqliteMetadataStore(tmp_path / "metadata.db")) as metadata:
        metadata.find_images()
        before = locks_on(tmp_path)
        DeafConnections([pair.name], Clock()).cut()
        assert locks_on(tmp_path) == before
        assert before


def test_accepted_connections_are_cut_and_no_others(pair: Pair) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        connections.cut_all([pair.name])
        assert pair.client.recv(100) == b""
        theirs.send(b"still there")
        assert ours.recv(100) == b"still there"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as another:
        another.connect(pair.name)
        accepted, _ = pair.listener.accept()
        accepted.close()


def test_what_waited_at_an_earlier_time_of_need_says_nothing_now(pair: Pair) -> None:
    clock = Clock()
    deaf = DeafConnections([pair.name], clock)
    pair.accepted.send(bytes(1000))
    assert deaf.cut() == 0
    assert len(pair.client.recv(2000)) == 1000
    clock.now = 3600
    pair.accepted.send(bytes(1000))
    assert deaf.cut() == 0
    clock.now += STUCK_SECONDS
    assert deaf.cut() == 1


def test_one_look_at_the_connections_serves_all_who_wait() -> None:
    clock, looks = Clock(), list[float]()

    async def run() -> None:
        unread = Unread(lambda: looks.append(clock.now), 100, clock)
        tasks = [asyncio.create_task(asyncio.sleep(0)) for _ in range(51)]
        await unread.begin(tasks[0], 90)
        waiting = [asyncio.create_task(unread.begin(each, 250)) for each in tasks[1:]]
        await asyncio.sleep(0)
        assert looks == [0.0]
        clock.now = module.WAIT_SECONDS
        assert {type(each) for each in await asyncio.gather(*waiting, return_exceptions=True)} == {StoreBusyError}
        assert looks == [0.0, module.WAIT_SECONDS]

    asyncio.run(run())
