"""Archives as other writers leave them: two descriptions of one image, needless members, names in other spellings."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from imagestore import Digest, ImportOptions
from imagestore.errors import (
    ContentNotFoundError,
    DocumentError,
    ImageNotFoundError,
    NoMatchingManifestError,
    SizeMismatchError,
)
from imagestore.events import Noticed
from imagestore.oci import layout, media_types
from imagestore.testing import Image, build_image, build_index, layer
from tests.support.node import Node, node
from tests.unit.store.archive.imports import KATA, refused
from tests.unit.store.archive.making import END, header, layout_files, member, saved_files, tar_of, write

LAYERS = [layer("lower", compression="none"), layer("upper", compression="none")]
IMAGE = build_image("linux/amd64", layers=LAYERS)
NAME = "docker.io/library/a:1"


def both(image: Image = IMAGE, tags: list[str] | None = None) -> dict[str, bytes]:
    """A layout with manifest.json, as Docker saves it today."""
    return {**saved_files(image, LAYERS, ["a:1"] if tags is None else tags), **layout_files({"a:1": image})}


def with_manifest(change: Callable[[dict[str, Any]], None]) -> dict[str, bytes]:
    """The same with another manifest in its layout."""
    files = both()
    manifest = json.loads(IMAGE.documents[IMAGE.target.digest].data)
    change(manifest)
    raw = json.dumps(manifest).encode()
    entry = {"mediaType": media_types.OCI_MANIFEST, "digest": str(Digest.of(raw)), "size": len(raw)}
    entry["annotations"] = {layout.NAME_KEY: NAME}
    files[layout.blob_name(Digest.of(raw))] = raw
    files[layout.INDEX] = json.dumps({"schemaVersion": 2, "manifests": [entry]}).encode()
    return files


def of_wrong_size(manifest: dict[str, Any]) -> None:
    for each in manifest["layers"]:
        each["size"] -= 512


def of_missing_layer(manifest: dict[str, Any]) -> None:
    manifest["layers"][0]["digest"] = str(Digest.of(b"nowhere"))


def in_another_order(manifest: dict[str, Any]) -> None:
    manifest["layers"].reverse()


@pytest.mark.parametrize(
    "change",
    [lambda manifest: manifest.pop("layers"), of_wrong_size, of_missing_layer, in_another_order],
    ids=["no layers", "wrong sizes", "missing layer", "another order"],
)
def test_a_broken_layout_gives_way_to_a_right_manifest_json(
    here: Node, tmp_path: Path, change: Callable[[dict[str, Any]], None]
) -> None:
    archive = write(tmp_path / "a.tar", with_manifest(change))
    (found,) = here.store.import_images(archive, options=KATA, observer=here.events.append).images
    assert (found.reference, found.id) == (NAME, IMAGE.manifests[0].config.digest)
    assert [each.digest for each in found.layers] == [each.diff_id for each in LAYERS]
    assert any(isinstance(event, Noticed) and "imported by manifest.json" in event.message for event in here.events)


NOTHING: dict[str, bytes | None] = {
    "an empty list": b'{"schemaVersion": 2, "manifests": []}',
    "null": b'{"schemaVersion": 2, "manifests": null}',
    "no list": b"{}",
    "no JSON": b"",
    "no file": None,
    "something else": json.dumps(
        {"schemaVersion": 2, "manifests": [{"mediaType": "text/plain", "digest": str(Digest.of(b"")), "size": 0}]}
    ).encode(),
}


@pytest.mark.parametrize("case", NOTHING)
def test_a_layout_that_lists_nothing_gives_way_to_manifest_json(here: Node, tmp_path: Path, case: str) -> None:
    raw = NOTHING[case]
    files = {**both(), layout.INDEX: raw or b""}
    if raw is None:
        del files[layout.INDEX]
    (found,) = here.store.import_images(write(tmp_path / "a.tar", files), options=KATA).images
    assert found.reference == NAME


def test_an_index_in_it_that_lists_nothing_counts_as_nothing(here: Node, tmp_path: Path) -> None:
    inner = json.dumps({"schemaVersion": 2, "mediaType": media_types.OCI_INDEX, "manifests": None}).encode()
    entry = {"mediaType": media_types.OCI_INDEX, "digest": str(Digest.of(inner)), "size": len(inner)}
    index = {"schemaVersion": 2, "manifests": [{**entry, "annotations": {layout.NAME_KEY: NAME}}]}
    files = {**both(), layout.INDEX: json.dumps(index).encode(), layout.blob_name(Digest.of(inner)): inner}
    assert here.store.import_images(write(tmp_path / "a.tar", files), options=KATA).images[0].reference == NAME
    del files[layout.DOCKER_MANIFEST]
    here.store.remove(NAME, all_handlers=True)
    with pytest.raises(NoMatchingManifestError):
        here.store.import_images(write(tmp_path / "b.tar", files), options=KATA)


def test_a_layout_without_names_takes_those_of_manifest_json(here: Node, tmp_path: Path) -> None:
    files = {**both(), layout.INDEX: layout_files({"": IMAGE})[layout.INDEX]}
    assert here.store.import_images(write(tmp_path / "a.tar", files), options=KATA).images[0].reference == NAME
    named = ImportOptions(("kata",), name="b:1")
    (found,) = here.store.import_images(write(tmp_path / "b.tar", files), options=named).images
    assert found.target == IMAGE.target


def test_where_both_are_broken_the_layout_s_fault_counts_and_the_other_s_is_in_the_hint(
    here: Node, tmp_path: Path
) -> None:
    files = {**with_manifest(of_wrong_size), layout.DOCKER_MANIFEST: b"[]"}
    with pytest.raises(SizeMismatchError, match="layer sha256") as caught:
        here.store.import_images(write(tmp_path / "a.tar", files), options=KATA)
    assert "manifest.json" in caught.value.hint
    empty = {**both(), layout.INDEX: b"{}", layout.DOCKER_MANIFEST: b"[]"}
    refused(here, write(tmp_path / "b.tar", empty), KATA, DocumentError, "lists 0 images")


def test_an_image_of_another_platform_is_no_way_out(tmp_path: Path) -> None:
    """An archive of some platforms of an index has manifest.json for one of them, and it isn't taken for another."""
    lone = build_image("linux/s390x", layers=LAYERS)
    files = {**saved_files(lone, LAYERS, ["a:1"]), **layout_files({"a:1": IMAGE}, without=[IMAGE.target.digest])}
    with node(tmp_path / "store") as here, pytest.raises(ContentNotFoundError, match="missing"):
        here.store.import_images(write(tmp_path / "a.tar", files))


