"""Other people's clients against the recorded registry: skopeo, buildah, containerd's ctr, Docker, oras-py."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import oras.client
import pytest

from imagestore import Digest
from imagestore.testing import (
    FaultRule,
    RegistryServer,
    TokenAuth,
    Where,
    WriteRules,
    build_artifact,
    build_image,
    build_index,
    faults,
    replay,
    save_tape,
)
from imagestore.testing.recording.recorder import Recorder
from imagestore.testing.recording.upstream import Upstream
from imagestore.testing.servers.authority import Authority
from imagestore.testing.servers.proxy import ProxyServer
from imagestore.testing.tapes.blob_folder import BlobFolder
from imagestore.testing.tapes.maintenance import verify_tape
from tests.support.dockerd import dockerd
from tests.support.logins import PASSWORD, token_service
from tests.support.patience import until
from tests.support.peers import docker_registry, need

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.integration

TAPES = Path(__file__).parents[2] / "fixtures" / "tapes"
PYTHON = "registry.example/library/python:3"


def run(*command: str, more: dict[str, str] | None = None) -> str:
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, env={**os.environ, **(more or {})}
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def check_folder(folder: Path, expected: set[Digest]) -> None:
    """skopeo's ``dir:`` form names files by hash; each must be what it is called."""
    found = {Digest.of(path.read_bytes()) for path in folder.iterdir() if len(path.name.partition(".")[0]) == 64}
    assert found == expected


def test_skopeo_copies_every_image_of_a_replayed_index(tmp_path: Path) -> None:
    skopeo = need("skopeo")
    with replay(TAPES / "python-kep4216") as playing, playing.serve() as server:
        source = f"docker://{server.reference(PYTHON)}"
        run(skopeo, "copy", "--all", "--src-tls-verify=false", source, f"dir:{tmp_path}/out")
        repository = playing.tape.repositories[0]
        target = repository.tags["3"]
        check_folder(
            tmp_path / "out",
            {one.digest for one in repository.blobs} | {one.digest for one in repository.manifests} - {target},
        )
        playing.ledger.assert_nothing_unexpected()
        for content in repository.blobs:
            playing.ledger.assert_bytes_fetched(content.digest, content.size)


def test_skopeo_uses_logical_names_through_the_proxy_with_tls(tmp_path: Path) -> None:
    skopeo = need("skopeo")
    with replay(TAPES / "token-auth-private") as playing:
        with ProxyServer(playing.engine, (), authority=Authority()) as server:
            credential = "tester:tape-password-tester"
            source = "docker://registry.example/app/small:1"
            destination = f"dir:{tmp_path}/out"
            run(skopeo, "copy", "--src-creds", credential, source, destination, more=server.environment())
        playing.ledger.assert_credentials_only_at("registry.example", "auth.example")
        assert playing.ledger.count(host="auth.example", kind="token") >= 1


@pytest.fixture(scope="module")
def containerd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("containerd")
    config = folder / "config.toml"
    address = folder / "containerd.sock"
    config.write_text(
        f'version = 2\nroot = "{folder}/root"\nstate = "{folder}/state"\n'
        'disabled_plugins = ["io.containerd.grpc.v1.cri"]\n'
        f'[grpc]\n  address = "{address}"\n'
    )
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen([need("containerd"), "-c", str(config)], stdout=log, stderr=log)
    try:

        def answers() -> bool:
            assert process.poll() is None, (folder / "log").read_text()
            probe = [need("ctr"), "-a", str(address), "version"]
            return subprocess.run(probe, capture_output=True, check=False).returncode == 0

        until(answers, "containerd answers")
        yield str(address)
    finally:
        process.terminate()
        process.wait(timeout=60)


