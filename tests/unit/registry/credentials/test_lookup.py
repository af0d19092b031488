"""Where credentials are found, in which order, and how that is explained."""

from __future__ import annotations

import base64
import errno
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from imagestore import CancelToken, Credential, Reference, Secret
from imagestore.errors import ConfigError
from imagestore.registry.credentials import sources
from imagestore.registry.credentials.lookup import CredentialResolver, Explanation, UserEnvironment
from imagestore.registry.credentials.model import HUB_LEGACY_KEY, FoundCredential, Target
from imagestore.registry.credentials.sources import ExplicitSource, Outcome

HOST = "registry.example"


def entry(name: str) -> dict[str, str]:
    return {"auth": base64.b64encode(f"{name}:CANARY-{name}".encode()).decode()}


@dataclass
class Machine:
    """A user with an empty home, in a folder of its own."""

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("home", "bin"):
            (self.folder / name).mkdir()
        self.environment |= {"PATH": f"{self.folder}/bin:/bin:/usr/bin", "XDG_RUNTIME_DIR": f"{self.folder}/run"}

    def write(self, place: str, value: object) -> Path:
        path = self.folder / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(value if isinstance(value, str) else json.dumps(value))
        path.chmod(0o600)
        return path

    def helper(self, suffix: str, body: str) -> None:
        self.write(f"bin/docker-credential-{suffix}", f"#!/bin/sh\necho $1 >> {self.folder}/asked\n{body}\n").chmod(
            0o755
        )

    @property
    def asked(self) -> int:
        log = self.folder / "asked"
        return len(log.read_text().splitlines()) if log.exists() else 0

    def resolver(self, *explicit: ExplicitSource, auth_file: str = "") -> CredentialResolver:
        user = UserEnvironment(self.environment, str(self.folder / "home"), 1000, has_run_folder=False)
        return CredentialResolver.standard(*explicit, auth_file=auth_file, user=user)

    def user(self, host: str = HOST, repository: str = "a/b/c") -> str:
        found = self.resolver().lookup(Target(host, repository), cancel=CancelToken())
        return found.credential.username if found is not None else ""

    def explain(self, reference: str = f"{HOST}/a/b/c", *explicit: ExplicitSource) -> Explanation:
        return self.resolver(*explicit).explain(Reference.parse(reference), cancel=CancelToken())


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


DOCKER = "home/.docker/config.json"
PLACES = ["run/containers/auth.json", "home/.config/containers/auth.json", DOCKER, "home/.dockercfg"]
HAS_ENTRY = 'echo \'{"Username": "helper", "Secret": "CANARY-helper"}\''
HAS_NONE = "echo 'credentials not found in native keychain'; exit 1"


def test_nothing_anywhere_is_anonymous(machine: Machine) -> None:
    assert machine.user() == ""
    explanation = machine.explain()
    assert (explanation.provenance, explanation.failure) == ("", None)
    assert [step.outcome for step in explanation.steps] == [Outcome.NO_FILE] * 4
    assert [step.location for step in explanation.steps] == [str(machine.folder / place) for place in PLACES]


def test_places_are_searched_in_their_order_until_an_entry_fits(machine: Machine) -> None:
    values: list[object] = [{"auths": {HOST: entry(f"user{number}")}} for number in range(3)]
    values.append({HOST: entry("user3")})
    found = []
    for place, value in reversed(list(zip(PLACES, values, strict=True))):
        machine.write(place, value)
        found.append(machine.user())
    assert found == ["user3", "user2", "user1", "user0"]
    machine.write(PLACES[0], {"auths": {"other.example": entry("x")}})
    assert machine.user() == "user1"


def test_the_environment_s_json_goes_before_files_but_falls_through(machine: Machine) -> None:
    machine.write(PLACES[0], {"auths": {HOST: entry("file"), "b.example": entry("b")}})
    machine.environment["DOCKER_AUTH_CONFIG"] = json.dumps({"auths": {HOST: entry("variable")}, "credsStore": "absent"})
    assert machine.user() == "variable"
    assert machine.user("b.example") == "b"


@pytest.mark.parametrize("is_option", [True, False])
def test_a_named_file_is_the_only_one(machine: Machine, is_option: bool) -> None:
    machine.write(DOCKER, {"auths": {HOST: entry("docker")}})
    named = str(machine.write("named.json", {"auths": {"other.example": entry("x")}}))
    if not is_option:
        machine.environment["REGISTRY_AUTH_FILE"] = named
    resolver = machine.resolver(auth_file=named if is_option else "")
    assert resolver.lookup(Target(HOST), cancel=CancelToken()) is None
    (machine.folder / "named.json").unlink()
    with pytest.raises(ConfigError, match="found none"):
        resolver.lookup(Target(HOST), cancel=CancelToken())


