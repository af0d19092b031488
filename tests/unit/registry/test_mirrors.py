"""The circuit breaker: closed, open, half open; in one process and across processes."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from imagestore.config.hosts import HostConfig, RegistryHosts
from imagestore.errors import ProtocolError, ReferenceNotFoundError, RegistryUnavailableError
from imagestore.events import ignore
from imagestore.registry.endpoints import endpoints_from
from imagestore.registry.mirrors import Breaker, first_served

if TYPE_CHECKING:
    from pathlib import Path

    from imagestore.registry.endpoints import Endpoint

MIRROR, OTHER, UPSTREAM = endpoints_from(
    "docker.io", RegistryHosts((HostConfig("https://m.example/v2"), HostConfig("https://o.example/v2")))
)
DEAD = RegistryUnavailableError("no connection")


@dataclass
class Clock:
    seconds: float = 1_700_000_000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["process", "folder"])
def breaker(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> Breaker:
    return Breaker("" if request.param == "process" else str(tmp_path / "state"), clock=clock)


def test_a_mirror_is_permitted_until_it_fails(breaker: Breaker) -> None:
    assert breaker.allows(MIRROR)
    breaker.record_failure(MIRROR, DEAD)
    assert not breaker.allows(MIRROR)
    assert breaker.is_open(MIRROR)
    assert breaker.allows(OTHER)


@pytest.mark.parametrize("error", [RegistryUnavailableError("busy", status=503), ProtocolError("nonsense", status=404)])
def test_a_mirror_that_answers_is_not_dead(breaker: Breaker, error: RegistryUnavailableError) -> None:
    breaker.record_failure(MIRROR, error)
    assert breaker.allows(MIRROR)


def test_the_registry_itself_is_never_left_out(breaker: Breaker) -> None:
    breaker.record_failure(UPSTREAM, DEAD)
    assert breaker.allows(UPSTREAM)


def test_after_its_rest_one_caller_probes(breaker: Breaker, clock: Clock) -> None:
    breaker.record_failure(MIRROR, DEAD)
    clock.seconds += 60
    assert not breaker.is_open(MIRROR)
    assert [breaker.allows(MIRROR) for _ in range(3)] == [True, False, False]


def test_while_a_mirror_is_probed_others_ask_the_next_host(breaker: Breaker, clock: Clock) -> None:
    """Each of a node's pulls would wait for a host that is probably still dead."""
    breaker.record_failure(MIRROR, DEAD)
    clock.seconds += 60
    asked: list[str] = []

    def answer(endpoint: Endpoint) -> str:
        asked.append(endpoint.host)
        if asked == [MIRROR.host]:
            assert ask() == UPSTREAM.host
        return endpoint.host

    def ask() -> str:
        return first_served(
            [MIRROR, UPSTREAM], answer, session=lambda host, _: host, what="it", breaker=breaker, observer=ignore
        )

    assert ask() == MIRROR.host
    assert asked == [MIRROR.host, UPSTREAM.host]


def test_a_good_probe_closes_and_a_bad_one_opens_again(breaker: Breaker, clock: Clock) -> None:
    breaker.record_failure(MIRROR, DEAD)
    clock.seconds += 60
    assert breaker.allows(MIRROR)
    breaker.record_failure(MIRROR, DEAD)
    clock.seconds += 59
    assert not breaker.allows(MIRROR)
    clock.seconds += 1
    assert breaker.allows(MIRROR)
    breaker.record_answer(MIRROR)
    assert [breaker.allows(MIRROR) for _ in range(3)] == [True, True, True]


def test_a_probe_that_is_answered_closes_whatever_the_answer(breaker: Breaker, clock: Clock) -> None:
    breaker.record_failure(MIRROR, DEAD)
    clock.seconds += 60
    assert breaker.allows(MIRROR)
    breaker.record_failure(MIRROR, ReferenceNotFoundError("not here", status=404))
    assert not breaker.is_open(MIRROR)
    assert breaker.allows(MIRROR)


def test_another_process_knows_too(tmp_path: Path, clock: Clock) -> None:
    Breaker(str(tmp_path / "state"), clock=clock).record_failure(MIRROR, DEAD)
    other = Breaker(str(tmp_path / "state"), clock=clock)
    assert not other.allows(MIRROR)
    assert len(os.listdir(tmp_path / "state")) == 1


def test_a_clock_set_back_does_not_leave_a_mirror_out_for_long(breaker: Breaker, clock: Clock) -> None:
    breaker.record_failure(MIRROR, DEAD)
    clock.seconds -= 3600
    assert breaker.allows(MIRROR)


@pytest.mark.parametrize("content", [b"", b"nan", b"inf", b"-1.000", b"\xff\xfe", b"1" * 100])
def test_a_damaged_memory_is_no_memory(tmp_path: Path, clock: Clock, content: bytes) -> None:
    breaker = Breaker(str(tmp_path), clock=clock)
    breaker.record_failure(MIRROR, DEAD)
    (only,) = tmp_path.iterdir()
    only.write_bytes(content)
    assert breaker.allows(MIRROR)


def test_a_memory_that_cannot_be_written_leaves_nothing_behind(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(os, "replace", full)
    breaker = Breaker(str(tmp_path), clock=clock)
    breaker.record_failure(MIRROR, DEAD)
    assert os.listdir(tmp_path) == []


def test_an_interrupt_behind_the_writing_of_a_memory_is_not_lost(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = os.replace

    def interrupted(source: str, destination: str) -> None:
        replace(source, destination)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Breaker(str(tmp_path), clock=clock).record_failure(MIRROR, DEAD)


def test_a_folder_that_cannot_be_written_only_forgets(tmp_path: Path, clock: Clock) -> None:
    (tmp_path / "file").touch()
    breaker = Breaker(str(tmp_path / "file" / "below"), clock=clock)
    breaker.record_failure(MIRROR, DEAD)
    assert breaker.allows(MIRROR)
    breaker.record_answer(MIRROR)
