"""An artifact that oras attached goes registry, layout, store, registry; skopeo, ctr and oras read each of them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import httpx
import oras.client
import oras.oci
import pytest

from imagestore.cli.main import main
from imagestore.testing import build_image
from tests.support.peers import DockerRegistry, docker_registry, need
from tests.support.private_containerd import private_containerd

pytestmark = pytest.mark.integration

IMAGE: Final = build_image("linux/amd64", seed="signed")
INDEX: Final = "application/vnd.oci.image.index.v1+json"
MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
#: docker-registry has no list of referrers: clients keep it under a tag.
TAG: Final = str(IMAGE.target.digest).replace(":", "-")
KEPT: Final = "kept.example/app:1"


@pytest.fixture
def registries(tmp_path: Path) -> Iterator[tuple[DockerRegistry, DockerRegistry]]:
    """One with the image, and an empty one."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    with docker_registry(tmp_path / "one") as one, docker_registry(tmp_path / "two") as two:
        one.push("team/app", "1", IMAGE)
        yield one, two


def attach(registry: DockerRegistry, folder: Path) -> str:
    """Attach a file to the image with oras, and list it as the Go client does; oras for Python leaves that out."""
    bill = folder / "bill.txt"
    bill.write_text("one bolt, two nuts")
    subject = oras.oci.Subject(IMAGE.target.media_type, str(IMAGE.target.digest), IMAGE.target.size)
    pushed = oras.client.OrasClient(insecure=True).push(
        f"{registry.address}/team/app:bill", files=[str(bill)], disable_path_validation=True, subject=subject
    )
    base = f"http://{registry.address}/v2/team/app/manifests"
    manifest = httpx.get(f"{base}/bill", headers={"Accept": MANIFEST})
    digest = manifest.headers["Docker-Content-Digest"]
    assert pushed.status_code == 201
    entry = {"mediaType": MANIFEST, "digest": digest, "size": len(manifest.content)}
    listing = json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": [entry]})
    assert httpx.put(f"{base}/{TAG}", content=listing, headers={"Content-Type": INDEX}).status_code == 201
    return str(digest)


def run(*command: str) -> bytes:
    done = subprocess.run(command, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("kind", ["oci", "oci-archive"])
def test_an_attached_artifact_goes_through_every_place(
    registries: tuple[DockerRegistry, DockerRegistry], tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    one, two = registries
    digest = attach(one, tmp_path)
    line = ["--root", str(tmp_path / "root")]
    layout = f"{kind}:{tmp_path / 'layout'}"
    source = f"{one.address}/team/app:1"
    assert main([*line, "copy", "--referrers", source, layout, "--name", "registry.example/app:1"]) == 0
    assert "with 1 referrer" in capsys.readouterr().out
    skopeo = need("skopeo")
    assert run(skopeo, "inspect", "--raw", f"{layout}:1") == IMAGE.documents[IMAGE.target.digest].data
    assert main([*line, "copy", "--referrers", layout, f"store:{KEPT}"]) == 0
    assert main([*line, "gc"]) == 0
    capsys.readouterr()
    assert main([*line, "push", "--referrers", KEPT, f"{two.address}/other:1", "--output", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["referrers"] == 1
    listed = json.loads(run(skopeo, "inspect", "--raw", "--tls-verify=false", f"docker://{two.address}/other:{TAG}"))
    assert [each["digest"] for each in listed["manifests"]] == [digest]
    client = oras.client.OrasClient(insecure=True)
    (pulled,) = client.pull(f"{two.address}/other@{digest}", outdir=str(tmp_path / "pulled"))
    assert Path(pulled).read_text() == "one bolt, two nuts"


def test_ctr_imports_the_image_and_no_referrer(
    registries: tuple[DockerRegistry, DockerRegistry], tmp_path: Path
) -> None:
    attach(registries[0], tmp_path)
    archive, line = tmp_path / "image.tar", ["--root", str(tmp_path / "root")]
    source = f"{registries[0].address}/team/app:1"
    assert main([*line, "copy", "--referrers", source, f"oci-archive:{archive}", "--name", KEPT]) == 0
    with private_containerd(tmp_path) as containerd:
        containerd.ctr("images", "import", str(archive))
        assert containerd.ctr("images", "ls", "-q").split() == [KEPT]


def test_the_command_line_says_why_there_are_none(
    registries: tuple[DockerRegistry, DockerRegistry], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = registries
    attach(one, tmp_path)
    line, source = ["--root", str(tmp_path / "root")], f"{one.address}/team/app:1"
    assert main([*line, "pull", source, "--progress", "none"]) == 0
    assert main([*line, "push", "--referrers", source, f"{two.address}/app:1"]) != 0
    said = capsys.readouterr().err
    assert "its referrers were not copied into the store" in said
    assert f"imagestore copy --referrers {source} store:{source}" in said
    assert httpx.get(f"http://{two.address}/v2/app/tags/list").status_code == 404
