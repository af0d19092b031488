"""Images of docker-archives on their way into registries and layouts: layers in gzip, the image id as it was."""

from __future__ import annotations

import contextlib
import gzip
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from imagestore import CopyOptions, Digest, ImageStore, ImportOptions, config
from imagestore.errors import DigestMismatchError, IntegrityError
from imagestore.events import Event
from imagestore.oci import layout, media_types
from imagestore.registry import connect
from imagestore.testing import Image, Layer, build_image, layer
from tests.support.node import CONFIG, HOST
from tests.unit.store.archive.making import saved_files, tar_of, write

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

PLAIN: Final = [layer("base", compression="none"), layer("top", compression="none")]
IMAGE: Final = build_image("linux/amd64", layers=PLAIN, family="docker")
CONFIG_ID: Final = IMAGE.manifests[0].config.digest
KATA: Final = CopyOptions(("kata",))
NAME: Final = "registry.example/team/app:1"


class Registry(httpx.BaseTransport):
    """Takes what is pushed, and refuses types that Docker's readers don't have."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        self.manifests: dict[str, tuple[str, Any]] = {}
        self.sent = 0

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        name = request.url.path.rpartition("/")[2]
        if "/manifests/" in request.url.path and request.method == "PUT":
            self.manifests[name] = (request.headers["Content-Type"], json.loads(request.read()))
            return httpx.Response(201)
        if request.method == "POST":
            return httpx.Response(202, headers={"Location": "/v2/team/app/blobs/uploads/1"})
        if request.method == "PUT":
            self.blobs[request.url.params["digest"]] = request.read()
            self.sent += len(request.content)
            return httpx.Response(201)
        found = self.blobs.get(name)
        return (
            httpx.Response(404) if found is None else httpx.Response(200, headers={"Content-Length": str(len(found))})
        )


@contextlib.contextmanager
def opened(root: Path, registry: Registry) -> Iterator[ImageStore]:
    settings = config.loads(CONFIG, filename="config.toml", host=HOST)
    with connect(transport=registry) as client, ImageStore(root, config=settings, host=HOST, registry=client) as store:
        yield store


def archive(folder: Path, layers: list[Layer] = PLAIN, **changed: bytes) -> Path:
    files = saved_files(build_image("linux/amd64", layers=layers, family="docker"), layers, ["a:1"])
    names = iter([name for name in files if name.endswith("/layer.tar")])
    return write(folder / "saved.tar", tar_of(files | dict(zip(names, changed.values(), strict=False))))


def unpacked(registry: Registry, document: Mapping[str, Any]) -> list[bytes]:
    return [gzip.decompress(registry.blobs[each["digest"]]) for each in document["layers"]]


def tars(layers: list[Layer] = PLAIN) -> list[bytes]:
    return [b"".join(each.body.chunks()) for each in layers]


def test_plain_layers_are_sent_in_gzip(tmp_path: Path) -> None:
    registry = Registry()
    with opened(tmp_path / "root", registry) as store:
        for is_again in (False, True):
            before = registry.sent
            report = store.copy(f"docker-archive:{archive(tmp_path)}", NAME, options=KATA)
            assert (registry.sent == before) is is_again
    media_type, document = registry.manifests["1"]
    assert media_type == document["mediaType"] == media_types.DOCKER_MANIFEST
    assert {each["mediaType"] for each in document["layers"]} == {media_types.DOCKER_LAYER_GZIP}
    assert unpacked(registry, document) == tars()
    assert document["config"]["digest"] == str(CONFIG_ID)
    assert report.target.media_type == media_type
    assert list((tmp_path / "root" / "content").glob("tmp*")) == []


def test_an_imported_one_is_sent_so_too(tmp_path: Path) -> None:
    registry, events = Registry(), list[Event]()
    with opened(tmp_path / "root", registry) as store:
        (image,) = store.import_images(archive(tmp_path), options=ImportOptions(("kata",))).images
        report = store.push(image.reference, NAME, options=KATA, observer=events.append)
        direct = store.copy(f"docker-archive:{archive(tmp_path)}", NAME, options=KATA)
    assert report.target == direct.target != image.target
    assert f"the digest there is {report.target.digest}, not {image.target.digest}" in " ".join(map(str, events))


def test_an_imported_one_that_was_exported_is_sent_so_too(tmp_path: Path) -> None:
    registry, events = Registry(), list[Event]()
    exported = tmp_path / "exported.tar"
    with opened(tmp_path / "root", registry) as store:
        (image,) = store.import_images(archive(tmp_path), options=ImportOptions(("kata",))).images
        store.export_images([str(image.id)], exported)
        report = store.copy(f"oci-archive:{exported}", NAME, options=KATA, observer=events.append)
        direct = store.copy(f"docker-archive:{archive(tmp_path)}", NAME, options=KATA)
    assert report.target == direct.target != image.target
    assert f"the digest there is {report.target.digest}, not {image.target.digest}" in " ".join(map(str, events))


@pytest.mark.parametrize("form", ["oci", "oci-archive"])
def test_a_layout_gets_types_of_its_own(tmp_path: Path, form: str) -> None:
    place = f"{form}:{tmp_path / 'out'}"
    with opened(tmp_path / "root", Registry()) as store:
        store.copy(f"docker-archive:{archive(tmp_path)}", place, options=KATA)
        report = store.copy(place, "store:registry.example/b:1", options=KATA)
        image = store.get("registry.example/b:1", runtime_handler="kata")
        assert image.id == CONFIG_ID
        assert {each.media_type for each in image.layers} == {media_types.OCI_LAYER_GZIP}
    assert report.target.media_type == media_types.OCI_MANIFEST


def test_a_docker_archive_gets_it_as_it_is(tmp_path: Path) -> None:
    with opened(tmp_path / "root", Registry()) as store:
        report = store.copy(
            f"docker-archive:{archive(tmp_path)}", f"docker-archive:{tmp_path / 'out.tar'}", options=KATA
        )
    assert report.target.digest == Digest.of(layout.render_docker_manifest(IMAGE.manifests[0].config, [*plain()]))


def plain() -> Iterator[Any]:
    for each in IMAGE.manifests[0].layers:
        assert each.media_type == media_types.DOCKER_LAYER
        yield each


def test_zstd_makes_it_an_oci_manifest(tmp_path: Path) -> None:
    registry = Registry()
    with opened(tmp_path / "root", registry) as store:
        store.copy(f"docker-archive:{archive(tmp_path, base=zstd.compress(tars()[0]))}", NAME, options=KATA)
    media_type, document = registry.manifests["1"]
    assert media_type == document["mediaType"] == media_types.OCI_MANIFEST
    assert document["config"] == {**document["config"], "mediaType": media_types.OCI_CONFIG, "digest": str(CONFIG_ID)}
    assert [each["mediaType"] for each in document["layers"]] == [
        media_types.OCI_LAYER_ZSTD,
        media_types.OCI_LAYER_GZIP,
    ]


def pulled_like(root: Path, registry: Registry, image: Image, tmp_path: Path) -> Digest:
    """The digest that an image of a layout has in a registry after a copy into the store, and a push."""
    from tests.unit.store.archive.making import layout_files

    source = write(tmp_path / "in", layout_files({"registry.example/in:1": image}))
    with opened(root, registry) as store:
        store.copy(f"oci:{source}", "store:registry.example/in:1", options=KATA)
        return store.push("registry.example/in:1", NAME, options=KATA).target.digest


def test_what_has_a_manifest_of_its_own_keeps_its_digest(tmp_path: Path) -> None:
    registry = Registry()
    assert pulled_like(tmp_path / "root", registry, IMAGE, tmp_path) == IMAGE.manifests[0].descriptor.digest
    assert {each["mediaType"] for each in registry.manifests["1"][1]["layers"]} == {media_types.DOCKER_LAYER}


def test_a_digest_in_the_destination_is_kept_or_refused(tmp_path: Path) -> None:
    registry = Registry()
    with opened(tmp_path / "root", registry) as store:
        (image,) = store.import_images(archive(tmp_path), options=ImportOptions(("kata",))).images
        name = f"registry.example/team/app@{image.target.digest}"
        assert store.push(image.reference, name, options=KATA).target.digest == image.target.digest
        with pytest.raises(DigestMismatchError):
            store.push(image.reference, f"registry.example/team/app@{Digest.of(b'other')}", options=KATA)


def test_a_layer_that_is_not_its_diff_id_is_not_sent(tmp_path: Path) -> None:
    registry, other = Registry(), tars()[0]
    with opened(tmp_path / "root", registry) as store, pytest.raises(IntegrityError):
        store.copy(f"docker-archive:{archive(tmp_path, base=other[:-1] + b'!')}", NAME, options=KATA)
    assert registry.manifests == {}