@pytest.mark.parametrize(
    ("tape", "reference"),
    [
        ("python-kep4216", PYTHON),
        ("token-auth", "registry.example/app/small:1"),
        ("storage-redirect", "registry.example/app/small:1"),
        ("shapes", "registry.example/twins/docker:1"),
        ("recorded-docker-registry", "registry.example/app/small:1"),
    ],
)
def test_ctr_fetches_and_pulls(containerd: str, tape: str, reference: str) -> None:
    ctr = need("ctr")
    with replay(TAPES / tape) as playing, playing.serve() as server:
        place = server.reference(reference)
        run(ctr, "-a", containerd, "-n", tape, "content", "fetch", "--plain-http", "--all-platforms", place)
        options = ("--plain-http", "--snapshotter", "native", "--platform", "linux/amd64")
        run(ctr, "-a", containerd, "-n", tape, "images", "pull", *options, place)
        assert place in run(ctr, "-a", containerd, "-n", tape, "images", "ls", "-q")
        playing.ledger.assert_nothing_unexpected()


def test_oras_pulls_an_artifact(tmp_path: Path) -> None:
    files = {"a.txt": b"hello", "b.bin": bytes(range(256))}
    image = build_artifact("application/x-test", files)
    with RegistryServer({"registry.example/artifacts/x:1": image}) as server:
        client = oras.client.OrasClient(insecure=True)
        client.pull(f"{server.address}/artifacts/x:1", outdir=str(tmp_path))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == files


def test_a_real_registry_is_recorded_and_replayed_the_same(tmp_path: Path) -> None:
    skopeo = need("skopeo")
    blobs = BlobFolder(str(tmp_path / "blobs"))
    image = build_index(["linux/amd64", "windows(10.0.20348.1970)/amd64"])
    with docker_registry(tmp_path) as real:
        real.push("app/image", "1", image)
        places = {"registry.example": f"http://{real.address}"}
        with Recorder(blobs, upstream=Upstream(places)) as recorder:
            with ProxyServer(recorder, (), authority=Authority()) as server:
                source = "docker://registry.example/app/image:1"
                run(skopeo, "copy", "--all", source, f"dir:{tmp_path}/live", more=server.environment())
            path = save_tape(tmp_path / "tapes" / "one", recorder.tape())
    with replay(path, strict=True) as playing, playing.serve() as server:
        source = f"docker://{server.reference('registry.example/app/image:1')}"
        run(skopeo, "copy", "--all", "--src-tls-verify=false", source, f"dir:{tmp_path}/replayed")
    live, replayed = (
        {one.name: one.read_bytes() for one in (tmp_path / name).iterdir()} for name in ("live", "replayed")
    )
    assert live == replayed


def test_a_password_given_to_skopeo_is_in_no_file(tmp_path: Path) -> None:
    skopeo, password = need("skopeo"), "correct-horse-battery"
    auth = TokenAuth(users={"alice": password}, allow_anonymous=False)
    blobs = BlobFolder(str(tmp_path / "blobs"))
    with RegistryServer({"upstream.invalid/app:1": build_index(["linux/amd64"])}, auth=auth) as real:
        places = {"registry.example": real.server.url_of("upstream.invalid")}
        with Recorder(blobs, upstream=Upstream(places)) as recorder:
            with ProxyServer(recorder, (), authority=Authority()) as server:
                command = ("copy", "--src-creds", f"alice:{password}", "docker://registry.example/app:1")
                run(skopeo, *command, f"dir:{tmp_path}/out", more=server.environment())
            save_tape(tmp_path / "tapes" / "one", recorder.tape())
    for path in tmp_path.rglob("*"):
        if path.is_file():
            assert password.encode() not in path.read_bytes(), path


ORAS = "import sys; from oras.client import OrasClient; print(OrasClient().pull(sys.argv[1], outdir=sys.argv[2]))"
CLIENTS = {
    "imagestore": [sys.executable, "-m", "imagestore", "--root={out}", "pull", "--platform=linux/amd64"],
    "skopeo": ["skopeo", "copy", "--src-creds", f"alice:{PASSWORD}", "docker://{reference}", "dir:{out}"],
    "oras-py": [sys.executable, "-c", ORAS],
}


