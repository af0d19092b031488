"""docker-archives: what 'docker save', skopeo and build tools write, and what they may not contain."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import sys
import tarfile
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from imagestore import CancelToken, Digest, ExportOptions, ImportOptions
from imagestore.errors import (
    DigestMismatchError,
    DocumentError,
    ImageStoreError,
    InvalidInputError,
    OperationCancelledError,
    SizeMismatchError,
)
from imagestore.events import Noticed
from imagestore.oci import ImageConfig, layout, media_types
from imagestore.store.archive.compressions import plain as unpacking
from imagestore.store.archive.contents import ArchiveFormat
from imagestore.testing import Image, Layer, build_artifact, build_image, build_index, layer
from imagestore.testing.builders.bodies import BytesBody
from imagestore.util.cancel import never_cancelled
from tests.support.node import PYTHON, Node, node, python_image, snapshot
from tests.unit.store.archive.making import END, layout_files, member, saved_files, tar_of, write

KATA = ImportOptions(("kata",))
if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

PLAIN = [layer("base", compression="none"), layer("top", compression="none")]
PACKED = [layer("base"), layer("top")]


def built(layers: list[Layer], **config: object) -> Image:
    return build_image("linux/amd64", layers=layers, family="docker", config=config)


def saved(layers: list[Layer], tags: list[str] | None = None, **config: object) -> dict[str, bytes]:
    return saved_files(built(layers, **config), layers, ["a:1"] if tags is None else tags)


def test_uncompressed_layers_stay_as_they_are(here: Node, tmp_path: Path) -> None:
    (image,) = here.store.import_images(write(tmp_path / "a.tar", saved(PLAIN)), options=KATA).images
    assert image.id == built(PLAIN).manifests[0].config.digest
    assert [each.digest for each in image.layers] == [each.diff_id for each in PLAIN] == list(image.config.diff_ids)
    assert {each.media_type for each in image.layers} == {media_types.DOCKER_LAYER}
    assert image.target.media_type == media_types.DOCKER_MANIFEST


def test_layers_in_gzip_stay_as_they_are(here: Node, tmp_path: Path) -> None:
    (image,) = here.store.import_images(write(tmp_path / "a.tar", saved(PACKED)), options=KATA).images
    assert [each.digest for each in image.layers] == [each.digest for each in PACKED]
    assert {each.media_type for each in image.layers} == {media_types.DOCKER_LAYER_GZIP}


def test_a_layer_that_images_share_is_unpacked_once(
    here: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unpacked: list[str] = []

    def counted(pieces: Iterator[bytes], *, what: str, check: Callable[[], None]) -> Generator[bytes]:
        unpacked.append(what)
        return unpacking(pieces, what=what, check=check)

    monkeypatch.setattr("imagestore.store.archive.docker_archive.plain", counted)
    files = saved(PACKED)
    entry = json.loads(files[layout.DOCKER_MANIFEST])[0]
    listed = [{**entry, "RepoTags": [f"a:{number}"]} for number in range(3)]
    files[layout.DOCKER_MANIFEST] = json.dumps(listed).encode()
    assert len(here.store.import_images(write(tmp_path / "a.tar", files), options=KATA).images) == 3
    assert len(unpacked) == len(PACKED)


def test_a_config_that_images_share_is_read_once(here: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven kilobytes of archive could name one of four mebibytes a thousand times."""
    parse = Mock(wraps=ImageConfig.parse)
    monkeypatch.setattr("imagestore.store.archive.docker_archive.ImageConfig", SimpleNamespace(parse=parse))
    files = saved(PLAIN)
    entry = json.loads(files[layout.DOCKER_MANIFEST])[0]
    listed = [{**entry, "RepoTags": [f"a:{number}"]} for number in range(3)]
    files[layout.DOCKER_MANIFEST] = json.dumps(listed).encode()
    assert len(here.store.import_images(write(tmp_path / "a.tar", files), options=KATA).images) == 3
    assert parse.call_count == 1


