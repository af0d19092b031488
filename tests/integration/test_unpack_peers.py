"""Ten images made with Debian's tools: our tree is that of umoci and that of containerd's snapshot, file by file."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from imagestore import ImageStore, platforms
from imagestore.testing import Layer
from imagestore.testing.builders.layers import layer_from_tar
from tests.support.peers import debian_root, need
from tests.support.private_containerd import CONTAINERS, Containerd, private_containerd
from tests.unit.store.unpack.making import REFERENCE, stored

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(os.geteuid() != 0, reason="owners, devices and mounts need root"),
]

NAME = "registry.example/peers:1"
SNAPSHOTTER = "overlayfs"
#: Installed packages by what they bring.
PACKAGES = {
    "hard-links": ("perl-base", "gzip", "bzip2"),
    "set-id": ("passwd", "login", "util-linux", "mount"),
    "links": ("libc6", "base-files", "coreutils"),
    "many": ("dpkg", "apt", "sed", "grep", "tar", "findutils"),
}


def run(*words: str | Path, cwd: str | None = None) -> bytes:
    done = subprocess.run(words, capture_output=True, timeout=120, check=False, cwd=cwd)
    assert done.returncode == 0, f"{words}: {done.stderr.decode()[-800:]}"
    return done.stdout


def described(root: Path) -> dict[str, tuple[Any, ...]]:
    """Each path with kind, mode, owner, device, time, other names, content and extended attributes."""
    paths = [root, *sorted(root.rglob("*"))]
    # Not st_nlink: an overlay says how many names a file has in its own layer.
    names: dict[int, list[str]] = {}
    for each in paths:
        names.setdefault(each.lstat().st_ino, []).append(str(each.relative_to(root)))
    found: dict[str, tuple[Any, ...]] = {}
    for each in paths:
        status = each.lstat()
        content = ""
        if stat.S_ISREG(status.st_mode):
            content = hashlib.sha256(each.read_bytes()).hexdigest()
        elif stat.S_ISLNK(status.st_mode):
            content = os.readlink(each)
        xattrs = [
            (key, os.getxattr(each, key, follow_symlinks=False)) for key in os.listxattr(each, follow_symlinks=False)
        ]
        # umoci takes fractions of seconds away; a root without an entry has the time of its making in containerd.
        seconds = int(status.st_mtime) if each != root else 0
        found[str(each.relative_to(root))] = (
            *(oct(status.st_mode), status.st_uid, status.st_gid, status.st_rdev, seconds),
            *(names[status.st_ino], content, sorted(xattrs)),
        )
    return found


@contextlib.contextmanager
def mounted(containerd: Containerd, archive: Path, target: Path) -> Iterator[Path]:
    """The snapshot of an imported archive's image."""
    containerd.ctr("images", "import", "--snapshotter", SNAPSHOTTER, archive)
    target.mkdir()
    containerd.ctr("images", "mount", "--snapshotter", SNAPSHOTTER, NAME, target)
    try:
        yield target
    finally:
        containerd.ctr("images", "unmount", "--rm", "--snapshotter", SNAPSHOTTER, target)
        containerd.ctr("images", "rm", "--sync", NAME)


@pytest.fixture(scope="module")
def containerd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Containerd]:
    folder = tmp_path_factory.mktemp("containerd")
    with private_containerd(folder, disabled=CONTAINERS[:1], mounts=True) as started:
        yield started


def installed(path: Path, *packages: str, forms: tuple[str, ...] = ("--format=posix",)) -> bytes:
    """What is here of some packages, as GNU tar writes it."""
    names = run(need("dpkg-query"), "-L", *packages).decode().splitlines()
    # Where files are by a link, their folder has no entry, and so no time.
    present = sorted({"/usr/lib64"} | {each for each in names if each.startswith("/") and os.path.lexists(each)})
    (path / "names").write_text("\n".join(f".{each}" if each != "/." else "." for each in present))
    return run(need("tar"), *forms, "--no-recursion", "-cf", "-", "-C", "/", "-T", path / "names")


def archived(folder: Path, *forms: str) -> bytes:
    times = ("--pax-option=delete=atime,delete=ctime",) if "--format=posix" in forms else ()
    return run(need("tar"), *forms, *times, "-cf", "-", "-C", folder, ".")


def capable(path: Path) -> bytes:
    """A program with capabilities and an attribute of a user's, and a file with two names.

    The program has one name: GNU tar repeats no attributes for a second one, and containerd then drops the capabilities
    when it gives the file its owner again. We keep them, as umoci does (tests/unit/store/unpack).
    """
    tree = path / "capable"
    tree.mkdir()
    run("cp", need("busybox"), tree / "ping")
    os.chown(tree / "ping", 12, 34)
    run(need("setcap"), "cap_net_raw+ep", tree / "ping")
    os.setxattr(tree / "ping", "user.origin", b"\xffbinary\0")
    (tree / "one").write_text("1")
    os.link(tree / "one", tree / "two")
    return archived(tree, "--format=posix", "--xattrs", "--xattrs-include=*")


