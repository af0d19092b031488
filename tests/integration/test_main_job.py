"""The main job against a real registry: one reference, two runtime handlers, two manifests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from imagestore import Digest
from imagestore.oci import Index
from imagestore.platforms import format_all
from imagestore.testing import Image, build_index, layer
from tests.support.node import CONFIG, HYPERV, PROCESS
from tests.support.peers import DockerRegistry, docker_registry, need

pytestmark = pytest.mark.integration

INDEXES = Path(__file__).parents[2] / "fixtures" / "indexes"


class Terminal:
    """Runs the installed command line as a user would."""

    def __init__(self, folder: Path, config: Path) -> None:
        self.root = folder / "store"
        self._environment = {
            **os.environ,
            "IMAGESTORE_ROOT": str(self.root),
            "IMAGESTORE_CONFIG": str(config),
            "DOCKER_CONFIG": str(folder / "no-docker-config"),
        }

    def run(self, *arguments: str, status: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "imagestore", *arguments],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == status, f"{arguments}: status {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def json(self, *arguments: str, status: int = 0) -> Any:
        return json.loads(self.run(*arguments, "--output", "json", status=status).stdout)

    def blobs(self) -> dict[str, int]:
        return {path.name: path.stat().st_size for path in (self.root / "content" / "blobs" / "sha256").iterdir()}


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DockerRegistry]:
    with docker_registry(tmp_path_factory.mktemp("peer")) as running:
        yield running


@pytest.fixture
def terminal(tmp_path: Path) -> Terminal:
    # On Windows Server 2022 the host would be detected; elsewhere the process handler's platform must be said.
    process = '[plugins."io.containerd.cri.v1.images".runtime_platforms.runhcs-wcow-process]\n'
    config = tmp_path / "config.toml"
    config.write_text(CONFIG + process + 'platform = "windows(10.0.20348)/amd64"\n')
    return Terminal(tmp_path, config)


@pytest.fixture(scope="module")
def python() -> Image:
    """An image with the platforms of the KEP's python index; the Windows builds share a base layer."""
    entries = Index.parse((INDEXES / "python-kep4216.json").read_bytes()).manifests
    texts = [format_all(entry.platform) for entry in entries if entry.platform is not None]
    assert len(texts) == len(entries) == 9
    return build_index(texts, seed="python-kep4216", family="docker", shared=[layer("base shared by all")])


def test_one_reference_two_handlers_two_manifests(registry: DockerRegistry, terminal: Terminal, python: Image) -> None:
    reference = registry.push("library/python", "3", python)
    by_version = {each.platform.os_version: each for each in python.manifests if each.platform is not None}
    newer, older = by_version["10.0.20348.1970"], by_version["10.0.17763.4851"]

    terminal.run("pull", reference, "--runtime-handler", PROCESS)
    terminal.run("pull", reference, "--runtime-handler", HYPERV)
    listed = {each["runtimeHandler"]: each for each in terminal.json("images")["images"]}
    assert listed[PROCESS]["manifest"]["digest"] == str(newer.descriptor.digest)
    assert listed[HYPERV]["manifest"]["digest"] == str(older.descriptor.digest)
    assert {each["reference"] for each in listed.values()} == {reference}

    needed = {
        each.digest for manifest in (newer, older) for each in (manifest.descriptor, manifest.config, *manifest.layers)
    } | {python.target.digest}
    assert terminal.blobs().keys() == {digest.encoded for digest in needed}
    assert set(newer.layers) & set(older.layers), "the two builds must share a layer for this test to mean something"

    assert f"removed {reference} ({PROCESS})" in terminal.run("rmi", reference, "--runtime-handler", PROCESS).stdout
    planned = terminal.json("gc", "--dry-run")
    freed = terminal.json("gc")
    only_newer = {newer.descriptor.digest, newer.config.digest} | {
        part.digest for part in newer.layers if part not in older.layers
    }
    assert set(freed["blobs"]) == set(planned["blobs"]) == {str(digest) for digest in only_newer}
    assert terminal.json("gc")["blobs"] == []

    whole = terminal.json("inspecti", reference, "--runtime-handler", HYPERV)
    assert [Digest.of(Path(part["path"]).read_bytes()) for part in whole["layers"]] == [
        part.digest for part in older.layers
    ]
    assert whole["platform"]["os.version"] == "10.0.17763.4851"