def test_reading_configs_ends_when_it_is_cancelled(here: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cancel, read = CancelToken(), list[bytes]()

    def parse(raw: bytes, *, what: str) -> ImageConfig:
        read.append(raw)
        cancel.cancel("enough")
        return ImageConfig.parse(raw, what=what)

    monkeypatch.setattr("imagestore.store.archive.docker_archive.ImageConfig", SimpleNamespace(parse=parse))
    files = saved([])
    entry = json.loads(files[layout.DOCKER_MANIFEST])[0]
    copies = {f"{number}.json": files[entry["Config"]] for number in range(3)}
    files |= copies
    files[layout.DOCKER_MANIFEST] = json.dumps([{**entry, "Config": name} for name in copies]).encode()
    with pytest.raises(OperationCancelledError, match="enough"):
        here.store.import_images(write(tmp_path / "a.tar", files), options=KATA, cancel=cancel)
    assert len(read) == 1


def test_empty_members_of_gzip_cost_what_they_are_long(tmp_path: Path) -> None:
    """Each costs a copy of what is fed behind it; so little is fed at a time."""
    empty, text = gzip.compress(b"", mtime=0), gzip.compress(b"text", mtime=0)
    piece = empty * 60_000 + text + b"\0" * 100
    fed = 0

    class Counting(bytes):
        def __getitem__(self, part: Any) -> Any:
            nonlocal fed
            found = super().__getitem__(part)
            fed = max(fed, len(found))
            return found

    pieces = iter([empty, Counting(piece), piece[:7], piece[7:]])
    assert b"".join(unpacking(pieces, what="test", check=never_cancelled)) == b"texttext"
    assert fed <= 64 * 1024


def test_a_tag_that_says_there_is_none_is_passed_over(here: Node, tmp_path: Path) -> None:
    archive = write(tmp_path / "a.tar", saved(PLAIN, ["a:1", "<none>:<none>", ""]))
    (image,) = here.store.import_images(archive, options=KATA).images
    assert image.reference == "docker.io/library/a:1"


def test_a_tag_that_is_no_reference_is_left_out_or_gives_way_to_another_name(here: Node, tmp_path: Path) -> None:
    (image,) = here.store.import_images(write(tmp_path / "a.tar", saved(PLAIN, ["a:1", "A b"])), options=KATA).images
    assert image.reference == "docker.io/library/a:1"
    archive = write(tmp_path / "b.tar", saved(PLAIN, ["A b"]))
    (image,) = here.store.import_images(archive, options=replace(KATA, name="b:1")).images
    assert image.reference == "docker.io/library/b:1"


def test_a_manifest_is_made_like_containerds(here: Node, tmp_path: Path) -> None:
    (image,) = here.store.import_images(write(tmp_path / "a.tar", saved(PLAIN)), options=KATA).images
    raw = image.manifest_document.raw
    assert raw.startswith(
        b'{"schemaVersion":2,"mediaType":"application/vnd.docker.distribution.manifest.v2+json",'
        b'"config":{"mediaType":"application/vnd.docker.container.image.v1+json","digest":"sha256:'
    )
    assert b" " not in raw


def test_every_tag_becomes_a_record(here: Node, tmp_path: Path) -> None:
    archive = write(tmp_path / "a.tar", saved(PLAIN, ["a:1", "registry.example/b:2"]))
    images = here.store.import_images(archive, options=KATA).images
    assert [image.reference for image in images] == ["docker.io/library/a:1", "registry.example/b:2"]


@pytest.mark.parametrize("tags", [[], None])
def test_an_image_without_tags_needs_a_name(here: Node, tmp_path: Path, tags: list[str] | None) -> None:
    files = saved_files(built(PLAIN), PLAIN, tags)
    archive = write(tmp_path / "a.tar", files)
    with pytest.raises(InvalidInputError, match="has no name") as caught:
        here.store.import_images(archive, options=KATA)
    assert "--name" in caught.value.hint
    assert here.store.import_images(archive, options=ImportOptions(("kata",), name="b:1")).images


def test_layers_may_be_links_inside_the_archive(here: Node, tmp_path: Path) -> None:
    files = saved([PLAIN[0], PLAIN[0]])
    first, second = json.loads(files[layout.DOCKER_MANIFEST])[0]["Layers"]
    del files[second]
    link = f"../{first}".encode()
    # A header's link field has 100 bytes, too few for this one; long links come in front, as GNU's tar writes them.
    data = member("././@LongLink", link + b"\0", b"K") + member(second, b"", b"2") + tar_of(files)
    (image,) = here.store.import_images(write(tmp_path / "a.tar", data), options=KATA).images
    assert [each.digest for each in image.layers] == [PLAIN[0].diff_id] * 2


def with_link(target: str) -> bytes:
    """A docker-archive whose only layer is a symbolic link."""
    files = saved(PLAIN[:1])
    name = json.loads(files[layout.DOCKER_MANIFEST])[0]["Layers"][0]
    del files[name]
    return member(name, b"", b"2", target.encode()) + tar_of(files)


def edited(**members: object) -> dict[str, bytes]:
    files = saved(PLAIN)
    image = {**json.loads(files[layout.DOCKER_MANIFEST])[0], **members}
    return {**files, layout.DOCKER_MANIFEST: json.dumps([image]).encode()}


def listed(raw: bytes) -> dict[str, bytes]:
    return {**saved(PLAIN), layout.DOCKER_MANIFEST: raw}


def renamed_config() -> dict[str, bytes]:
    files = saved(PLAIN)
    name = f"{'0' * 64}.json"
    image = json.loads(files[layout.DOCKER_MANIFEST])[0]
    files[name] = files.pop(image["Config"])
    return {**files, layout.DOCKER_MANIFEST: json.dumps([{**image, "Config": name}]).encode()}


def other_layer(layers: list[Layer], data: bytes) -> dict[str, bytes]:
    files = saved(layers)
    return {**files, json.loads(files[layout.DOCKER_MANIFEST])[0]["Layers"][0]: data}


HOSTILE: dict[str, tuple[dict[str, bytes] | bytes, type[ImageStoreError], str]] = {
    "no list": (listed(b"{}"), DocumentError, "expected a list of images"),
    "more than a list": (listed(b'[], "x": 1'), DocumentError, "expected a list of images"),
    "an empty list": (listed(b"[]"), DocumentError, "lists 0 images"),
    "too many": (listed(json.dumps([{}] * 1001).encode()), DocumentError, "lists 1001 images"),
    "entries that are no objects": (listed(b"[1]"), DocumentError, "$[0]: expected an object"),
    "too long": (listed(b" " * 4_194_305), DocumentError, "more than the 4194304 allowed"),
    "not UTF-8": (listed(b'["\xff"]'), DocumentError, "is not UTF-8"),
    "config twice by case": (edited(config="x"), DocumentError, "differs from a known member only by case"),
    "config missing": (edited(Config=None), DocumentError, "$[0].Config"),
    "layers no list": (edited(Layers="x"), DocumentError, "$[0].Layers"),
    "layers no texts": (edited(Layers=[1]), DocumentError, "$[0].Layers"),
    "too many layers": (edited(Layers=["x"] * 1001), DocumentError, "lists 1001 layers"),
    "fewer layers than diff ids": (edited(Layers=[]), DocumentError, "2 diff ids for 0 layers"),
    "a tag that is none": (edited(RepoTags=["A b"]), InvalidInputError, "a name for its image that is no reference: "),
    "a config elsewhere": (edited(Config="../../etc/passwd"), DocumentError, "has no file '../../etc/passwd'"),
    "an absolute layer": (edited(Layers=["/etc/passwd"] * 2), DocumentError, "has no file '/etc/passwd'"),
    "a config that is not what its name says": (renamed_config(), DigestMismatchError, "expected digest sha256:0000"),
    "a layer that is not its diff id": (
        other_layer(PLAIN, tar_of({"x": b"1"})),
        DigestMismatchError,
        "expected digest",
    ),
    "a layer in zstd": (other_layer(PLAIN, b"\x28\xb5\x2f\xfd" + b"\xff" * 99), DocumentError, "damaged zstd data"),
    "a packed layer that is not its diff id": (
        other_layer(PACKED, b"".join(PACKED[1].body.chunks())),
        DigestMismatchError,
        "uncompressed: expected digest",
    ),
    "a packed layer cut off": (
        other_layer(PACKED, b"".join(PACKED[0].body.chunks())[:-20]),
        DocumentError,
        "gzip data that is cut off",
    ),
    "a link to outside": (with_link("../../etc/passwd"), DocumentError, "has no file"),
    "an absolute link": (with_link("/etc/passwd"), DocumentError, "has no file"),
    "a link to itself": (with_link("layer.tar"), DocumentError, "has no file"),
    "a hard link to nothing": (
        member("manifest.json", b"", b"1", b"x") + tar_of({"a": b""}),
        DocumentError,
        "'manifest.json' is a hard link to 'x', which is no file before it",
    ),
    "an image manifest": (
        tar_of({layout.DOCKER_MANIFEST: built(PLAIN).documents[built(PLAIN).target.digest].data}),
        DocumentError,
        "is an image manifest, as 'skopeo copy ... dir:' writes it",
    ),
    "too many tags": (saved(PLAIN, [f"a:{number}" for number in range(10_001)]), DocumentError, "lists 10001 tags"),
    "a file twice": (
        tar_of(saved(PLAIN))[: -len(END)] + member(layout.DOCKER_MANIFEST, b"[]") + END,
        DocumentError,
        "occurs twice",
    ),
    "cut off": (tar_of(saved(PLAIN))[:2000], DocumentError, "is cut off"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_archives_are_refused_and_leave_nothing(here: Node, tmp_path: Path, case: str) -> None:
    data, kind, words = HOSTILE[case]
    before = snapshot(here.store.root)
    with pytest.raises(kind) as caught:
        here.store.import_images(write(tmp_path / "a.tar", data), options=KATA)
    assert words in str(caught.value)
    assert snapshot(here.store.root) == before
    assert list(here.store.list()) == []


def test_a_layout_wins_over_manifest_json(here: Node, tmp_path: Path) -> None:
    files = {**saved(PLAIN), **layout_files({"b:1": python_image()})}
    (image,) = here.store.import_images(write(tmp_path / "a.tar", files), options=KATA).images
    assert image.reference == "docker.io/library/b:1"


DOCKER = ExportOptions(("kata",), format=ArchiveFormat.DOCKER_ARCHIVE)


def test_export_unpacks_layers_and_keeps_the_image_id(here: Node, tmp_path: Path) -> None:
    image = here.store.pull(PYTHON, runtime_handler="kata")
    here.store.export_images([PYTHON], tmp_path / "a.tar", options=DOCKER)
    with node(tmp_path / "other") as other:
        (back,) = other.store.import_images(tmp_path / "a.tar", options=KATA).images
        assert (back.id, back.reference) == (image.id, image.reference)
        assert [each.digest for each in back.layers] == list(image.config.diff_ids)


def test_the_same_image_under_two_names_is_written_once(here: Node, tmp_path: Path) -> None:
    archive = write(tmp_path / "in.tar", saved([PLAIN[0], PACKED[1]], ["a:1", "b:1"]))
    images = here.store.import_images(archive, options=KATA).images
    here.store.export_images([each.reference for each in images], tmp_path / "out.tar", options=DOCKER)
    with node(tmp_path / "other") as other:
        back = other.store.import_images(tmp_path / "out.tar", options=KATA).images
        assert [each.reference for each in back] == [each.reference for each in images]
        assert {each.id for each in back} == {images[0].id}


def test_what_docker_can_not_hold_is_refused(here: Node, tmp_path: Path) -> None:
    artifact = build_artifact("application/x", {"f": b"data"})
    here.store.import_images(write(tmp_path / "in.tar", layout_files({"notes:1": artifact})))
    options = ExportOptions(format=ArchiveFormat.DOCKER_ARCHIVE)
    with pytest.raises(InvalidInputError, match="is an artifact"):
        here.store.export_images(["notes:1"], tmp_path / "a.tar", options=options)


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "zstd": zstd.compress,
    "zstd in two frames": lambda data: zstd.compress(data[:100]) + zstd.compress(data[100:]),
    "xz in two streams": lambda data: lzma.compress(data[:100]) + lzma.compress(data[100:]),
}


@pytest.mark.parametrize("form", PACKERS)
def test_compressed_layers_are_verified_and_kept_or_unpacked(here: Node, tmp_path: Path, form: str) -> None:
    pack = PACKERS[form]
    files = saved(PLAIN)
    names = json.loads(files[layout.DOCKER_MANIFEST])[0]["Layers"]
    plain = [files[name] for name in names]
    files |= {name: pack(files[name]) for name in names}
    (image,) = here.store.import_images(write(tmp_path / "a.tar", files), options=KATA).images
    assert image.id == built(PLAIN).manifests[0].config.digest
    kept = [path.read_bytes() for path in image.layer_paths]
    is_kept = form.startswith(("gzip", "zstd"))
    assert kept == ([files[name] for name in names] if is_kept else plain)
    suffix = {"gzip": media_types.DOCKER_LAYER_GZIP, "zstd": media_types.DOCKER_LAYER_ZSTD}
    assert {each.media_type for each in image.layers} == {suffix.get(form.split()[0], media_types.DOCKER_LAYER)}
    # What comes out again is what docker reads.
    here.store.export_images(["a:1"], tmp_path / "out.tar", options=DOCKER)
    with tarfile.open(tmp_path / "out.tar") as archive:
        (entry,) = json.load(archive.extractfile(layout.DOCKER_MANIFEST))  # type: ignore[arg-type]
        assert [archive.extractfile(name).read() for name in entry["Layers"]] == plain  # type: ignore[union-attr]


@pytest.mark.parametrize("form", PACKERS)
def test_compressed_archives_are_read_and_what_is_cut_off_stores_nothing(here: Node, tmp_path: Path, form: str) -> None:
    whole = PACKERS[form](tar_of(saved(PLAIN)))
    for cut in (1, 12, len(whole) // 2):
        with pytest.raises(DocumentError):
            here.store.import_images(write(tmp_path / "cut.tar", whole[:-cut]), options=KATA)
        assert list(here.store.list()) == []
    (image,) = here.store.import_images(write(tmp_path / "a.tar", whole), options=KATA).images
    assert image.id == built(PLAIN).manifests[0].config.digest


@pytest.mark.parametrize("form", ["bzip2", "xz"])
def test_a_layer_of_any_compression_is_exported_without_it(here: Node, tmp_path: Path, form: str) -> None:
    """Whatever its type says of it."""
    plain = b"".join(PLAIN[0].body.chunks())
    packed = PACKERS[form](plain)
    mislabelled = replace(PLAIN[0], body=BytesBody(packed), digest=Digest.of(packed), compression="gzip")
    image = build_image("linux/amd64", layers=[mislabelled])
    here.store.import_images(write(tmp_path / "a.tar", layout_files({"a:1": image})), options=KATA)
    here.store.export_images(["a:1"], tmp_path / "out.tar", options=DOCKER)
    with tarfile.open(tmp_path / "out.tar") as archive:
        assert archive.extractfile(f"{PLAIN[0].diff_id.encoded}.tar").read() == plain  # type: ignore[union-attr]


@pytest.mark.parametrize("form", ["gzip", "bzip2", "xz", "zstd"])
def test_what_is_unpacked_comes_in_bounded_pieces(form: str) -> None:
    packed = PACKERS[form](bytes(12 << 20))
    sizes = [len(piece) for piece in unpacking(iter([packed]), what="test", check=never_cancelled)]
    assert sum(sizes) == 12 << 20
    assert max(sizes) <= 1 << 20


def test_xz_that_needs_much_memory_is_refused() -> None:
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 1 << 29}]
    packed = lzma.compress(b"x", filters=filters)
    with pytest.raises(DocumentError, match="xz data with a window of more than 134217728 bytes"):
        list(unpacking(iter([packed]), what="test", check=never_cancelled))


def test_images_that_share_members_written_twice_are_imported(here: Node, tmp_path: Path) -> None:
    """As go-containerregistry's tools write several images into one archive."""
    first, second = saved([PLAIN[0]], ["a:1"]), saved([PLAIN[0]], ["a:2"])
    entries = [json.loads(each.pop(layout.DOCKER_MANIFEST))[0] for each in (first, second)]
    members = [*first.items(), *second.items(), (layout.DOCKER_MANIFEST, json.dumps(entries).encode())]
    report = here.store.import_images(write(tmp_path / "a.tar", tar_of(members)), options=KATA)
    assert [image.reference.rpartition("/")[2] for image in report.images] == ["a:1", "a:2"]


@pytest.mark.parametrize("manifests", [None, []])
def test_a_layout_that_lists_nothing_leaves_the_word_to_manifest_json(
    here: Node, tmp_path: Path, manifests: list[object] | None
) -> None:
    """As docker save 25.0.0 wrote an image without a name."""
    index = json.dumps({"schemaVersion": 2, "manifests": manifests}).encode()
    files = {**saved(PLAIN), layout.MARK: layout.render_mark(), layout.INDEX: index}
    (image,) = here.store.import_images(write(tmp_path / "a.tar", files), options=KATA).images
    assert image.id == built(PLAIN).manifests[0].config.digest


def test_where_a_layout_is_damaged_its_manifest_json_counts(here: Node, tmp_path: Path) -> None:
    broken = layout_files({"a:1": build_image("linux/amd64", layers=PLAIN)})
    broken[layout.blob_name(PLAIN[0].digest)] = b"cut short"
    archive = write(tmp_path / "a.tar", {**broken, **saved(PLAIN)})
    (image,) = here.store.import_images(archive, options=KATA, observer=here.events.append).images
    assert image.id == built(PLAIN).manifests[0].config.digest
    assert any(isinstance(event, Noticed) and "imported by manifest.json" in event.message for event in here.events)


def test_layers_that_are_not_their_diff_ids_are_not_exported(here: Node, tmp_path: Path) -> None:
    image = build_image(
        "linux/amd64",
        layers=[layer("x")],
        config={"rootfs": {"type": "layers", "diff_ids": [str(Digest.of(b"other"))]}},
    )
    here.store.import_images(write(tmp_path / "in.tar", layout_files({"x:1": image})), options=KATA)
    with pytest.raises(DigestMismatchError, match="uncompressed"):
        here.store.export_images(["x:1"], tmp_path / "a.tar", options=DOCKER)
    assert not (tmp_path / "a.tar").exists()


def test_several_manifests_of_one_name_do_not_fit(here: Node, tmp_path: Path) -> None:
    here.store.import_images(
        write(tmp_path / "in.tar", layout_files({PYTHON: build_index(["linux/amd64", "linux/arm64"])})),
        options=ImportOptions(("kata",), all_platforms=True),
    )
    options = ExportOptions(("kata",), all_platforms=True, format=ArchiveFormat.DOCKER_ARCHIVE)
    with pytest.raises(InvalidInputError, match="has 2 contents, and a name can lead to one"):
        here.store.export_images([PYTHON], tmp_path / "a.tar", options=options)


def test_content_damaged_at_rest_is_not_exported(here: Node, tmp_path: Path) -> None:
    image = here.store.pull(PYTHON, runtime_handler="kata")
    image.layer_paths[0].chmod(0o644)
    image.layer_paths[0].write_bytes(image.layer_paths[0].read_bytes()[:-8])
    with pytest.raises((SizeMismatchError, DocumentError)):
        here.store.export_images([PYTHON], tmp_path / "a.tar", options=DOCKER)
    assert list(tmp_path.glob("a.tar*")) == []
