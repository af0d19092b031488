"""Exporting: which manifests go along, the bytes they make, and what a failure leaves behind."""

from __future__ import annotations

import fcntl
import json
import os
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from imagestore import CancelToken, Digest, ExportOptions, ImportOptions
from imagestore.errors import (
    AlreadyExistsError,
    ContentNotFoundError,
    DigestMismatchError,
    ImageNotFoundError,
    ImageStoreError,
    InvalidInputError,
    NoMatchingManifestError,
    OperationCancelledError,
    PreconditionError,
    UnknownRuntimeHandlerError,
)
from imagestore.events import BlobAdvanced
from imagestore.oci import Index, layout, rendering
from imagestore.oci.media_types import OCI_INDEX, OCI_MANIFEST
from imagestore.store.archive.contents import ArchiveFormat
from imagestore.store.archive.exporting import ExportShape
from imagestore.testing import Entry, build_artifact, build_image, build_index
from tests.support.node import HYPERV, PLATFORMS, PROCESS, PYTHON, Node, node, python_image
from tests.support.strangers import refuse_to_follow
from tests.support.syncs import noted_syncs
from tests.unit.store.archive.making import layout_files, write

FOLDER = ExportOptions(format=ArchiveFormat.OCI_FOLDER)


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Node]:
    with node(tmp_path / "store") as opened:
        for handler in (PROCESS, HYPERV, "kata"):
            opened.store.pull(PYTHON, runtime_handler=handler)
        yield opened


def members(path: Path) -> dict[str, bytes]:
    with tarfile.open(path, "r:") as archive:
        return {each.name: archive.extractfile(each).read() for each in archive if each.isfile()}  # type: ignore[union-attr]


def index_of(path: Path) -> list[dict[str, Any]]:
    return json.loads(members(path)[layout.INDEX])["manifests"]  # type: ignore[no-any-return]


def test_a_handlers_image_takes_its_manifest_and_the_whole_index(here: Node, tmp_path: Path) -> None:
    report = here.store.export_images([PYTHON], tmp_path / "a.tar", options=ExportOptions(("kata",)))
    image = here.store.get(PYTHON, runtime_handler="kata")
    (entry,) = index_of(tmp_path / "a.tar")
    assert entry["digest"] == str(image.target.digest)
    assert entry["annotations"] == {
        "imagestore.present-platforms": "linux/amd64",
        "io.containerd.image.name": PYTHON,
        "org.opencontainers.image.ref.name": "3",
    }
    blobs = [*image.record.roots, image.id, *(each.digest for each in image.layers)]
    names = {*map(layout.blob_name, blobs), layout.MARK, layout.INDEX, layout.DOCKER_MANIFEST}
    assert set(members(tmp_path / "a.tar")) == names
    (one,) = report.images
    assert (one.platforms, one.left_out) == (("linux/amd64",), PLATFORMS[1:])
    assert report.size == (tmp_path / "a.tar").stat().st_size


def test_the_manifest_alone_carries_its_platform(here: Node, tmp_path: Path) -> None:
    options = ExportOptions((HYPERV,), shape=ExportShape.MANIFEST)
    here.store.export_images([PYTHON], tmp_path / "a.tar", options=options)
    (entry,) = index_of(tmp_path / "a.tar")
    assert entry["digest"] == str(here.store.get(PYTHON, runtime_handler=HYPERV).manifest.digest)
    assert entry["platform"] == {"architecture": "amd64", "os": "windows", "os.version": "10.0.17763.4851"}
    assert str(python_image().target.digest.encoded) not in str(members(tmp_path / "a.tar").keys())


