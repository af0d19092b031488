"""The helper protocol against real programs that behave in every way seen."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from imagestore import CancelToken, Credential
from imagestore.errors import ConfigError, ImageStoreError, OperationCancelledError
from imagestore.registry.credentials.helper import REMEMBER_SECONDS, HelperPool, find_program, servers
from imagestore.registry.credentials.model import HUB_LEGACY_KEY, Target
from tests.support.patience import until

TARGET = Target("registry.example", "a/b")
NOT_FOUND = "echo 'credentials not found in native keychain'; exit 1"


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Helpers:
    """A folder of helpers on PATH; each notes its calls in a file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.calls = folder / "calls"

    def write(self, suffix: str, body: str) -> None:
        program = self.folder / f"docker-credential-{suffix}"
        log = f'read -r question || true; echo "$1 $question" >> {self.calls}\n'
        program.write_text(f"#!/bin/sh\n{log}{body}\n")
        program.chmod(0o755)

    def pool(self, *, clock: Clock | None = None, seconds: float = 5.0, **environment: str) -> HelperPool:
        variables = {"PATH": f"{self.folder}:/bin:/usr/bin", **environment}
        if clock is None:
            return HelperPool(variables, deadline_seconds=seconds)
        return HelperPool(variables, clock=clock, deadline_seconds=seconds)

    def asked(self) -> list[str]:
        return self.calls.read_text().splitlines() if self.calls.exists() else []


@pytest.fixture
def helpers(tmp_path: Path) -> Helpers:
    return Helpers(tmp_path)


def get(pool: HelperPool, target: Target = TARGET, cancel: CancelToken | None = None) -> Credential | None:
    return pool.get("x", servers(target), cancel=cancel or CancelToken())


def printing(value: object) -> str:
    return f"cat <<'END'\n{json.dumps(value)}\nEND"


def test_a_user_s_entry(helpers: Helpers) -> None:
    helpers.write("x", printing({"ServerURL": "other", "Username": "alice", "Secret": "s"}))
    found = get(helpers.pool())
    assert found is not None
    assert (found.username, found.password.reveal(), bool(found.identity_token)) == ("alice", "s", False)
    assert helpers.asked() == ["get registry.example"]


@pytest.mark.parametrize("username", ["<token>", ""])
def test_the_token_user_and_no_user_mean_an_identity_token(helpers: Helpers, username: str) -> None:
    helpers.write("x", printing({"Username": username, "Secret": "s"}))
    found = get(helpers.pool())
    assert found is not None
    assert (found.username, found.identity_token.reveal(), bool(found.password)) == ("", "s", False)


def test_no_entry_is_asked_for_under_every_name_and_is_no_error(helpers: Helpers) -> None:
    helpers.write("x", NOT_FOUND)
    assert get(helpers.pool()) is None
    names = ["registry.example", "https://registry.example", "registry.example:443"]
    assert helpers.asked() == [f"get {name}" for name in names]


def test_an_empty_secret_is_no_entry(helpers: Helpers) -> None:
    helpers.write("x", printing({"Username": "alice", "Secret": ""}))
    assert get(helpers.pool()) is None


def test_docker_hub_is_asked_for_by_its_old_name_first() -> None:
    assert servers(Target("docker.io")) == (HUB_LEGACY_KEY, "docker.io", "index.docker.io", "registry-1.docker.io")


@pytest.mark.parametrize(
    "body",
    [
        pytest.param("echo CANARY; exit 1", id="failure"),
        pytest.param("echo CANARY; exit 0", id="no JSON"),
        pytest.param("echo '[\"CANARY\"]'", id="array"),
        pytest.param('echo \'{"Username": 7, "Secret": "CANARY"}\'', id="number"),
        pytest.param('echo \'{"Username": "a:b", "Secret": "CANARY"}\'', id="colon in the user"),
        pytest.param("head -c 100000 /dev/zero | tr '\\0' C; echo CANARY", id="huge output"),
        pytest.param("printf '\\377'", id="not UTF-8"),
        pytest.param('cat <<"E"\n{"Username": "a", "Secret": "CANARY\\ud800"}\nE', id="half a surrogate pair"),
        pytest.param("kill -9 $$", id="killed"),
    ],
)
def test_failures_are_typed_and_show_no_output(helpers: Helpers, body: str) -> None:
    helpers.write("x", body)
    with pytest.raises(ConfigError, match="docker-credential-x get") as caught:
        get(helpers.pool())
    assert "CANARY" not in f"{caught.value} {caught.value.hint} {caught.value.__cause__!r}"


def test_a_known_complaint_is_shown(helpers: Helpers) -> None:
    helpers.write("x", "echo 'no credentials server URL'; exit 1")
    with pytest.raises(ConfigError, match="no credentials server URL"):
        get(helpers.pool())


def test_a_hanging_helper_is_ended_with_everything_it_started(helpers: Helpers, tmp_path: Path) -> None:
    helpers.write("x", f"sleep 60 & echo $! > {tmp_path}/child; wait")
    with pytest.raises(ConfigError, match=r"no answer within 2 seconds") as caught:
        get(helpers.pool(seconds=2))
    assert "keyring" in caught.value.hint
    assert_gone(int((tmp_path / "child").read_text()))