def notes(here: Node) -> list[str]:
    return [event.message for event in here.events if isinstance(event, Noticed)]


OTHER_LAYERS = [layer("other", compression="none")]
OTHER_IMAGE = build_image("linux/amd64", layers=OTHER_LAYERS)


@pytest.mark.parametrize("how", ["plainly", "renamed", "twice"])
def test_two_images_under_one_name_are_reported_and_the_layout_s_is_taken(here: Node, tmp_path: Path, how: str) -> None:
    files = {**saved_files(OTHER_IMAGE, OTHER_LAYERS, ["a:1"]), **layout_files({"a:1": IMAGE})}
    if how == "twice":
        both_of = [*json.loads(both()[layout.DOCKER_MANIFEST]), *json.loads(files[layout.DOCKER_MANIFEST])]
        files = {**both(), **files, layout.DOCKER_MANIFEST: json.dumps(both_of).encode()}
    options = ImportOptions(("kata",), name="b:1") if how == "renamed" else KATA
    archive = write(tmp_path / "a.tar", files)
    (found,) = here.store.import_images(archive, options=options, observer=here.events.append).images
    assert found.target == IMAGE.target
    (note,) = notes(here)
    assert f"describe different images as {NAME}" in note
    assert all(str(each.manifests[0].config.digest) in note for each in (IMAGE, OTHER_IMAGE))


def test_two_descriptions_of_one_image_are_no_news(here: Node, tmp_path: Path) -> None:
    here.store.import_images(write(tmp_path / "a.tar", both()), options=KATA, observer=here.events.append)
    assert notes(here) == []


def test_another_name_or_a_config_that_is_not_there_is_no_contradiction(here: Node, tmp_path: Path) -> None:
    others = saved_files(OTHER_IMAGE, OTHER_LAYERS, ["b:1"])
    broken = saved_files(OTHER_IMAGE, OTHER_LAYERS, ["a:1"])
    del broken[f"{OTHER_IMAGE.manifests[0].config.digest.encoded}.json"]
    for number, saved in enumerate((others, broken)):
        archive = write(tmp_path / f"{number}.tar", {**saved, **layout_files({"a:1": IMAGE})})
        here.store.import_images(archive, options=KATA, observer=here.events.append)
    assert notes(here) == []


@pytest.mark.parametrize("has_index", [True, False])
def test_manifest_json_of_another_platform_of_the_same_name_is_no_contradiction(
    here: Node, tmp_path: Path, has_index: bool
) -> None:
    """containerd writes it for one platform of several."""
    arm = build_image("linux/arm64", layers=LAYERS)
    if has_index:
        files = layout_files({"a:1": build_index([IMAGE, arm])})
    else:
        files = layout_files({"a:1": IMAGE, "docker.io/library/a:1": arm})
    files = {**saved_files(arm, LAYERS, ["a:1"]), **files}
    (found,) = here.store.import_images(
        write(tmp_path / "a.tar", files), options=KATA, observer=here.events.append
    ).images
    assert found.id == IMAGE.manifests[0].config.digest
    assert notes(here) == []