def test_what_is_known_of_an_entry_is_written_whole() -> None:
    """Who reads the archive can't choose by what index.json doesn't say of a platform."""
    platform = {"architecture": "arm", "os": "linux", "os.version": "1.2", "os.features": ["x"], "variant": "v6"}
    members = {
        "mediaType": OCI_MANIFEST,
        "digest": str(Digest.of(b"{}")),
        "size": 2,
        "annotations": {"a": "1", "b": "2"},
        "platform": platform,
        "artifactType": "application/vnd.example",
        "data": "e30=",
    }
    raw = rendering.render({"schemaVersion": 2, "manifests": [members]})
    (entry,) = Index.parse(raw, media_type=OCI_INDEX, what="index").manifests
    assert rendering.render_descriptor(entry) == members


def test_several_handlers_share_one_index(here: Node, tmp_path: Path) -> None:
    options = ExportOptions(all_handlers=True)
    (image,) = here.store.export_images([PYTHON], tmp_path / "a.tar", options=options).images
    assert image.platforms == (PLATFORMS[0], PLATFORMS[2], PLATFORMS[3])
    with node(tmp_path / "other") as other:
        back = other.store.import_images(tmp_path / "a.tar", options=ImportOptions(all_handlers=True)).images
        assert {(each.runtime_handler, each.id) for each in back} == {
            (each.runtime_handler, each.id) for each in here.store.list()
        }


def test_several_handlers_without_their_index_need_several_names(here: Node, tmp_path: Path) -> None:
    options = ExportOptions(all_handlers=True, shape=ExportShape.MANIFEST)
    with pytest.raises(InvalidInputError, match="has 3 contents, and a name can lead to one"):
        here.store.export_images([PYTHON], tmp_path / "a.tar", options=options)


def test_a_platform_is_found_whichever_handler_pulled_it(here: Node, tmp_path: Path) -> None:
    options = ExportOptions(platform="linux/amd64")
    (image,) = here.store.export_images([PYTHON], tmp_path / "a.tar", options=options).images
    assert image.platforms == ("linux/amd64",)
    with pytest.raises(NoMatchingManifestError) as caught:
        here.store.export_images([PYTHON], tmp_path / "a.tar", options=ExportOptions(platform="linux/arm64"))
    assert "linux/amd64" in caught.value.offered


def test_all_platforms_are_those_that_the_store_has_whole(tmp_path: Path) -> None:
    image = build_index([*PLATFORMS, Entry(build_index(["linux/s390x"]))], attestations=True)
    archive = write(tmp_path / "in.tar", layout_files({"a:1": image}))
    every = ImportOptions(("kata",), all_platforms=True)
    with node(tmp_path / "store") as here, node(tmp_path / "other") as other:
        here.store.import_images(archive, options=every)
        options = ExportOptions(all_platforms=True)
        (found,) = here.store.export_images(["a:1"], tmp_path / "a.tar", options=options).images
        assert found.left_out == ()
        blobs = {*image.documents, *image.blobs}
        assert {name for name in members(tmp_path / "a.tar") if "/" in name} == set(map(layout.blob_name, blobs))
        other.store.import_images(tmp_path / "a.tar", options=every)
        assert {info.digest for info in other.store.content.walk()} == blobs


def test_the_same_images_give_the_same_bytes(here: Node, tmp_path: Path) -> None:
    other = build_index(PLATFORMS, seed="other")
    here.store.import_images(write(tmp_path / "in.tar", layout_files({"other:1": other})))
    for form in (ArchiveFormat.OCI_ARCHIVE, ArchiveFormat.DOCKER_ARCHIVE):
        options = ExportOptions(format=form)
        here.store.export_images([PYTHON, "other:1"], tmp_path / "1.tar", options=options)
        os.utime(here.store.get(PYTHON).layer_paths[0], (1, 1))
        here.store.export_images(["other:1", PYTHON, PYTHON], tmp_path / "2.tar", options=options)
        assert (tmp_path / "1.tar").read_bytes() == (tmp_path / "2.tar").read_bytes()


