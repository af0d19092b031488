"""Importing: which manifest, under which name, what is refused, and what a failure leaves behind."""

from __future__ import annotations

import gzip
import json
import os
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from imagestore import CancelToken, Digest, ImageStore, ImportOptions
from imagestore.errors import (
    AlreadyExistsError,
    ContentNotFoundError,
    DigestMismatchError,
    ImageDeniedError,
    ImageNotFoundError,
    InvalidDigestError,
    InvalidInputError,
    InvalidReferenceError,
    NoMatchingManifestError,
    OperationCancelledError,
    StoreFullError,
)
from imagestore.events import BlobDone, Event, Noticed
from imagestore.oci import layout
from imagestore.store.archive.contents import ArchiveImage
from imagestore.testing import Entry, Image, build_artifact, build_image, build_index, layer, synthetic_layer
from tests.support.node import CONFIG, HYPERV, PLATFORMS, PROCESS, PYTHON, Node, node, python_image, snapshot
from tests.unit.store.archive.imports import ALL, KATA, image, refused
from tests.unit.store.archive.making import layout_files, saved_files, tar_of, write


@pytest.mark.parametrize("name", ["python.tar", "layout"])
def test_each_handler_gets_the_manifest_its_sandbox_can_run(here: Node, tmp_path: Path, name: str) -> None:
    image = python_image()
    archive = write(tmp_path / name, layout_files({PYTHON: image}))
    report = here.store.import_images(archive, options=ImportOptions((HYPERV, "kata")))
    hyperv, kata = report.images
    assert (hyperv.runtime_handler, hyperv.platform.os_version) == (HYPERV, "10.0.17763.4851")
    assert kata.id == image.manifests[0].config.digest
    assert hyperv.target == kata.target == image.target
    assert [Digest.of(path.read_bytes()) for path in kata.layer_paths] == [each.digest for each in kata.layers]


def test_an_import_equals_a_pull(here: Node, tmp_path: Path) -> None:
    archive = write(tmp_path / "python.tar", layout_files({PYTHON: python_image()}))
    (imported,) = here.store.import_images(archive, options=KATA).images
    with node(tmp_path / "other") as other:
        pulled = other.store.pull(PYTHON, runtime_handler="kata")
        assert replace(imported.record, created_at=0, updated_at=0) == replace(
            pulled.record, created_at=0, updated_at=0
        )
        assert snapshot(here.store.root) == snapshot(other.store.root)


def test_a_pull_after_an_import_fetches_nothing(here: Node, tmp_path: Path) -> None:
    archive = write(tmp_path / "python.tar", layout_files({PYTHON: python_image()}))
    (imported,) = here.store.import_images(archive, options=KATA).images
    assert here.store.pull(PYTHON, runtime_handler="kata").record == imported.record
    assert here.registry.ledger.count() == 1


@pytest.mark.parametrize("again", [(), (KATA,)])
def test_a_pull_after_an_import_of_all_platforms_keeps_them(
    here: Node, tmp_path: Path, again: tuple[ImportOptions, ...]
) -> None:
    archive = write(tmp_path / "python.tar", layout_files({PYTHON: python_image()}))
    for options in (replace(KATA, all_platforms=True), *again):
        (imported,) = here.store.import_images(archive, options=options).images
    assert imported.size == sum(info.size for info in here.store.content.walk())
    assert here.store.pull(PYTHON, runtime_handler="kata").record == imported.record
    assert here.registry.ledger.count() == 1


def test_image_verifiers_are_asked_as_in_a_pull(tmp_path: Path) -> None:
    program = tmp_path / "verifiers" / "no"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho not this one; exit 1\n")
    program.chmod(0o755)
    text = f'{CONFIG}\n[plugins."io.containerd.image-verifier.v1.bindir"]\nbin_dir = "{program.parent}"\n'
    with node(tmp_path / "store", text=text) as here:
        archive = write(tmp_path / "python.tar", layout_files({PYTHON: python_image()}))
        refused(here, archive, KATA, ImageDeniedError, "not this one")


def test_every_handler_that_was_asked_for_gets_its_image_or_none_does(here: Node, tmp_path: Path) -> None:
    """Only who asks for all of them takes what there is."""
    archive = write(tmp_path / "a.tar", layout_files({"a:1": build_index(["linux/amd64"])}))
    refused(here, archive, ImportOptions(("kata", HYPERV)), NoMatchingManifestError, "windows")


