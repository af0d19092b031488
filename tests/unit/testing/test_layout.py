"""Tapes to and from OCI image layouts."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import httpx
import pytest

from imagestore.errors import DocumentError, ImageStoreError, IntegrityError
from imagestore.testing import Tape, build_image, build_index, make_tape, replay, synthetic_layer
from imagestore.testing.tapes.blob_folder import BlobFolder
from imagestore.testing.tapes.layout import layout_to_tape, tape_to_layout
from imagestore.testing.tapes.tape import TapeContent, TapeExchange

if TYPE_CHECKING:
    from pathlib import Path

IMAGES = {
    "registry.example/app:1": build_index(["linux/amd64"], shared=[synthetic_layer("s", 512 * 30)]),
    "docker.io/library/other:2": build_image(family="docker", algorithm="sha512"),
}


def test_a_layout_holds_what_the_tape_serves_and_reads_back_the_same(tmp_path: Path, blobs: BlobFolder) -> None:
    tape = make_tape(IMAGES, blobs)
    assert tape_to_layout(tape, blobs, str(tmp_path / "layout")) == 2
    again = BlobFolder(str(tmp_path / "again"))
    read = layout_to_tape(str(tmp_path / "layout"), again, name="registry.example/default")
    assert contents_of(read) == contents_of(tape)
    # Synthetic layers became real ones on the way.
    assert set(read.contents()) == set(tape.contents()) | {one.digest for one in tape.synthetic}


def contents_of(tape: Tape) -> dict[str, tuple[object, ...]]:
    return {f"{one.host}/{one.path}": (dict(one.tags), set(one.manifests), set(one.blobs)) for one in tape.repositories}


def test_a_layout_of_recorded_exchanges_has_manifests_and_blobs(tmp_path: Path, blobs: BlobFolder) -> None:
    image = build_image()
    exchanges = []
    for digest, document in image.documents.items():
        blobs.put(document.data)
        kind = (("Content-Type", f"{document.media_type}; charset=utf-8"),)
        body = TapeContent(digest, len(document.data))
        exchanges.append(
            TapeExchange("GET", "https", "a.example", "/v2/app/manifests/1", "", 200, headers=kind, body=body)
        )
    for digest, one in image.blobs.items():
        blobs.put(one, digest)
        place = TapeExchange("GET", "https", "cdn.example", f"/{digest}", "", 200, body=TapeContent(digest, one.size))
        exchanges.append(place)
    tape_to_layout(Tape(exchanges=tuple(exchanges)), blobs, str(tmp_path / "layout"))
    read = layout_to_tape(str(tmp_path / "layout"), blobs, name="x.example/y")
    assert [(one.host, one.path, dict(one.tags)) for one in read.repositories] == [
        ("a.example", "app", {"1": image.target.digest})
    ]
    with replay(read, blobs=blobs.root) as playing, httpx.Client(transport=playing.transport) as client:
        for digest in image.blobs:
            assert client.get(f"https://a.example/v2/app/blobs/{digest}").status_code == 200


def layout_of(tmp_path: Path, blobs: BlobFolder) -> Path:
    folder = tmp_path / "layout"
    tape_to_layout(make_tape({"a.example/app:1": build_image()}, blobs), blobs, str(folder))
    return folder


def test_entries_without_a_full_name_get_the_given_one(tmp_path: Path, blobs: BlobFolder) -> None:
    folder = layout_of(tmp_path, blobs)
    index = json.loads((folder / "index.json").read_text())
    del index["manifests"][0]["annotations"]["io.containerd.image.name"]
    (folder / "index.json").write_text(json.dumps(index))
    read = layout_to_tape(str(folder), blobs, name="x.example/y")
    assert [(one.host, one.path, list(one.tags)) for one in read.repositories] == [("x.example", "y", ["1"])]


def test_a_layout_is_not_overwritten(tmp_path: Path, blobs: BlobFolder) -> None:
    layout_of(tmp_path, blobs)
    with pytest.raises(ImageStoreError, match="exists already"):
        layout_of(tmp_path, blobs)


def test_a_damaged_blob_of_a_layout_is_refused(tmp_path: Path, blobs: BlobFolder) -> None:
    folder = layout_of(tmp_path, blobs)
    for path in (folder / "blobs" / "sha256").iterdir():
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(IntegrityError):
        layout_to_tape(str(folder), BlobFolder(str(tmp_path / "new")), name="x.example/y")


@pytest.mark.parametrize("victim", ["index.json", "oci-layout"])
def test_links_and_missing_files_in_a_layout_are_refused(tmp_path: Path, blobs: BlobFolder, victim: str) -> None:
    folder = layout_of(tmp_path, blobs)
    (folder / victim).rename(tmp_path / "elsewhere")
    with pytest.raises(DocumentError, match=victim):
        layout_to_tape(str(folder), blobs, name="x.example/y")
    (folder / victim).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DocumentError, match="expected a regular file"):
        layout_to_tape(str(folder), blobs, name="x.example/y")


@pytest.mark.parametrize(
    "text", ["[]", "{", '{"manifests": [{"digest": "x", "mediaType": "y"}]}', '{"manifests": [{}]}']
)
def test_a_bad_index_of_a_layout_is_refused(tmp_path: Path, blobs: BlobFolder, text: str) -> None:
    folder = layout_of(tmp_path, blobs)
    (folder / "index.json").write_text(text)
    with pytest.raises(DocumentError):
        layout_to_tape(str(folder), blobs, name="x.example/y")


def test_a_manifest_of_a_layout_that_is_none_is_refused(tmp_path: Path, blobs: BlobFolder) -> None:
    folder = layout_of(tmp_path, blobs)
    index = json.loads((folder / "index.json").read_text())
    entry = index["manifests"][0]
    digest = BlobFolder(str(folder / "blobs")).put(b'{"schemaVersion": 2, "layers": []}')
    index["manifests"] = [{**entry, "digest": str(digest), "size": 34}]
    (folder / "index.json").write_text(json.dumps(index))
    with pytest.raises(DocumentError, match=f"{digest}.*config"):
        layout_to_tape(str(folder), blobs, name="x.example/y")