def test_docker_config_moves_the_folder(machine: Machine) -> None:
    machine.write(DOCKER, {"auths": {HOST: entry("home")}})
    machine.write("elsewhere/config.json", {"auths": {HOST: entry("moved")}})
    machine.environment["DOCKER_CONFIG"] = str(machine.folder / "elsewhere")
    assert machine.user() == "moved"


def test_run_and_config_folders(machine: Machine) -> None:
    machine.environment["XDG_CONFIG_HOME"] = str(machine.folder / "xdg")
    machine.write("xdg/containers/auth.json", {"auths": {HOST: entry("xdg")}})
    assert machine.user() == "xdg"
    del machine.environment["XDG_RUNTIME_DIR"]
    user = UserEnvironment(machine.environment, "", 1234, has_run_folder=True)
    steps = CredentialResolver.standard(user=user).explain(Reference.parse(f"{HOST}/a"), cancel=CancelToken())
    places = ["/run/containers/1234/auth.json", str(machine.folder / "xdg/containers/auth.json")]
    assert [step.location for step in steps.steps] == places


@pytest.mark.parametrize(
    ("keys", "host", "repository", "expected"),
    [
        pytest.param(["h", "h/a", "h/a/b", "h/a/b/c"], "h", "a/b/c", "h/a/b/c", id="longest"),
        pytest.param(["h", "h/a"], "h", "a/b/c", "h/a", id="shorter"),
        pytest.param(["h", "h/ab"], "h", "a/b", "h", id="components are whole"),
        pytest.param(["h/z"], "h", "a", None, id="another namespace never stands for the host"),
        pytest.param(["https://h/v1/"], "h", "a", "https://h/v1/", id="old key"),
        pytest.param(["http://h"], "h", "a", "http://h", id="old key without path"),
        pytest.param(["h:5000"], "h", "a", None, id="another port"),
        pytest.param(["h:443"], "h", "a", "h:443", id="https's own port"),
        pytest.param(["h"], "h:443", "a", "h", id="https's own port asked for"),
        pytest.param(["[::1]:5000"], "[::1]:5000", "a", "[::1]:5000", id="IPv6"),
        pytest.param(["docker.io/a", "docker.io"], "docker.io", "a/b", "docker.io/a", id="hub namespace"),
        pytest.param([HUB_LEGACY_KEY], "docker.io", "a/b", HUB_LEGACY_KEY, id="hub's old key"),
        pytest.param(["index.docker.io"], "docker.io", "a", "index.docker.io", id="hub alias"),
    ],
)
def test_containers_keys(keys: list[str], host: str, repository: str, expected: str | None) -> None:
    found = sources.containers_keys(keys, Target(host, repository))
    assert (found[0] if found else None) == expected


@pytest.mark.parametrize(
    ("keys", "host", "expected"),
    [
        pytest.param(["https://h", "h"], "h", ["h", "https://h"], id="exact first"),
        pytest.param(["http://H/v1/"], "h", ["http://H/v1/"], id="host part"),
        pytest.param(["h.evil.example", "evil.example/h", "xh"], "h", [], id="lookalikes"),
        pytest.param(["h:5000"], "h", [], id="another port"),
        pytest.param(
            ["registry-1.docker.io", "index.docker.io", "docker.io", HUB_LEGACY_KEY],
            "docker.io",
            [HUB_LEGACY_KEY, "docker.io", "index.docker.io", "registry-1.docker.io"],
            id="hub's names in order",
        ),
    ],
)
def test_docker_keys(keys: list[str], host: str, expected: list[str]) -> None:
    assert sources.docker_keys(keys, Target(host)) == expected


def test_docker_helper_of_the_host_beats_the_store_beats_entries(machine: Machine) -> None:
    machine.helper("one", HAS_ENTRY.replace("helper", "one"))
    machine.helper("two", HAS_ENTRY.replace("helper", "two"))
    value: dict[str, object] = {"auths": {HOST: entry("inline")}}
    machine.write(DOCKER, value)
    found = [machine.user()]
    machine.write(DOCKER, value | {"credsStore": "two"})
    found.append(machine.user())
    machine.write(DOCKER, value | {"credsStore": "two", "credHelpers": {HOST: "one", "other.example": "absent"}})
    found.append(machine.user())
    assert found == ["inline", "two", "one"]


