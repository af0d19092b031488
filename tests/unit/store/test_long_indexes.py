"""An index that is longer than a manifest may be, from the registry into the store, an archive and back."""

from __future__ import annotations

import json
from pathlib import Path

from imagestore import CopyOptions, Digest
from imagestore.oci.media_types import OCI_INDEX
from imagestore.testing import build_image
from imagestore.testing.builders.bodies import BytesBody
from imagestore.testing.engine.distribution import StoredDocument
from tests.support.node import PYTHON, node

IMAGE = build_image("linux/amd64", seed="long")


def test_a_long_index_goes_everywhere(tmp_path: Path) -> None:
    with node(tmp_path / "root", {PYTHON: IMAGE}) as here:
        repository = here.registry.library.open("registry.example", "library/python")
        entry = {**IMAGE.target.members(), "platform": {"os": "linux", "architecture": "amd64"}}
        index = {
            "schemaVersion": 2,
            "mediaType": OCI_INDEX,
            "manifests": [entry],
            "annotations": {"a": "x" * (6 << 20)},
        }
        raw = json.dumps(index).encode()
        repository.documents[Digest.of(raw)] = StoredDocument(OCI_INDEX, BytesBody(raw))
        repository.tags["3"] = Digest.of(raw)
        for _ in range(2):
            assert here.store.pull(PYTHON, runtime_handler="kata").target.digest == Digest.of(raw)
        assert here.store.check().faults == ()
        place, kata = f"oci-archive:{tmp_path / 'a.tar'}", ("kata",)
        here.store.copy(f"store:{PYTHON}", place, options=CopyOptions(kata, all_handlers=True))
        here.store.copy(place, "store:registry.example/b:1", options=CopyOptions(kata))
        assert here.store.get("registry.example/b:1", runtime_handler="kata").target.digest == Digest.of(raw)