def test_a_right_layout_is_taken_whatever_manifest_json_says(here: Node, tmp_path: Path) -> None:
    files = {**both(), layout.DOCKER_MANIFEST: b"{"}
    assert here.store.import_images(write(tmp_path / "a.tar", files), options=KATA).images[0].target == IMAGE.target


@pytest.mark.parametrize(
    "needless",
    [
        member("latest.json", b"", b"2", b"index.json"),
        member("blobs/sha256/link", b"", b"2", b"/etc/passwd"),
        member("dev/null", b"", b"3"),
        member("fifo", b"", b"6"),
        member("volume", b"", b"V"),
        member("hard", b"", b"1", b"later"),
        header(b"\xfc\xff"),
        member("VERSION", b"1") * 2,
    ],
    ids=["link", "link among blobs", "device", "FIFO", "volume", "hard link", "name", "twice"],
)
@pytest.mark.parametrize("form", ["layout", "saved"])
def test_members_that_an_import_never_looks_at_are_passed_over(
    here: Node, tmp_path: Path, needless: bytes, form: str
) -> None:
    files = layout_files({"a:1": IMAGE}) if form == "layout" else saved_files(IMAGE, LAYERS, ["a:1"])
    assert here.store.import_images(write(tmp_path / "a.tar", needless + tar_of(files)), options=KATA).images


def test_links_and_pipes_in_a_folder_that_nothing_needs_are_passed_over(here: Node, tmp_path: Path) -> None:
    folder = write(tmp_path / "layout", layout_files({"a:1": IMAGE}))
    (folder / "latest.json").symlink_to("index.json")
    (folder / "loop").symlink_to(folder)
    os.mkfifo(folder / "pipe")
    assert here.store.import_images(folder, options=KATA).images


def test_links_and_pipes_under_a_digest_that_nothing_needs_are_passed_over(here: Node, tmp_path: Path) -> None:
    folder = write(tmp_path / "layout", layout_files({"a:1": IMAGE}))
    (folder / "blobs/sha256" / ("a" * 64)).symlink_to("/etc/passwd")
    os.mkfifo(folder / "blobs/sha256" / ("b" * 64))
    report = here.store.import_images(folder, options=KATA)
    assert (len(report.images), report.unused_blobs, report.unused_bytes) == (1, 2, 0)


@pytest.mark.parametrize("form", ["layout", "saved"])
def test_absolute_names_of_members_are_below_the_top(here: Node, tmp_path: Path, form: str) -> None:
    files = layout_files({"a:1": IMAGE}) if form == "layout" else saved_files(IMAGE, LAYERS, ["a:1"])
    archive = write(tmp_path / "a.tar", {f"/{name}": data for name, data in files.items()})
    assert here.store.import_images(archive, options=KATA).images


def with_names(change: Callable[[str], str]) -> dict[str, bytes]:
    """A docker-archive whose manifest.json spells the names of its files in another way."""
    files = {f"x/{name}": data for name, data in saved_files(IMAGE, LAYERS, ["a:1"]).items()}
    (entry,) = json.loads(files.pop(f"x/{layout.DOCKER_MANIFEST}"))
    names = {"Config": change(f"x/{entry['Config']}"), "Layers": [change(f"x/{each}") for each in entry["Layers"]]}
    return {**files, layout.DOCKER_MANIFEST: json.dumps([{**entry, **names}]).encode()}


def test_absolute_names_in_manifest_json_are_the_archives(here: Node, tmp_path: Path) -> None:
    files = with_names(lambda name: f"/{name}")
    assert here.store.import_images(write(tmp_path / "a.tar", files), options=KATA).images
    with pytest.raises(DocumentError, match="has no file '/x/"):
        here.store.import_images(write(tmp_path / "folder", files), options=KATA)


@pytest.mark.parametrize("place", ["a.tar", "folder"])
def test_backslashes_in_manifest_json_separate_folders(here: Node, tmp_path: Path, place: str) -> None:
    files = with_names(lambda name: name.replace("/", "\\"))
    assert here.store.import_images(write(tmp_path / place, files), options=KATA).images


@pytest.mark.parametrize("name", ["..\\{}", "x\\..\\..\\{}", "\\{}", "\\\\host\\{}", "/../{}", "../{}"])
@pytest.mark.parametrize("place", ["a.tar", "folder"])
def test_what_leaves_the_archive_is_refused_however_it_is_spelled(
    here: Node, tmp_path: Path, place: str, name: str
) -> None:
    files = with_names(lambda each: name.format(each))
    refused(here, write(tmp_path / place, files), KATA, DocumentError, "has no file ")


