"""The Debian package: what is in it, and its life on a fresh Debian."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from docs._tools.man_pages import man_pages
from imagestore import __version__
from imagestore.testing import RegistryServer, build_image
from tests.support.patience import until
from tests.support.peers import debian_root
from tests.unit.docs.pages import TOP

pytestmark = pytest.mark.integration

UNITS = ("imagestore.service", "imagestore-containerd.service", "imagestore-mirror.service")
#: What the programs of a Debian write while they work.
WORKING_FILES = ("run/", "tmp/", "var/cache/", "var/lib/dpkg/", "var/log/")


def build(folder: Path) -> Path:
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1750000000"}
    subprocess.run([sys.executable, TOP / "packaging/deb/build.py", folder], env=environment, check=True, timeout=300)
    (made,) = folder.iterdir()
    return made


def output(*command: str | Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-1000:]
    return done.stdout


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("deb"))


@pytest.fixture(scope="module")
def debian(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The root of a Debian 12 with what the package depends on, man and systemctl."""
    root = tmp_path_factory.mktemp("debian") / "root"
    debian_root(root, "--variant=essential", "--include=python3,libstdc++6,ca-certificates,man-db,systemd")
    yield root
    shutil.rmtree(root)


def test_the_package_says_what_it_is(package: Path) -> None:
    architecture = output("dpkg", "--print-architecture").strip()
    fields = dict(
        line.split(": ", 1) for line in output("dpkg-deb", "--field", package).splitlines() if not line.startswith(" ")
    )
    assert fields["Package"] == "imagestore"
    assert fields["Version"] == __version__.replace(".dev", "~dev")
    assert fields["Architecture"] == architecture
    assert package.name == f"imagestore_{fields['Version']}_{architecture}.deb"
    minor = sys.version_info.minor
    depends = f"python3 (>= 3.{minor}), python3 (<< 3.{minor + 1}), libstdc++6, ca-certificates"
    assert fields["Depends"] == depends


def test_the_package_has_the_command_and_its_files(package: Path) -> None:
    lines = [line.split(maxsplit=5) for line in output("dpkg-deb", "--contents", package).splitlines()]
    assert {line[1] for line in lines} == {"root/root"}
    assert {line[0] for line in lines} == {"drwxr-xr-x", "-rw-r--r--", "-rwxr-xr-x"}
    names = {line[5].removeprefix("./") for line in lines}
    documents = {f"usr/share/doc/imagestore/{name}" for name in ("config.toml.example", "copyright", "changelog.gz")}
    drop_ins = {f"usr/share/doc/imagestore/systemd/{each.name}" for each in TOP.glob("docs/systemd/*.conf")}
    manual = {f"usr/share/man/man1/{name}.gz" for name in man_pages()}
    units = {f"usr/lib/systemd/system/{name}" for name in UNITS}
    completions = {
        "usr/share/bash-completion/completions/imagestore",
        "usr/share/zsh/vendor-completions/_imagestore",
        "usr/share/fish/vendor_completions.d/imagestore.fish",
    }
    expected = {"usr/bin/imagestore"} | documents | drop_ins | manual | units | completions
    files = {name for name in names if name and not name.endswith("/")}
    assert {name for name in files if not name.startswith("usr/lib/imagestore/")} == expected
    assert {each.name for each in TOP.glob("docs/systemd/*.service")} == set(UNITS)
    modules = {name.removeprefix("usr/lib/imagestore/") for name in files if name.endswith(".py")}
    assert {str(each.relative_to(TOP)) for each in TOP.glob("imagestore/**/*.py")} <= modules
    # Nothing that tells where it was built, no compiled modules, and no programs of other packages.
    assert not [name for name in names if name.endswith(("/direct_url.json", "/RECORD", ".pyc"))]
    assert "usr/lib/imagestore/bin/" not in names


def test_the_same_sources_give_the_same_bytes(package: Path, tmp_path: Path) -> None:
    assert build(tmp_path).read_bytes() == package.read_bytes()


def paths(root: Path) -> set[str]:
    found = {str(path.relative_to(root)) for path in root.rglob("*")}
    return {path for path in found if not path.startswith(WORKING_FILES)}


@contextlib.contextmanager
def started(root: Path, unit: str) -> Iterator[None]:
    """The command of a unit runs in the root until its socket is there, then the block; afterwards it ends cleanly."""
    text = (root / "usr/lib/systemd/system" / unit).read_text("utf-8")
    (line,) = [line.removeprefix("ExecStart=") for line in text.splitlines() if line.startswith("ExecStart=")]
    process = subprocess.Popen(["chroot", root, *shlex.split(line)])
    try:
        until((root / "run/imagestore/imagestore.sock").exists, "the socket")
        yield
    finally:
        process.terminate()
        assert process.wait(60) == 0


def test_it_is_installed_works_and_goes(package: Path, debian: Path) -> None:
    before = paths(debian)
    shutil.copy(package, debian / "tmp/imagestore.deb")
    output("chroot", debian, "dpkg", "--install", "/tmp/imagestore.deb")
    assert not (debian / "etc/imagestore").exists()
    assert not list((debian / "etc/systemd").rglob("*imagestore*"))
    assert list((debian / "usr/lib/imagestore/imagestore").rglob("*.pyc"))
    assert output("chroot", debian, "imagestore", "--version") == f"imagestore {__version__}\n"
    assert "imagestore-pull.1.gz" in output("chroot", debian, "man", "--where", "imagestore-pull")

    output("chroot", debian, "systemctl", "enable", "imagestore.service")
    assert list((debian / "etc/systemd").rglob("*imagestore*"))
    (debian / "etc/imagestore").mkdir()
    shutil.copy(debian / "usr/share/doc/imagestore/config.toml.example", debian / "etc/imagestore/config.toml")
    with RegistryServer({"registry.example/app:1": build_image("linux/amd64")}) as running:
        reference = running.server.reference("registry.example/app:1")
        options = ["--progress=none", "--platform=linux/amd64"]
        output("chroot", debian, "imagestore", "--root", "/var/lib/imagestore", "pull", *options, reference)
    with started(debian, "imagestore.service"):
        endpoint = "unix:///run/imagestore/imagestore.sock"
        assert reference.rpartition(":")[0] in output("chroot", debian, "imagestore", "--endpoint", endpoint, "images")

    output("chroot", debian, "dpkg", "--remove", "imagestore")
    left = {path for path in paths(debian) - before if not path.startswith("var/lib/imagestore")}
    assert left == {"etc/imagestore", "etc/imagestore/config.toml"}
    output("chroot", debian, "dpkg", "--purge", "imagestore")
    left = paths(debian) - before
    assert {path for path in left if not path.startswith("var/lib/imagestore")} == set()
    assert "var/lib/imagestore/metadata.db" in left
    assert before <= paths(debian)