@pytest.mark.parametrize("client", sorted(CLIENTS))
def test_a_client_is_recorded_at_a_token_service_and_replayed(tmp_path: Path, client: str) -> None:
    artifact = build_artifact("application/x-test", {"a.txt": b"hello"})
    image = artifact if client == "oras-py" else build_image("linux/amd64")
    reference, auth = "registry.example/app/small:1", base64.b64encode(f"alice:{PASSWORD}".encode()).decode()
    (tmp_path / ".docker").mkdir()
    logins = tmp_path / ".docker" / "config.json"
    logins.write_text(json.dumps({"auths": {"registry.example": {"auth": auth}}}))
    with docker_registry(tmp_path) as real:
        real.push("app/small", "1", image)
    tape = tmp_path / "tapes" / "one"
    with token_service(tmp_path) as tokens, docker_registry(tmp_path, more=tokens.configuration) as real:
        places = [f"registry.example=http://{real.address}", f"auth.example={tokens.address}"]
        options = [one for place in places for one in ("--upstream", place)]
        for number in range(2):  # the second time the tape is played
            out = str(tmp_path / f"out{number}")
            command = [part.format(reference=reference, out=out) for part in CLIENTS[client]]
            command += [] if client == "skopeo" else [reference] if client == "imagestore" else [reference, out]
            recorder = [sys.executable, "-m", "imagestore", "record", "--tape", str(tape), *options, "--"]
            run(*recorder, *command, more={"HOME": str(tmp_path), "REGISTRY_AUTH_FILE": ""})
    written = b"".join(path.read_bytes() for path in (tmp_path / "tapes").iterdir())
    assert not [one for one in (PASSWORD, auth) if one.encode() in written]
    assert verify_tape(f"{tape}.tape.toml") == []


def test_a_go_client_is_recorded_where_blobs_are_redirected(tmp_path: Path) -> None:
    # Go's HTTP library says in Referer who sent it.
    with RegistryServer({"registry.example/app:1": build_image()}, storage_host="storage.example") as real:
        places = {host: real.server.url_of(host) for host in ("registry.example", "storage.example")}
        with Recorder(BlobFolder(str(tmp_path / "blobs")), upstream=Upstream(places)) as recorder:
            with ProxyServer(recorder, (), authority=Authority()) as server:
                command = ("copy", "docker://registry.example/app:1", f"dir:{tmp_path}/out")
                run(need("skopeo"), *command, more=server.environment())
            path = save_tape(tmp_path / "tapes" / "one", recorder.tape())
    assert verify_tape(path) == []


PUSHED = build_index(["linux/amd64", "linux/arm64"], seed="pushed")
ONE = PUSHED.manifests[0]


def pushed(server: RegistryServer, repository: str = "pushed") -> set[Digest]:
    """What came into a repository, blobs and documents, after everything was answered."""
    server.ledger.assert_nothing_unexpected()
    return {one.digest for one in server.ledger.pushes(repository)}


@pytest.fixture
def writable() -> Iterator[RegistryServer]:
    with RegistryServer({"registry.example/base:1": PUSHED}, writable=True) as server:
        yield server


def test_skopeo_pushes_and_deletes(tmp_path: Path, writable: RegistryServer) -> None:
    skopeo, layout = need("skopeo"), f"oci:{tmp_path}/layout:1"
    base, target = (f"docker://{writable.address}/{name}" for name in ("base:1", "pushed:1"))
    run(skopeo, "copy", "--all", "--src-tls-verify=false", base, layout)
    run(skopeo, "copy", "--all", "--dest-tls-verify=false", layout, target)
    assert pushed(writable) == {*PUSHED.blobs, *PUSHED.documents}
    assert writable.ledger.pushes("pushed")[-1].tag == "1"
    run(skopeo, "copy", "--all", "--src-tls-verify=false", "--dest-tls-verify=false", base, target + "1")
    run(skopeo, "delete", "--tls-verify=false", target)
    assert writable.library.open("registry.example", "pushed").tags == {}