def test_all_handlers_get_what_there_is_and_the_others_are_noted(here: Node, tmp_path: Path) -> None:
    image = build_index([PLATFORMS[0], PLATFORMS[3]])
    archive = write(tmp_path / "a.tar", layout_files({"a:1": image}))
    report = here.store.import_images(archive, options=ALL, observer=here.events.append)
    assert {each.runtime_handler for each in report.images} == {HYPERV, "kata"}
    assert any(isinstance(event, Noticed) and PROCESS in event.message for event in here.events)


def test_all_handlers_do_not_take_a_single_manifest_that_does_not_fit(here: Node, tmp_path: Path) -> None:
    archive = write(tmp_path / "a.tar", layout_files({"a:1": build_image("linux/amd64")}))
    report = here.store.import_images(archive, options=ALL)
    assert [each.runtime_handler for each in report.images] == ["kata"]


def test_all_handlers_without_any_match_is_an_error(here: Node, tmp_path: Path) -> None:
    archive = write(tmp_path / "a.tar", layout_files({"a:1": build_index(["linux/s390x"])}))
    refused(here, archive, ALL, NoMatchingManifestError, "linux/s390x")


def test_all_platforms_stay_with_the_record(here: Node, tmp_path: Path) -> None:
    image = build_index([*PLATFORMS[:2], Entry(build_index(["linux/s390x"]))], attestations=True)
    archive = write(tmp_path / "a.tar", layout_files({"a:1": image}))
    here.store.import_images(archive, options=replace(KATA, all_platforms=True))
    # The same content again, without the others: they stay.
    here.store.import_images(archive, options=KATA)
    here.store.collect_garbage()
    assert {info.digest for info in here.store.content.walk()} == {*image.documents, *image.blobs}
    here.store.remove("a:1", runtime_handler="kata")
    here.store.collect_garbage()
    assert list(here.store.content.walk()) == []


def test_a_partial_archive_is_enough_for_the_handlers_it_was_made_for(here: Node, tmp_path: Path) -> None:
    image = build_index(PLATFORMS)
    without = {each.descriptor.digest for each in image.manifests[1:]}
    archive = write(tmp_path / "a.tar", layout_files({"a:1": image}, without=without))
    report = here.store.import_images(archive, options=ALL, observer=here.events.append)
    assert [each.runtime_handler for each in report.images] == ["kata"]
    here.store.import_images(archive, options=replace(KATA, all_platforms=True), observer=here.events.append)
    assert any(isinstance(event, Noticed) and "linux/arm64" in event.message for event in here.events)
    refused(here, archive, ImportOptions((HYPERV,)), ContentNotFoundError, "for windows(10.0.17763.4851)/amd64")


def test_what_the_archive_lacks_may_be_in_the_store(here: Node, tmp_path: Path) -> None:
    here.store.pull(PYTHON, runtime_handler="kata")
    image = python_image()
    missing = [each.digest for each in image.manifests[0].layers]
    archive = write(tmp_path / "a.tar", layout_files({"copy:1": image}, without=missing))
    (copy,) = here.store.import_images(archive, options=KATA, observer=here.events.append).images
    assert copy.id == image.manifests[0].config.digest
    assert {event.fetched_bytes for event in here.events if isinstance(event, BlobDone)} == {0}


def alternatives(images: Sequence[Image]) -> dict[str, bytes]:
    """The files of a layout with all these images under one name."""
    files: dict[str, bytes] = {}
    entries = []
    for each in images:
        one = layout_files({"a:1": each})
        entries += json.loads(one[layout.INDEX])["manifests"]
        files |= one
    return {**files, layout.INDEX: json.dumps({"schemaVersion": 2, "manifests": entries}).encode()}


def test_entries_of_one_name_are_alternatives(here: Node, tmp_path: Path) -> None:
    parts = [build_image(each, seed=each) for each in PLATFORMS]
    report = here.store.import_images(write(tmp_path / "a.tar", alternatives(parts)), options=ALL)
    chosen = {image.runtime_handler: image.target.digest for image in report.images}
    assert chosen == {"kata": parts[0].target.digest, PROCESS: parts[2].target.digest, HYPERV: parts[3].target.digest}


def test_a_name_whose_entries_are_all_for_others_says_for_whom(here: Node, tmp_path: Path) -> None:
    files = alternatives([build_image(each, seed=each) for each in ("linux/arm64", "linux/s390x")])
    refused(here, write(tmp_path / "a.tar", files), KATA, NoMatchingManifestError, "offered: linux/arm64, linux/s390x")


