"""What login and logout do to files and helpers."""

from __future__ import annotations

import base64
import json
import os
import stat
import threading
from pathlib import Path

import pytest

from imagestore import CancelToken, Credential, Secret
from imagestore.errors import ConfigError
from imagestore.registry.credentials import files
from imagestore.registry.credentials.helper import HelperPool, servers
from imagestore.registry.credentials.login import LoginFile, login_file_for, remove_login, store_login
from imagestore.registry.credentials.lookup import UserEnvironment
from imagestore.registry.credentials.model import HUB_LEGACY_KEY, Target
from tests.support.strangers import refuse_to_follow

HOST = "registry.example"
ALICE = Credential("alice", Secret("CANARY"))
AUTH = base64.b64encode(b"alice:CANARY").decode()
UNKNOWN = {"HttpHeaders": {"X": "1"}, "plugins": {"a": {"b": [1, 2.5, None, True]}}, "zeta": "ü"}


def pool(folder: Path) -> HelperPool:
    return HelperPool({"PATH": f"{folder}:/bin:/usr/bin"})


def store(path: Path, host: str = HOST, credential: Credential = ALICE, *, is_docker: bool = True) -> str:
    return store_login(LoginFile(str(path), is_docker), host, credential, pool(path.parent), cancel=CancelToken())


def remove(path: Path, host: str = HOST, *, is_docker: bool = True) -> tuple[str, ...]:
    return remove_login(LoginFile(str(path), is_docker), host, pool(path.parent), cancel=CancelToken())


def content(path: Path) -> dict[str, object]:
    value = json.loads(path.read_text())
    assert isinstance(value, dict)
    return value


def write_helper(folder: Path, body: str) -> Path:
    """A helper that keeps one secret in a file."""
    program = folder / "docker-credential-x"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)
    return folder / "kept"


KEEPER = """
case $1 in
store) cat > {0}/kept ;;
get) read -r server; if [ -f {0}/kept ] && grep -q "\\"$server\\"" {0}/kept; then cat {0}/kept; else
     echo 'credentials not found in native keychain'; exit 1; fi ;;
erase) rm {0}/kept || exit 7 ;;
esac
"""


def test_a_new_file_is_private_from_its_folder_on(tmp_path: Path) -> None:
    path = tmp_path / "new" / "config.json"
    where = store(path)
    assert content(path) == {"auths": {HOST: {"auth": AUTH}}}
    assert where == f"{path}, member auths['registry.example']"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [each.name for each in path.parent.iterdir()] == ["config.json"]