def assert_gone(process_id: int) -> None:
    """The process has ended; as an orphan it may stay a zombie until somebody collects it."""

    def is_gone() -> bool:
        try:
            return Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except OSError:
            return True

    until(is_gone, f"process {process_id} has ended")


def test_cancelling_ends_a_helper(helpers: Helpers) -> None:
    helpers.write("x", "sleep 60")
    cancel = CancelToken()
    threading.Timer(0.1, cancel.cancel).start()
    with pytest.raises(OperationCancelledError):
        get(helpers.pool(), cancel=cancel)


def test_a_daemon_left_behind_delays_nothing(helpers: Helpers, tmp_path: Path) -> None:
    answer = json.dumps({"Username": "alice", "Secret": "s"})
    helpers.write("x", f"sleep 600 & echo $! > {tmp_path}/child; echo '{answer}'")
    assert get(helpers.pool()) is not None
    os.kill(int((tmp_path / "child").read_text()), 9)  # it still runs


def test_a_helper_that_reads_nothing_is_fine(helpers: Helpers) -> None:
    program = helpers.folder / "docker-credential-x"
    program.write_text('#!/bin/sh\nexec <&-\nsleep 0.05\necho \'{"Username": "a", "Secret": "s"}\'\n')
    program.chmod(0o755)
    pool = helpers.pool()
    pool.store("x", "registry.example", "alice", "s" * 200_000, cancel=CancelToken())
    assert get(pool) is not None


def test_threads_of_an_operation_share_one_run_and_its_answer_is_remembered_briefly(helpers: Helpers) -> None:
    clock, operation = Clock(), CancelToken()
    helpers.write("x", "sleep 0.1; " + printing({"Username": "alice", "Secret": "s"}))
    pool = helpers.pool(clock=clock)
    threads = [threading.Thread(target=get, args=(pool, TARGET, operation)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(helpers.asked()) == 1
    clock.now = REMEMBER_SECONDS + 1
    get(pool, cancel=operation)
    assert len(helpers.asked()) == 2
    pool.erase("x", "other.example", cancel=CancelToken())
    get(pool, cancel=operation)
    assert helpers.asked()[2:] == ["erase other.example", "get registry.example"]


@pytest.mark.parametrize("before", [NOT_FOUND, printing({"Username": "alice", "Secret": "old"})])
def test_another_operation_gets_the_renewed_login(helpers: Helpers, before: str) -> None:
    helpers.write("x", before)
    pool = helpers.pool()
    get(pool)
    helpers.write("x", printing({"Username": "alice", "Secret": "new"}))
    found = get(pool)
    assert found is not None
    assert found.password.reveal() == "new"


def test_store_and_erase(helpers: Helpers) -> None:
    helpers.write("x", "exit 0")
    pool = helpers.pool()
    pool.store("x", "registry.example", "alice", "s", cancel=CancelToken())
    pool.erase("x", "registry.example", cancel=CancelToken())
    stored, erased = helpers.asked()
    assert json.loads(stored.removeprefix("store ")) == {
        "ServerURL": "registry.example",
        "Username": "alice",
        "Secret": "s",
    }
    assert erased == "erase registry.example"


def test_the_secret_is_never_an_argument_and_the_environment_is_small(helpers: Helpers) -> None:
    helpers.write("x", f'echo "$*" > {helpers.folder}/arguments; env > {helpers.folder}/environment')
    pool = helpers.pool(HOME="/home/alice", AWS_PROFILE="p", CANARY_TOKEN="CANARY")
    pool.store("x", "registry.example", "alice", "CANARY", cancel=CancelToken())
    assert (helpers.folder / "arguments").read_text() == "store\n"
    environment = (helpers.folder / "environment").read_text()
    assert "CANARY" not in environment
    assert "HOME=/home/alice" in environment
    assert "AWS_PROFILE=p" in environment


@pytest.mark.parametrize("suffix", ["", "../x", "a/b", "a b", "-x", "x\n", "x;y", "a" * 65, "ü"])
def test_only_plain_suffixes_run(suffix: str) -> None:
    with pytest.raises(ConfigError, match="plain name"):
        find_program(suffix, "/bin")


@pytest.mark.parametrize("path", ["", ".", "bin", "./bin:", ":"])
def test_relative_folders_in_path_are_passed_over(helpers: Helpers, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    (helpers.folder / "bin").mkdir()
    helpers.write("x", "exit 0")
    Helpers(helpers.folder / "bin").write("x", "exit 0")
    monkeypatch.chdir(helpers.folder)
    with pytest.raises(ConfigError, match="not found in PATH") as caught:
        find_program("x", path)
    assert "without credentials" in caught.value.hint


def test_what_is_no_program_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "docker-credential-x").mkdir()
    (tmp_path / "docker-credential-y").write_text("no permission to run")
    for suffix in ("x", "y"):
        with pytest.raises(ConfigError, match="not found in PATH"):
            find_program(suffix, str(tmp_path))


def test_a_program_that_can_t_be_run_is_a_typed_error(tmp_path: Path) -> None:
    program = tmp_path / "docker-credential-x"
    program.write_bytes(b"\x00\x01")
    program.chmod(0o755)
    with pytest.raises(ImageStoreError, match="can't be run"):
        get(HelperPool({"PATH": str(tmp_path)}))
