"""Build the Debian package, into ``dist/``: ``make deb``.

First the wheels that ``requirements.lock`` names are fetched, from the index that pip is set up for. All that follows
needs no network. The package is for the Python (3.11, say) and the architecture that it is built with. It has the same
bytes each time that it is built with the same sources and the same ``SOURCE_DATE_EPOCH``.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

HERE: Final = Path(__file__).parent
TOP: Final = HERE.parents[1]
DISTRIBUTION: Final = "oci-imagestore"
EXTRAS: Final = ("cli", "cri", "metrics", "mirror", "node", "sync")
#: What pip notes of an installation: dpkg knows which files there are, and some lines differ from build to build.
PIPS_NOTES: Final = ("RECORD", "INSTALLER", "REQUESTED")
COMPLETIONS: Final = {
    "bash": "bash-completion/completions/imagestore",
    "zsh": "zsh/vendor-completions/_imagestore",
    "fish": "fish/vendor_completions.d/imagestore.fish",
}
PIP: Final = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")


def main() -> None:
    """Fetch, put together, pack."""
    parser = argparse.ArgumentParser(description="Build the Debian package.")
    parser.add_argument("folder", nargs="?", type=Path, default=TOP / "dist", help="where to put it (default: dist)")
    folder = parser.parse_args().folder
    os.umask(0o022)
    with tempfile.TemporaryDirectory(prefix="imagestore-deb-") as name:
        wheels, root = Path(name, "wheels"), Path(name, "root")
        fetch(wheels)
        version = install(wheels, root / "usr/lib/imagestore")
        add_files(root)
        print(pack(root, version, folder))


def fetch(wheels: Path) -> None:
    """Download the wheels of the other packages; pip compares them with the lock's hashes."""
    wheels.mkdir()
    (wheels / "requirements.txt").write_text(locked(needed()), "utf-8")
    options = ["--no-deps", "--only-binary", ":all:", "--require-hashes", "-r", f"{wheels}/requirements.txt"]
    subprocess.run([*PIP, "download", *options, "-d", wheels], check=True)


def needed() -> set[str]:
    """The packages that the extras need with this Python, by the metadata of those that are installed beside it."""
    found = {(DISTRIBUTION, extra) for extra in ("", *EXTRAS)}
    waiting = list(found)
    while waiting:
        name, extra = waiting.pop()
        for each in map(Requirement, metadata.requires(name) or []):
            if each.marker is None or each.marker.evaluate({"extra": extra}):
                new = {(str(canonicalize_name(each.name)), extra) for extra in ("", *each.extras)} - found
                found |= new
                waiting += new
    return {name for name, _ in found} - {DISTRIBUTION}


def locked(names: set[str]) -> str:
    """The lock's entries for these packages, with their hashes."""
    text = (TOP / "requirements.lock").read_text("utf-8")
    entries = [each for each in re.finditer(r"^([\w.-]+)==(?:.*\\\n)*.*\n", text, re.MULTILINE) if each[1] in names]
    if missing := names - {each[1] for each in entries}:
        sys.exit(f"requirements.lock lacks {', '.join(sorted(missing))}: make lock")
    return "".join(each[0] for each in entries)


def install(wheels: Path, target: Path) -> str:
    """Build our own wheel and install all of them into a folder, without an index; gives the version."""
    subprocess.run([*PIP, "wheel", "--no-deps", "--no-index", "--no-build-isolation", "-w", wheels, TOP], check=True)
    (ours,) = wheels.glob("oci_imagestore-*.whl")
    version = ours.name.split("-")[1]
    with (wheels / "requirements.txt").open("a", encoding="utf-8") as file:
        file.write(f"{DISTRIBUTION}=={version} --hash=sha256:{hashlib.sha256(ours.read_bytes()).hexdigest()}\n")
    options = ["--no-index", "--find-links", str(wheels), "--require-hashes", "--no-deps", "--no-compile"]
    subprocess.run([*PIP, "install", *options, "-r", wheels / "requirements.txt", "--target", target], check=True)
    for note in PIPS_NOTES:
        for path in target.glob(f"*.dist-info/{note}"):
            path.unlink()
    return version


def add_files(root: Path) -> None:
    """The command, its man pages and completion, the units and the documents, where Debian has such files."""
    library, share = root / "usr/lib/imagestore", root / "usr/share"
    place(root / "usr/bin/imagestore", (HERE / "imagestore").read_bytes()).chmod(0o755)
    for page in (library / "share/man/man1").iterdir():
        place(share / "man/man1" / f"{page.name}.gz", gzip.compress(page.read_bytes(), mtime=0))
    shutil.rmtree(library / "share")
    shutil.rmtree(library / "bin")
    for shell, path in COMPLETIONS.items():
        line = [sys.executable, "-m", "imagestore", "completion", shell]
        place(share / path, subprocess.run(line, cwd=TOP, stdout=subprocess.PIPE, check=True).stdout)
    documents = share / "doc/imagestore"
    for source in sorted((TOP / "docs/systemd").iterdir()):
        text = source.read_text("utf-8").replace("/usr/local/bin/", "/usr/bin/")
        if source.suffix == ".service":  # without the comment above it, which says where to copy it
            place(root / "usr/lib/systemd/system" / source.name, text[text.index("[Unit]") :].encode())
        else:
            place(documents / "systemd" / source.name, text.encode())
    place(documents / "config.toml.example", (TOP / "config.toml.example").read_bytes())
    place(documents / "copyright", (TOP / "LICENSE").read_bytes())
    place(documents / "changelog.gz", gzip.compress((TOP / "CHANGELOG.md").read_bytes(), mtime=0))


def place(path: Path, content: bytes) -> Path:
    """Write a file, and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def pack(root: Path, version: str, folder: Path) -> Path:
    """Add what dpkg reads, and make the package of it."""
    size = sum(path.stat().st_size for path in root.rglob("*") if path.is_file())
    line = ["dpkg", "--print-architecture"]
    architecture = subprocess.run(line, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    # Some wheels have modules for one minor version of Python. Debian's package needs to be that version.
    major, minor = sys.version_info[:2]
    values = {
        # "~" sorts before the release.
        "version": re.sub(r"\.?(a|b|rc|dev)(?=\d)", r"~\1", version),
        "architecture": architecture,
        "size": -(-size // 1024),
        "python": f"python3 (>= {major}.{minor}), python3 (<< {major}.{minor + 1})",
    }
    control = (HERE / "control").read_text("utf-8").format_map(values)
    place(root / "DEBIAN/control", control.encode())
    for script in ("postinst", "prerm", "postrm"):
        place(root / "DEBIAN" / script, (HERE / script).read_bytes()).chmod(0o755)
    target = folder / f"imagestore_{values['version']}_{architecture}.deb"
    folder.mkdir(parents=True, exist_ok=True)
    # Level 3 takes half the time of the default level, and the package gets a tenth larger.
    options = ["--root-owner-group", "-Zxz", "-z3", "--build"]
    subprocess.run(["dpkg-deb", *options, root, target], stdout=subprocess.DEVNULL, check=True)
    return target


if __name__ == "__main__":
    main()