def test_skopeo_agrees_about_every_digest(registry: DockerRegistry, terminal: Terminal, python: Image) -> None:
    reference = registry.push("library/python", "skopeo", python)
    raw = subprocess.run(
        [need("skopeo"), "inspect", "--raw", "--tls-verify=false", f"docker://{reference}"],
        capture_output=True,
        check=True,
        timeout=60,
    ).stdout
    terminal.run("pull", reference, "--runtime-handler", "kata")
    image = terminal.json("inspecti", reference, "--runtime-handler", "kata")
    assert image["target"]["digest"] == str(Digest.of(raw))
    linux = ("--override-os=linux", "--override-arch=amd64")
    theirs = json.loads(
        subprocess.run(
            [need("skopeo"), "inspect", "--tls-verify=false", *linux, f"docker://{reference}"],
            capture_output=True,
            check=True,
            timeout=60,
        ).stdout
    )
    assert [part["digest"] for part in image["layers"]] == theirs["Layers"]


def test_match_tells_every_handlers_choice(registry: DockerRegistry, terminal: Terminal, python: Image) -> None:
    reference = registry.push("library/python", "match", python)
    answer = terminal.json("match", reference)
    chosen = {each["runtimeHandler"]: each["chosen"]["platform"]["text"] for each in answer["handlers"]}
    assert chosen == {
        PROCESS: "windows(10.0.20348.1970)/amd64",
        HYPERV: "windows(10.0.17763.4851)/amd64",
        "kata": "linux/amd64",
        # Built into containerd, also where a file doesn't name it.
        "runc": "linux/amd64",
    }
    assert not terminal.root.exists()


def test_an_image_without_a_fitting_platform(registry: DockerRegistry, terminal: Terminal) -> None:
    reference = registry.push("library/new-only", "1", build_index(["windows(10.0.26100.1)/amd64", "linux/amd64"]))
    failed = terminal.run("pull", reference, "--runtime-handler", HYPERV, status=4)
    assert (
        "no manifest for windows(10.0.17763)/amd64; offered: windows(10.0.26100.1)/amd64, linux/amd64" in failed.stderr
    )
    assert not terminal.blobs()
    assert terminal.json("images")["images"] == []


@pytest.mark.parametrize(
    ("reference", "status", "text"),
    [
        ("{address}/library/nothing:1", 3, "library/nothing"),
        ("127.0.0.1:1/a:1", 6, "127.0.0.1:1"),
        ("no-such-host.invalid/a:1", 6, "no-such-host.invalid"),
        ("a:b:c", 2, "position 3"),
    ],
)
def test_what_cannot_be_found(
    registry: DockerRegistry, terminal: Terminal, reference: str, status: int, text: str
) -> None:
    failed = terminal.run("pull", "--progress", "none", reference.format(address=registry.address), status=status)
    assert text in failed.stderr
    assert failed.stderr.count("imagestore: ") == 1
    assert failed.stderr.count("\n") <= 2  # the error, and a hint


@pytest.mark.parametrize("how", ["flipped", "truncated"])
def test_a_blob_damaged_in_the_registry_never_enters(registry: DockerRegistry, terminal: Terminal, how: str) -> None:
    image = build_index(["windows(10.0.17763.1)/amd64"], seed=f"damaged {how}")
    reference = registry.push("library/damaged", how, image)
    path = registry.blob_path(image.layers[-1].digest.encoded)
    body = path.read_bytes()
    path.write_bytes(body[:-1] + bytes([body[-1] ^ 1]) if how == "flipped" else body[: len(body) // 2])
    failed = terminal.run("pull", reference, "--runtime-handler", HYPERV, status=7)
    assert str(image.layers[-1].digest) in failed.stderr
    assert not terminal.blobs()
    assert list((terminal.root / "content" / "ingest").iterdir()) == []


def test_two_processes_pull_the_same_at_once(registry: DockerRegistry, terminal: Terminal, python: Image) -> None:
    reference = registry.push("library/python", "race", python)
    command = [sys.executable, "-m", "imagestore", "pull", reference, "--runtime-handler"]
    running = [
        subprocess.Popen([*command, handler], env=terminal._environment, stdout=subprocess.DEVNULL)
        for handler in (PROCESS, HYPERV, PROCESS, "kata")
    ]
    assert [process.wait(timeout=60) for process in running] == [0, 0, 0, 0]
    assert len(terminal.json("images")["images"]) == 3
    assert terminal.json("gc", "--dry-run")["blobs"] == []