def test_an_entry_with_content_is_used_when_the_helper_has_none_and_that_is_said(machine: Machine) -> None:
    machine.helper("one", HAS_NONE)
    machine.write(DOCKER, {"auths": {HOST: entry("inline")}, "credHelpers": {HOST: "one"}})
    explanation = machine.explain()
    assert explanation.provenance.endswith("member auths['registry.example'] (the helper had none)")
    outcomes = [step.outcome for step in explanation.steps[2:4]]
    assert outcomes == [Outcome.NO_ENTRY, Outcome.USED]


def test_a_placeholder_is_no_entry_and_the_search_goes_on(machine: Machine) -> None:
    machine.helper("one", HAS_NONE)
    machine.write(DOCKER, {"auths": {HOST: {}}, "credsStore": "one"})
    machine.write("home/.dockercfg", {HOST: entry("old")})
    assert machine.user() == "old"


@pytest.mark.parametrize("body", ["echo CANARY; exit 1", None])
def test_a_failing_or_missing_helper_is_never_passed_over(machine: Machine, body: str | None) -> None:
    if body:
        machine.helper("one", body)
    machine.write(DOCKER, {"auths": {HOST: entry("inline")}, "credsStore": "one"})
    machine.write("home/.dockercfg", {HOST: entry("old")})
    with pytest.raises(ConfigError, match="docker-credential-one") as caught:
        machine.user()
    assert "CANARY" not in str(caught.value)
    explanation = machine.explain()
    assert isinstance(explanation.failure, ConfigError)
    assert [step.outcome for step in explanation.steps[2:]] == [Outcome.FAILED, Outcome.SHADOWED]
    assert explanation.steps[-1].reason == "the search ended at the failure above"


def test_containers_files_have_helpers_for_hosts_but_no_store(machine: Machine) -> None:
    machine.helper("one", HAS_ENTRY)
    machine.write(PLACES[0], {"auths": {HOST: entry("inline")}, "credsStore": "absent"})
    assert machine.user() == "inline"
    machine.write(PLACES[0], {"auths": {HOST: entry("inline")}, "credHelpers": {HOST: "one"}})
    assert machine.user() == "helper"


def test_helpers_behind_the_winner_are_not_asked(machine: Machine) -> None:
    machine.helper("one", HAS_ENTRY)
    machine.write(PLACES[0], {"auths": {HOST: entry("first")}})
    machine.write(DOCKER, {"auths": {HOST: entry("second")}, "credsStore": "one"})
    explanation = machine.explain()
    assert machine.asked == 0
    assert [(step.outcome, step.member) for step in explanation.steps] == [
        (Outcome.USED, "auths['registry.example']"),
        (Outcome.NO_FILE, ""),
        (Outcome.NOT_ASKED, "docker-credential-one (credsStore)"),
        (Outcome.SHADOWED, "auths['registry.example']"),
        (Outcome.NO_FILE, ""),
    ]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        pytest.param({"username": "u", "password": "p"}, ("u", "p", "", ""), id="plain"),
        pytest.param(entry("u"), ("u", "CANARY-u", "", ""), id="auth"),
        pytest.param({"auth": base64.b64encode(b"u:p:q\0\0").decode()}, ("u", "p:q", "", ""), id="first colon, NULs"),
        pytest.param(
            {"auth": base64.b64encode(b"u:").decode(), "identitytoken": "i"}, ("u", "", "i", ""), id="identity"
        ),
        pytest.param({"registrytoken": "r"}, ("", "", "", "r"), id="ready token"),
        pytest.param({"username": "<token>", "password": "t"}, ("", "", "t", ""), id="token user"),
        pytest.param({"auth": " " + entry("u")["auth"] + "\n"}, ("u", "CANARY-u", "", ""), id="white space"),
        pytest.param(
            {"username": "_json_key", "password": '{\n"a": 1}\n'}, ("_json_key", '{\n"a": 1}\n', "", ""), id="lines"
        ),
    ],
)
def test_entries(machine: Machine, value: object, expected: tuple[str, str, str, str]) -> None:
    machine.write(DOCKER, {"auths": {HOST: value}, "unknown": 1})
    found = machine.resolver().lookup(Target(HOST), cancel=CancelToken())
    assert found is not None
    got = found.credential
    secrets = (got.password.reveal(), got.identity_token.reveal(), got.registry_token.reveal())
    assert (got.username, *secrets) == expected


