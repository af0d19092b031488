"""What refers to an image goes along from and to layouts, archives and the store, and stays as long as the image."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from imagestore import CopyOptions, Descriptor, Digest
from imagestore.errors import ContentNotFoundError, InvalidInputError
from imagestore.events import Event
from imagestore.oci import layout, rendering
from imagestore.oci.referrers import fallback_tag
from imagestore.store.maintenance.rebuild import rebuild
from imagestore.testing import Image, build_artifact, build_image, build_index
from tests.support.node import HANDLERS, HYPERV, PROCESS, PYTHON, Node, node, python_image
from tests.unit.store.archive.making import layout_files, write

HERE: Final = "registry.example/here:1"
REPOSITORY: Final = PYTHON.rpartition(":")[0]
IMAGE: Final = python_image()
CHOSEN: Final = IMAGE.manifests[HANDLERS[PROCESS]].descriptor
ANNOTATIONS: Final = {"org.example.by": "me", layout.NAME_KEY: "registry.example/other:1", layout.REF_KEY: "other"}
SIGNATURE: Final = build_artifact("application/vnd.example.signature", {"s": b"of the index"}, subject=IMAGE.target)
SBOM: Final = build_artifact("application/vnd.example.sbom", {"b": b"bill"}, subject=CHOSEN, annotations=ANNOTATIONS)
SEAL: Final = build_artifact("application/vnd.example.seal", {"c": b"of the bill"}, subject=SBOM.target)
REFERRERS: Final = (SIGNATURE, SBOM, SEAL)
SIGNED: Final = {PYTHON: IMAGE} | {f"{REPOSITORY}:referrer-{number}": each for number, each in enumerate(REFERRERS)}
ALONG: Final = CopyOptions(referrers=True)
ALL_ALONG: Final = CopyOptions(referrers=True, all_handlers=True)


def digests(*images: Image) -> set[Digest]:
    """All content of some artifacts."""
    return {digest for image in images for digest in (*image.documents, *image.blobs)}


def stored(here: Node) -> set[Digest]:
    return {info.digest for info in here.store.content.walk()}


def listing(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((folder / layout.INDEX).read_text())["manifests"]
    return found


def with_entries(files: Mapping[str, bytes], *entries: Descriptor, data: Mapping[Digest, bytes]) -> dict[str, bytes]:
    """A layout with more entries."""
    index = json.loads(files[layout.INDEX])
    index["manifests"] += [rendering.render_descriptor(entry) for entry in entries]
    more = {layout.blob_name(digest): raw for digest, raw in data.items()}
    return {**files, **more, layout.INDEX: json.dumps(index).encode()}


def files_of(*images: Image) -> dict[Digest, bytes]:
    documents = {digest: each.data for image in images for digest, each in image.documents.items()}
    return documents | {digest: b"".join(each.chunks()) for image in images for digest, each in image.blobs.items()}


def test_a_layout_lists_referrers_without_a_name(tmp_path: Path) -> None:
    with node(tmp_path / "store", SIGNED) as here:
        report = here.store.copy(PYTHON, f"oci:{tmp_path / 'layout'}", options=ALONG)
    assert report.referrers == 2
    assert digests(SBOM, SEAL) - {SBOM.target.digest, SEAL.target.digest} <= {
        each.descriptor.digest for each in report.blobs
    }
    image, *others = listing(tmp_path / "layout")
    assert image["annotations"][layout.NAME_KEY] == PYTHON
    assert {each["digest"]: (each["artifactType"], each.get("annotations")) for each in others} == {
        str(SBOM.target.digest): ("application/vnd.example.sbom", {"org.example.by": "me"}),
        str(SEAL.target.digest): ("application/vnd.example.seal", None),
    }
    for digest, raw in files_of(SBOM, SEAL).items():
        assert (tmp_path / "layout" / layout.blob_name(digest)).read_bytes() == raw


@pytest.mark.parametrize(("options", "count"), [(ALONG, 2), (ALL_ALONG, 3)])
@pytest.mark.parametrize("kind", ["oci", "oci-archive"])
def test_the_way_through_an_archive_and_the_store_changes_nothing(
    tmp_path: Path, kind: str, options: CopyOptions, count: int
) -> None:
    first, second = f"{kind}:{tmp_path / 'first'}", f"oci:{tmp_path / 'second'}"
    named = replace(options, name=HERE)
    with node(tmp_path / "store", SIGNED) as here:
        assert here.store.copy(PYTHON, first, options=named).referrers == count
        assert here.store.copy(PYTHON, f"oci:{tmp_path / 'direct'}", options=named).referrers == count
        assert here.store.copy(first, f"store:{HERE}", options=options).referrers == count
        here.store.collect_garbage()
        assert here.store.copy(f"store:{HERE}", second, options=options).referrers == count
    assert listing(tmp_path / "second")[1:] == listing(tmp_path / "direct")[1:] != []


def test_the_store_keeps_referrers_as_long_as_the_image(tmp_path: Path) -> None:
    with node(tmp_path, SIGNED) as here:
        assert here.store.copy(PYTHON, f"store:{HERE}", options=ALONG).referrers == 3
        here.store.collect_garbage()
        assert digests(*REFERRERS) <= stored(here)
        here.store.tag(HERE, PYTHON)
        here.store.untag(HERE)
        here.store.collect_garbage()
        assert digests(*REFERRERS) <= stored(here)
        here.store.remove(PYTHON, collect=True)
        assert stored(here) == set()
        assert here.store.metadata.graph.content_labels(CHOSEN.digest) == {}


def test_a_second_copy_adds_what_is_new(tmp_path: Path) -> None:
    with node(tmp_path / "store", {**SIGNED}) as here:
        here.store.copy(PYTHON, f"store:{HERE}", options=ALONG)
    only = {name: image for name, image in SIGNED.items() if image is not SEAL}
    late = build_artifact("application/vnd.example.late", {"l": b"late"}, subject=CHOSEN)
    with node(tmp_path / "store", {**only, f"{REPOSITORY}:late": late}) as here:
        assert here.store.copy(PYTHON, f"store:{HERE}", options=ALONG).referrers == 3
        assert here.store.copy(f"store:{HERE}", f"oci:{tmp_path / 'out'}", options=ALONG).referrers == 3
    kept = {each["digest"] for each in listing(tmp_path / "out")[1:]}
    assert kept == {str(each.target.digest) for each in (SBOM, SEAL, late)}


def test_a_rebuilt_database_keeps_referrers(tmp_path: Path) -> None:
    with node(tmp_path / "store", SIGNED) as here:
        here.store.copy(PYTHON, f"store:{HERE}", options=ALONG)
    for name in ("metadata.db", "metadata.db-wal", "metadata.db-shm"):
        (tmp_path / "store" / name).unlink(missing_ok=True)
    rebuild(tmp_path / "store")
    with node(tmp_path / "store", SIGNED) as here:
        for lease in here.store.metadata.leases.find():
            here.store.metadata.leases.delete(lease.id)
        here.store.collect_garbage()
        assert digests(*REFERRERS) <= stored(here)
        assert here.store.copy(f"store:{HERE}", f"oci:{tmp_path / 'out'}", options=ALONG).referrers == 2


def test_what_was_pulled_has_no_referrers_in_the_store(tmp_path: Path) -> None:
    with node(tmp_path / "store", SIGNED) as here:
        here.store.pull(PYTHON)
        with pytest.raises(InvalidInputError, match="a pull leaves them in the registry") as caught:
            here.store.copy(f"store:{PYTHON}", f"oci:{tmp_path / 'out'}", options=ALONG)
        assert f"imagestore copy --referrers {PYTHON} store:{PYTHON}" in caught.value.hint
        assert not (tmp_path / "out").exists()
        here.store.copy(PYTHON, f"store:{PYTHON}", options=ALONG)
        assert here.store.copy(f"store:{PYTHON}", f"oci:{tmp_path / 'out'}", options=ALONG).referrers == 2


def test_another_handlers_manifest_has_to_be_looked_for_too(tmp_path: Path) -> None:
    both = CopyOptions((PROCESS, HYPERV), referrers=True)
    with node(tmp_path / "store", SIGNED) as here:
        here.store.copy(PYTHON, f"store:{PYTHON}", options=ALONG)
        here.store.pull(PYTHON, runtime_handler=HYPERV)
        with pytest.raises(InvalidInputError, match="its referrers were not copied"):
            here.store.copy(f"store:{PYTHON}", f"oci:{tmp_path / 'out'}", options=both)
        here.store.copy(PYTHON, f"store:{PYTHON}", options=both)
        assert here.store.copy(f"store:{PYTHON}", f"oci:{tmp_path / 'out'}", options=both).referrers == 3


def test_an_image_without_referrers_is_copied_alone(tmp_path: Path) -> None:
    with node(tmp_path / "store") as here:
        assert here.store.copy(PYTHON, f"store:{HERE}", options=ALONG).referrers == 0
        assert here.store.copy(f"store:{HERE}", f"oci:{tmp_path / 'out'}", options=ALONG).referrers == 0
        assert here.store.copy(f"oci:{tmp_path / 'out'}", "store:registry.example/b:1", options=ALONG).referrers == 0


def test_a_docker_archive_is_refused_on_both_sides(tmp_path: Path) -> None:
    said = "a docker-archive can't carry referrers"
    saved = tmp_path / "saved.tar"
    with node(tmp_path / "store", {PYTHON: build_image("linux/amd64")}) as here:
        linux = CopyOptions(("kata",))
        with pytest.raises(InvalidInputError, match=said):
            here.store.copy(PYTHON, f"docker-archive:{saved}", options=replace(linux, referrers=True))
        assert not saved.exists()
        here.store.copy(PYTHON, f"docker-archive:{saved}", options=linux)
        for source in (f"docker-archive:{saved}", f"oci-archive:{saved}"):
            for place in (f"store:{HERE}", f"oci:{tmp_path / 'out'}"):
                with pytest.raises(InvalidInputError, match=said) as caught:
                    here.store.copy(source, place, options=replace(linux, referrers=True))
                assert "oci:" in caught.value.hint
        assert list(here.store.list()) == []


def listed_by_tag(*entries: Descriptor) -> tuple[Descriptor, bytes]:
    """What regctl has for the referrers of the chosen manifest: an index under the tag of its digest."""
    raw = rendering.render_index(entries)
    tag = fallback_tag(CHOSEN.digest)
    kind = "application/vnd.oci.image.index.v1+json"
    return Descriptor(kind, Digest.of(raw), len(raw), annotations={layout.REF_KEY: tag}), raw


def test_referrers_that_a_layout_lists_by_tag_are_found(tmp_path: Path) -> None:
    stranger = build_artifact("application/vnd.example.stranger", {"x": b"of the index"}, subject=IMAGE.target)
    entry, raw = listed_by_tag(SBOM.target, stranger.target)
    data = {**files_of(SBOM, stranger), entry.digest: raw}
    source = write(tmp_path / "in", with_entries(layout_files({PYTHON: IMAGE}), entry, data=data))
    events: list[Event] = []
    with node(tmp_path / "store", {}) as here:
        report = here.store.copy(f"oci:{source}", f"oci:{tmp_path / 'out'}", options=ALONG, observer=events.append)
    assert report.referrers == 1
    assert [each["digest"] for each in listing(tmp_path / "out")[1:]] == [str(SBOM.target.digest)]
    assert f"{stranger.target.digest} is listed as a referrer of {CHOSEN.digest}" in " ".join(map(str, events))


@pytest.mark.parametrize("place", ["oci:out", "oci-archive:out", "store:" + HERE])
def test_a_referrer_that_is_listed_and_gone_is_left_out(tmp_path: Path, place: str) -> None:
    entry, raw = listed_by_tag(SEAL.target, SBOM.target)
    data = {**files_of(SBOM), entry.digest: raw}
    source = write(tmp_path / "in", with_entries(layout_files({PYTHON: IMAGE}), entry, data=data))
    events: list[Event] = []
    with node(tmp_path / "store", {}) as here:
        report = here.store.copy(
            f"oci:{source}", place.replace("out", str(tmp_path / "out")), options=ALONG, observer=events.append
        )
    assert report.referrers == 1
    assert f"referrer {SEAL.target.digest} is listed, is not there and is left out" in " ".join(map(str, events))


def test_referrers_are_no_images_of_an_import(tmp_path: Path) -> None:
    entry, raw = listed_by_tag(SBOM.target)
    data = {**files_of(*REFERRERS), entry.digest: raw}
    files = with_entries(layout_files({"": IMAGE}), entry, *(each.target for each in REFERRERS), data=data)
    events: list[Event] = []
    with node(tmp_path / "store", {}) as here:
        here.store.copy(f"oci:{write(tmp_path / 'in', files)}", f"store:{HERE}", observer=events.append)
        assert [image.reference for image in here.store.list()] == [HERE]
        assert not digests(*REFERRERS) & stored(here)
    assert "4 entries that refer to its images are no images themselves" in " ".join(map(str, events))


def test_what_oras_lists_without_a_name_does_not_hide_the_image(tmp_path: Path) -> None:
    """It lists an index's manifests too."""
    parts = [replace(each.descriptor, platform=None) for each in IMAGE.manifests]
    files = with_entries(layout_files({PYTHON: IMAGE}), *parts, SIGNATURE.target, data=files_of(SIGNATURE))
    with node(tmp_path / "store", {}) as here:
        report = here.store.copy(f"oci:{write(tmp_path / 'in', files)}", f"oci:{tmp_path / 'out'}", options=ALL_ALONG)
    assert (report.referrers, report.target.digest) == (1, IMAGE.target.digest)


