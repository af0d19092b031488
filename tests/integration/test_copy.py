"""Copies between real registries, layouts and the store; skopeo, ctr and oras read what was copied."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import httpx
import oras.client
import pytest

from imagestore import CopyOptions, ImageStore, config, platforms
from imagestore.cli.main import main
from imagestore.errors import (
    AlreadyExistsError,
    AuthenticationError,
    DigestMismatchError,
    ImageNotFoundError,
    InvalidInputError,
    PreconditionError,
)
from imagestore.events import BlobUploaded
from imagestore.testing import build_artifact, build_image, build_index, layer, synthetic_layer
from tests.integration.test_registry_peers import Alice, make_certificate, write_hosts
from tests.support.logins import HTPASSWD, PASSWORD, TokenService, token_service
from tests.support.peers import DockerRegistry, docker_registry, need
from tests.support.private_containerd import private_containerd

pytestmark = pytest.mark.integration

LINUX: Final = platforms.parse("linux/amd64")
IMAGE: Final = build_index(
    ["linux/amd64", "linux/arm64", "windows(10.0.17763.1)/amd64"],
    seed="copy",
    shared=[synthetic_layer("copy", 3 << 20)],
)
CONFIG: Final = """
version = 3
[plugins."io.containerd.cri.v1.images".registry]
config_path = "{certs}"
[plugins."io.containerd.cri.v1.runtime".containerd]
default_runtime_name = "runc"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.hyperv]
runtime_type = "io.containerd.runhcs.v1"
guest_platform = {{os = "windows", architecture = "amd64", OSVersion = "10.0.17763"}}
"""


@pytest.fixture
def one(tmp_path: Path) -> Iterator[DockerRegistry]:
    """A registry with the image."""
    (tmp_path / "one").mkdir()
    with docker_registry(tmp_path / "one") as registry:
        registry.push("team/app", "1", IMAGE)
        yield registry


@pytest.fixture
def two(tmp_path: Path) -> Iterator[DockerRegistry]:
    """An empty registry."""
    (tmp_path / "two").mkdir()
    with docker_registry(tmp_path / "two") as registry:
        yield registry


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ImageStore]:
    with open_store(tmp_path) as opened:
        yield opened


def open_store(folder: Path, *, certs: Path | None = None, **more: Any) -> ImageStore:
    loaded = config.loads(CONFIG.format(certs=certs or ""), filename="config.toml", host=LINUX)
    return ImageStore(folder / "store", config=loaded, host=LINUX, **more)


def inspected(registry: DockerRegistry, repository: str, *, is_raw: bool = True) -> dict[str, Any]:
    """What skopeo reads of an image."""
    command = [need("skopeo"), "inspect", "--tls-verify=false", f"docker://{registry.address}/{repository}"]
    done = subprocess.run([*command, *(["--raw"] if is_raw else [])], capture_output=True, check=True, timeout=60)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_one_manifest_between_registries(one: DockerRegistry, two: DockerRegistry, store: ImageStore) -> None:
    options = CopyOptions(("runc",))
    report = store.copy(f"{one.address}/team/app:1", f"{two.address}/other/app:2", options=options)
    assert report.target.digest == IMAGE.manifests[0].descriptor.digest
    assert report.platforms == ("linux/amd64",)
    assert report.left_out == ("linux/arm64", "windows(10.0.17763.1)/amd64")
    assert all(blob.sent == blob.descriptor.size for blob in report.blobs)
    read = inspected(two, "other/app:2", is_raw=False)
    assert read["Digest"] == str(IMAGE.manifests[0].descriptor.digest)
    assert list(store.list()) == []


def test_a_second_copy_sends_nothing(one: DockerRegistry, two: DockerRegistry, store: ImageStore) -> None:
    store.copy(f"{one.address}/team/app:1", f"{two.address}/app:1")
    assert store.copy(f"{one.address}/team/app:1", f"{two.address}/app:2").sent == 0


def test_a_dry_run_says_what_would_be_sent(one: DockerRegistry, two: DockerRegistry, store: ImageStore) -> None:
    planned = store.copy(f"{one.address}/team/app:1", f"{two.address}/app:1", options=CopyOptions(dry_run=True))
    assert planned.sent == sum(blob.descriptor.size for blob in planned.blobs) > 3 << 20
    assert httpx.get(f"http://{two.address}/v2/app/tags/list").status_code == 404


def test_blobs_are_mounted_within_a_registry(one: DockerRegistry, store: ImageStore) -> None:
    events: list[Any] = []
    report = store.copy(f"{one.address}/team/app:1", f"{one.address}/copy/app:1", observer=events.append)
    assert {blob.mounted_from for blob in report.blobs} == {"team/app"}
    assert report.sent == 0
    assert {event.mounted_from for event in events if isinstance(event, BlobUploaded)} == {"team/app"}


def test_all_platforms_are_the_default_between_registries(
    one: DockerRegistry, two: DockerRegistry, store: ImageStore
) -> None:
    report = store.copy(f"{one.address}/team/app:1", f"{two.address}/app:1")
    assert report.left_out == ()
    assert report.target.digest == IMAGE.target.digest
    assert [each["digest"] for each in inspected(two, "app:1")["manifests"]] == [
        str(each.descriptor.digest) for each in IMAGE.manifests
    ]


def test_a_registry_that_wants_all_manifests_refuses_a_sparse_index(
    one: DockerRegistry, two: DockerRegistry, store: ImageStore
) -> None:
    with pytest.raises(InvalidInputError, match="without all its manifests; 1 are left out: linux/arm64") as caught:
        store.copy(f"{one.address}/team/app:1", f"{two.address}/app:1", options=CopyOptions(all_handlers=True))
    assert "--all-platforms" in caught.value.hint
    assert httpx.get(f"http://{two.address}/v2/app/manifests/1").status_code == 404


def test_a_push_of_what_a_handler_pulled(one: DockerRegistry, two: DockerRegistry, store: ImageStore) -> None:
    name = f"{one.address}/team/app:1"
    store.pull(name, runtime_handler="hyperv")
    with pytest.raises(ImageNotFoundError):
        store.push(name, f"{two.address}/app:1")
    report = store.push(name, f"{two.address}/app:1", options=CopyOptions(runtime_handlers=("hyperv",)))
    assert report.platforms == ("windows(10.0.17763.1)/amd64",)
    assert inspected(two, "app:1")["config"]["digest"] == str(IMAGE.manifests[2].config.digest)
    assert store.push(name, f"{two.address}/app:1", options=CopyOptions(runtime_handlers=("hyperv",))).sent == 0


@pytest.mark.parametrize("kind", ["oci", "oci-archive", "docker-archive"])
def test_ways_through_archives(
    one: DockerRegistry, two: DockerRegistry, store: ImageStore, tmp_path: Path, kind: str
) -> None:
    place = f"{kind}:{tmp_path / 'archive'}"
    store.copy(f"{one.address}/team/app:1", place, options=CopyOptions(name="registry.example/app:1"))
    store.copy(place, f"{two.address}/app:1")
    read = inspected(two, "app:1")
    assert read["config"]["digest"] == str(IMAGE.manifests[0].config.digest)
    if kind != "docker-archive":
        assert inspected(two, "app:1", is_raw=False)["Digest"] == str(IMAGE.manifests[0].descriptor.digest)
    report = store.copy(place, "store:kept.example/app:1")
    assert report.destination == "store:kept.example/app:1"
    assert store.get("kept.example/app:1").id == IMAGE.manifests[0].config.digest
    copied = subprocess.run(
        [need("skopeo"), "inspect", "--raw", f"{kind}:{tmp_path / 'archive'}"], capture_output=True, timeout=60
    )
    assert copied.returncode == 0, copied.stderr


def test_a_copy_into_the_store_has_the_name_alone(one: DockerRegistry, store: ImageStore) -> None:
    store.copy(f"{one.address}/team/app:1", "store:kept.example/app:1")
    assert [image.reference for image in store.list()] == ["kept.example/app:1"]
    other = build_image("linux/amd64", layers=[layer("other")])
    one.push("team/app", "2", other)
    with pytest.raises(AlreadyExistsError):
        store.copy(f"{one.address}/team/app:2", "store:kept.example/app:1")
    store.copy(f"{one.address}/team/app:2", "store:kept.example/app:1", options=CopyOptions(replace=True))
    assert [image.id for image in store.list()] == [other.manifests[0].config.digest]


SUBJECT: Final = IMAGE.manifests[0].descriptor
SIGNATURE: Final = build_artifact("application/vnd.example.signature", {"a": b"signed"}, subject=SUBJECT)
#: docker-registry has no list of referrers: the client keeps it under a tag.
TAG: Final = str(SUBJECT.digest).replace(":", "-")


def sign(registry: DockerRegistry) -> None:
    """Put a signature of the first manifest into the registry."""
    registry.push("team/app", str(SIGNATURE.target.digest), SIGNATURE)
    kind = "application/vnd.oci.image.index.v1+json"
    entry = {**SIGNATURE.target.members(), "artifactType": SIGNATURE.target.artifact_type}
    put = httpx.put(
        f"http://{registry.address}/v2/team/app/manifests/{TAG}",
        content=json.dumps({"schemaVersion": 2, "mediaType": kind, "manifests": [entry]}),
        headers={"Content-Type": kind},
    )
    assert put.status_code == 201


def test_referrers_go_along(one: DockerRegistry, two: DockerRegistry, store: ImageStore) -> None:
    sign(one)
    report = store.copy(f"{one.address}/team/app:1", f"{two.address}/app:1", options=CopyOptions(referrers=True))
    assert report.referrers == 1
    listed = inspected(two, f"app:{TAG}")["manifests"]
    assert [(each["digest"], each["artifactType"]) for each in listed] == [
        (str(SIGNATURE.target.digest), SIGNATURE.target.artifact_type)
    ]
    again = store.copy(f"{one.address}/team/app:1", f"{two.address}/app:1", options=CopyOptions(referrers=True))
    assert again.sent == 0
    assert len(inspected(two, f"app:{TAG}")["manifests"]) == 1


@pytest.mark.parametrize("kind", ["sig", "att", "sbom"])
def test_what_cosign_keeps_under_tags_goes_along(
    one: DockerRegistry, two: DockerRegistry, store: ImageStore, kind: str
) -> None:
    tag = f"{IMAGE.target.digest.algorithm}-{IMAGE.target.digest.encoded}.{kind}"
    one.push("team/app", tag, SIGNATURE)
    options = CopyOptions(referrers=True)
    planned = store.copy(f"{one.address}/team/app:1", f"{two.address}/app:1", options=replace(options, dry_run=True))
    report = store.copy(f"{one.address}/team/app:1", f"{two.address}/app:1", options=options)
    assert (planned.referrers, report.referrers) == (1, 1)
    assert inspected(two, f"app:{tag}") == inspected(one, f"team/app:{tag}")
    again = store.copy(f"{one.address}/team/app:1", f"{two.address}/app:1")
    assert again.referrers == 0


def test_a_registry_with_passwords_and_a_private_authority(one: DockerRegistry, tmp_path: Path) -> None:
    folder = tmp_path / "closed"
    folder.mkdir()
    (folder / "htpasswd").write_text(HTPASSWD)
    guard = f"{make_certificate(folder)}\nauth: {{htpasswd: {{realm: here, path: {folder}/htpasswd}}}}"
    with docker_registry(folder, more=guard) as closed:
        server = f'server = "https://{closed.address}"\nca = "{folder}/ca.pem"\n'
        certs = write_hosts(folder, closed, server)
        with open_store(tmp_path, certs=certs, credentials=Alice("wrong")) as store:
            with pytest.raises(AuthenticationError) as caught:
                store.copy(f"{one.address}/team/app:1", f"{closed.address}/app:1")
            assert "wrong" not in str(caught.value) + caught.value.hint
        with open_store(tmp_path, certs=certs, credentials=Alice()) as store:
            assert store.copy(f"{one.address}/team/app:1", f"{closed.address}/app:1").sent > 3 << 20
            assert store.copy(f"{closed.address}/app:1", f"{closed.address}/copy:1").sent == 0
        write_hosts(folder, closed, f'{server}capabilities = ["pull", "resolve"]\n')
        with (
            open_store(tmp_path, certs=certs, credentials=Alice()) as store,
            pytest.raises(PreconditionError, match="none of its hosts may be pushed to"),
        ):
            store.copy(f"{one.address}/team/app:1", f"{closed.address}/app:1")


def test_a_registry_behind_a_token_service(one: DockerRegistry, tmp_path: Path) -> None:
    folder = tmp_path / "closed"
    folder.mkdir()
    tokens: TokenService
    with (
        token_service(tmp_path) as tokens,
        docker_registry(folder, more=tokens.configuration) as closed,
        open_store(tmp_path, credentials=Alice()) as store,
    ):
        store.copy(f"{one.address}/team/app:1", f"{closed.address}/app:1")
        assert "repository:app:pull,push" in tokens.scopes
        tokens.scopes.clear()
        assert store.copy(f"{closed.address}/app:1", f"{closed.address}/copy:1").sent == 0
        assert {"repository:app:pull", "repository:copy:pull,push"} <= set(tokens.scopes)


def test_a_damaged_source_leaves_nothing_under_the_name(
    one: DockerRegistry, two: DockerRegistry, store: ImageStore
) -> None:
    path = one.blob_path(IMAGE.manifests[0].layers[0].digest.encoded)
    damaged = bytearray(path.read_bytes())
    damaged[1000] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(DigestMismatchError):
        store.copy(f"{one.address}/team/app:1", f"{two.address}/app:1")
    assert httpx.get(f"http://{two.address}/v2/app/manifests/1").status_code == 404


def test_a_killed_copy_sends_whole_blobs_once(two: DockerRegistry, tmp_path: Path) -> None:
    folder = tmp_path / "slow"
    folder.mkdir()
    image = build_image("linux/amd64", layers=[synthetic_layer(f"part {number}", 1 << 20) for number in range(24)])
    with docker_registry(folder) as registry, open_store(tmp_path) as store:
        registry.push("app", "1", image)
        source, destination = f"{registry.address}/app:1", f"{two.address}/app:1"
        command = [sys.executable, "-m", "imagestore", "--root", str(tmp_path / "other"), "copy", source, destination]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        uploads = two.data / "docker/registry/v2/repositories/app/_layers/sha256"
        while process.poll() is None and not (uploads.is_dir() and len(list(uploads.iterdir())) >= 8):
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=60)
        there = len(list(uploads.iterdir()))
        assert there >= 8
        report = store.copy(source, destination)
        assert report.sent <= (25 - there) * (1 << 20) + (1 << 16)
        assert store.pull(destination).id == image.manifests[0].config.digest


def test_the_command_line(
    one: DockerRegistry, two: DockerRegistry, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = ["--root", str(tmp_path / "root")]
    source, destination = f"{one.address}/team/app:1", f"{two.address}/app:1"
    assert main([*root, "copy", source, destination, "--platform", "linux/arm64", "--dry-run"]) == 0
    assert "would copy linux/arm64" in capsys.readouterr().out
    assert main([*root, "copy", source, destination, "--platform", "linux/arm64", "--output", "json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["target"]["digest"] == str(IMAGE.manifests[1].descriptor.digest)
    assert printed["leftOut"] == ["linux/amd64", "windows(10.0.17763.1)/amd64"]
    assert main([*root, "pull", source, "--platform", "linux/amd64", "--progress", "none"]) == 0
    capsys.readouterr()
    assert main([*root, "push", source, destination, "-q"]) == 0
    assert capsys.readouterr().out == f"{IMAGE.manifests[0].descriptor.digest}\n"
    assert main([*root, "copy", "docker://python", destination]) == 2
    assert "leave out docker://" in capsys.readouterr().err
    assert main([*root, "push", "nothing:1", destination]) == 3


def test_catalogs_list_repositories(one: DockerRegistry, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one.push("another/app", "1", IMAGE)
    assert main(["--root", str(tmp_path / "root"), "catalog", one.address]) == 0
    assert capsys.readouterr().out.split() == [f"{one.address}/another/app", f"{one.address}/team/app"]


def test_referrers_are_fetched_as_a_layout(
    one: DockerRegistry, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sign(one)
    name, folder = f"{one.address}/team/app@{SUBJECT.digest}", str(tmp_path / "fetched")
    command = ["--root", str(tmp_path / "root"), "referrers", name, "--fetch", folder, "--progress", "none"]
    assert main(command) == 0
    assert str(SIGNATURE.target.digest) in capsys.readouterr().out
    read = subprocess.run([need("skopeo"), "inspect", "--raw", f"oci:{folder}"], capture_output=True, timeout=60)
    assert read.stdout == SIGNATURE.documents[SIGNATURE.target.digest].data, read.stderr
    index = json.loads((tmp_path / "fetched/index.json").read_text())
    assert [each["artifactType"] for each in index["manifests"]] == [SIGNATURE.target.artifact_type]
    assert main(command) == 1  # the folder is there


def test_a_login_on_standard_input_is_for_the_destination(tmp_path: Path) -> None:
    """The source's own login is looked up where it is stored."""
    places = []
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "htpasswd").write_text(HTPASSWD)
        guard = f"auth: {{htpasswd: {{realm: here, path: {folder}/htpasswd}}}}"
        places.append((folder, guard))
    with docker_registry(places[0][0]) as plain:
        plain.push("app", "1", build_image("linux/amd64", layers=[layer("guarded")]))
    with (
        docker_registry(places[0][0], more=places[0][1]) as one,
        docker_registry(places[1][0], more=places[1][1]) as two,
    ):
        login = base64.b64encode(f"alice:{PASSWORD}".encode()).decode()
        logins = tmp_path / "auth.json"
        logins.write_text(json.dumps({"auths": {one.address: {"auth": login}}}))
        command = [sys.executable, "-m", "imagestore", "copy", f"{one.address}/app:1", f"{two.address}/app:1", "-q"]
        environment = {**os.environ, "REGISTRY_AUTH_FILE": str(logins), "IMAGESTORE_ROOT": str(tmp_path / "root")}
        done = subprocess.run(
            [*command, "--creds-stdin"],
            input=f"alice:{PASSWORD}",
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 5, done.stderr
        assert PASSWORD not in done.stderr


def test_ctr_fetches_what_was_copied(
    one: DockerRegistry, two: DockerRegistry, store: ImageStore, tmp_path: Path
) -> None:
    report = store.copy(f"{one.address}/team/app:1", f"{two.address}/app:1", options=CopyOptions(all_platforms=True))
    (tmp_path / "containerd").mkdir()
    with private_containerd(tmp_path / "containerd") as containerd:
        containerd.ctr("content", "fetch", "--plain-http", "--all-platforms", f"{two.address}/app:1")
        listed = containerd.blobs()
    assert {str(report.target.digest), *(str(blob.descriptor.digest) for blob in report.blobs)} <= listed


def test_oras_pulls_an_artifact_that_was_copied(two: DockerRegistry, store: ImageStore, tmp_path: Path) -> None:
    folder = tmp_path / "source"
    folder.mkdir()
    artifact = build_artifact("application/vnd.example.readings", {"readings.txt": b"12 13 14"})
    with docker_registry(folder) as source:
        source.push("readings", "1", artifact)
        report = store.copy(f"{source.address}/readings:1", f"{two.address}/readings:1")
    assert report.target.digest == artifact.target.digest
    client = oras.client.OrasClient(insecure=True)
    (pulled,) = client.pull(f"{two.address}/readings:1", outdir=str(tmp_path / "pulled"))
    assert Path(pulled).read_bytes() == b"12 13 14"