@pytest.mark.parametrize("value", [{}, None, {"email": "a@example"}, {"username": "u"}, {"auth": ""}])
def test_entries_without_a_secret_are_placeholders(machine: Machine, value: object) -> None:
    machine.write(DOCKER, {"auths": {HOST: value}})
    assert machine.user() == ""


BROKEN = [
    {"auth": "CANARY!"},
    {"auth": base64.b64encode(b"CANARY").decode()},
    {"auth": base64.b64encode(b":CANARY").decode()},
    {"auth": base64.b64encode(b"\xff:CANARY").decode()},
    {"auth": 7},
    {"username": ["CANARY"]},
    "CANARY",
    {"registrytoken": "CANARY x"},
    {"registrytoken": "CANARY\r\nX: y"},
    {"identitytoken": "CANARY\n"},
    {"username": "CANARY\n", "password": "p"},
    {"username": "a:b", "password": "CANARY"},
]


@pytest.mark.parametrize("value", BROKEN)
def test_a_broken_entry_fails_for_its_host_alone_and_is_not_quoted(machine: Machine, value: object) -> None:
    path = machine.write(DOCKER, {"auths": {HOST: value, "b.example": entry("b")}})
    assert machine.user("b.example") == "b"
    with pytest.raises(ConfigError) as caught:
        machine.user()
    assert str(caught.value).startswith(f"{path}: auths['registry.example']")
    shown = f"{caught.value!r} {caught.value.__cause__!r} {machine.explain()!r}"
    assert "CANARY" not in shown
    assert base64.b64encode(b"CANARY").decode() not in shown


@pytest.mark.parametrize(
    ("content", "part"),
    [
        ('{"auths": {\n  "CANARY" 7}}', "line 2, column 12"),
        ("[]", "object at the top"),
        ('{"auths": []}', "auths: expected an object"),
        ('{"credHelpers": {"h": 7}}', "credHelpers['h']"),
        ('{"credsStore": {}}', "credsStore"),
        ("[" * 100_000, "ordinary depth"),
        (" " * (1024 * 1024) + "{}", "at most"),
    ],
)
def test_a_broken_file_is_never_an_empty_one(machine: Machine, content: str, part: str) -> None:
    path = machine.write(DOCKER, content)
    with pytest.raises(ConfigError) as caught:
        machine.user()
    assert str(caught.value).startswith(f"{path}: ")
    assert part in str(caught.value)
    assert "CANARY" not in f"{caught.value!r}{caught.value.__cause__!r}{caught.value.__context__!r}"


def test_an_empty_file_has_no_entries(machine: Machine) -> None:
    machine.write(DOCKER, "")
    assert machine.user() == ""


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_regular_file_is_refused_and_does_not_hang(machine: Machine, make: Callable[[Path], None]) -> None:
    (machine.folder / "home/.docker").mkdir()
    make(machine.folder / DOCKER)
    with pytest.raises(ConfigError, match=r"regular file|Is a directory"):
        machine.user()


def test_wide_permissions_are_noted(machine: Machine) -> None:
    machine.write(DOCKER, {"auths": {HOST: entry("u")}}).chmod(0o644)
    assert "permissions 0644: others can read it" in machine.explain().steps[2].reason


def test_explicit_credentials_come_first_and_stay_with_their_registry(machine: Machine) -> None:
    machine.write(DOCKER, {"auths": {HOST: entry("file"), "mirror.example": entry("mirror")}})
    given = ExplicitSource(FoundCredential(Credential("given", Secret("CANARY-given")), "option --creds"), HOST)
    explanation = machine.explain(f"{HOST}/a", given)
    assert explanation.provenance == "option --creds"
    assert [step.outcome for step in explanation.steps][:4:3] == [Outcome.USED, Outcome.SHADOWED]
    other = machine.explain("mirror.example/a", given)
    assert other.steps[0].reason == "given for registry.example, not for mirror.example"
    assert "mirror.example" in other.provenance


def test_an_explanation_holds_no_secret(machine: Machine) -> None:
    machine.helper("one", HAS_ENTRY)
    for place in PLACES[:2]:
        machine.write(place, {"auths": {f"{HOST}/a": entry("u"), HOST: {"identitytoken": "CANARY-i"}}})
    machine.write(DOCKER, {"auths": {HOST: entry("v")}, "credsStore": "one"})
    explanation = machine.explain()
    found = machine.resolver().lookup(Target(HOST, "a"), cancel=CancelToken())
    shown = f"{explanation!r} {found!r} {found}"
    assert "CANARY" not in shown
    assert entry("u")["auth"] not in shown


