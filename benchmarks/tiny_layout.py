"""An OCI layout of many tiny images, always the same bytes: manifest, config, a layer of its own and one shared."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from imagestore import Digest
from imagestore.oci.media_types import OCI_INDEX, OCI_MANIFEST

CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar+gzip"
#: So many images share their base layer.
SHARED_BY = 100


def name(number: int) -> str:
    """The reference of an image."""
    return f"registry.example/bench/image-{number}:1"


def write_layout(folder: Path, count: int) -> None:
    """Make the layout; not synced."""
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)

    def keep(data: bytes) -> Digest:
        digest = Digest.of(data)
        (blobs / digest.encoded).write_bytes(data)
        return digest

    entries = list(_entries(count, keep))
    index = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": entries}
    (folder / "index.json").write_text(json.dumps(index))
    (folder / "oci-layout").write_text(json.dumps({"imageLayoutVersion": "1.0.0"}))


def _entries(count: int, keep: Callable[[bytes], Digest]) -> Iterator[dict[str, Any]]:
    for number in range(count):
        layers = [_layer(f"base {number // SHARED_BY}"), _layer(f"own {number}")]
        config = {
            "architecture": "amd64",
            "os": "linux",
            "config": {},
            "rootfs": {"type": "layers", "diff_ids": [str(Digest.of(tar)) for tar, _ in layers]},
        }
        raw = json.dumps(config).encode()
        manifest = {
            "schemaVersion": 2,
            "mediaType": OCI_MANIFEST,
            "config": {"mediaType": CONFIG_TYPE, "digest": str(keep(raw)), "size": len(raw)},
            "layers": [
                {"mediaType": LAYER_TYPE, "digest": str(keep(packed)), "size": len(packed)} for _, packed in layers
            ],
        }
        raw = json.dumps(manifest).encode()
        yield {
            "mediaType": OCI_MANIFEST,
            "digest": str(keep(raw)),
            "size": len(raw),
            "platform": {"architecture": "amd64", "os": "linux"},
            "annotations": {"io.containerd.image.name": name(number), "org.opencontainers.image.ref.name": "1"},
        }


def _layer(text: str) -> tuple[bytes, bytes]:
    """A layer of one small file: as a tar, and packed."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        member = tarfile.TarInfo(text.replace(" ", "-"))
        member.size = len(text)
        tar.addfile(member, io.BytesIO(text.encode()))
    plain = file.getvalue()[:2048]
    return plain, gzip.compress(plain, compresslevel=1, mtime=0)