def test_a_single_manifest_is_judged_by_its_config(here: Node, tmp_path: Path) -> None:
    archive = write(tmp_path / "a.tar", layout_files({"a:1": build_image("linux/amd64")}))
    refused(here, archive, ImportOptions((HYPERV,)), NoMatchingManifestError, "offered: linux/amd64")
    (image,) = here.store.import_images(archive, options=ImportOptions((PROCESS,))).images
    assert "does not fit the host's platform" in image.record.warnings[0]


def test_an_explicit_platform_decides(here: Node, tmp_path: Path) -> None:
    archive = write(tmp_path / "a.tar", layout_files({"a:1": python_image()}))
    (image,) = here.store.import_images(archive, options=ImportOptions(platform="linux/arm64")).images
    assert (image.runtime_handler, image.platform.architecture) == (PROCESS, "arm64")


@pytest.mark.parametrize(
    ("name", "options", "reference"),
    [
        ("registry.example/a:1", ImportOptions(), "registry.example/a:1"),
        ("a", ImportOptions(), "docker.io/library/a:latest"),
        ("a:1", ImportOptions(name="b:2"), "docker.io/library/b:2"),
        ("", ImportOptions(name="b:2"), "docker.io/library/b:2"),
    ],
)
def test_names_come_from_the_archive_or_the_user(
    here: Node, tmp_path: Path, name: str, options: ImportOptions, reference: str
) -> None:
    archive = write(tmp_path / "a.tar", layout_files({name: python_image()}))
    (image,) = here.store.import_images(archive, options=options).images
    assert image.reference == reference


@pytest.mark.parametrize(
    ("short", "reference"), [("b/c:1", "docker.io/b/c:1"), ("registry.example/x", "registry.example/x:latest")]
)
def test_a_whole_reference_as_ref_name_is_taken(here: Node, tmp_path: Path, short: str, reference: str) -> None:
    archive = write(tmp_path / "a.tar", with_ref_name(short))
    assert here.store.import_images(archive).images[0].reference == reference


def with_ref_name(short: str) -> dict[str, bytes]:
    files = layout_files({"": python_image()})
    index = json.loads(files[layout.INDEX])
    index["manifests"][0]["annotations"] = {layout.REF_KEY: short}
    return {**files, layout.INDEX: json.dumps(index).encode()}


def test_a_tag_alone_is_no_name(here: Node, tmp_path: Path) -> None:
    archive = write(tmp_path / "a.tar", with_ref_name("3"))
    refused(here, archive, ImportOptions(), InvalidInputError, "says only the tag '3'")
    report = here.store.import_images(archive, options=ImportOptions(images=("3",), name="python:3"))
    assert report.images[0].reference == "docker.io/library/python:3"


@pytest.mark.parametrize("short", ["x/Stable", "a@b", "1.0+build/x", "x" * 200])
def test_a_ref_name_that_is_no_reference_gives_way_to_another_name(here: Node, tmp_path: Path, short: str) -> None:
    """The image-spec lets it be more than a reference, and skopeo writes there what it is told."""
    archive = write(tmp_path / "a.tar", with_ref_name(short))
    refused(here, archive, ImportOptions(), InvalidInputError, "has a name for its image that is no reference: ")
    for options in (ImportOptions(name="python:3"), ImportOptions(images=(short,), name="python:4")):
        assert here.store.import_images(archive, options=options).images[0].reference.endswith(options.name)


def test_an_image_whose_name_is_no_reference_is_left_out_if_others_have_one(here: Node, tmp_path: Path) -> None:
    images = {"a:1": build_index(PLATFORMS, seed="a"), "B c": build_index(PLATFORMS, seed="b")}
    report = here.store.import_images(write(tmp_path / "a.tar", layout_files(images)), observer=here.events.append)
    assert [image.reference for image in report.images] == ["docker.io/library/a:1"]
    assert any(isinstance(event, Noticed) and "B c was left out" in event.message for event in here.events)


def test_a_label_of_any_length_is_cut_where_it_is_shown() -> None:
    assert str(ArchiveImage(None, "x" * 1_000_000, ())) == "x" * 197 + "..."


def test_several_images_are_imported_or_chosen_among(here: Node, tmp_path: Path) -> None:
    images = {"a:1": build_index(PLATFORMS, seed="a"), "b:1": build_index(PLATFORMS, seed="b"), "": build_index([])}
    archive = write(tmp_path / "a.tar", layout_files(images))
    refused(here, archive, ImportOptions(name="c"), InvalidInputError, "holds 3 images")
    refused(here, archive, ImportOptions(images=("c",)), ImageNotFoundError, "has no image 'c'")
    refused(here, archive, ImportOptions(images=("C!",)), InvalidReferenceError, "position")
    assert len(here.store.import_images(archive, options=ImportOptions(images=("b:1",))).images) == 1
    report = here.store.import_images(archive, observer=here.events.append)
    assert [image.reference for image in report.images] == ["docker.io/library/a:1", "docker.io/library/b:1"]
    assert any(isinstance(event, Noticed) and "without a name was left out" in event.message for event in here.events)