def test_members_we_do_not_know_stay_and_permissions_are_narrowed(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**UNKNOWN, "auths": {"b.example": {"auth": "x"}, HOST: {"email": "e", "auth": "old"}}}))
    path.chmod(0o644)
    store(path)
    auths = {"b.example": {"auth": "x"}, HOST: {"email": "e", "auth": AUTH}}
    assert content(path) == {**UNKNOWN, "auths": auths}
    assert list(content(path)) == [*UNKNOWN, "auths"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_symbolic_link_stays_and_its_target_is_written(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    target, link = tmp_path / "real" / "config.json", tmp_path / "config.json"
    target.write_text("{}")
    link.symlink_to("real/config.json")
    store(link)
    assert link.is_symlink()
    assert content(target) == {"auths": {HOST: {"auth": AUTH}}}


def test_a_link_that_the_kernel_does_not_follow_is_not_followed_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, link = tmp_path / "precious", tmp_path / "config.json"
    target.write_text("{}")
    link.symlink_to(target)
    refuse_to_follow(monkeypatch, link)
    with pytest.raises(ConfigError, match="can't be written: Permission denied"):
        store(link)
    assert target.read_text() == "{}"


@pytest.mark.parametrize(("is_docker", "key"), [(True, HUB_LEGACY_KEY), (False, "docker.io")])
def test_docker_hub_has_the_key_each_tool_looks_for(tmp_path: Path, is_docker: bool, key: str) -> None:
    path = tmp_path / "auth.json"
    store(path, "docker.io", is_docker=is_docker)
    assert content(path)["auths"] == {key: {"auth": AUTH}}


def test_an_identity_token_replaces_a_password(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    store(path)
    store(path, credential=Credential(identity_token=Secret("CANARY-i")))
    assert content(path)["auths"] == {HOST: {"identitytoken": "CANARY-i"}}


@pytest.mark.parametrize("text", ["not json", "[]", '{"auths": 7}'])
def test_a_file_we_do_not_understand_is_not_touched(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(ConfigError):
        store(path)
    with pytest.raises(ConfigError):
        remove(path)
    assert path.read_text() == text


def test_a_folder_that_can_t_be_made_is_a_typed_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="can't be written"):
        store(tmp_path / "file" / "config.json")


def test_a_failed_write_leaves_the_old_file_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "config.json"
    path.write_text("{}")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(ConfigError, match="No space left"):
        store(path)
    assert path.read_text() == "{}"
    assert [each.name for each in tmp_path.iterdir()] == ["config.json"]


def test_logins_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    hosts = [f"h{number}.example" for number in range(8)]
    threads = [threading.Thread(target=store, args=(path, host)) for host in hosts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    auths = content(path)["auths"]
    assert isinstance(auths, dict)
    assert sorted(auths) == hosts


@pytest.mark.parametrize("member", [{"credsStore": "x"}, {"credHelpers": {HOST: "x"}}])
def test_a_helper_keeps_the_secret_and_the_file_a_placeholder(tmp_path: Path, member: dict[str, object]) -> None:
    kept = write_helper(tmp_path, KEEPER.format(tmp_path))
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**member, "auths": {HOST: {"auth": "old"}}}))
    where = store(path)
    assert where.startswith("docker-credential-x, named by cred")
    assert json.loads(kept.read_text()) == {"ServerURL": HOST, "Username": "alice", "Secret": "CANARY"}
    assert content(path)["auths"] == {HOST: {}}
    assert remove(path)[0] == where
    assert not kept.exists()
    assert content(path)["auths"] == {}


@pytest.mark.parametrize(("host", "asked"), [(HOST, f"{HOST}:443"), (f"{HOST}:443", HOST)])
def test_a_helper_s_entry_counts_however_the_port_is_written(tmp_path: Path, host: str, asked: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"credsStore": "x"}))
    write_helper(tmp_path, KEEPER.format(tmp_path))
    store(path, host)
    found = pool(tmp_path).get("x", servers(Target(asked)), cancel=CancelToken())
    assert found is not None
    assert (found.username, found.password.reveal()) == ("alice", "CANARY")
    assert remove(path, asked)


def test_a_helper_keeps_an_identity_token_under_the_token_user(tmp_path: Path) -> None:
    kept = write_helper(tmp_path, KEEPER.format(tmp_path))
    path = tmp_path / "config.json"
    path.write_text('{"credsStore": "x"}')
    store(path, credential=Credential(identity_token=Secret("CANARY-i")))
    assert json.loads(kept.read_text()) == {"ServerURL": HOST, "Username": "<token>", "Secret": "CANARY-i"}


def test_a_helper_that_fails_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    write_helper(tmp_path, "exit 3")
    path = tmp_path / "config.json"
    text = json.dumps({"credsStore": "x", "auths": {HOST: {"auth": AUTH}}})
    path.write_text(text)
    with pytest.raises(ConfigError, match="exit status 3"):
        store(path)
    assert path.read_text() == text


@pytest.mark.parametrize("is_docker", [True, False])
def test_logout_removes_every_name_of_the_host_and_no_other(tmp_path: Path, is_docker: bool) -> None:
    path = tmp_path / "auth.json"
    stays: dict[str, object] = {"other.example": {}, f"{HOST}:5000": {}}
    if not is_docker:
        stays[f"{HOST}/namespace"] = {}
    path.write_text(json.dumps({"auths": {**stays, HOST: {"auth": AUTH}, f"https://{HOST}/v1/": {}}}))
    assert len(remove(path, is_docker=is_docker)) == 2
    assert content(path)["auths"] == stays


