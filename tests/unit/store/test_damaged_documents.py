"""A pull or an import that meets a damaged document in the store stores it anew: what it records is whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import pytest

from imagestore import Digest, Image
from imagestore.errors import ContentNotFoundError, IntegrityError
from imagestore.events import BlobDone
from imagestore.store.pull.sources import remove_damaged
from imagestore.testing import build_image, layer
from tests.support.node import HYPERV, PYTHON, Node, node, python_image
from tests.unit.store.archive.making import layout_files, saved_files, write

DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "short": lambda raw: raw[:10],
    "empty": lambda _: b"",
    "long": lambda raw: raw + b" ",
    "changed": lambda raw: bytes([raw[0] ^ 1]) + raw[1:],
}


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Node]:
    with node(tmp_path / "store") as opened:
        yield opened


def documents(image: Image) -> dict[str, Digest]:
    """Its documents, by what they are."""
    return {"index": image.target.digest, "manifest": image.manifest.digest, "config": image.id}


def damage(here: Node, digest: Digest, how: str) -> Path:
    """Damage a blob at rest, and say where it is."""
    path = here.store.root / "content" / "blobs" / digest.algorithm / digest.encoded
    path.chmod(0o644)
    path.write_bytes(DAMAGES[how](path.read_bytes()))
    return path


@pytest.mark.parametrize("how", ["short", "empty", "long"])
@pytest.mark.parametrize("which", ["index", "manifest", "config"])
def test_pulling_again_mends_a_document_of_another_size(here: Node, which: str, how: str) -> None:
    digest = documents(here.store.pull(PYTHON))[which]
    path = damage(here, digest, how)
    here.store.pull(PYTHON)
    assert Digest.of(path.read_bytes()) == digest
    assert not here.store.check().faults


@pytest.mark.parametrize("which", ["index", "manifest", "config"])
def test_a_pull_that_reads_a_damaged_document_mends_it(here: Node, which: str) -> None:
    image = here.store.pull(PYTHON)
    # A lost layer makes the pull look at everything once more.
    image.layer_paths[-1].unlink()
    path = damage(here, documents(image)[which], "changed")
    here.store.pull(PYTHON)
    assert Digest.of(path.read_bytes()) == documents(image)[which]


def test_a_pull_for_another_handler_mends_the_index_that_both_need(here: Node) -> None:
    image = here.store.pull(PYTHON)
    path = damage(here, image.target.digest, "changed")
    here.store.pull(PYTHON, runtime_handler=HYPERV)
    assert Digest.of(path.read_bytes()) == image.target.digest


def test_a_new_name_of_a_damaged_image_mends_it(here: Node) -> None:
    image = here.store.pull(PYTHON)
    here.registry.library.add("registry.example/library/python:new", python_image())
    path = damage(here, image.target.digest, "short")
    here.store.pull(PYTHON.replace(":3", ":new"))
    assert Digest.of(path.read_bytes()) == image.target.digest


@pytest.mark.parametrize("how", sorted(DAMAGES))
@pytest.mark.parametrize("which", ["index", "manifest", "config"])
def test_an_import_mends_the_documents_it_brings(here: Node, tmp_path: Path, which: str, how: str) -> None:
    archive = write(tmp_path / "python.tar", layout_files({PYTHON: python_image()}))
    (image,) = here.store.import_images(archive).images
    path = damage(here, documents(image)[which], how)
    here.store.import_images(archive)
    assert Digest.of(path.read_bytes()) == documents(image)[which]


@pytest.mark.parametrize("how", ["short", "empty", "long"])
def test_an_import_mends_a_layer_of_another_size(here: Node, tmp_path: Path, how: str) -> None:
    archive = write(tmp_path / "python.tar", layout_files({PYTHON: python_image()}))
    (image,) = here.store.import_images(archive).images
    damage(here, image.layers[0].digest, how)
    here.store.import_images(archive)
    assert here.store.check().faults == ()


def test_an_import_mends_the_manifest_that_a_docker_archive_implies(here: Node, tmp_path: Path) -> None:
    layers = [layer("one"), layer("two")]
    image = build_image("windows(10.0.20348.1970)/amd64", layers=layers)
    archive = write(tmp_path / "saved.tar", saved_files(image, layers, ["saved:1"]))
    (imported,) = here.store.import_images(archive).images
    path = damage(here, imported.manifest.digest, "changed")
    here.store.import_images(archive)
    assert Digest.of(path.read_bytes()) == imported.manifest.digest


def mend_once_opened(here: Node, path: Path, good: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else puts a whole file in the place of a damaged one while that is being read."""
    content = here.store.content
    open_blob = content.open

    def opened(digest: Digest) -> BinaryIO:
        file = open_blob(digest)
        if digest.encoded == path.name:
            path.unlink()
            path.write_bytes(good)
        return file

    monkeypatch.setattr(content, "open", opened)


def test_a_document_that_somebody_mended_meanwhile_is_not_removed(here: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = here.store.pull(PYTHON).target.digest
    good = here.store.content.path(digest).read_bytes()
    path = damage(here, digest, "changed")
    mend_once_opened(here, path, good, monkeypatch)
    remove_damaged(here.store.content, [digest])
    assert path.read_bytes() == good


def test_a_layer_that_somebody_mended_meanwhile_is_not_fetched_again(
    here: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = here.store.pull(PYTHON).layer_paths[-1]
    good = path.read_bytes()
    path.chmod(0o644)
    path.write_bytes(b"short")
    mend_once_opened(here, path, good, monkeypatch)
    here.store.pull(PYTHON, observer=here.events.append)
    assert path.read_bytes() == good
    (done,) = [each for each in here.events if isinstance(each, BlobDone) and each.descriptor.digest == Digest.of(good)]
    assert done.fetched_bytes == 0


@pytest.mark.parametrize("which", ["manifest_document", "config"])
@pytest.mark.parametrize("is_gone", [True, False])
def test_who_reads_a_damaged_document_is_told_what_mends_it(here: Node, which: str, is_gone: bool) -> None:
    image = here.store.pull(PYTHON)
    path = damage(here, image.id if which == "config" else image.manifest.digest, "changed")
    if is_gone:
        path.unlink()
    with pytest.raises((ContentNotFoundError, IntegrityError)) as caught:
        getattr(image, which)
    assert "repair" in caught.value.hint
