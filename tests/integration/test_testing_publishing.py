"""Tapes and layouts travel through a real registry as artifacts, byte for byte."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from imagestore.errors import AccessDeniedError, ContentNotFoundError, DocumentError, IntegrityError
from imagestore.testing import (
    BasicAuth,
    FaultRule,
    RegistryServer,
    Where,
    build_artifact,
    build_image,
    load_tape,
    make_tape,
)
from imagestore.testing.builders.bodies import BytesBody
from imagestore.testing.engine.messages import Reply, Request
from imagestore.testing.faults import Redirect, Refuse
from imagestore.testing.tapes.blob_folder import BlobFolder
from imagestore.testing.tapes.layout import tape_to_layout
from imagestore.testing.tapes.maintenance import verify_tape
from imagestore.testing.tapes.publishing import fetch_layout, fetch_tape, push_layout, push_tape
from tests.support.logins import HTPASSWD, PASSWORD, token_service
from tests.support.peers import DockerRegistry, docker_registry

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.integration

TAPES = Path(__file__).parents[2] / "fixtures" / "tapes"


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DockerRegistry]:
    with docker_registry(tmp_path_factory.mktemp("peer")) as running:
        yield running


@pytest.mark.parametrize("name", ["python-kep4216", "recorded-docker-registry", "large-layer", "fault-reset"])
def test_a_tape_arrives_byte_for_byte(registry: DockerRegistry, tmp_path: Path, name: str) -> None:
    target = f"{registry.address}/fixtures/{name}:1"
    push_tape(str(TAPES / name), target, is_plain_http=True)
    path = fetch_tape(target, str(tmp_path / "tapes" / name), is_plain_http=True)
    assert Path(path).read_bytes() == (TAPES / f"{name}.tape.toml").read_bytes()
    assert verify_tape(path) == []


def test_a_layout_arrives_byte_for_byte(registry: DockerRegistry, tmp_path: Path) -> None:
    blobs = BlobFolder.of_tape(str(TAPES / "shapes"))
    tape_to_layout(load_tape(TAPES / "shapes"), blobs, str(tmp_path / "sent"))
    target = f"{registry.address}/fixtures/layout:1"
    push_layout(str(tmp_path / "sent"), target, is_plain_http=True)
    (tmp_path / "got").mkdir()
    fetch_layout(target, str(tmp_path / "got"), is_plain_http=True)
    sent, got = (
        {
            str(one.relative_to(tmp_path / name)): one.read_bytes()
            for one in (tmp_path / name).rglob("*")
            if one.is_file()
        }
        for name in ("sent", "got")
    )
    assert sent == got


def test_bodies_that_are_not_what_they_are_called_are_refused(tmp_path: Path) -> None:
    tape = (TAPES / "fault-reset.tape.toml").read_bytes()
    first = next(iter(load_tape(TAPES / "fault-reset").contents()))
    image = build_artifact("application/x", {"tape.toml": tape, f"sha256-{first.encoded}": b"something else"})
    with RegistryServer({"registry.example/fixtures/bad:1": image}) as server, pytest.raises(IntegrityError):
        fetch_tape(f"{server.address}/fixtures/bad:1", str(tmp_path / "tapes" / "bad"), is_plain_http=True)
    assert not (tmp_path / "tapes" / "bad.tape.toml").exists()


@pytest.mark.parametrize("is_pinned", [False, True])
def test_a_text_that_is_not_what_the_manifest_says_is_refused(tmp_path: Path, is_pinned: bool) -> None:
    texts = [b'format = "imagestore-tape"\nversion = 1\nabout = "%s"\n' % word for word in (b"good", b"evil")]
    good, evil = (build_artifact("application/x", {"tape.toml": text}) for text in texts)

    class Exchanged:
        def inject(self, request: Request, reply: Reply) -> Reply:
            if is_pinned and reply.kind == "manifest":
                return replace(reply, body=BytesBody(evil.documents[evil.target.digest].data))
            return replace(reply, body=BytesBody(texts[1])) if reply.kind == "blob" else reply

    with RegistryServer({"registry.example/t:1": good}, faults=[Exchanged()]) as server:
        target = f"{server.address}/t@{good.target.digest}" if is_pinned else f"{server.address}/t:1"
        with pytest.raises(IntegrityError):
            fetch_tape(target, str(tmp_path / "tapes" / "t"), is_plain_http=True)
    assert not (tmp_path / "tapes" / "t.tape.toml").exists()


def test_an_artifact_that_is_no_tape_is_refused(tmp_path: Path) -> None:
    image = build_artifact("application/x", {"notes.txt": b"hello"})
    with RegistryServer({"registry.example/notes:1": image}) as server:
        with pytest.raises(DocumentError, match=r"it has no tape\.toml"):
            fetch_tape(f"{server.address}/notes:1", str(tmp_path / "t"), is_plain_http=True)
        with pytest.raises(DocumentError, match="it has no oci-layout"):
            fetch_layout(f"{server.address}/notes:1", str(tmp_path), is_plain_http=True)


def test_a_layout_and_a_tape_are_told_apart(registry: DockerRegistry, tmp_path: Path) -> None:
    tape_to_layout(load_tape(TAPES / "fault-reset"), BlobFolder(str(TAPES.parent / "blobs")), str(tmp_path / "sent"))
    layout, tape = (f"{registry.address}/fixtures/apart:{tag}" for tag in ("layout", "tape"))
    push_layout(str(tmp_path / "sent"), layout, is_plain_http=True)
    push_tape(str(TAPES / "fault-reset"), tape, is_plain_http=True)
    with pytest.raises(DocumentError, match=r"it has no tape\.toml, but a layout: fetch it with --layout"):
        fetch_tape(layout, str(tmp_path / "t"), is_plain_http=True)
    with pytest.raises(DocumentError, match="it has no oci-layout, but a tape: fetch it without --layout"):
        fetch_layout(tape, str(tmp_path / "got"), is_plain_http=True)


def test_a_layout_that_lacks_a_body_becomes_none(tmp_path: Path) -> None:
    blobs = BlobFolder(str(tmp_path / "blobs"))
    tape_to_layout(make_tape({"registry.example/app:1": build_image()}, blobs), blobs, str(tmp_path / "sent"))
    files = {name: (tmp_path / "sent" / name).read_bytes() for name in ("oci-layout", "index.json")}
    image = build_artifact("application/x", files)
    with RegistryServer({"registry.example/bad:1": image}) as server, pytest.raises(ContentNotFoundError):
        fetch_layout(f"{server.address}/bad:1", str(tmp_path / "got"), is_plain_http=True)
    assert not (tmp_path / "got" / "index.json").exists()


@pytest.fixture(scope="module", params=["passwords", "tokens"])
def guarded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DockerRegistry]:
    """A registry that lets only alice in: by Basic, or with tokens."""
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "htpasswd").write_text(HTPASSWD)
    with token_service(folder) as tokens:
        passwords = f"auth: {{htpasswd: {{realm: here, path: {folder}/htpasswd}}}}"
        more = passwords if request.param == "passwords" else tokens.configuration
        with docker_registry(folder, more=more) as running:
            yield running


def tape_command(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run ``imagestore tape`` in a home of its own; oras alone would wait for minutes."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), **variables}
    command = [sys.executable, "-m", "imagestore", "tape", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


def logins(folder: Path, name: str, host: str, password: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    auth = base64.b64encode(f"alice:{password}".encode()).decode()
    path.write_text(json.dumps({"auths": {host: {"auth": auth}}}))
    return path


@pytest.mark.parametrize("place", ["REGISTRY_AUTH_FILE", "DOCKER_CONFIG", "home", "containers"])
def test_a_tape_travels_with_the_login_that_pulls_have(guarded: DockerRegistry, tmp_path: Path, place: str) -> None:
    names = {"home": ".docker/config.json", "containers": ".config/containers/auth.json"}
    path = logins(tmp_path, names.get(place, "logins/config.json"), guarded.address, PASSWORD)
    variables = {"REGISTRY_AUTH_FILE": str(path), "DOCKER_CONFIG": str(path.parent)}
    given = {name: value for name, value in variables.items() if name == place}
    # Another repository each time: in one that has the bodies nothing has to be pushed.
    target = f"{guarded.address}/fixtures/{place.lower()}:1"
    pushed = tape_command(tmp_path, "push", "--plain-http", str(TAPES / "fault-reset"), target, **given)
    assert (pushed.returncode, pushed.stdout) == (0, f"pushed {target}\n"), pushed.stderr
    got = tmp_path / "tapes" / "got"
    fetched = tape_command(tmp_path, "fetch", "--plain-http", target, str(got), **given)
    assert fetched.returncode == 0, fetched.stderr
    assert got.with_name("got.tape.toml").read_bytes() == (TAPES / "fault-reset.tape.toml").read_bytes()
    assert PASSWORD not in pushed.stderr + fetched.stderr


@pytest.mark.parametrize("password", ["", "wrong-one"])
def test_a_login_that_is_missing_or_refused_is_told_at_once(
    guarded: DockerRegistry, tmp_path: Path, password: str
) -> None:
    path = logins(tmp_path, "auth.json", guarded.address, password or "x")
    given = {"REGISTRY_AUTH_FILE": str(path)} if password else {}
    target = f"{guarded.address}/fixtures/one:1"
    for arguments in (["push", str(TAPES / "fault-reset"), target], ["fetch", target, str(tmp_path / "t")]):
        ended = tape_command(tmp_path, *arguments, "--plain-http", **given)
        assert ended.returncode == 5, ended.stderr
        assert f"imagestore login {guarded.address}" in ended.stderr
        assert "wrong-one" not in ended.stderr
    assert not (tmp_path / "t.tape.toml").exists()


def served(**how: Any) -> RegistryServer:
    blobs = BlobFolder.of_tape(str(TAPES / "fault-reset"))
    files = {"tape.toml": (TAPES / "fault-reset.tape.toml").read_bytes()}
    for digest in load_tape(TAPES / "fault-reset").contents():
        files[f"sha256-{digest.encoded}"] = Path(blobs.path(digest)).read_bytes()
    return RegistryServer({"registry.example/t:1": build_artifact("application/x", files)}, **how)


@pytest.mark.parametrize("host", ["registry.example", "storage.example"])
def test_who_is_forbidden_is_told_at_once(tmp_path: Path, host: str) -> None:
    rule = FaultRule(Refuse(403), Where(host=host), times=0)
    with (
        served(faults=[rule], storage_host="storage.example") as server,
        pytest.raises(AccessDeniedError, match="forbids access" if host == "registry.example" else "answered 403"),
    ):
        fetch_tape(f"{server.address}/t:1", str(tmp_path / "t"), is_plain_http=True)


def test_a_login_stays_with_requests_that_are_redirected_at_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = [FaultRule(Redirect("same"), Where(kind=kind), times=0) for kind in ("manifest", "blob")]
    with served(auth=BasicAuth(users={"alice": PASSWORD}), faults=rules) as server:
        path = logins(tmp_path, "auth.json", server.address, PASSWORD)
        monkeypatch.setenv("REGISTRY_AUTH_FILE", str(path))
        fetch_tape(f"{server.address}/t:1", str(tmp_path / "tapes" / "t"), is_plain_http=True)


def test_a_storage_gets_no_login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(auth=BasicAuth(users={"alice": PASSWORD}), storage_host="storage.example") as server:
        path = logins(tmp_path, "auth.json", server.address, PASSWORD)
        monkeypatch.setenv("REGISTRY_AUTH_FILE", str(path))
        fetch_tape(f"{server.address}/t:1", str(tmp_path / "tapes" / "t"), is_plain_http=True)
        server.ledger.assert_credentials_only_at("registry.example")


def test_what_is_not_there_is_not_found(registry: DockerRegistry, tmp_path: Path) -> None:
    with pytest.raises(ContentNotFoundError, match="no such artifact"):
        fetch_tape(f"{registry.address}/fixtures/none:1", str(tmp_path / "t"), is_plain_http=True)
