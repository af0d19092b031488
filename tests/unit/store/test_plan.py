"""Dry runs: what would come, what is here, what several handlers share."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import pytest

from imagestore import CancelToken, Digest
from imagestore.errors import NoMatchingManifestError, StoreError
from imagestore.store.pull.plan import Presence
from imagestore.testing import Layer, build_image, build_index, layer
from imagestore.testing.builders.bodies import BytesBody
from tests.support.node import HYPERV, PROCESS, PYTHON, node, python_image


def test_a_plan_says_exactly_what_the_pulls_then_fetch(tmp_path: Path) -> None:
    with node(tmp_path) as here:
        plans = here.store.plan([(PYTHON, PROCESS), (PYTHON, HYPERV)])
        assert here.requests("blob") == 2, "only the two configs"
        assert list(here.store.content.walk()) == []
        for handler in (PROCESS, HYPERV):
            here.store.pull(PYTHON, runtime_handler=handler)
        stored = sum(info.size for info in here.store.content.walk())
    assert sum(plan.missing_bytes for plan in plans) == stored
    shared = python_image().manifests[2].layers[0]
    assert plans[1].bytes_of(Presence.PLANNED) == shared.size + python_image().target.size


def test_what_is_here_is_not_fetched_again(tmp_path: Path) -> None:
    with node(tmp_path) as here:
        here.store.pull(PYTHON, runtime_handler=PROCESS)
        current, other = here.store.plan([(PYTHON, ""), (PYTHON, HYPERV)])
    assert (current.is_current, current.missing_bytes) == (True, 0)
    assert not other.is_current
    assert other.bytes_of(Presence.HERE) == python_image().manifests[2].layers[0].size + python_image().target.size


def test_a_part_that_is_here_counts_as_such(tmp_path: Path) -> None:
    part = python_image().manifests[2].layers[0]
    with node(tmp_path) as here:
        with here.store.content.writer(
            f"layer-{part.digest}", expected=part.digest, total=part.size, cancel=CancelToken()
        ) as writer:
            writer.write(b"x" * 10)
        (plan,) = here.store.plan([(PYTHON, PROCESS)])
    (blob,) = [blob for blob in plan.blobs if blob.presence is Presence.PARTIAL]
    assert blob.missing_bytes == part.size - 10
    # The store will have the part's old bytes as well as its new ones.
    assert plan.added_bytes == plan.missing_bytes + 10


def test_what_a_source_has_is_not_fetched(tmp_path: Path) -> None:
    with node(tmp_path / "a") as here:
        here.store.pull(PYTHON, runtime_handler=PROCESS)
    with node(tmp_path / "b", sources=[tmp_path / "a" / "content"]) as there:
        (plan,) = there.store.plan([(PYTHON, PROCESS)])
        before = there.requests("blob")
        there.store.pull(PYTHON, runtime_handler=PROCESS)
        assert there.requests("blob") == before
        stored = sum(info.size for info in there.store.content.walk())
    layers = [blob for blob in plan.blobs if blob.presence is Presence.SOURCE]
    assert [blob.missing_bytes for blob in layers] == [0] * len(layers)
    assert plan.added_bytes == stored
    assert plan.missing_bytes < stored


def test_documents_come_from_the_registry_although_a_source_has_them(tmp_path: Path) -> None:
    with node(tmp_path / "a") as here:
        image = here.store.pull(PYTHON, runtime_handler=PROCESS)
    with node(tmp_path / "b", sources=[tmp_path / "a" / "content"]) as there:
        (plan,) = there.store.plan([(PYTHON, PROCESS)])
    presences = {blob.descriptor.digest: blob.presence for blob in plan.blobs}
    assert [presences[digest] for digest in image.record.roots] == [Presence.NEW] * 2
    assert presences[image.layers[0].digest] is Presence.SOURCE


def test_an_empty_blob_that_is_not_here_is_new(tmp_path: Path) -> None:
    empty = Layer(BytesBody(b""), Digest.of(b""), Digest.of(b""), "none")
    images = {PYTHON: build_image("windows(10.0.20348.1)/amd64", layers=[layer("some"), empty])}
    with node(tmp_path, images) as here:
        (plan,) = here.store.plan([(PYTHON, PROCESS)])
    assert [blob.presence for blob in plan.blobs if blob.descriptor.digest == empty.digest] == [Presence.NEW]


@pytest.mark.parametrize("which", ["index", "layer"])
def test_what_is_damaged_would_come_again(tmp_path: Path, which: str) -> None:
    with node(tmp_path) as here:
        image = here.store.pull(PYTHON, runtime_handler=PROCESS)
        shared = python_image().manifests[2].layers[0].digest
        path = here.store.content.path(image.target.digest if which == "index" else shared)
        good = path.read_bytes()
        path.chmod(0o644)
        path.write_bytes(good[:-1] + b"?" if which == "index" else b"short")
        before = sum(info.size for info in here.store.content.walk())
        plans = here.store.plan([(PYTHON, HYPERV), (PYTHON, HYPERV)])
        (blob,) = [blob for blob in plans[0].blobs if blob.descriptor.digest == Digest.of(good)]
        assert (blob.presence, blob.missing_bytes) == (Presence.NEW, len(good))
        assert plans[1].missing_bytes == 0, "the first one brings it"
        here.store.pull(PYTHON, runtime_handler=HYPERV)
        assert path.read_bytes() == good
        assert sum(info.size for info in here.store.content.walk()) - before == plans[0].added_bytes


def test_a_plan_fails_like_the_pull(tmp_path: Path) -> None:
    with node(tmp_path, {PYTHON: build_index(["linux/amd64"])}) as here, pytest.raises(NoMatchingManifestError):
        here.store.plan([(PYTHON, PROCESS)])


def test_a_plan_judges_the_image_before_it_asks_what_is_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(reference: str, handler: str) -> NoReturn:
        raise StoreError(f"{reference} under {handler} can't be read")

    with node(tmp_path, {PYTHON: build_index(["linux/amd64"])}) as here:
        monkeypatch.setattr(here.store.metadata.images, "get", refuse)
        with pytest.raises(NoMatchingManifestError):
            here.store.plan([(PYTHON, PROCESS)])