def test_logout_without_a_login_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    assert remove(path) == ()
    assert not path.exists()
    path.write_text('{"auths":{}}')
    assert remove(path) == ()
    assert path.read_text() == '{"auths":{}}'


def test_the_place_of_a_login() -> None:
    def place(home: str, **environment: str) -> LoginFile:
        return login_file_for(UserEnvironment(environment, home, 0, has_run_folder=False))

    assert place("/h") == LoginFile("/h/.docker/config.json", is_docker=True)
    assert place("/h", DOCKER_CONFIG="/d") == LoginFile("/d/config.json", is_docker=True)
    assert place("/h", REGISTRY_AUTH_FILE="/a.json", DOCKER_CONFIG="/d") == LoginFile("/a.json", is_docker=False)
    with pytest.raises(ConfigError, match="no place"):
        place("")


def test_a_writer_that_never_ends_is_not_waited_for_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "LOCK_SECONDS", 0.05)
    path = tmp_path / "config.json"
    with files.edit(str(path)), pytest.raises(ConfigError, match="another process"):
        store(path)


def test_a_folder_in_a_file_s_place_is_refused_and_left_closed(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ConfigError, match="Is a directory"):
        files.read(str(tmp_path))
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(
    "entry",
    [
        {"username": "\ud800", "password": "CANARY"},
        {"username": "a", "password": "CANARY\udfff"},
        {"identitytoken": "CANARY\ud800"},
        {"registrytoken": "CANARY\ud800"},
    ],
)
def test_what_is_no_unicode_text_is_refused_before_it_has_to_be_sent(entry: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"f: auths: .* is no Unicode text") as caught:
        files.decode_entry(entry, "f: auths")
    assert "CANARY" not in f"{caught.value!r} {caught.value.__context__!r}"


@pytest.mark.parametrize("member", ["password", "identitytoken", "registrytoken", "username"])
def test_what_is_absurdly_long_is_refused_and_not_shown(member: str) -> None:
    entry = {"username": "a", "password": "p"}
    files.decode_entry({**entry, member: "C" * 256 * 1024}, "f: auths")
    with pytest.raises(ConfigError, match=r"f: auths: .* is longer than 262144 characters") as caught:
        files.decode_entry({**entry, member: "C" * (256 * 1024 + 1)}, "f: auths")
    assert "CCC" not in str(caught.value)


@pytest.mark.parametrize("password", ["", "CANARY-p"])
def test_an_identity_token_with_the_token_user_is_the_login(password: str) -> None:
    auth = base64.b64encode(f"<token>:{password}".encode()).decode()
    found = files.decode_entry({"auth": auth, "identitytoken": "CANARY-i"}, "f: auths")
    assert (found.username, found.identity_token.reveal(), bool(found.password)) == ("", "CANARY-i", False)


@pytest.mark.parametrize("before", [{"Auths": {}}, {"auths": {"other": {}}, "Auths": {}}, {"AUTHS": None}])
def test_login_and_logout_use_the_file_s_own_spelling(tmp_path: Path, before: dict[str, object]) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(before))
    store(path)
    assert list(content(path)) == list(before)
    file = files.interpret(content(path), "x")
    assert file.entries[HOST] == {"auth": AUTH}
    assert remove(path)
    assert HOST not in files.interpret(content(path), "x").entries


def test_a_new_login_leaves_no_member_of_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"auths": {HOST: {"IdentityToken": "old", "Password": "old", "Email": "e"}}}))
    store(path)
    assert content(path) == {"auths": {HOST: {"Email": "e", "auth": AUTH}}}


def test_logout_forgets_what_two_spellings_hold(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"auths": {HOST: {"auth": AUTH}}, "Auths": {HOST: {"auth": AUTH}, "other": {}}}))
    assert remove(path)
    assert content(path) == {"auths": {}, "Auths": {"other": {}}}