def test_a_name_is_not_moved_to_other_content_silently(here: Node, tmp_path: Path) -> None:
    before = here.store.pull(PYTHON, runtime_handler="kata")
    here.store.metadata.images.put(replace(before.record, labels={"team": "blue"}), {})
    other = build_index(PLATFORMS, seed="other")
    archive = write(tmp_path / "a.tar", layout_files({PYTHON: other}))
    refused(here, archive, KATA, AlreadyExistsError, str(before.target.digest))
    # Another handler's record of the same name is not this one.
    here.store.import_images(archive, options=ImportOptions((HYPERV,)))
    (moved,) = here.store.import_images(archive, options=replace(KATA, replace=True)).images
    assert moved.target.digest == other.target.digest
    assert moved.record.created_at == before.record.created_at
    assert moved.record.labels == {"team": "blue"}


def test_a_refusal_does_not_say_that_the_archive_has_what_only_the_store_has(here: Node, tmp_path: Path) -> None:
    """As after an export of another platform than the handler's own, while the store has both."""
    arm = ImportOptions(platform="linux/arm64")
    here.store.pull(PYTHON, runtime_handler="kata")
    here.store.pull(PYTHON, runtime_handler="kata", platform="linux/arm64")
    amd64, arm64, *others = (each.descriptor.digest for each in image().manifests)
    archive = write(tmp_path / "a.tar", layout_files({PYTHON: image()}, without=[amd64, *others]))
    refused(
        here, archive, KATA, AlreadyExistsError, f"with manifest {arm64}, the archive leads to {amd64}, which it lacks"
    )
    with pytest.raises(AlreadyExistsError) as caught:
        here.store.import_images(archive, options=KATA)
    assert caught.value.hint.startswith("--platform takes what the archive has")
    assert here.store.import_images(archive, options=arm).images[0].platform.architecture == "arm64"
    (moved,) = here.store.import_images(archive, options=replace(KATA, replace=True)).images
    assert moved.manifest.digest == amd64


def test_a_name_that_appears_during_the_import_is_not_moved(here: Node, tmp_path: Path) -> None:
    archive = write(tmp_path / "a.tar", layout_files({PYTHON: build_index(PLATFORMS, seed="other")}))

    def pull_meanwhile(event: Event) -> None:
        if isinstance(event, BlobDone) and here.store.metadata.images.get(PYTHON, "kata") is None:
            here.store.pull(PYTHON, runtime_handler="kata")

    with pytest.raises(AlreadyExistsError):
        here.store.import_images(archive, options=KATA, observer=pull_meanwhile)
    here.store.collect_garbage()
    assert here.store.get(PYTHON, runtime_handler="kata").target.digest == python_image().target.digest


def test_a_digest_in_a_name_must_be_the_contents(here: Node, tmp_path: Path) -> None:
    wrong = write(tmp_path / "a.tar", layout_files({f"a@{Digest.of(b'')}": python_image()}))
    refused(here, wrong, KATA, DigestMismatchError, "expected digest")
    right = write(tmp_path / "b.tar", layout_files({f"a:1@{python_image().target.digest}": python_image()}))
    assert here.store.import_images(right, options=KATA).images[0].reference.startswith("docker.io/library/a:1@sha256:")


def test_a_failure_of_one_image_leaves_all_of_them_out(here: Node, tmp_path: Path) -> None:
    good, bad = build_index(PLATFORMS, seed="good"), build_index(PLATFORMS, seed="bad")
    files = layout_files({"a:1": good, "b:1": bad})
    place = layout.blob_name(bad.manifests[0].layers[0].digest)
    files[place] = bytes(len(files[place]))
    refused(here, write(tmp_path / "a.tar", files), KATA, DigestMismatchError, "expected digest")


def test_a_cancelled_import_can_go_on(here: Node, tmp_path: Path) -> None:
    archive = write(tmp_path / "a.tar", layout_files({PYTHON: python_image()}))
    token = CancelToken()

    def stop(event: Event) -> None:
        if isinstance(event, BlobDone):
            token.cancel()

    with pytest.raises(OperationCancelledError):
        here.store.import_images(archive, options=KATA, observer=stop, cancel=token)
    assert here.store.import_images(archive, options=KATA, observer=here.events.append).images
    assert BlobDone in {type(event) for event in here.events if getattr(event, "fetched_bytes", 1) == 0}


