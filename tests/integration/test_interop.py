"""Other clients push, imagestore pulls: oras-py's artifacts and skopeo's copies keep every byte."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import oras.client
import pytest

from imagestore import Digest, ImageStore, platforms
from imagestore.testing import build_image, build_index, layer
from tests.support.peers import DockerRegistry, docker_registry, need

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DockerRegistry]:
    with docker_registry(tmp_path_factory.mktemp("peer")) as running:
        yield running


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ImageStore]:
    with ImageStore(tmp_path / "store", host=platforms.parse("linux/amd64")) as opened:
        yield opened


def test_an_artifact_pushed_by_oras_arrives_whole(
    registry: DockerRegistry, store: ImageStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "notes.txt").write_bytes(b"some notes\n")
    monkeypatch.chdir(tmp_path)
    reference = f"{registry.address}/oras/notes:1"
    client = oras.client.OrasClient(insecure=True)
    client.push(target=reference, files=["notes.txt:text/plain"], manifest_config=None)
    image = store.pull(reference)
    assert [path.read_bytes() for path in image.layer_paths] == [b"some notes\n"]
    assert image.manifest_document.layers[0].annotations["org.opencontainers.image.title"] == "notes.txt"


def test_an_index_copied_by_skopeo_keeps_every_digest(
    registry: DockerRegistry, store: ImageStore, tmp_path: Path
) -> None:
    built = build_index(["linux/amd64", "linux/arm64", "windows(10.0.17763.1)/amd64"], shared=[layer("base")])
    source = registry.push("skopeo/source", "1", built)
    copy = f"{registry.address}/skopeo/copy:1"
    plain = ("--src-tls-verify=false", "--dest-tls-verify=false")
    subprocess.run(
        [need("skopeo"), "copy", "--all", *plain, f"docker://{source}", f"docker://{copy}"],
        check=True,
        capture_output=True,
        timeout=120,
    )
    ours = [store.pull(reference) for reference in (source, copy)]
    assert ours[0].target == ours[1].target
    assert ours[0].id == ours[1].id == built.manifests[0].config.digest


def test_skopeo_reads_from_the_blobs_we_stored(registry: DockerRegistry, store: ImageStore, tmp_path: Path) -> None:
    built = build_index(["linux/amd64"], seed="layout")
    image = store.pull(registry.push("skopeo/layout", "1", built))
    layout = tmp_path / "layout"
    layout.mkdir()
    (layout / "blobs").symlink_to((store.root / "content") / "blobs")
    (layout / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    entry = {"mediaType": image.target.media_type, "digest": str(image.target.digest), "size": image.target.size}
    (layout / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}))
    raw = subprocess.run(
        [need("skopeo"), "inspect", "--raw", f"oci:{layout}"], check=True, capture_output=True, timeout=60
    ).stdout
    assert Digest.of(raw) == image.target.digest


def test_tags_are_those_that_skopeo_lists(registry: DockerRegistry, tmp_path: Path) -> None:
    image = build_image("linux/amd64")
    for tag in ("latest", "v1.0", "1", "A_b"):
        registry.push("team/tagged", tag, image)
    name = f"{registry.address}/team/tagged"
    commands = {
        "skopeo": [need("skopeo"), "list-tags", "--tls-verify=false", f"docker://{name}"],
        "imagestore": [sys.executable, "-m", "imagestore", "--root", str(tmp_path / "store"), "tags", name],
    }
    told = {
        who: subprocess.run(command, check=True, capture_output=True, timeout=60).stdout
        for who, command in commands.items()
    }
    assert told["imagestore"].decode().split() == json.loads(told["skopeo"])["Tags"]