def nodes(path: Path) -> bytes:
    """Devices, FIFOs, a sparse file, sticky and set-id folders, odd and long names."""
    tree = path / "nodes"
    (tree / "dev").mkdir(parents=True)
    os.mknod(tree / "dev/null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    os.mknod(tree / "dev/loop7", stat.S_IFBLK | 0o660, os.makedev(7, 300))
    os.mkfifo(tree / "fifo", 0o640)
    (tree / "sticky").mkdir()
    (tree / "sticky").chmod(0o3777)
    (tree / "closed").mkdir(0)
    with (tree / "sparse").open("wb") as file:
        file.seek(3 << 20)
        file.write(b"data")
        file.truncate(5 << 20)
    long = tree / ("long-" * 50) / ("ü" * 100)
    long.mkdir(parents=True)
    (long / "a\nb\\c d").write_text("odd")
    os.symlink("../" * 60 + "target", long / "link")
    return archived(tree, "--format=posix", "--sparse")


def from_installed(kind: str, *forms: str) -> Callable[[Path], list[bytes]]:
    return lambda path: [installed(path, *PACKAGES[kind], forms=forms or ("--format=posix",))]


def bootstrapped(path: Path) -> list[bytes]:
    """A root of mmdebstrap's; it needs a mirror of Debian."""
    target = path / "mm.tar"
    debian_root(target, "--variant=extract", "--include=busybox-static,libcap2-bin,base-files")
    return [target.read_bytes()]


def stacked(path: Path) -> list[bytes]:
    """A package on a package: folders of the first one have entries in the second one again."""
    return [installed(path, *PACKAGES[kind]) for kind in ("links", "hard-links", "set-id")]


TARS: dict[str, Callable[[Path], list[bytes]]] = {
    "mmdebstrap": bootstrapped,
    "hard links": from_installed("hard-links"),
    "set-id": from_installed("set-id", "--format=gnu"),
    "ustar": from_installed("many", "--format=ustar"),
    "stacked": stacked,
    "capabilities": lambda path: [capable(path)],
    "nodes": lambda path: [nodes(path)],
}


def layout_of_tars(path: Path, tars: list[bytes]) -> Path:
    """A layout with one image of these layers."""
    layers: list[Layer] = [layer_from_tar(each) for each in tars]
    with stored(path, *layers) as store:
        store.export_images([REFERENCE], str(path / "exported.tar"))
    (path / "layout").mkdir()
    run(need("tar"), "-xf", path / "exported.tar", "-C", path / "layout")
    return path / "layout"


LOWER = """
mkdir -p bin etc/keep etc/gone/deep var/lib/a var/lib/b opt/tool
cp $(command -v busybox) bin/busybox && ln bin/busybox bin/sh && ln -s busybox bin/ls && ln -s ../bin opt/bin
setcap cap_net_bind_service+ep bin/busybox
echo 1 > etc/keep/one; echo 1 > etc/gone/deep/one; echo 1 > var/lib/a/one; echo 1 > var/lib/b/one; echo 1 > opt/tool/x
chmod 2750 var/lib/a; chown 33:44 var/lib/a; touch -d @1500000000 etc/keep/one etc/keep
"""
WHITEOUTS = """
rm -r etc/gone var/lib/b bin/ls
echo 2 > etc/keep/two
chmod 4755 bin/busybox
"""
OPAQUE = """
rm -r var/lib && mkdir -p var/lib/new && echo 3 > var/lib/new/three
rm -r opt/tool && echo file > opt/tool
rm etc/keep/one && mkdir etc/keep/one && echo 3 > etc/keep/one/three
ln bin/sh bin/again
"""
BUILT = {
    "whiteouts": (LOWER, WHITEOUTS),
    "opaque folders": (LOWER, OPAQUE),
    "layers on layers": (LOWER, WHITEOUTS, OPAQUE, "rm -r etc var; mkdir etc; echo 4 > etc/four"),
}


def layout_of_steps(path: Path, steps: tuple[str, ...]) -> Path:
    """A layout with the image that buildah makes: one layer for each step."""
    buildah: list[str | Path] = [need("buildah"), "--root", path / "buildah", "--runroot", path / "run"]
    name = "scratch"
    for number, step in enumerate(steps):
        container = run(*buildah, "from", name).decode().strip()
        tree = run(*buildah, "mount", container).decode().strip()
        run("sh", "-ec", step, cwd=tree)
        run(*buildah, "umount", container)
        name = f"step{number}"
        run(*buildah, "commit", "-q", "--rm", container, name)
    run(*buildah, "push", "-q", name, f"oci:{path}/layout:one")
    run(*buildah, "rmi", "--all", "--force")
    return path / "layout"


def check(path: Path, layout: Path, containerd: Containerd) -> None:
    """Unpack a layout's image with all three, and compare."""
    index = json.loads((layout / "index.json").read_text())
    names = {"org.opencontainers.image.ref.name": "one", "io.containerd.image.name": NAME}
    index["manifests"][0]["annotations"] = names
    (layout / "index.json").write_text(json.dumps(index))
    run(need("tar"), "-cf", path / "image.tar", "-C", layout, ".")
    with ImageStore(path / "ours", host=platforms.parse("linux/amd64")) as store:
        store.import_images(str(path / "image.tar"))
        report = store.unpack(NAME, path / "tree")
    assert report.left_out == ()
    ours = described(path / "tree")
    assert report.entries > 2
    run(need("umoci"), "unpack", "--image", f"{layout}:one", path / "umoci")
    assert ours == described(path / "umoci/rootfs")
    with mounted(containerd, path / "image.tar", path / "mounted") as tree:
        assert ours == described(tree)


@pytest.mark.parametrize("kind", TARS)
def test_trees_of_debians_packages_are_those_of_the_peers(tmp_path: Path, containerd: Containerd, kind: str) -> None:
    check(tmp_path, layout_of_tars(tmp_path, TARS[kind](tmp_path)), containerd)


@pytest.mark.parametrize("kind", BUILT)
def test_trees_of_buildahs_layers_are_those_of_the_peers(tmp_path: Path, containerd: Containerd, kind: str) -> None:
    check(tmp_path, layout_of_steps(tmp_path, BUILT[kind]), containerd)