def test_a_collection_while_an_import_runs_takes_nothing_of_it(here: Node, tmp_path: Path) -> None:
    archive = write(tmp_path / "a.tar", layout_files({PYTHON: python_image()}))
    collections = 0

    def collect(event: Event) -> None:
        nonlocal collections
        if isinstance(event, BlobDone):
            with ImageStore(here.store.root) as other:
                assert other.collect_garbage().digests == ()
            collections += 1

    here.store.import_images(archive, options=replace(KATA, all_platforms=True), observer=collect)
    assert collections
    assert here.store.check().faults == ()


def test_gzip_around_the_archive_and_pipes_are_read(here: Node, tmp_path: Path) -> None:
    data = tar_of(layout_files({"a:1": python_image()}))
    packed = write(tmp_path / "a.tar.gz", gzip.compress(data[:5000]) + gzip.compress(data[5000:]) + bytes(100))
    first = here.store.import_images(packed, options=KATA).images[0]
    reader, writer = os.pipe()

    def send() -> None:
        with os.fdopen(writer, "wb") as pipe:
            pipe.write(data)

    sender = threading.Thread(target=send)
    sender.start()
    again = here.store.import_images(f"/dev/fd/{reader}", options=KATA).images[0]
    sender.join()
    os.close(reader)
    assert first.id == again.id
    assert [path.name for path in (here.store.root / "content").iterdir() if path.is_file()] == []


def test_an_archive_that_grows_beyond_half_of_the_free_space_is_refused(
    here: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bomb = write(tmp_path / "a.tar.gz", gzip.compress(bytes(3_000_000)))
    monkeypatch.setattr(here.store.content, "free_bytes", lambda: 2_000_000)
    refused(here, bomb, KATA, StoreFullError, "longer than 1000000 bytes")


def test_an_artifact_is_imported_with_a_warning(here: Node, tmp_path: Path) -> None:
    artifact = build_artifact("application/x", {"f": b"data"})
    archive = write(tmp_path / "a.tar", layout_files({"notes:1": artifact}))
    (found,) = here.store.import_images(archive).images
    assert [path.read_bytes() for path in found.layer_paths] == [b"data"]


def test_entries_that_are_no_image_are_noted(here: Node, tmp_path: Path) -> None:
    files = layout_files({"a:1": image()})
    index = json.loads(files[layout.INDEX])
    index["manifests"].append({"mediaType": "text/plain", "digest": str(Digest.of(b"")), "size": 0})
    archive = write(tmp_path / "a.tar", {**files, layout.INDEX: json.dumps(index).encode()})
    assert len(here.store.import_images(archive, options=KATA, observer=here.events.append).images) == 1
    assert any(isinstance(event, Noticed) and "'text/plain'" in event.message for event in here.events)


def test_content_under_sha512_is_verified(here: Node, tmp_path: Path) -> None:
    built = build_index(["linux/amd64"], algorithm="sha512")
    (found,) = here.store.import_images(write(tmp_path / "a.tar", layout_files({"a:1": built})), options=KATA).images
    assert found.target.digest.algorithm == "sha512"


def test_a_docker_archive_with_unverifiable_diff_ids_is_refused(here: Node, tmp_path: Path) -> None:
    one = layer("one", compression="none")
    built = build_image(
        "linux/amd64", layers=[one], config={"rootfs": {"type": "layers", "diff_ids": ["blake3:" + "0" * 64]}}
    )
    archive = write(tmp_path / "a.tar", saved_files(built, [one], ["a:1"]))
    refused(here, archive, KATA, InvalidDigestError, "can't be verified")


def test_large_blobs_come_through_ingests_and_small_ones_together(here: Node, tmp_path: Path) -> None:
    images = {
        f"registry.example/library/{name}:1": build_image(
            "linux/amd64", layers=[layer(name), synthetic_layer(name, size)]
        )
        for name, size in (("small", 512 * 10), ("large", 512 * 1000))
    }
    report = here.store.import_images(write(tmp_path / "a.tar", layout_files(images)), options=KATA)
    assert {image.reference for image in report.images} == set(images)
    assert here.store.check().faults == ()
    assert {path.stat().st_mode & 0o777 for image in report.images for path in image.layer_paths} == {0o444}
    assert list(here.store.content.statuses()) == []
    assert list(here.store.metadata.leases.find()) == []
