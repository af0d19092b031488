"""Laws of archives: what goes out comes back, and no bytes make the reader fail in a way of its own."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from imagestore import CancelToken, ExportOptions, ImportOptions
from imagestore.errors import DocumentError, ImageStoreError
from imagestore.store.archive import docker_archive, tar
from imagestore.store.archive.contents import ArchiveFormat
from imagestore.store.archive.exporting import ExportShape
from imagestore.testing import Image, build_image, build_index, layer
from imagestore.testing.builders.layers import Family
from tests.support.node import Node, node
from tests.unit.store.archive.making import layout_files, member, tar_of, write

PLATFORMS = ("linux/amd64", "linux/arm64", "linux/arm/v7", "windows(10.0.17763.1)/amd64", "windows(10.0.20348.9)/amd64")
NAME = "registry.example/round/trip:1"
EVERY = ImportOptions(all_handlers=True)


@dataclass(frozen=True)
class Recipe:
    """How to build an image; short to print, unlike the image.

    Attributes:
        family: of all documents.
        parts: platform, algorithm of the manifest's digest, and which shared layers it has.
        is_single: one manifest without an index, when there is one part.
    """

    family: Family
    parts: tuple[tuple[str, str, tuple[int, ...]], ...]
    is_single: bool

    def build(self) -> Image:
        """The image; some of the shared layers are not compressed."""
        pool = [layer("0"), layer("1", compression="none"), layer("2")]
        built = [
            build_image(
                platform,
                layers=[layer(f"own {platform}"), *(pool[number] for number in shared)],
                family=self.family,
                algorithm=algorithm,
            )
            for platform, algorithm, shared in self.parts
        ]
        return built[0] if self.is_single and len(built) == 1 else build_index(built, family=self.family)


FAMILIES: tuple[Family, ...] = ("oci", "docker")
PARTS = st.tuples(
    st.sampled_from(PLATFORMS),
    st.sampled_from(["sha256", "sha512"]),
    st.lists(st.integers(0, 2), max_size=2, unique=True).map(tuple),
)
RECIPES = st.builds(
    Recipe,
    st.sampled_from(FAMILIES),
    st.lists(PARTS, min_size=1, max_size=4, unique_by=lambda part: part[0]).map(tuple),
    st.booleans(),
)


def held(here: Node) -> dict[str, tuple[str, str, tuple[str, ...]]]:
    """Target, manifest and diff ids by handler."""
    return {
        image.runtime_handler: (
            str(image.target.digest),
            str(image.manifest.digest),
            tuple(map(str, image.config.diff_ids)),
        )
        for image in here.store.list()
    }


@settings(max_examples=20)
@given(recipe=RECIPES, form=st.sampled_from([ArchiveFormat.OCI_ARCHIVE, ArchiveFormat.OCI_FOLDER]))
def test_what_is_exported_for_all_handlers_comes_back(recipe: Recipe, form: ArchiveFormat) -> None:
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        archive = write(folder / "in.tar", layout_files({NAME: recipe.build()}))
        with node(folder / "one") as one, node(folder / "two") as two:
            try:
                one.store.import_images(archive, options=EVERY)
            except ImageStoreError:
                assert held(one) == {}
                return
            options = ExportOptions(all_handlers=True, format=form)
            one.store.export_images([NAME], folder / "out", options=options)
            two.store.import_images(folder / "out", options=EVERY)
            assert held(two) == held(one)
            content = [{info.digest for info in each.store.content.walk()} for each in (one, two)]
            assert content[0] == content[1]


@settings(max_examples=10)
@given(recipe=RECIPES, shape=st.sampled_from(ExportShape), form=st.sampled_from(ArchiveFormat))
def test_an_archive_written_twice_has_the_same_image(recipe: Recipe, shape: ExportShape, form: ArchiveFormat) -> None:
    with tempfile.TemporaryDirectory() as text, node(Path(text) / "store") as here:
        folder = Path(text)
        archive = write(folder / "in.tar", layout_files({NAME: recipe.build()}))
        try:
            handler = here.store.import_images(archive, options=EVERY).images[0].runtime_handler
        except ImageStoreError:
            return
        options = ExportOptions((handler,), format=form, shape=shape)
        here.store.export_images([NAME], folder / "first", options=options)
        before = held(here)[handler]
        here.store.remove(NAME, all_handlers=True)
        here.store.collect_garbage()
        here.store.import_images(folder / "first", options=ImportOptions((handler,)))
        assert held(here)[handler][2] == before[2]
        here.store.export_images([NAME], folder / "second", options=options)
        if form is not ArchiveFormat.OCI_FOLDER:
            assert (folder / "first").read_bytes() == (folder / "second").read_bytes()


@given(st.data())
def test_a_tar_with_any_bytes_changed_is_read_or_refused(data: st.DataObject) -> None:
    whole = bytearray(tar_of({"a": b"1", "b/c": b"2" * 600}) + member("d", b"3"))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(whole[: data.draw(st.integers(1, len(whole)))])
    try:
        table = tar.scan(lambda offset, size: cut[offset : offset + size], "x", CancelToken())
    except DocumentError:
        return
    for name, span in table.files.items():
        assert tar.clean(name) == name
        assert 0 <= span.offset <= span.offset + span.size <= len(cut)


@given(st.binary(max_size=60) | st.text(alphabet='[]{}":,ConfigLayers1', max_size=60).map(str.encode))
def test_any_manifest_json_is_read_or_refused(raw: bytes) -> None:
    try:
        found = docker_archive.parse(raw, "x")
    except DocumentError:
        return
    assert all(isinstance(image.config, str) for image in found)