def test_members_are_sorted_and_anonymous(here: Node, tmp_path: Path) -> None:
    here.store.export_images([PYTHON], tmp_path / "a.tar")
    with tarfile.open(tmp_path / "a.tar", "r:") as archive:
        found = archive.getmembers()
    assert [each.name for each in found] == sorted(each.name for each in found)
    assert {(each.mtime, each.uid, each.gid, each.uname, each.gname) for each in found} == {(0, 0, 0, "", "")}
    modes = {each.name: each.mode for each in found}
    assert (modes["blobs"], modes[layout.INDEX], modes["oci-layout"]) == (0o755, 0o644, 0o644)
    assert {mode for name, mode in modes.items() if name.count("/") == 2} == {0o444}


def test_manifest_json_has_the_familiar_name(tmp_path: Path) -> None:
    name = "docker.io/library/python:3"
    with node(tmp_path / "store", {name: python_image()}) as here:
        image = here.store.pull(name, runtime_handler="kata")
        here.store.export_images([name], tmp_path / "a.tar", options=ExportOptions(("kata",)))
    (saved,) = json.loads(members(tmp_path / "a.tar")[layout.DOCKER_MANIFEST])
    assert saved == {
        "Config": layout.blob_name(image.id),
        "RepoTags": ["python:3"],
        "Layers": [layout.blob_name(each.digest) for each in image.layers],
    }


def test_a_name_with_a_digest_has_no_tag_for_docker(tmp_path: Path) -> None:
    name = f"registry.example/library/python@{python_image().target.digest}"
    with node(tmp_path / "store") as here:
        here.store.pull(name)
        here.store.export_images([name], tmp_path / "a.tar")
        (entry,) = index_of(tmp_path / "a.tar")
        assert entry["annotations"][layout.REF_KEY] == entry["annotations"][layout.NAME_KEY] == name
        assert json.loads(members(tmp_path / "a.tar")[layout.DOCKER_MANIFEST])[0]["RepoTags"] == []
        (back,) = here.store.import_images(tmp_path / "a.tar").images
        assert back.reference == name


def test_artifacts_are_nothing_to_docker(tmp_path: Path) -> None:
    notes = "registry.example/notes:1"
    with node(tmp_path / "store", {notes: build_artifact("application/x", {"f": b"data"})}) as here:
        here.store.pull(notes)
        here.store.export_images([notes], tmp_path / "a.tar")
    assert layout.DOCKER_MANIFEST not in members(tmp_path / "a.tar")


def test_a_folder_has_the_same_files_as_the_archive(here: Node, tmp_path: Path) -> None:
    here.store.export_images([PYTHON], tmp_path / "a.tar")
    here.store.export_images([PYTHON], tmp_path / "layout", options=FOLDER)
    folder = tmp_path / "layout"
    files = {str(each.relative_to(folder)): each.read_bytes() for each in folder.rglob("*") if each.is_file()}
    assert files == members(tmp_path / "a.tar")


