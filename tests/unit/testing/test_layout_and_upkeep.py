"""Layouts in and out, verification, and clearing of bodies."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import httpx
import pytest

from imagestore.digest import Digest
from imagestore.errors import ConfigError, DocumentError, ImageStoreError, IntegrityError
from imagestore.testing import Tape, build_image, build_index, load_tape, make_tape, replay, save_tape, synthetic_layer
from imagestore.testing.tapes.blob_folder import BlobFolder
from imagestore.testing.tapes.layout import layout_to_tape, tape_to_layout
from imagestore.testing.tapes.tape import TapeContent, TapeExchange, TapeSynthetic
from imagestore.testing.tapes.tape_write import format_tape
from imagestore.testing.tapes.upkeep import collect_bodies, find_tapes, verify_tape

if TYPE_CHECKING:
    from pathlib import Path

IMAGES = {
    "registry.example/app:1": build_index(["linux/amd64"], shared=[synthetic_layer("s", 512 * 30)]),
    "docker.io/library/other:2": build_image(family="docker", algorithm="sha512"),
}


@pytest.fixture
def blobs(tmp_path: Path) -> BlobFolder:
    return BlobFolder(str(tmp_path / "blobs"))


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
    with pytest.raises(DocumentError, match="expected a plain file"):
        layout_to_tape(str(folder), blobs, name="x.example/y")


@pytest.mark.parametrize(
    "text", ["[]", "{", '{"manifests": [{"digest": "x", "mediaType": "y"}]}', '{"manifests": [{}]}']
)
def test_a_bad_index_of_a_layout_is_refused(tmp_path: Path, blobs: BlobFolder, text: str) -> None:
    folder = layout_of(tmp_path, blobs)
    (folder / "index.json").write_text(text)
    with pytest.raises(DocumentError):
        layout_to_tape(str(folder), blobs, name="x.example/y")


# -- verification --------------------------------------------------------------------------------------------------


def saved(tmp_path: Path, tape: Tape) -> str:
    return save_tape(tmp_path / "tapes" / "one", tape)


def test_a_good_tape_has_no_problems(tmp_path: Path, blobs: BlobFolder) -> None:
    assert verify_tape(saved(tmp_path, make_tape(IMAGES, blobs))) == []


def test_missing_and_damaged_bodies_are_found(tmp_path: Path, blobs: BlobFolder) -> None:
    path = saved(tmp_path, make_tape(IMAGES, blobs))
    first, second, *_ = load_tape(path).contents()
    blobs.remove(first)
    with open(blobs.path(second), "ab") as file:
        file.write(b"?")
    problems = verify_tape(path)
    assert [str(first) in problems[0], str(second) in problems[1]] == [True, True]


def test_a_wrong_synthetic_body_is_found(tmp_path: Path) -> None:
    tape = Tape(synthetic=(TapeSynthetic(Digest.of(b"x"), 10, "seed"),))
    (problem,) = verify_tape(saved(tmp_path, tape))
    assert problem.startswith("synthetic body sha256:2d7116")


def test_an_answer_with_other_content_than_asked_for_is_found(tmp_path: Path, blobs: BlobFolder) -> None:
    other = blobs.put(b"other")
    path = f"/v2/app/blobs/{Digest.of(b'asked')}"
    tape = Tape(exchanges=(TapeExchange("GET", "https", "a.example", path, "", 200, body=TapeContent(other, 5)),))
    (problem,) = verify_tape(saved(tmp_path, tape))
    assert f"the recorded answer is {other}" in problem


def test_a_text_that_is_not_canonical_or_holds_a_secret_is_found(tmp_path: Path) -> None:
    path = saved(tmp_path, Tape(about="see https://user:password@host/"))
    with open(path, "ab") as file:
        file.write(b"\n# a comment\n")
    problems = verify_tape(path)
    assert ["canonical" in problems[0], "user information" in problems[1]] == [True, True]


# -- clearing ------------------------------------------------------------------------------------------------------


def test_only_bodies_that_no_tape_needs_are_deleted(tmp_path: Path, blobs: BlobFolder) -> None:
    saved(tmp_path, make_tape(IMAGES, blobs))
    save_tape(tmp_path / "tapes" / "deeper" / "two", make_tape({"a.example/x:1": build_image(seed="two")}, blobs))
    needed = set(blobs.digests())
    surplus = blobs.put(b"surplus")
    planned = collect_bodies(str(tmp_path / "tapes"), is_dry_run=True)
    assert (planned.removed, planned.bytes_freed, planned.kept) == ((surplus,), 7, len(needed))
    assert blobs.has(surplus)
    assert collect_bodies(str(tmp_path / "tapes")) == planned
    assert set(blobs.digests()) == needed


def test_an_unreadable_tape_stops_the_clearing(tmp_path: Path, blobs: BlobFolder) -> None:
    path = saved(tmp_path, make_tape(IMAGES, blobs))
    surplus = blobs.put(b"surplus")
    with open(path, "wb") as file:
        file.write(b"nonsense")
    with pytest.raises(DocumentError):
        collect_bodies(str(tmp_path / "tapes"))
    assert blobs.has(surplus)


def test_folders_without_tapes_or_bodies_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no file ends with \.tape\.toml"):
        find_tapes(str(tmp_path))
    with pytest.raises(ConfigError, match="no folder 'blobs'"):
        collect_bodies(str(tmp_path / "tapes"))
    assert format_tape(Tape()).startswith(b"format")
