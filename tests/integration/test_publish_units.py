"""The documented drop-ins of the unit: their mounts decide how layers come into containerd.

systemd makes everything read-only (``ProtectSystem=strict``), and mounts each writable path again by itself. The same
mounts are made here, in a mount namespace, for the folders of the drop-ins below a folder that stands for /var/lib.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from imagestore.publish import ContentWay
from imagestore.testing import RegistryServer, build_image
from tests.support.containerd_cri import CriContainerd
from tests.support.peers import need
from tests.support.server import short_folder

pytestmark = pytest.mark.integration

UNITS: Final = Path(__file__).parents[2] / "docs" / "systemd"
APP: Final = "registry.example/app:1"
#: Drop-ins to the way by which layers come.
WAYS: Final = {
    (): ContentWay.SENT,
    ("imagestore-kubelet.conf",): ContentWay.OWN_FILE,
    ("imagestore-kubelet.conf", "imagestore-links.conf"): ContentWay.LINKED,
}


@pytest.fixture(scope="module")
def containerd() -> Iterator[CriContainerd]:
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    need("unshare")
    with short_folder() as folder:
        running = CriContainerd(folder)
        running.start()
        try:
            # containerd makes it with its first commit.
            (folder / "root" / "io.containerd.content.v1.content").mkdir(exist_ok=True)
            yield running
        finally:
            running.stop()


def writable(drop_ins: tuple[str, ...], lib: Path) -> list[Path]:
    """The folders that the unit may write, as systemd reads its file and its drop-ins: an empty value takes back."""
    found: dict[str, list[str]] = {"StateDirectory": [], "ReadWritePaths": []}
    for name in ("imagestore.service", *drop_ins):
        for line in (UNITS / name).read_text().splitlines():
            key, equals, value = line.partition("=")
            if equals and key in found:
                found[key] = [*found[key], *value.split()] if value else []
    paths = [lib / name for name in found["StateDirectory"]]
    for path in found["ReadWritePaths"]:
        below = Path(path.removeprefix("-")).relative_to("/var/lib")
        # This containerd's folder has another name.
        paths.append(
            lib / "root" / below.relative_to("containerd") if below.parts[:1] == ("containerd",) else lib / below
        )
    return paths


def run_in_unit(drop_ins: tuple[str, ...], lib: Path, *arguments: str) -> str:
    """What a command prints behind the mounts of the unit."""
    mounts = [f"mount --bind {lib} {lib}", f"mount -o remount,bind,ro {lib}"]
    for path in writable(drop_ins, lib):
        mounts += [f"mount --bind {path} {path}", f"mount -o remount,bind,rw {path}"]
    command = shlex.join([sys.executable, "-m", "imagestore", "--root", str(lib / "imagestore"), *arguments])
    script = " && ".join([*mounts, command])
    done = subprocess.run(
        [need("unshare"), "--mount", "--propagation", "private", "sh", "-c", script],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("drop_ins", WAYS, ids=lambda each: each[-1] if each else "the unit alone")
def test_layers_come_as_the_page_says(containerd: CriContainerd, drop_ins: tuple[str, ...]) -> None:
    lib, address = containerd.folder, ("--address", containerd.endpoint)
    (lib / "imagestore").mkdir(exist_ok=True)
    seed = WAYS[drop_ins].value
    with RegistryServer({APP: build_image("linux/amd64", seed=seed)}) as registry:
        name = registry.server.reference(APP)
        run_in_unit(drop_ins, lib, "pull", "--platform", "linux/amd64", name)
        planned = run_in_unit(drop_ins, lib, "publish", "--dry-run", *address)
        # Behind the way, in brackets, is why not by a cheaper one.
        assert planned.partition("; content: ")[2].rstrip().partition(" (")[0] == WAYS[drop_ins].value
        run_in_unit(drop_ins, lib, "publish", name, *address)
    assert name in containerd.images()
    run_in_unit(drop_ins, lib, "unpublish", "--all", *address)
    run_in_unit(drop_ins, lib, "rmi", "--gc", name)
    assert containerd.images() == {}
    assert containerd.leases() == set()