def test_a_folder_has_its_name_when_all_of_it_outlasts_a_loss_of_power(
    here: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its name it is complete."""
    synced, rename = noted_syncs(monkeypatch), os.rename
    before: set[tuple[str, ...]] = set()

    def noted(old: str, new: str, **folders: int) -> None:
        if new == "out":
            partial = str(tmp_path / old)
            before.update(Path(path).relative_to(partial).parts for path in synced if path.startswith(partial))
        rename(old, new, **folders)

    monkeypatch.setattr(os, "rename", noted)
    here.store.export_images([PYTHON], tmp_path / "out", options=FOLDER)
    assert {(), ("blobs",), ("blobs", "sha256"), ("index.json",)} <= before


@pytest.mark.parametrize("place", ["metadata.db", "content", "content/blobs/new.tar", "new.tar", "link/metadata.db"])
@pytest.mark.parametrize("form", [ArchiveFormat.OCI_ARCHIVE, ArchiveFormat.OCI_FOLDER])
def test_an_export_over_the_stores_own_files_is_refused(
    here: Node, tmp_path: Path, place: str, form: ArchiveFormat
) -> None:
    (here.store.root / "link").symlink_to(here.store.root)
    (tmp_path / "outside").symlink_to(here.store.root)
    for path in (here.store.root / place, tmp_path / "outside" / place):
        with pytest.raises(InvalidInputError, match="is inside the store") as caught:
            here.store.export_images([PYTHON], path, options=ExportOptions(format=form))
        assert "outside the store's folder" in caught.value.hint
    assert here.store.get(PYTHON).layers
    (here.store.root / "link").unlink()


@pytest.mark.parametrize("form", [ArchiveFormat.OCI_ARCHIVE, ArchiveFormat.DOCKER_ARCHIVE])
@pytest.mark.parametrize("is_linked", [False, True])
def test_a_second_name_of_a_blob_s_file_is_replaced_and_the_blob_stays(
    here: Node, tmp_path: Path, form: ArchiveFormat, is_linked: bool
) -> None:
    for digest in (each.digest for each in here.store.get(PYTHON).layers):
        blob, second = here.store.content.path(digest), tmp_path / digest.encoded
        whole = blob.read_bytes()
        second.hardlink_to(blob)
        (tmp_path / "link").unlink(missing_ok=True)
        (tmp_path / "link").symlink_to(second)
        target = tmp_path / "link" if is_linked else second
        here.store.export_images([PYTHON], target, options=ExportOptions(format=form))
        assert (blob.read_bytes(), blob.stat().st_nlink) == (whole, 1)
        assert second.stat().st_size > len(whole)
    assert here.store.check().faults == ()


def test_a_link_to_an_empty_folder_stays_a_link(here: Node, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    here.store.export_images([PYTHON], tmp_path / "link", options=FOLDER)
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real" / layout.INDEX).is_file()


@pytest.mark.parametrize("is_folder", [False, True])
@pytest.mark.parametrize("has_target", [False, True])
def test_a_link_that_the_kernel_does_not_follow_is_not_followed_by_name(
    here: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_folder: bool, has_target: bool
) -> None:
    """Root exports into /tmp, and a stranger was there first: an open() would be refused."""
    target = tmp_path / "precious"
    if has_target:
        target.mkdir() if is_folder else target.write_text("precious")
    (tmp_path / "out").symlink_to(target)
    refuse_to_follow(monkeypatch, tmp_path / "out")
    with pytest.raises(InvalidInputError, match="out: can't be written: Permission denied"):
        here.store.export_images([PYTHON], tmp_path / "out", options=FOLDER if is_folder else ExportOptions())
    assert target.exists() is has_target
    if has_target:
        assert os.listdir(target) == [] if is_folder else target.read_text() == "precious"


def test_a_folder_with_something_in_it_is_left_alone(here: Node, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("mine")
    (tmp_path / "empty").mkdir()
    with pytest.raises(AlreadyExistsError, match="is there already"):
        here.store.export_images([PYTHON], tmp_path / "full", options=FOLDER)
    here.store.export_images([PYTHON], tmp_path / "empty", options=FOLDER)
    assert [each.name for each in (tmp_path / "full").iterdir()] == ["mine"]
    assert (tmp_path / "empty" / layout.INDEX).is_file()


@pytest.mark.parametrize(
    ("names", "options", "kind"),
    [
        (["nothing:1"], ExportOptions(), ImageNotFoundError),
        (["nothing:1"], ExportOptions(all_handlers=True), ImageNotFoundError),
        ([PYTHON, "nothing:1"], ExportOptions(), ImageNotFoundError),
    ],
)
def test_what_is_not_in_the_store_is_named(
    here: Node, tmp_path: Path, names: list[str], options: ExportOptions, kind: type[ImageStoreError]
) -> None:
    with pytest.raises(kind, match="is not in the store"):
        here.store.export_images(names, tmp_path / "a.tar", options=options)
    assert not (tmp_path / "a.tar").exists()


def test_an_id_means_all_names_of_the_image_for_a_handler(here: Node, tmp_path: Path) -> None:
    image = here.store.get(PYTHON, runtime_handler="kata")
    report = here.store.export_images([str(image.id)], tmp_path / "a.tar", options=ExportOptions(("kata",)))
    assert [str(each.reference) for each in report.images] == [PYTHON]


@pytest.mark.parametrize(
    "options", [ExportOptions(("kata",)), ExportOptions(("kata",), format=ArchiveFormat.OCI_FOLDER)]
)
def test_damage_is_noticed_and_no_archive_appears(here: Node, tmp_path: Path, options: ExportOptions) -> None:
    path = here.store.get(PYTHON, runtime_handler="kata").layer_paths[0]
    path.chmod(0o644)
    path.write_bytes(bytes(path.stat().st_size))
    (tmp_path / "out").mkdir()
    with pytest.raises(DigestMismatchError, match="layer sha256:"):
        here.store.export_images([PYTHON], tmp_path / "out" / "a", options=options)
    assert list((tmp_path / "out").iterdir()) == []
    assert list(here.store.metadata.leases.find()) == []


def test_missing_content_is_named_and_the_old_file_stays(here: Node, tmp_path: Path) -> None:
    here.store.get(PYTHON, runtime_handler="kata").layer_paths[-1].unlink()
    (tmp_path / "a.tar").write_text("old")
    with pytest.raises(ContentNotFoundError, match="linux/amd64 lacks content sha256:") as caught:
        here.store.export_images([PYTHON], tmp_path / "a.tar", options=ExportOptions(("kata",)))
    assert caught.value.hint == "pull the image again"
    assert (tmp_path / "a.tar").read_text() == "old"
    here.store.export_images([PYTHON], tmp_path / "a.tar", options=ExportOptions((HYPERV,)))
    assert layout.INDEX in members(tmp_path / "a.tar")


def test_a_cancelled_export_leaves_no_file(here: Node, tmp_path: Path) -> None:
    token = CancelToken()
    (tmp_path / "out").mkdir()
    with pytest.raises(OperationCancelledError):
        here.store.export_images(
            [PYTHON], tmp_path / "out" / "a.tar", observer=lambda event: token.cancel(), cancel=token
        )
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("form", [ArchiveFormat.OCI_ARCHIVE, ArchiveFormat.OCI_FOLDER])
def test_what_a_killed_export_left_goes_with_the_next_one(here: Node, tmp_path: Path, form: ArchiveFormat) -> None:
    target = tmp_path / "a"
    names = [f"{target.name}.{number:012x}.partial" for number in range(5)]
    dead, young, locked, folder = (tmp_path / name for name in names[:4])
    other = tmp_path / f"another-{target.name}.{0:012x}.partial"
    for path in (dead, young, locked, other):
        path.write_text("left")
    (folder / "blobs").mkdir(parents=True)
    for path in (dead, locked, folder, other):
        os.utime(path, (1, 1))
    with locked.open() as writer:
        fcntl.flock(writer, fcntl.LOCK_EX)
        seen: list[set[str]] = []

        def hear(_event: object) -> None:
            writing = {path for path in tmp_path.iterdir() if path.name.endswith(".partial")}
            seen.append({path.name for path in writing if is_locked(path)})

        here.store.export_images([PYTHON], target, options=ExportOptions(format=form), observer=hear)
    assert {path for path in (dead, young, locked, folder, other) if path.exists()} == {young, locked, other}
    assert target.exists()
    assert any(len(names) == 2 for names in seen)


def is_locked(path: Path) -> bool:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def test_an_interrupt_at_the_very_end_stays_an_interrupt(
    here: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = os.rename

    def interrupted(source: str, target: str, **folders: int) -> None:
        rename(source, target, **folders)
        if source.endswith(".partial"):
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        here.store.export_images([PYTHON], tmp_path / "a.tar")
    assert [path.name for path in tmp_path.glob("a.tar*")] == ["a.tar"]


def test_content_is_leased_while_it_is_copied(here: Node, tmp_path: Path) -> None:
    def remove_everything(event: object) -> None:
        if isinstance(event, BlobAdvanced):
            here.store.remove(PYTHON, all_handlers=True)
            here.store.collect_garbage()

    here.store.export_images([PYTHON], tmp_path / "a.tar", observer=remove_everything)
    with node(tmp_path / "other") as other:
        assert other.store.import_images(tmp_path / "a.tar").images
    here.store.collect_garbage()
    assert list(here.store.content.walk()) == []


def test_a_place_that_can_not_be_written_is_named(here: Node, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"none/a\.tar: can't be written: No such file or directory"):
        here.store.export_images([PYTHON], tmp_path / "none" / "a.tar")
    with pytest.raises(InvalidInputError, match="can't be written: Is a directory"):
        here.store.export_images([PYTHON], tmp_path)
    # The archive's disk is full, the store isn't.
    with pytest.raises(PreconditionError, match="can't be written: No space left") as caught:
        here.store.export_images([PYTHON], "/dev/full")
    assert "free space there" in caught.value.hint


@pytest.mark.parametrize("path", ["", "a\0b"])
@pytest.mark.parametrize("options", [ExportOptions(), FOLDER])
def test_what_is_no_path_is_refused(here: Node, path: str, options: ExportOptions) -> None:
    with pytest.raises(InvalidInputError, match="is no path"):
        here.store.export_images([PYTHON], path, options=options)
    with pytest.raises(InvalidInputError, match="is no path"):
        here.store.import_images(path)


def test_pipes_are_written_directly(here: Node, tmp_path: Path) -> None:
    reader, writer = os.pipe()
    received: list[bytes] = []

    def receive() -> None:
        with os.fdopen(reader, "rb") as pipe:
            received.append(pipe.read())

    receiver = threading.Thread(target=receive)
    receiver.start()
    here.store.export_images([PYTHON], f"/dev/fd/{writer}")
    os.close(writer)
    receiver.join()
    here.store.export_images([PYTHON], tmp_path / "a.tar")
    assert Digest.of(received[0]) == Digest.of((tmp_path / "a.tar").read_bytes())


def test_one_name_with_two_indexes_can_not_be_one_entry(here: Node, tmp_path: Path) -> None:
    moved = layout_files({PYTHON: build_index(PLATFORMS, seed="moved")})
    options = ImportOptions(("kata",), replace=True)
    here.store.import_images(write(tmp_path / "in.tar", moved), options=options)
    with pytest.raises(InvalidInputError, match="has 2 contents"):
        here.store.export_images([PYTHON], tmp_path / "a.tar", options=ExportOptions(all_handlers=True))


def test_a_single_manifest_goes_as_it_is(tmp_path: Path) -> None:
    image = build_image("linux/amd64", family="docker")
    with node(tmp_path / "store", {PYTHON: image}) as here:
        here.store.pull(PYTHON, runtime_handler="kata")
        report = here.store.export_images([PYTHON], tmp_path / "a.tar", options=ExportOptions(("kata",)))
    (entry,) = index_of(tmp_path / "a.tar")
    assert (entry["digest"], entry["mediaType"]) == (str(image.target.digest), image.target.media_type)
    assert report.images[0].left_out == ()


def test_a_handler_without_the_image_is_named(here: Node, tmp_path: Path) -> None:
    here.store.remove(PYTHON, runtime_handler="kata")
    with pytest.raises(ImageNotFoundError, match="not in the store under runtime handler 'kata'"):
        here.store.export_images([PYTHON], tmp_path / "a.tar", options=ExportOptions(("kata",)))


def test_an_unknown_handler_is_refused(here: Node, tmp_path: Path) -> None:
    with pytest.raises(UnknownRuntimeHandlerError, match="'other'"):
        here.store.export_images([PYTHON], tmp_path / "a.tar", options=ExportOptions(("other",)))
    assert not (tmp_path / "a.tar").exists()
