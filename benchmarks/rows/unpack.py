"""A root filesystem of 50,000 files from one layer, next to umoci and to containerd's unpacking into its snapshots."""

from __future__ import annotations

import gzip
import hashlib
import io
import itertools
import json
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from random import Random

from benchmarks.suite.bench import Bench
from benchmarks.suite.containerd import Containerd
from benchmarks.suite.cost import Cost
from benchmarks.suite.figures import Findings, compare, peak
from benchmarks.suite.series import alternate, table

FILES = 50_000
_A_FOLDER = 100
_LARGEST = 4000
_NAME = "registry.example/files:1"
OURS, UMOCI, CTR = "imagestore unpack", "umoci unpack", "ctr snapshots unpack"
#: Ratio to each peer, at most.
_GOALS = {UMOCI: 0.5, CTR: 0.4}
_PEAK_MEBIBYTES = 96


def measure(bench: Bench) -> Findings:
    """A layer of 50,000 small files unpacked, in memory, by each program that is here."""
    found = Findings()
    place = bench.places[-1]
    with place.fresh() as folder:
        layout, root = folder / "layout", folder / "store"
        digest = _write(layout)
        bench.imagestore(root, "import", str(layout), "--platform", "linux/amd64")
        numbers = itertools.count()

        def ours() -> Cost:
            target = folder / f"ours{next(numbers)}"
            words = ("unpack", _NAME, str(target), "--progress", "none")
            return _gone(bench.imagestore(root, *words), target)

        def umoci() -> Cost:
            target = folder / f"theirs{next(numbers)}"
            return _gone(bench.run("umoci", "unpack", "--image", f"{layout}:{_NAME}", str(target)), target)

        contestants: dict[str, Callable[[], Cost]] = {OURS: ours}
        if shutil.which("umoci") is None:
            found.notes.append("UNPACK: umoci is left out; it isn't installed")
        else:
            contestants[UMOCI] = umoci
        daemon = bench.containerd(place)
        if daemon is not None:
            _import(daemon, layout)
            contestants[CTR] = lambda: _by_ctr(bench, daemon, digest)
        series = alternate(f"{FILES:,} files, {place.name}", contestants, rounds=bench.rounds)
    found.details += table(series)
    for name in list(contestants)[1:]:
        found.figures.append(compare("UNPACK", series, OURS, name, goal=_GOALS[name], is_drawn=name == UMOCI))
    found.figures.append(peak("UNPACK", series, OURS, goal=_PEAK_MEBIBYTES))
    return found


def _import(daemon: Containerd, layout: Path) -> None:
    """Give containerd the image, packed: that is what a pull has when its unpacking begins."""
    archive = layout.with_suffix(".tar")
    subprocess.run(["tar", "-cf", archive, "-C", layout, "."], check=True)
    subprocess.run([*daemon.ctr, "images", "import", "--no-unpack", archive], check=True, capture_output=True)


def _by_ctr(bench: Bench, daemon: Containerd, digest: str) -> Cost:
    """The unpacking of ``ctr images pull``, without the pull; the snapshot is removed afterwards."""
    before = daemon.processor_seconds
    cost = bench.run(*daemon.ctr, "snapshots", "unpack", digest).with_daemon(daemon.processor_seconds - before)
    listed = subprocess.run([*daemon.ctr, "snapshots", "ls"], check=True, capture_output=True, text=True).stdout
    for line in listed.splitlines()[1:]:
        subprocess.run([*daemon.ctr, "snapshots", "rm", line.split()[0]], check=True, capture_output=True)
    return Cost(cost.wall, cost.processor, (cost.peak or 0) + daemon.peak_mebibytes)


def _gone(cost: Cost, target: Path) -> Cost:
    """What a tree cost, once it is away again."""
    shutil.rmtree(target)
    return cost


def _write(layout: Path) -> str:
    """An OCI layout with one image of one layer, the same bytes each time; returns the digest of its manifest."""
    (layout / "blobs" / "sha256").mkdir(parents=True)
    raw = _archive()
    layer = gzip.compress(raw, 6, mtime=0)
    config = {
        "os": "linux",
        "architecture": "amd64",
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(raw).hexdigest()}"]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": _put(layout, json.dumps(config).encode(), "application/vnd.oci.image.config.v1+json"),
        "layers": [_put(layout, layer, "application/vnd.oci.image.layer.v1.tar+gzip")],
    }
    entry = _put(layout, json.dumps(manifest).encode(), "application/vnd.oci.image.manifest.v1+json")
    entry["annotations"] = {"org.opencontainers.image.ref.name": _NAME}
    (layout / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}))
    (layout / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return str(entry["digest"])


def _put(layout: Path, data: bytes, media_type: str) -> dict[str, object]:
    digest = hashlib.sha256(data).hexdigest()
    (layout / "blobs" / "sha256" / digest).write_bytes(data)
    return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(data)}


def _archive() -> bytes:
    random, buffer = Random(50), io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for number in range(FILES):
            if number % _A_FOLDER == 0:
                folder = tarfile.TarInfo(f"folder{number // _A_FOLDER}")
                folder.type, folder.mode = tarfile.DIRTYPE, 0o755
                tar.addfile(folder)
            data = random.randbytes(random.randrange(_LARGEST))
            file = tarfile.TarInfo(f"folder{number // _A_FOLDER}/file{number}")
            file.size = len(data)
            tar.addfile(file, io.BytesIO(data))
    return buffer.getvalue()
