"""Our own tapes: whole, canonical, free of surplus, and made again the same."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from imagestore import Platform
from imagestore.testing import load_tape, replay
from imagestore.testing.faults import EFFECTS
from imagestore.testing.tapes.blob_folder import BlobFolder
from imagestore.testing.tapes.files import find_tapes
from imagestore.testing.tapes.maintenance import collect_bodies, verify_tape

FIXTURES = Path(__file__).parents[3] / "fixtures"
TAPES = FIXTURES / "tapes"


def test_every_tape_is_good() -> None:
    assert {path: problems for path in find_tapes(str(TAPES)) if (problems := verify_tape(path))} == {}


def test_no_body_is_surplus() -> None:
    assert collect_bodies(str(TAPES), dry_run=True).removed == ()


def test_made_tapes_are_made_again_the_same(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("make_tapes", TAPES / "make.py")
    assert spec is not None
    assert spec.loader is not None
    make: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make)
    make.OUTPUT = str(tmp_path)
    make.BLOBS = BlobFolder(str(tmp_path / "blobs"))
    make.make_sets()
    make.make_hosts()
    make.make_faults()
    made = {path.name: path.read_text() for path in tmp_path.glob("*.tape.toml")}
    kept = {path.name: path.read_text() for path in TAPES.glob("*.tape.toml") if not path.name.startswith("recorded-")}
    assert sorted(made) == sorted(kept)
    assert made == kept


def test_there_is_a_tape_for_every_effect() -> None:
    used = {rule.what.name for path in find_tapes(str(TAPES)) for rule in load_tape(path).faults}
    # A replay takes no uploads.
    assert used == set(EFFECTS) - {"cut-upload", "set-status"}


def test_the_index_of_the_kep_has_its_platforms_and_two_windows_builds_that_share_a_layer() -> None:
    with replay(TAPES / "python-kep4216") as playing, httpx.Client(transport=playing.transport) as client:
        base = "https://registry-1.docker.io/v2/library/python"
        index = client.get(f"{base}/manifests/3").json()
        source = json.loads((TAPES / "sources" / "python-kep4216.json").read_text())
        platforms = [entry["platform"] for entry in index["manifests"]]
        assert platforms == [entry["platform"] for entry in source["manifests"]]
        builds = [
            {layer["digest"] for layer in client.get(f"{base}/manifests/{entry['digest']}").json()["layers"]}
            for entry in index["manifests"]
            if entry["platform"]["os"] == "windows"
        ]
    assert len(builds) == 2
    assert len(builds[0] & builds[1]) == 1
    assert len(builds[0] - builds[1]) == len(builds[1] - builds[0]) == 2


@pytest.mark.parametrize(
    ("tape", "repository", "tag"),
    [
        ("windows-builds", "windows/cygwin", "latest"),
        ("multi-arch", "library/busybox", "1.36.1"),
        ("multi-arch", "test/no-platform", "1"),
        ("shapes", "twins/nested", "1"),
        ("mirrors", "app/small", "1"),
    ],
)
def test_sets_serve_their_indexes(tape: str, repository: str, tag: str) -> None:
    with replay(TAPES / tape) as playing, httpx.Client(transport=playing.transport) as client:
        base = f"https://registry.example/v2/{repository}/manifests"
        index = client.get(f"{base}/{tag}").json()
        for entry in index["manifests"]:
            answer = client.get(f"{base}/{entry['digest']}")
            assert (answer.status_code, len(answer.content)) == (200, entry["size"])


def test_attested_sets_keep_annotations_and_unknown_platforms() -> None:
    with replay(TAPES / "attested") as playing, httpx.Client(transport=playing.transport) as client:
        index = client.get("https://registry-1.docker.io/v2/tianon/gosu/manifests/1.19").json()
    proofs = [one for one in index["manifests"] if one["platform"] == {"architecture": "unknown", "os": "unknown"}]
    images = {one["digest"] for one in index["manifests"]} - {one["digest"] for one in proofs}
    assert len(proofs) == 2 * len(images)
    assert {one["annotations"]["vnd.docker.reference.digest"] for one in proofs} == images
    assert Platform("unknown", "unknown").os == "unknown"
