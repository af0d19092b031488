"""A root filesystem of 50,000 files from one layer, beside umoci."""

from __future__ import annotations

import gzip
import hashlib
import io
import itertools
import json
import shutil
import tarfile
from pathlib import Path
from random import Random

from benchmarks.suite.bench import Bench
from benchmarks.suite.cost import Cost
from benchmarks.suite.figures import Findings, compare
from benchmarks.suite.series import alternate, table

FILES = 50_000
_A_FOLDER = 100
_LARGEST = 4000
_GOAL = 0.5
_NAME = "registry.example/files:1"
OURS, THEIRS = "imagestore unpack", "umoci unpack"


def measure(bench: Bench) -> Findings:
    """A layer of 50,000 small files unpacked, in memory, beside umoci."""
    found = Findings()
    if shutil.which("umoci") is None:
        return Findings(notes=["UNPACK: left out; it needs umoci"])
    place = bench.places[-1]
    with place.fresh() as folder:
        layout, root = folder / "layout", folder / "store"
        _write(layout)
        bench.imagestore(root, "import", str(layout), "--platform", "linux/amd64")
        numbers = itertools.count()

        def ours() -> Cost:
            target = folder / f"ours{next(numbers)}"
            words = ("unpack", _NAME, str(target), "--progress", "none")
            return _gone(bench.imagestore(root, *words), target)

        def theirs() -> Cost:
            target = folder / f"theirs{next(numbers)}"
            return _gone(bench.run("umoci", "unpack", "--image", f"{layout}:{_NAME}", str(target)), target)

        series = alternate(f"{FILES:,} files, {place.name}", {OURS: ours, THEIRS: theirs}, rounds=bench.rounds)
    found.details += table(series)
    found.figures.append(compare("UNPACK", series, OURS, THEIRS, goal=_GOAL, is_drawn=True))
    return found


def _gone(cost: Cost, target: Path) -> Cost:
    """What a tree cost, once it is away again."""
    shutil.rmtree(target)
    return cost


def _write(layout: Path) -> None:
    """An OCI layout with one image of one layer, the same bytes each time."""
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