@pytest.mark.parametrize("rules", [WriteRules(), WriteRules(mounts=False, referrers_api=False)], ids=["all", "less"])
def test_skopeo_logs_in(tmp_path: Path, rules: WriteRules) -> None:
    images, auth = {"registry.example/base:1": PUSHED}, TokenAuth(users={"alice": "right"})
    with RegistryServer(images, auth=auth, writable=rules) as server:
        options = ("--all", "--src-tls-verify=false", "--dest-tls-verify=false", "--dest-creds=alice:right")
        places = [f"docker://{server.address}/{name}" for name in ("base:1", "pushed:1")]
        more = {"XDG_DATA_HOME": str(tmp_path), "HOME": str(tmp_path)}
        run(need("skopeo"), "copy", *options, "--src-creds=alice:right", *places, more=more)
        assert pushed(server) == {*PUSHED.blobs, *PUSHED.documents}


def test_skopeo_begins_an_upload_again_that_was_refused_for_now() -> None:
    images = {"registry.example/base:1": PUSHED}
    busy = FaultRule(faults.Refuse(429, retry_after="1"), Where(kind="upload", method="POST"))
    with RegistryServer(images, faults=[busy], writable=True) as server:
        places = [f"docker://{server.address}/{name}" for name in ("base:1", "pushed:1")]
        run(need("skopeo"), "copy", "--all", "--src-tls-verify=false", "--dest-tls-verify=false", *places)
        assert pushed(server) == {*PUSHED.blobs, *PUSHED.documents}
        assert [entry.status for entry in server.ledger.entries if entry.faults] == [429]


def test_buildah_pushes_what_it_built(tmp_path: Path, writable: RegistryServer) -> None:
    buildah = [need("buildah"), "--root", f"{tmp_path}/root", "--runroot", f"{tmp_path}/run", "--storage-driver=vfs"]
    container = run(*buildah, "from", "scratch").strip()
    run(*buildah, "config", "--label", "by=us", container)
    run(*buildah, "commit", "-q", "--rm", container, "built")
    run(*buildah, "push", "-q", "--tls-verify=false", "built", f"docker://{writable.address}/pushed:1")
    run(*buildah, "rmi", "--all", "--force")
    target = writable.library.open("registry.example", "pushed").tags["1"]
    assert target in pushed(writable)
    looked = run(need("skopeo"), "inspect", "--tls-verify=false", f"docker://{writable.address}/pushed:1")
    assert json.loads(looked)["Labels"]["by"] == "us"


def test_ctr_pushes(containerd: str, writable: RegistryServer) -> None:
    ctr = [need("ctr"), "-a", containerd, "-n", "pushing"]
    base, target = (f"{writable.address}/{name}" for name in ("base:1", "pushed:1"))
    run(*ctr, "content", "fetch", "--plain-http", "--all-platforms", base)
    run(*ctr, "images", "tag", base, target)
    run(*ctr, "images", "push", "--plain-http", target)
    assert pushed(writable) == {*PUSHED.blobs, *PUSHED.documents}


def test_docker_pushes(writable: RegistryServer) -> None:
    base, target = (f"{writable.address}/{name}" for name in ("base:1", "pushed:1"))
    with dockerd() as socket:
        docker = [need("docker"), "-H", f"unix://{socket}"]
        run(*docker, "pull", "-q", "--platform", "linux/amd64", base)
        run(*docker, "tag", base, target)
        run(*docker, "push", "-q", target)
    assert pushed(writable) >= {one.digest for one in ONE.layers}
    assert any(one.is_mounted for one in writable.ledger.pushes("pushed"))


def test_oras_pushes_an_artifact(tmp_path: Path, writable: RegistryServer) -> None:
    (tmp_path / "a.txt").write_bytes(b"hello")
    client = oras.client.OrasClient(insecure=True)
    answer = client.push(f"{writable.address}/pushed:1", files=[str(tmp_path / "a.txt")], disable_path_validation=True)
    assert answer.status_code == 201
    assert Digest.of(b"hello") in pushed(writable)