def test_fingerprints_tell_credentials_apart_without_showing_them() -> None:
    key = bytes(range(32))
    credentials = [
        Credential("ab", Secret("c")),
        Credential("a", Secret("bc")),
        Credential("a", Secret("b")),
        Credential(identity_token=Secret("ab")),
        Credential(registry_token=Secret("ab")),
    ]
    prints = {credential.fingerprint(key) for credential in credentials}
    assert len(prints) == len(credentials)
    assert Credential("a", Secret("b")).fingerprint(key) in prints
    assert Credential("a", Secret("b")).fingerprint(b"other") not in prints


@pytest.mark.parametrize("spell", [str.upper, str.title, lambda name: name[:1].upper() + name[1:]])
@pytest.mark.parametrize("place", ["home/.docker/config.json", "home/.config/containers/auth.json"])
@pytest.mark.parametrize(
    "members",
    [
        {"auth": base64.b64encode(b"u:p").decode()},
        {"username": "u", "password": "p"},
        {"identitytoken": "p"},
        {"registrytoken": "p"},
    ],
    ids=lambda members: next(iter(members)),
)
def test_members_count_in_any_case(
    machine: Machine, spell: Callable[[str], str], place: str, members: dict[str, str]
) -> None:
    """Go's JSON reader takes them so, and Docker's and the containers tools are written in Go."""
    machine.write(place, {spell("auths"): {HOST: {spell(name): text for name, text in members.items()}}})
    found = machine.resolver().lookup(Target(HOST), cancel=CancelToken())
    assert found is not None
    credential = found.credential
    assert "p" in {
        each.reveal() for each in (credential.password, credential.identity_token, credential.registry_token)
    }
    assert [step.outcome for step in machine.explain().steps].count(Outcome.USED) == 1


@pytest.mark.parametrize("document", [{"CredHelpers": {HOST: "x"}}, {"credhelpers": {HOST: "x"}}, {"CREDSSTORE": "x"}])
def test_helpers_are_named_in_any_case(machine: Machine, document: dict[str, object]) -> None:
    machine.helper("x", """echo '{"username": "helped", "SECRET": "p"}'""")
    machine.write("home/.docker/config.json", document)
    assert machine.user() == "helped"


def test_spellings_of_one_member_are_read_as_one(machine: Machine) -> None:
    machine.write(
        "home/.docker/config.json", {"auths": {HOST: entry("a")}, "Auths": {"other": entry("b")}, "AUTHS": None}
    )
    assert (machine.user(), machine.user("other")) == ("a", "b")
    machine.write("home/.docker/config.json", {"auths": {HOST: entry("a")}, "Auths": {HOST: entry("b")}})
    assert machine.user() == "b"


def test_the_environment_s_json_has_members_in_any_case(machine: Machine) -> None:
    machine.environment["DOCKER_AUTH_CONFIG"] = json.dumps({"Auths": {HOST: entry("variable")}})
    assert machine.user() == "variable"


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("is_folder_closed", [True, False])
def test_a_place_that_may_not_be_read_is_passed_over(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, place: str, is_folder_closed: bool
) -> None:
    """As root's podman leaves /run/containers, or a login with sudo a home."""
    closed = machine.write(place, {"auths": {HOST: entry("u")}})
    other = next(each for each in PLACES if each != place)
    value: dict[str, object] = {HOST: entry("next")}
    machine.write(other, value if other.endswith(".dockercfg") else {"auths": value})
    usual = os.open

    def _open(path: Any, *more: Any, **named: Any) -> int:
        if str(path).startswith(str(closed.parent if is_folder_closed else closed)):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return usual(path, *more, **named)

    monkeypatch.setattr(os, "open", _open)
    is_also_closed = is_folder_closed and str(other).startswith(str(place).rpartition("/")[0] + "/")
    assert machine.user() == ("" if is_also_closed else "next")
    steps = {step.location: step for step in machine.explain().steps}
    assert steps[str(closed)].outcome is Outcome.UNREADABLE
    with pytest.raises(ConfigError, match="can't be read: Permission denied"):
        machine.resolver(auth_file=str(closed)).lookup(Target(HOST), cancel=CancelToken())
