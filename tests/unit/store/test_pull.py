"""Pulling by handler: which manifest, what is fetched, what is kept, and what is asked before anything is sent."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from imagestore import Digest, ImageStore, platforms
from imagestore.errors import (
    ConfigError,
    DocumentError,
    ImageStoreError,
    InvalidInputError,
    InvalidPlatformError,
    InvalidReferenceError,
    NoMatchingManifestError,
    ReferenceNotFoundError,
    UnknownRuntimeHandlerError,
)
from imagestore.events import BlobDone, Noticed
from imagestore.testing import Entry, build_artifact, build_image, build_index, foreign_layer, layer
from tests.support.node import CONFIG, HOST, HYPERV, PLATFORMS, PROCESS, PYTHON, node, python_image, snapshot


def test_an_empty_path_is_not_the_folder_one_is_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on the command line: an unset variable must not make a store wherever its program runs."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInputError, match="expected a path, it is empty"):
        ImageStore("")
    with pytest.raises(InvalidInputError, match="expected a path, it is empty"):
        ImageStore("store", sources=[""])
    assert list(tmp_path.iterdir()) == []
    ImageStore(Path()).close()
    assert (tmp_path / "metadata.db").exists()


def test_each_handler_gets_the_manifest_its_sandbox_can_run(tmp_path: Path) -> None:
    with node(tmp_path) as here:
        process = here.store.pull(PYTHON, runtime_handler=PROCESS)
        hyperv = here.store.pull(PYTHON, runtime_handler=HYPERV)
        kata = here.store.pull(PYTHON, runtime_handler="kata")
    assert process.platform.os_version == "10.0.20348.1970"
    assert hyperv.platform.os_version == "10.0.17763.4851"
    assert (kata.platform.os, kata.platform.architecture) == ("linux", "amd64")
    assert process.target.digest == hyperv.target.digest == kata.target.digest
    assert len({process.manifest.digest, hyperv.manifest.digest, kata.manifest.digest}) == 3


def test_bytes_that_two_handlers_need_are_fetched_and_stored_once(tmp_path: Path) -> None:
    shared = python_image().manifests[2].layers[0]
    with node(tmp_path) as here:
        here.store.pull(PYTHON, runtime_handler=PROCESS)
        here.store.pull(PYTHON, runtime_handler=HYPERV, observer=here.events.append)
        assert here.registry.ledger.bytes_sent(shared.digest) == shared.size
        assert BlobDone(shared, 0) in here.events


def test_the_empty_handler_is_the_default_and_stored_under_its_name(tmp_path: Path) -> None:
    with node(tmp_path) as here:
        image = here.store.pull(PYTHON)
        assert image.runtime_handler == PROCESS
        assert [each.runtime_handler for each in here.store.list()] == [PROCESS]


def test_an_image_gives_manifest_config_platform_and_verified_layer_files(tmp_path: Path) -> None:
    with node(tmp_path) as here:
        image = here.store.pull(PYTHON, runtime_handler=HYPERV)
        assert image.id == image.manifest_document.config.digest == Digest.of(image.config.raw)
        assert image.config.platform.os_version == "10.0.17763.4851"
        for descriptor, path in zip(image.layers, image.layer_paths, strict=True):
            assert Digest.of(path.read_bytes()) == descriptor.digest
        sizes = [image.target.size, image.manifest.size, image.manifest_document.config.size]
        assert image.size == sum(sizes) + sum(each.size for each in image.layers)


@pytest.mark.parametrize(
    ("reference", "handler", "platform", "kind"),
    [
        (PYTHON, "nonsense", None, UnknownRuntimeHandlerError),
        (PYTHON, "", "windows(10.0)/amd64/x/y", InvalidPlatformError),
        ("Not A Reference", "", None, InvalidReferenceError),
    ],
)
def test_bad_input_is_refused_before_any_request(
    tmp_path: Path, reference: str, handler: str, platform: str | None, kind: type[ImageStoreError]
) -> None:
    with node(tmp_path) as here:
        with pytest.raises(kind):
            here.store.pull(reference, runtime_handler=handler, platform=platform)
        assert here.registry.ledger.count() == 0


def test_an_unknown_handler_is_told_the_known_ones(tmp_path: Path) -> None:
    with node(tmp_path) as here, pytest.raises(UnknownRuntimeHandlerError) as caught:
        here.store.pull(PYTHON, runtime_handler="nonsense")
    assert caught.value.known == ("kata", HYPERV, PROCESS)


def test_an_explicit_platform_replaces_the_handlers(tmp_path: Path) -> None:
    with node(tmp_path) as here:
        image = here.store.pull(PYTHON, platform="linux/arm64")
        assert (image.platform.architecture, image.runtime_handler) == ("arm64", PROCESS)
        again = here.store.pull(PYTHON)
        assert again.platform.os == "windows"


def test_pulling_again_costs_one_request_when_nothing_changed(tmp_path: Path) -> None:
    with node(tmp_path) as here:
        first = here.store.pull(PYTHON)
        before = here.registry.ledger.count()
        assert here.store.pull(PYTHON).record == first.record
        assert here.registry.ledger.count() == before + 1


def test_a_moved_tag_moves_the_record(tmp_path: Path) -> None:
    with node(tmp_path) as here:
        first = here.store.pull(PYTHON)
        here.store.metadata.images.put(replace(first.record, labels={"team": "blue"}), {})
        here.registry.library.add(PYTHON, build_index(["windows(10.0.20348.2000)/amd64"], seed="new"))
        second = here.store.pull(PYTHON)
        assert second.id != first.id
        assert [each.id for each in here.store.list()] == [second.id]
        # A client put them on the name; containerd's CRI leaves them too.
        assert second.record.labels == {"team": "blue"}


def test_lost_content_is_fetched_again(tmp_path: Path) -> None:
    with node(tmp_path) as here:
        image = here.store.pull(PYTHON)
        here.store.content.delete(image.layers[0].digest)
        assert Digest.of(here.store.pull(PYTHON).layer_paths[0].read_bytes()) == image.layers[0].digest


def test_content_damaged_at_rest_is_noticed_by_size_and_fetched_again(tmp_path: Path) -> None:
    with node(tmp_path) as here:
        damaged = here.store.pull(PYTHON, runtime_handler=PROCESS).layer_paths[0]
        damaged.chmod(0o644)
        damaged.write_bytes(b"short")
        shared = here.store.pull(PYTHON, runtime_handler=HYPERV).layers[0]
        assert Digest.of(damaged.read_bytes()) == shared.digest


def test_a_descriptor_that_lies_about_a_size_does_not_cost_the_good_blob(tmp_path: Path) -> None:
    good = python_image()
    shared = good.manifests[2].layers[0]
    entry = replace(shared, size=shared.size + 1)
    liar = build_image("windows(10.0.20348.1)/amd64", layers=[layer("shared by all")], members=_with_layers(entry))
    with node(tmp_path, {PYTHON: good, "registry.example/liar:1": liar}) as here:
        kept = here.store.pull(PYTHON)
        with pytest.raises(ImageStoreError):
            here.store.pull("registry.example/liar:1")
        assert Digest.of(kept.layer_paths[0].read_bytes()) == shared.digest


def _with_layers(*entries: object) -> dict[str, object]:
    from imagestore.testing.builders.images import render_descriptor

    return {"layers": [render_descriptor(entry) for entry in entries]}  # type: ignore[arg-type]


def test_nothing_that_fits_is_an_error_with_the_whole_explanation(tmp_path: Path) -> None:
    images = {"registry.example/old:1": build_index(["windows(10.0.14393.1)/amd64", "linux/amd64"])}
    with node(tmp_path, images) as here:
        before = snapshot(tmp_path)
        with pytest.raises(NoMatchingManifestError) as caught:
            here.store.pull("registry.example/old:1", runtime_handler=HYPERV)
        assert caught.value.wanted == "windows(10.0.17763)/amd64"
        assert caught.value.offered == ("windows(10.0.14393.1)/amd64", "linux/amd64")
        assert [verdict.accepted for verdict in caught.value.explanation.verdicts] == [False, False]  # type: ignore[attr-defined]
        assert snapshot(tmp_path) == before
        assert list(here.store.list()) == []


def test_a_single_manifest_is_judged_by_its_config_only_where_a_platform_is_declared(tmp_path: Path) -> None:
    images = {"registry.example/one:1": build_image("linux/arm64")}
    with node(tmp_path, images) as here:
        with pytest.raises(NoMatchingManifestError):
            here.store.pull("registry.example/one:1", runtime_handler=HYPERV)
        image = here.store.pull("registry.example/one:1", runtime_handler=PROCESS, observer=here.events.append)
    (warning,) = image.record.warnings
    assert "does not fit the host's platform" in warning
    assert any(isinstance(event, Noticed) for event in here.events)


def test_what_the_hosts_platform_took_with_a_warning_is_refused_once_a_platform_is_declared(tmp_path: Path) -> None:
    one = "registry.example/one:1"
    with node(tmp_path, {one: build_image("linux/arm64")}) as here:
        first = here.store.pull(one)
        with pytest.raises(NoMatchingManifestError):
            here.store.pull(one, platform=platforms.format_all(here.store.host))
        here.events.clear()
        assert here.store.pull(one, observer=here.events.append).record == first.record
    assert [event.message for event in here.events if isinstance(event, Noticed)] == list(first.record.warnings)


def test_a_windows_version_that_only_the_config_has_decides_for_a_declared_guest(tmp_path: Path) -> None:
    hidden = Entry(build_image("windows(10.0.20348.1)/amd64"), platforms.parse("windows/amd64"))
    with node(tmp_path, {"registry.example/hidden:1": build_index([hidden])}) as here:
        with pytest.raises(NoMatchingManifestError):
            here.store.pull("registry.example/hidden:1", runtime_handler=HYPERV)
        assert here.store.pull("registry.example/hidden:1").platform.os_version == "10.0.20348.1"


def test_nested_indexes_are_kept_on_the_way_to_the_manifest(tmp_path: Path) -> None:
    inner = build_index(["windows(10.0.17763.1)/amd64"], seed="inner")
    outer = build_index(["linux/amd64", Entry(inner)], seed="outer")
    with node(tmp_path, {"registry.example/nested:1": outer}) as here:
        image = here.store.pull("registry.example/nested:1", runtime_handler=HYPERV)
        assert image.record.roots == (outer.target.digest, inner.target.digest, inner.manifests[0].descriptor.digest)
        here.store.collect_garbage()
        assert all(here.store.content.exists(digest) for digest in image.record.roots)


def test_an_artifact_has_no_platform_to_declare(tmp_path: Path) -> None:
    images = {"registry.example/artifact:1": build_artifact("application/vnd.example", {"a.txt": b"hello"})}
    with node(tmp_path, images) as here:
        with pytest.raises(NoMatchingManifestError):
            here.store.pull("registry.example/artifact:1", runtime_handler=HYPERV)
        image = here.store.pull("registry.example/artifact:1")
        assert [path.read_bytes() for path in image.layer_paths] == [b"hello"]
        with pytest.raises(DocumentError):
            _ = image.config


def test_docker_and_oci_twins_and_sha512_are_pulled_alike(tmp_path: Path) -> None:
    wanted = ["windows(10.0.20348.1)/amd64"]
    images = {
        "registry.example/oci:1": build_index(wanted, family="oci"),
        "registry.example/docker:1": build_index(wanted, family="docker"),
        "registry.example/long:1": build_index(wanted, algorithm="sha512"),
    }
    with node(tmp_path, images) as here:
        pulled = [here.store.pull(reference) for reference in images]
    assert [image.target.digest.algorithm for image in pulled] == ["sha256", "sha256", "sha512"]
    assert pulled[0].layers[0].digest == pulled[1].layers[0].digest


def test_a_foreign_layer_is_never_fetched_from_the_address_in_the_image(tmp_path: Path) -> None:
    foreign = foreign_layer("base", urls=("https://elsewhere.example/base",))
    images = {"registry.example/foreign:1": build_image("windows(10.0.20348.1)/amd64", layers=[foreign])}
    with node(tmp_path, images) as here:
        with pytest.raises(ReferenceNotFoundError, match="foreign layer"):
            here.store.pull("registry.example/foreign:1")
        assert {entry.host for entry in here.registry.ledger.entries} == {"registry.example"}


def test_tag_with_digest_fetches_by_digest_and_says_when_the_tag_moved(tmp_path: Path) -> None:
    old, new = python_image(), build_index(["windows(10.0.20348.2000)/amd64"], seed="new")
    with node(tmp_path, {PYTHON: old}) as here:
        here.registry.library.add(PYTHON, new)
        image = here.store.pull(f"{PYTHON}@{old.target.digest}", observer=here.events.append)
        assert image.target.digest == old.target.digest
        notes = [event.message for event in here.events if isinstance(event, Noticed)]
        assert any(str(new.target.digest) in note for note in notes)


def test_missing_reference_is_a_typed_error_and_leaves_nothing(tmp_path: Path) -> None:
    with node(tmp_path) as here:
        before = snapshot(tmp_path)
        with pytest.raises(ReferenceNotFoundError):
            here.store.pull("registry.example/library/python:4")
        assert snapshot(tmp_path) == before


def test_threads_that_pull_the_same_fetch_each_blob_once(tmp_path: Path) -> None:
    with node(tmp_path) as here:
        threads = [
            threading.Thread(target=here.store.pull, args=(PYTHON,), kwargs={"runtime_handler": handler})
            for handler in (PROCESS, HYPERV) * 3
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(list(here.store.list())) == 2
        sent = here.registry.ledger.bytes_by_digest()
        for part in python_image().layers:
            assert sent.get(part.digest, 0) in (0, part.size)


def test_match_explains_every_entry_and_stores_nothing(tmp_path: Path) -> None:
    with node(tmp_path) as here:
        before = snapshot(tmp_path)
        chosen = here.store.match(PYTHON)
        assert snapshot(tmp_path) == before
        assert here.requests("blob") == 0
    assert {name: each.chosen.position for name, each in chosen.items() if each.chosen} == {
        PROCESS: (2,),
        HYPERV: (3,),
        "kata": (0,),
    }
    assert all(len(each.verdicts) == 4 for each in chosen.values())


def test_match_works_offline_for_a_stored_image(tmp_path: Path) -> None:
    with node(tmp_path) as here:
        here.store.pull(PYTHON, runtime_handler=PROCESS)
        before = here.registry.ledger.count()
        offline = here.store.match(PYTHON, offline=True)
        assert here.registry.ledger.count() == before
        assert offline == here.store.match(PYTHON)


def test_match_offline_judges_what_the_handler_itself_has(tmp_path: Path) -> None:
    with node(tmp_path) as here:
        first = here.store.pull(PYTHON, runtime_handler=PROCESS)
        here.registry.library.add(PYTHON, build_index(["windows(10.0.17763.9)/amd64"], seed="moved"))
        moved = here.store.pull(PYTHON, runtime_handler=HYPERV)
        for handler, image in ((PROCESS, first), (HYPERV, moved)):
            for name in (PYTHON, str(image.id), image.id.encoded[:12], str(image.target.digest)):
                (found,) = here.store.match(name, runtime_handlers=[handler], offline=True).values()
                assert found.chosen is not None
                assert found.chosen.descriptor.digest == image.manifest.digest
        with pytest.raises(InvalidInputError, match="leads to 2 contents here"):
            here.store.match(PYTHON, offline=True)


def test_a_store_without_config_has_one_handler_named_after_the_host(tmp_path: Path) -> None:
    linux = ImageStore(tmp_path / "a", host=platforms.parse("linux/amd64"))
    windows = ImageStore(tmp_path / "b", host=HOST)
    assert (linux.config.default_handler, windows.config.default_handler) == ("runc", PROCESS)
    linux.close()
    windows.close()


def test_records_are_plain_values(tmp_path: Path) -> None:
    with node(tmp_path) as here:
        record = here.store.pull(PYTHON).record
    assert json.loads(json.dumps(record.wanted)) == "windows(10.0.20348)/amd64"
    assert hash(record) == hash(replace(record))


def test_the_pause_image_follows_the_handler(tmp_path: Path) -> None:
    pause = "registry.example/pause:3.10"
    text = f'{CONFIG}\n[plugins."io.containerd.cri.v1.images".pinned_images]\nsandbox = "{pause}"\n'
    with node(tmp_path, {pause: build_index(PLATFORMS, seed="pause")}, text=text) as here:
        versions = {
            handler: here.store.pull_sandbox_image(runtime_handler=handler).platform.os_version
            for handler in (PROCESS, HYPERV)
        }
    assert versions == {PROCESS: "10.0.20348.1970", HYPERV: "10.0.17763.4851"}


def test_a_pause_image_that_is_not_configured_is_an_error_with_the_mend(tmp_path: Path) -> None:
    with node(tmp_path) as here, pytest.raises(ConfigError) as caught:
        here.store.pull_sandbox_image()
    assert "pinned_images.sandbox" in caught.value.hint
