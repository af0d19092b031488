"""Pulls from registries that misbehave, and over stores that were damaged meanwhile."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from imagestore import Digest
from imagestore.errors import (
    DigestMismatchError,
    DocumentError,
    InvalidDigestError,
    InvalidInputError,
    NoMatchingManifestError,
    RegistryUnavailableError,
    StoreCorruptError,
    UnknownRuntimeHandlerError,
)
from imagestore.events import BlobStarted, Event, Noticed
from imagestore.oci import Kind
from imagestore.testing import Entry, FaultRule, Image, Where, build_image, build_index, layer
from imagestore.testing.faults import Flip, Refuse, RefuseRange, Truncate, WrongDigest
from tests.support.node import CONFIG, HYPERV, PROCESS, PYTHON, node, python_image

OWN = "windows(10.0.20348.1)/amd64"
IMAGES = '\n[plugins."io.containerd.cri.v1.images"]\n'


def test_a_blob_that_lost_bytes_at_rest_is_mended_by_pulling_again(tmp_path: Path) -> None:
    with node(tmp_path) as here:
        path = here.store.pull(PYTHON).layer_paths[-1]
        path.chmod(0o644)
        path.write_bytes(path.read_bytes()[:10])
        again = here.store.pull(PYTHON)
        assert Digest.of(path.read_bytes()) == again.layers[-1].digest


def test_blobs_that_changed_size_are_fetched_again_although_their_sum_is_the_same(tmp_path: Path) -> None:
    with node(tmp_path) as here:
        image = here.store.pull(PYTHON)
        first, second = image.layer_paths[0], image.layer_paths[-1]
        moved = first.read_bytes()[:10]
        for path, data in ((first, first.read_bytes()[10:]), (second, second.read_bytes() + moved)):
            path.chmod(0o644)
            path.write_bytes(data)
        again = here.store.pull(PYTHON)
        assert [Digest.of(path.read_bytes()) for path in (first, second)] == [
            again.layers[0].digest,
            again.layers[-1].digest,
        ]


def test_something_else_in_a_blobs_place_is_an_error_that_names_it(tmp_path: Path) -> None:
    with node(tmp_path) as here:
        path = here.store.pull(PYTHON).layer_paths[-1]
        path.unlink()
        path.mkdir()
        with pytest.raises(StoreCorruptError, match=path.name):
            here.store.pull(PYTHON)


@pytest.mark.parametrize("limit", [-1, 0, 1, 1000])
def test_any_download_limit_of_a_configuration_works(tmp_path: Path, limit: int) -> None:
    with node(tmp_path, text=f"{CONFIG}{IMAGES}max_concurrent_downloads = {limit}\n") as here:
        assert len(here.store.pull(PYTHON).layer_paths) == 3


@pytest.mark.parametrize("limit", [1, 5])
def test_as_many_blobs_come_at_a_time_as_the_configuration_says(tmp_path: Path, limit: int) -> None:
    image = build_image(OWN, layers=[layer(str(number)) for number in range(10)])
    threads: set[int] = set()
    all_here = threading.Barrier(limit)

    def begun(event: Event) -> None:
        if isinstance(event, BlobStarted) and event.descriptor.kind is Kind.LAYER:
            threads.add(threading.get_ident())
            all_here.wait(60)

    with node(tmp_path, {PYTHON: image}, text=f"{CONFIG}{IMAGES}max_concurrent_downloads = {limit}\n") as here:
        here.store.pull(PYTHON, observer=begun)
    assert len(threads) == limit


def _is_begun(event: Event, kind: Kind) -> bool:
    return isinstance(event, BlobStarted) and event.descriptor.kind is kind


SMALL, LARGE = [layer(str(number)) for number in range(3)], [layer("large", size=1_100_000)]


@pytest.mark.parametrize(
    "image",
    [build_index([build_image(OWN, layers=SMALL)]), build_image(OWN, layers=SMALL), build_image(OWN, layers=LARGE)],
    ids=["index", "single", "one layer"],
)
def test_the_config_comes_beside_the_first_layers(tmp_path: Path, image: Image) -> None:
    both, kinds = threading.Barrier(2), [Kind.CONFIG, Kind.LAYER]

    def begun(event: Event) -> None:
        for kind in kinds:
            if _is_begun(event, kind):
                kinds.remove(kind)
                both.wait(60)

    with node(tmp_path, {PYTHON: image}) as here:
        here.store.pull(PYTHON, observer=begun)
    assert not kinds


def test_the_config_comes_first_where_one_blob_comes_at_a_time(tmp_path: Path) -> None:
    with node(tmp_path, text=f"{CONFIG}{IMAGES}max_concurrent_downloads = 1\n") as here:
        here.store.pull(PYTHON, observer=here.events.append)
    begun = [event.descriptor.kind for event in here.events if isinstance(event, BlobStarted)]
    assert begun == [Kind.CONFIG, Kind.LAYER, Kind.LAYER, Kind.LAYER]


def test_a_tiny_layer_comes_behind_the_config_on_its_connection(tmp_path: Path) -> None:
    image = build_index([build_image(OWN, layers=[layer("only", size=1000)])])
    with node(tmp_path, {PYTHON: image}) as here:
        here.store.pull(PYTHON, observer=here.events.append)
    begun = [event.descriptor.kind for event in here.events if isinstance(event, BlobStarted)]
    assert begun == [Kind.CONFIG, Kind.LAYER]


def test_no_layer_is_asked_for_before_a_single_manifest_is_known_to_fit(tmp_path: Path) -> None:
    with node(tmp_path, {PYTHON: build_image(OWN)}) as here:
        with pytest.raises(NoMatchingManifestError):
            here.store.pull(PYTHON, runtime_handler=HYPERV)
        assert here.registry.ledger.count(kind="blob") == 1


def test_a_config_that_is_none_takes_back_the_layers_that_came_beside_it(tmp_path: Path) -> None:
    image = build_image(OWN, config={"rootfs": None})
    with node(tmp_path, {PYTHON: build_index([image])}) as here:
        with pytest.raises(DocumentError, match="image config"):
            here.store.pull(PYTHON)
        assert list(here.store.content.walk()) == []
        assert list(here.store.list()) == []


def test_the_config_is_fetched_once(tmp_path: Path) -> None:
    with node(tmp_path) as here:
        image = here.store.pull(PYTHON)
        assert here.registry.ledger.count(digest=image.id) == 1


@pytest.mark.parametrize("status", [403, 500])
def test_a_pull_by_digest_goes_on_when_only_the_tag_cannot_be_asked(tmp_path: Path, status: int) -> None:
    image = python_image()
    fault = FaultRule(Refuse(status), Where(kind="manifest", reference="3"), times=0)
    with node(tmp_path, faults=[fault]) as here:
        pulled = here.store.pull(f"{PYTHON}@{image.target.digest}", observer=here.events.append)
        assert pulled.target.digest == image.target.digest
        assert any(isinstance(event, Noticed) and "could not be asked" in event.message for event in here.events)


@pytest.mark.parametrize("status", [416, 500, 501])
def test_a_host_that_fails_at_ranges_gives_the_blob_from_its_start(tmp_path: Path, status: int) -> None:
    layer = python_image().manifests[2].layers[-1]
    blob = Where(kind="blob", reference=str(layer.digest))
    faults = [FaultRule(Truncate(layer.size // 2), blob, times=1), FaultRule(RefuseRange(status), blob, times=0)]
    with node(tmp_path, faults=faults) as here:
        assert here.store.pull(PYTHON).layers[-1].digest == layer.digest


def test_a_passing_outage_costs_nothing_of_what_came(tmp_path: Path) -> None:
    layer = python_image().manifests[2].layers[-1]
    blob = Where(kind="blob", reference=str(layer.digest))
    faults = [FaultRule(Truncate(layer.size - 10), blob, times=1), FaultRule(Refuse(503), blob, times=0)]
    with node(tmp_path, faults=faults) as here:
        with pytest.raises(RegistryUnavailableError):
            here.store.pull(PYTHON)
        before = here.registry.ledger.bytes_sent(layer.digest)
    with node(tmp_path) as here:
        here.store.pull(PYTHON)
        assert before + here.registry.ledger.bytes_sent(layer.digest) == layer.size


def test_damage_on_the_way_costs_one_more_fetch(tmp_path: Path) -> None:
    layer = python_image().manifests[2].layers[-1]
    fault = FaultRule(Flip(), Where(kind="blob", reference=str(layer.digest)), times=1)
    with node(tmp_path, faults=[fault]) as here:
        here.store.pull(PYTHON)
        assert here.registry.ledger.bytes_sent(layer.digest) == 2 * layer.size


def test_damage_that_stays_is_an_error_that_names_the_image(tmp_path: Path) -> None:
    layer = python_image().manifests[2].layers[-1]
    fault = FaultRule(Flip(), Where(kind="blob", reference=str(layer.digest)), times=0)
    with node(tmp_path, faults=[fault]) as here, pytest.raises(DigestMismatchError) as caught:
        here.store.pull(PYTHON)
    assert str(caught.value).startswith(f"{PYTHON}: layer {layer.digest.short}")


def test_a_short_config_is_completed(tmp_path: Path) -> None:
    config = python_image().manifests[2].config
    fault = FaultRule(Truncate(at=5, framing="close"), Where(kind="blob", reference=str(config.digest)), times=1)
    with node(tmp_path, faults=[fault]) as here:
        assert here.store.pull(PYTHON).id == config.digest


def test_a_config_that_came_damaged_decides_nothing(tmp_path: Path) -> None:
    config = python_image().manifests[2].config
    fault = FaultRule(Flip(), Where(kind="blob", reference=str(config.digest)), times=1)
    with node(tmp_path, faults=[fault]) as here:
        assert here.store.pull(PYTHON).id == config.digest
        assert here.registry.ledger.bytes_sent(config.digest) == 2 * config.size


def test_a_wrong_digest_announced_for_a_tag_is_not_believed(tmp_path: Path) -> None:
    fault = FaultRule(WrongDigest(), Where(kind="manifest", method="HEAD"), times=0)
    with node(tmp_path, faults=[fault]) as here:
        assert here.store.pull(PYTHON).target.digest == python_image().target.digest


def test_content_that_cannot_be_verified_is_not_asked_for(tmp_path: Path) -> None:
    entry = Entry(
        build_image(OWN),
        build_image(OWN).manifests[0].platform,
        overrides={"digest": "blake3:" + "0" * 64},
    )
    with node(tmp_path, {PYTHON: build_index([entry])}) as here:
        with pytest.raises(InvalidDigestError, match="can't be verified"):
            here.store.pull(PYTHON)
        assert not any("blake3" in request.path for request in here.registry.ledger.entries)


def test_an_unknown_handler_is_refused_wherever_it_is_named(tmp_path: Path) -> None:
    with node(tmp_path) as here:
        here.store.pull(PYTHON)
        for ask in (here.store.get, here.store.remove):
            with pytest.raises(UnknownRuntimeHandlerError):
                ask(PYTHON, runtime_handler="nonsense")
        with pytest.raises(UnknownRuntimeHandlerError):
            here.store.list(runtime_handler="nonsense")


@pytest.mark.parametrize("which", ["target", "manifest"])
def test_a_bare_digest_of_index_or_manifest_finds_and_removes_the_image(tmp_path: Path, which: str) -> None:
    with node(tmp_path) as here:
        process = here.store.pull(PYTHON, runtime_handler=PROCESS)
        here.store.pull(PYTHON, runtime_handler=HYPERV)
        digest = str((process.target if which == "target" else process.manifest).digest)
        assert here.store.get(digest).record == process.record
        expected = {(PYTHON, PROCESS), (PYTHON, HYPERV)} if which == "target" else {(PYTHON, PROCESS)}
        assert set(here.store.remove(digest).removed) == expected


def test_an_empty_name_is_no_image(tmp_path: Path) -> None:
    with node(tmp_path) as here, pytest.raises(InvalidInputError):
        here.store.remove("")
