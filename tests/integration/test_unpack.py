"""Unpacked trees are those of umoci and GNU tar, file by file; runc starts bundles, with the pod's numbers."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import subprocess
import tarfile
import uuid
from pathlib import Path
from typing import Any

import pytest

from imagestore import ImageStore
from imagestore.cli.main import main
from imagestore.testing import Layer
from imagestore.testing.builders.layers import layer_from_tar
from tests.support.peers import need
from tests.unit.store.unpack.making import REFERENCE, entry, folder, hard_link, link, made, stored

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(os.geteuid() != 0, reason="owners, devices and containers need root"),
]

USR = Path("/usr/share/doc")
#: Folders that a layer has no entry of: their time is that of their making.
IMPLIED = (".", "share", "share/doc")


def described(root: Path) -> dict[str, tuple[Any, ...]]:
    """Each path with kind, mode, owner, time, links, content and extended attributes."""
    found: dict[str, tuple[Any, ...]] = {}
    for each in [root, *sorted(root.rglob("*"))]:
        status = each.lstat()
        content = ""
        if stat.S_ISREG(status.st_mode):
            content = hashlib.sha256(each.read_bytes()).hexdigest()
        elif stat.S_ISLNK(status.st_mode):
            content = os.readlink(each)
        names = os.listxattr(each, follow_symlinks=False)
        xattrs = {name: os.getxattr(each, name, follow_symlinks=False) for name in names}
        links = status.st_nlink if not stat.S_ISDIR(status.st_mode) else 0
        # umoci takes fractions of seconds away.
        found[str(each.relative_to(root))] = (
            *(oct(status.st_mode), status.st_uid, status.st_gid, status.st_rdev, int(status.st_mtime), links),
            *(content, sorted(xattrs.items())),
        )
    for name in IMPLIED:
        found.pop(name, None)
    return found


def debian_layer(path: Path) -> Layer:
    """A real piece of this machine, as GNU tar writes it."""
    names = sorted(each.name for each in USR.iterdir())[:60]
    archive = path / "debian.tar"
    forms = ["--format=posix", "--pax-option=delete=atime,delete=ctime", "--xattrs"]
    members = [f"share/doc/{each}" for each in names]
    subprocess.run(["tar", *forms, "-cf", archive, "-C", USR.parent.parent, *members], check=True)
    return layer_from_tar(archive.read_bytes())


def odd_layers() -> list[Layer]:
    capability = {"SCHILY.xattr.security.capability": "\x01\0\0\x02\0\x04" + "\0" * 14}
    lower = made(
        folder("etc", mode=0o750, uid=3, gid=4),
        entry("etc/a", data=b"a", mode=0o4711),
        entry("etc/gone", data=b"x"),
        folder("opaque"),
        entry("opaque/gone", data=b"x"),
        folder("usr/lib", mode=0o2775),
        link("lib", "usr/lib"),
        entry("cap", data=b"1", pax_headers=capability),
        entry("null", tarfile.CHRTYPE, devmajor=1, devminor=3, mode=0o666),
        entry("fifo", tarfile.FIFOTYPE),
        hard_link("again", "etc/a"),
        folder("replaced"),
        entry("replaced/x"),
    )
    upper = made(
        folder("etc", mode=0o755),
        entry("etc/.wh.gone"),
        folder("opaque"),
        entry("opaque/.wh..wh..opq"),
        entry("opaque/new", data=b"n"),
        folder("usr"),
        folder("usr/lib", mode=0o2775),
        entry("lib/late", data=b"l"),
        entry("replaced", data=b"file"),
    )
    return [lower, upper]


@pytest.mark.parametrize("kind", ["debian", "odd"])
def test_the_tree_is_that_of_umoci(tmp_path: Path, kind: str) -> None:
    layers = [debian_layer(tmp_path)] if kind == "debian" else odd_layers()
    with stored(tmp_path, *layers) as store:
        store.unpack(REFERENCE, tmp_path / "ours")
        store.export_images([REFERENCE], str(tmp_path / "layout.tar"))
    (tmp_path / "layout").mkdir()
    subprocess.run(["tar", "-xf", tmp_path / "layout.tar", "-C", tmp_path / "layout"], check=True)
    index = json.loads((tmp_path / "layout/index.json").read_text())
    index["manifests"][0]["annotations"] = {"org.opencontainers.image.ref.name": "one"}
    (tmp_path / "layout/index.json").write_text(json.dumps(index))
    subprocess.run([need("umoci"), "unpack", "--image", f"{tmp_path}/layout:one", tmp_path / "theirs"], check=True)
    assert described(tmp_path / "ours") == described(tmp_path / "theirs" / "rootfs")


@pytest.fixture
def busybox(tmp_path: Path) -> ImageStore:
    """A store with an image of one static program."""
    program = Path(need("busybox"))
    accounts = entry("etc/passwd", data=b"root:x:0:0::/:/bin/sh\nworker:x:1234:1235::/:/bin/sh\n")
    groups = entry("etc/group", data=b"root:x:0:\nworkers:x:1235:\nmore:x:77:worker\n")
    tools = [folder("bin"), entry("bin/busybox", data=program.read_bytes(), mode=0o755), link("bin/sh", "busybox")]
    layer = made(*tools, folder("etc"), accounts, groups, folder("proc"), folder("sys"), folder("dev"), folder("work"))
    settings = {
        "Entrypoint": ["/bin/busybox"],
        "Cmd": ["sh", "-c", "id; pwd; echo $GREETING"],
        "Env": ["GREETING=hello"],
        "User": "worker",
        "WorkingDir": "/work",
    }
    with stored(tmp_path, layer, config={"config": settings}) as store:
        return store


def runc(tmp_path: Path, bundle: Path, *, how: str = "run") -> subprocess.CompletedProcess[str]:
    name = f"imagestore-{uuid.uuid4().hex[:12]}"
    return subprocess.run(
        [need("runc"), "--root", tmp_path / "state", how, "--bundle", bundle, name],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        timeout=60,
    )


def command(store: ImageStore, *words: str) -> int:
    return main(["--root", str(store.root), *words])


def test_runc_starts_a_bundle_as_the_image_says(tmp_path: Path, busybox: ImageStore) -> None:
    assert command(busybox, "bundle", REFERENCE, str(tmp_path / "bundle")) == 0
    ran = runc(tmp_path, tmp_path / "bundle")
    if ran.returncode and "cgroup" in ran.stderr:
        pytest.skip(f"runc can't start any container here: {ran.stderr[-300:]}")
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    assert lines[0].startswith("uid=1234(worker) gid=1235(workers) groups=")
    assert "77(more)" in lines[0]
    assert lines[1:] == ["/work", "hello"]


def test_the_pods_numbers_are_in_the_control_group_of_the_started_bundle(tmp_path: Path, busybox: ImageStore) -> None:
    """The whole way: pod, kubelet's mapping, CRI, OCI, runc, control group."""
    script = "cat /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/cpu/cpu.cfs_quota_us 2>/dev/null ||"
    script += " cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/cpu.max"
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "spec": {
            "containers": [
                {"name": "other", "image": "x"},
                {
                    "name": "app",
                    "image": "x",
                    "command": ["/bin/sh"],
                    "args": ["-c", f"echo $GREETING; {script}"],
                    "env": [{"name": "GREETING", "value": "pod"}],
                    "resources": {"limits": {"cpu": "500m", "memory": "64Mi"}},
                },
            ]
        },
    }
    (tmp_path / "pod.json").write_text(json.dumps(pod))
    words = ("bundle", REFERENCE, str(tmp_path / "bundle"), "--pod", str(tmp_path / "pod.json"))
    assert command(busybox, *words) == 1 or not (tmp_path / "bundle").exists()
    assert command(busybox, *words, "--container", "app") == 0
    config = json.loads((tmp_path / "bundle/config.json").read_text())
    assert config["linux"]["resources"]["memory"]["limit"] == 64 << 20
    assert config["linux"]["resources"]["cpu"]["quota"] == 50000
    ran = runc(tmp_path, tmp_path / "bundle")
    if ran.returncode and "cgroup" in ran.stderr:
        pytest.skip(f"runc can't start any container here: {ran.stderr[-300:]}")
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.split()
    assert lines[0] == "pod"
    assert str(64 << 20) in lines
    assert "50000" in lines
