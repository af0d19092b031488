"""Record modes, and the lock that keeps parallel processes apart."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import httpx
import pytest

from imagestore.errors import ConfigError, InvalidInputError
from imagestore.testing import Registry, ReplayMismatchError, build_image, load_tape
from imagestore.testing.faults import FaultRule, Refuse
from imagestore.testing.tapes.session import SessionSettings, TapeSession
from tests.support.plain_http import PLAIN

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PING = "https://registry.example/v2/"
TAGS = "https://registry.example/v2/app/tags/list"


@pytest.fixture
def upstream() -> Iterator[SessionSettings]:
    with Registry({"registry.example/app:1": build_image()}).serve() as server:
        yield SessionSettings(upstream={"registry.example": server.url}, about="recorded")


def run(path: Path, mode: str, settings: SessionSettings, *addresses: str) -> TapeSession:
    with TapeSession(str(path), mode, settings) as session:
        for address in addresses:
            httpx.Client(transport=session.transport).get(address)
        session.finish()
    return session


def recorded(path: Path) -> list[str]:
    return [one.path for one in load_tape(path).exchanges]


def test_none_replays_and_needs_a_tape(tmp_path: Path, upstream: SessionSettings) -> None:
    with pytest.raises(ConfigError, match=r"t\.tape\.toml: No such file") as caught:
        TapeSession(str(tmp_path / "t"), "none", upstream)
    assert "record it first, with 'imagestore record'" in caught.value.hint
    (tmp_path / "folder.tape.toml").mkdir()
    with pytest.raises(ConfigError, match=r"folder\.tape\.toml: Is a directory") as caught:
        TapeSession(str(tmp_path / "folder"), "none", upstream)
    assert caught.value.hint == ""
    run(tmp_path / "t", "once", upstream, PING)
    assert not run(tmp_path / "t", "none", upstream, PING).is_recording


@pytest.mark.parametrize("path", ["", "tapes/", "tapes/.tape.toml"])
def test_a_tape_needs_a_name(path: str, upstream: SessionSettings) -> None:
    with pytest.raises(InvalidInputError, match=f"tape '{path}': expected the name of a file"):
        TapeSession(path, "once", upstream)


def test_once_records_the_first_time_only(tmp_path: Path, upstream: SessionSettings) -> None:
    assert run(tmp_path / "t", "once", upstream, PING).is_recording
    with pytest.raises(ReplayMismatchError):
        run(tmp_path / "t", "once", upstream, PING, TAGS)
    assert recorded(tmp_path / "t") == ["/v2/"]


def test_new_episodes_adds_what_is_missing(tmp_path: Path, upstream: SessionSettings) -> None:
    run(tmp_path / "t", "new_episodes", upstream, PING)
    run(tmp_path / "t", "new_episodes", upstream, PING, TAGS)
    assert recorded(tmp_path / "t") == ["/v2/", "/v2/app/tags/list"]
    assert load_tape(tmp_path / "t").about == "recorded"


def test_rewrite_starts_anew(tmp_path: Path, upstream: SessionSettings) -> None:
    run(tmp_path / "t", "rewrite", upstream, PING, TAGS)
    run(tmp_path / "t", "rewrite", upstream, TAGS)
    assert recorded(tmp_path / "t") == ["/v2/app/tags/list"]


def test_a_session_that_is_not_finished_writes_nothing(tmp_path: Path, upstream: SessionSettings) -> None:
    with TapeSession(str(tmp_path / "t"), "once", upstream) as session:
        httpx.Client(transport=session.transport).get(PING)
    assert list(tmp_path.iterdir()) == []


def test_strictness_can_be_switched_off(tmp_path: Path, upstream: SessionSettings) -> None:
    run(tmp_path / "t", "once", upstream, PING)
    run(tmp_path / "t", "none", SessionSettings(strict=False), TAGS)


def test_faults_come_with_the_replay_and_not_with_the_recording(tmp_path: Path, upstream: SessionSettings) -> None:
    rule = FaultRule(Refuse(503))
    settings = SessionSettings(upstream=upstream.upstream, faults=[rule])
    run(tmp_path / "t", "once", settings, PING)
    assert [one.status for one in load_tape(tmp_path / "t").exchanges] == [200]
    session = run(tmp_path / "t", "none", settings, PING)
    assert [entry.status for entry in session.ledger.entries] == [503]


def test_a_session_serves_on_loopback_and_as_a_proxy(tmp_path: Path, upstream: SessionSettings) -> None:
    for mode in ("once", "none"):
        with TapeSession(str(tmp_path / "t"), mode, upstream) as session:
            with session.serve() as server:
                assert httpx.get(f"{server.url_of('registry.example')}/v2/", verify=PLAIN).status_code == 200
            with session.proxy() as proxy, httpx.Client(proxy=proxy.proxy_url) as client:
                assert client.get("http://registry.example/v2/").status_code == 200
            session.finish()


def test_an_unknown_mode_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="expected one of none, once, new_episodes, rewrite"):
        TapeSession(str(tmp_path / "t"), "all")


def test_recordings_of_one_tape_wait_for_each_other(tmp_path: Path, upstream: SessionSettings) -> None:
    order: list[str] = []

    def second() -> None:
        with TapeSession(str(tmp_path / "t"), "new_episodes", upstream) as session:
            order.append("second")
            httpx.Client(transport=session.transport).get(TAGS)
            session.finish()

    with TapeSession(str(tmp_path / "t"), "new_episodes", upstream) as session:
        other = threading.Thread(target=second)
        other.start()
        httpx.Client(transport=session.transport).get(PING)
        other.join(timeout=0.1)
        order.append("first")
        session.finish()
    other.join(timeout=60)
    assert order == ["first", "second"]
    assert recorded(tmp_path / "t") == ["/v2/", "/v2/app/tags/list"]


def test_a_thread_never_waits_for_its_own_recording(tmp_path: Path, upstream: SessionSettings) -> None:
    with (
        TapeSession(str(tmp_path / "t"), "once", upstream),
        pytest.raises(ConfigError, match="another recording writes it already"),
    ):
        TapeSession(str(tmp_path / "t"), "once", upstream)


def test_a_recording_that_does_not_end_is_waited_for_only_so_long(
    tmp_path: Path, upstream: SessionSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("imagestore.testing.tapes.session._LOCK_SECONDS", 0.05)
    refused: list[str] = []

    def second() -> None:
        try:
            TapeSession(str(tmp_path / "t"), "once", upstream)
        except ConfigError as problem:
            refused.append(str(problem))

    with TapeSession(str(tmp_path / "t"), "once", upstream):
        other = threading.Thread(target=second)
        other.start()
        other.join(timeout=60)
    assert len(refused) == 1
    assert "another recording writes it already" in refused[0]
    run(tmp_path / "t", "once", upstream, PING)


def test_a_lock_folder_of_another_user_is_refused(
    tmp_path: Path, upstream: SessionSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name is predictable: another user could make a pipe there, and opening it would block."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = tmp_path / f"imagestore-tapes-{os.geteuid()}"
    folder.symlink_to(tmp_path)
    with pytest.raises(ConfigError, match="expected a folder of this user"):
        TapeSession(str(tmp_path / "t"), "once", upstream)
    folder.unlink()
    folder.mkdir()
    owner = os.geteuid()
    monkeypatch.setattr("os.geteuid", lambda: owner + 1)
    (tmp_path / f"imagestore-tapes-{owner + 1}").mkdir()
    with pytest.raises(ConfigError, match="expected a folder of this user") as caught:
        TapeSession(str(tmp_path / "t"), "once", upstream)
    assert "TMPDIR" in caught.value.hint
    monkeypatch.undo()
    run(tmp_path / "t", "once", upstream, PING)