def test_a_backslash_may_be_a_part_of_a_name(here: Node, tmp_path: Path) -> None:
    files = with_names(lambda name: name.replace("/", "\\"))
    renamed = {name.replace("/", "\\"): data for name, data in files.items()}
    assert here.store.import_images(write(tmp_path / "a.tar", renamed), options=KATA).images


FOREIGN = {
    "mediaType": "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip",
    "digest": "sha256:" + "f" * 64,
    "size": 5,
    "urls": ["https://user:word@layers.example/f"],
}


@pytest.mark.parametrize(
    "stub",
    [None, b"", END, tar_of({"x": b""}), gzip.compress(END, mtime=0)],
    ids=["none", "empty", "end", "tar", "gzip"],
)
def test_a_foreign_layer_that_was_left_out_is_named_with_its_address(
    here: Node, tmp_path: Path, stub: bytes | None
) -> None:
    files = saved_files(IMAGE, LAYERS, ["a:1"])
    (entry,) = json.loads(files[layout.DOCKER_MANIFEST])
    del files[entry["Layers"][0]]
    if stub is not None:
        files[entry["Layers"][0]] = stub
    entry["LayerSources"] = {str(LAYERS[0].diff_id): FOREIGN, "x": FOREIGN, str(LAYERS[1].diff_id): {"size": "x"}}
    files[layout.DOCKER_MANIFEST] = json.dumps([entry]).encode()
    archive = write(tmp_path / "a.tar", files)
    said = (
        f"foreign layer {FOREIGN['digest']} was left out by whoever wrote the archive; it is to be had at https://***@"
    )
    refused(here, archive, KATA, DocumentError, said)


@pytest.mark.parametrize("sources", [None, [], {"x": 1}, {"x": FOREIGN}])
def test_sources_of_layers_that_are_there_do_not_matter(here: Node, tmp_path: Path, sources: object) -> None:
    files = saved_files(IMAGE, LAYERS, ["a:1"])
    (entry,) = json.loads(files[layout.DOCKER_MANIFEST])
    files[layout.DOCKER_MANIFEST] = json.dumps([{**entry, "LayerSources": sources}]).encode()
    assert here.store.import_images(write(tmp_path / "a.tar", files), options=KATA).images


@pytest.mark.parametrize("stub", [None, b"stub"])
def test_a_foreign_layer_that_a_layout_lacks_is_named(here: Node, tmp_path: Path, stub: bytes | None) -> None:
    foreign = replace(LAYERS[0], urls=("https://layers.example/f",))
    files = layout_files({"a:1": build_image("linux/amd64", layers=[foreign])})
    name = layout.blob_name(foreign.digest)
    files = {**files, name: stub} if stub else {each: data for each, data in files.items() if each != name}
    kind = ContentNotFoundError if stub is None else DocumentError
    said = "was left out by whoever wrote the archive; it is to be had at https://layers.example/f"
    refused(here, write(tmp_path / "a.tar", files), KATA, kind, said)


@pytest.mark.parametrize("spelling", ["./{}", ".//{}", "././{}", "x/../{}", "./x/.././{}"])
def test_names_may_be_spelled_otherwise_in_either_place(here: Node, tmp_path: Path, spelling: str) -> None:
    files = saved_files(IMAGE, LAYERS, ["a:1"])
    (entry,) = json.loads(files[layout.DOCKER_MANIFEST])
    spelled = {**entry, "Config": spelling.format(entry["Config"])}
    spelled["Layers"] = [spelling.format(each) for each in entry["Layers"]]
    in_document = {**files, layout.DOCKER_MANIFEST: json.dumps([spelled]).encode()}
    in_archive = {spelling.format(name): data for name, data in files.items()}
    for number, made in enumerate((in_document, in_archive)):
        (found,) = here.store.import_images(write(tmp_path / f"{number}.tar", made), options=KATA).images
        assert found.id == IMAGE.manifests[0].config.digest


def test_a_schema_1_manifest_in_a_layout_is_named(here: Node, tmp_path: Path) -> None:
    old = json.dumps({"schemaVersion": 1, "fsLayers": []}).encode()
    entry = {"mediaType": media_types.DOCKER_SCHEMA1_SIGNED, "digest": str(Digest.of(old)), "size": len(old)}
    index = json.dumps({"schemaVersion": 2, "manifests": [entry]}).encode()
    files = {layout.MARK: layout.render_mark(), layout.INDEX: index, layout.blob_name(Digest.of(old)): old}
    with pytest.raises(ImageNotFoundError, match="holds no image") as caught:
        here.store.import_images(write(tmp_path / "a.tar", files), options=KATA)
    assert "schema 1 manifest" in caught.value.hint