def test_a_layout_that_lacks_a_referrers_blob_leaves_the_image_without_it(tmp_path: Path) -> None:
    data = files_of(SBOM)
    missing = SBOM.manifests[0].layers[0].digest
    del data[missing]
    source = write(tmp_path / "in", with_entries(layout_files({PYTHON: IMAGE}), SBOM.target, data=data))
    with node(tmp_path / "store", {}) as here:
        with pytest.raises(ContentNotFoundError, match=str(missing)):
            here.store.copy(f"oci:{source}", f"store:{HERE}", options=ALONG)
        assert not digests(SBOM) & stored(here)
        with pytest.raises(InvalidInputError, match="were not copied into the store"):
            here.store.copy(f"store:{HERE}", f"oci:{tmp_path / 'out'}", options=ALONG)


def test_a_referrer_that_the_store_lost_is_named(tmp_path: Path) -> None:
    with node(tmp_path / "store", SIGNED) as here:
        here.store.copy(PYTHON, f"store:{HERE}", options=ALONG)
        path = here.store.content.path(SBOM.target.digest)
        path.unlink()
        with pytest.raises(ContentNotFoundError, match=str(SBOM.target.digest)) as caught:
            here.store.copy(f"store:{HERE}", f"oci:{tmp_path / 'out'}", options=ALONG)
        assert "copy --referrers" in caught.value.hint
        assert not (tmp_path / "out").exists()
        here.store.copy(PYTHON, f"store:{HERE}", options=ALONG)
        assert here.store.copy(f"store:{HERE}", f"oci:{tmp_path / 'out'}", options=ALONG).referrers == 2


def test_a_nameless_index_and_its_referrer_are_one_image(tmp_path: Path) -> None:
    plain = build_index(["windows(10.0.20348.1970)/amd64"], seed="plain")
    signature = build_artifact("application/vnd.example.signature", {"s": b"plain"}, subject=plain.target)
    source = write(tmp_path / "in", layout_files({"": plain}))
    write(source, with_entries(layout_files({"": plain}), signature.target, data=files_of(signature)))
    with node(tmp_path / "store", {}) as here:
        report = here.store.copy(f"oci:{source}", f"store:{HERE}", options=ALONG)
        assert report.referrers == 1
        assert here.store.get(HERE).target.digest == plain.target.digest
