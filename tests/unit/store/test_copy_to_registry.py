"""What a copy into a repository writes, and in which order."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any, Final

import httpx
import pytest

from imagestore import CancelToken, CopyOptions, Descriptor, Digest, Reference
from imagestore.errors import ReferenceNotFoundError
from imagestore.events import Event
from imagestore.oci import media_types
from imagestore.registry import Transfer, connect
from imagestore.store.archive.index_survey import ExportedImage, survey
from imagestore.store.copy.registry_target import RegistryTarget
from imagestore.store.image_source import ImageSource
from imagestore.store.pull.sources import Documents
from imagestore.util.files import StreamReader

NAME: Final = Reference.parse("source.example/app:1")
LAYER: Final = b"layer"
FOREIGN: Final = "application/vnd.oci.image.layer.nondistributable.v1.tar"


class Bytes(StreamReader):
    """One blob."""

    start, hosts = 0, ()

    def __enter__(self) -> Bytes:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class Source:
    """Documents and blobs in memory."""

    def __init__(self) -> None:
        self.content: dict[Digest, bytes] = {}

    def add(self, data: bytes | dict[str, Any], media_type: str) -> dict[str, Any]:
        raw = data if isinstance(data, bytes) else json.dumps(data).encode()
        self.content[Digest.of(raw)] = raw
        return {"mediaType": media_type, "digest": str(Digest.of(raw)), "size": len(raw)}

    def manifest(self, architecture: str, layer_type: str = media_types.OCI_LAYER, **layer: Any) -> dict[str, Any]:
        platform = {"os": "linux", "architecture": architecture}
        config = self.add({**platform, "rootfs": {"type": "layers", "diff_ids": []}}, media_types.OCI_CONFIG)
        document = {"schemaVersion": 2, "config": config, "layers": [self.add(LAYER, layer_type) | layer]}
        return {**self.add(document, media_types.OCI_MANIFEST), "platform": platform}

    def index(self, *entries: dict[str, Any]) -> dict[str, Any]:
        return self.add({"schemaVersion": 2, "manifests": list(entries)}, media_types.OCI_INDEX)

    def document(self, reference: Reference, descriptor: Descriptor, *, cancel: CancelToken) -> bytes:
        return self.content[descriptor.digest]

    def blob(
        self, reference: Reference, descriptor: Descriptor, *, offset: int, avoid: Collection[str], cancel: CancelToken
    ) -> Transfer:
        return Bytes([self.content[descriptor.digest]])


class Registry:
    """A registry whose log has the paths of what was put into it, in order, and that answers as a test says."""

    def __init__(self, *answers: httpx.Response) -> None:
        self.answers = [*answers]
        self.log: list[str] = []
        self.heads = 0

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.method == "HEAD":
            self.heads += 1
            return httpx.Response(404)
        if request.method == "POST":
            return httpx.Response(202, headers={"Location": "/v2/app/blobs/uploads/one"})
        if request.method == "GET":
            return httpx.Response(404)
        request.read()
        self.log.append(request.url.params.get("digest") or request.url.path.rpartition("/")[2])
        is_manifest = "/manifests/" in request.url.path
        return self.answers.pop(0) if is_manifest and self.answers else httpx.Response(201)


ALL: Final = CopyOptions(all_platforms=True)


def copied(
    source: Source,
    target: dict[str, Any],
    registry: Registry,
    name: str = "registry.example/app:1",
    *,
    options: CopyOptions = ALL,
) -> list[Event]:
    """Copy all platforms; what was told meanwhile."""
    token = CancelToken()
    documents = Documents(None, source, NAME, token)
    root = Descriptor(target["mediaType"], Digest.parse(target["digest"]), target["size"])
    found = tuple(survey(root, documents, lambda wanted: [each.digest for each in wanted]))
    image = ExportedImage(NAME, root, found)
    events = list[Event]()
    with connect(transport=httpx.MockTransport(registry)) as client:
        copy = RegistryTarget(client, Reference.parse(name), options, events.append, token)
        copy.write(image, ImageSource(NAME, source, documents), ())
    return events


def written(source: Source, target: dict[str, Any], name: str = "registry.example/app:1") -> list[str]:
    """Paths of what a copy of all platforms put into a registry, in order."""
    registry = Registry()
    copied(source, target, registry, name)
    return registry.log


def test_indexes_come_after_all_that_they_list() -> None:
    source = Source()
    lower = source.index(source.manifest("arm64"))
    upper = source.index(source.manifest("amd64"), lower)
    log = written(source, source.index(upper))
    assert log.index(lower["digest"]) < log.index(upper["digest"]) < log.index("1")


def test_a_layer_that_is_foreign_to_one_manifest_goes_along_for_another() -> None:
    source = Source()
    log = written(source, source.index(source.manifest("arm64"), source.manifest("amd64", FOREIGN)))
    assert str(Digest.of(LAYER)) in log


ADDRESS: Final = "https://layers.example/1"
DOCKER_FOREIGN: Final = (media_types.DOCKER_FOREIGN_LAYER, media_types.DOCKER_FOREIGN_TAR)


@pytest.mark.parametrize("urls", [[ADDRESS], ["", ADDRESS], ["HTTP://layers.example/1"]])
@pytest.mark.parametrize("layer_type", [FOREIGN, f"{FOREIGN}+zstd", *DOCKER_FOREIGN])
def test_a_foreign_layer_stays_at_its_address(layer_type: str, urls: list[str]) -> None:
    source, registry = Source(), Registry()
    target = source.index(source.manifest("amd64", layer_type, urls=urls))
    assert str(Digest.of(LAYER)) not in written(source, target)
    copied(source, target, registry, options=CopyOptions(all_platforms=True, with_foreign_layers=True))
    assert str(Digest.of(LAYER)) in registry.log


@pytest.mark.parametrize("layer", [{}, {"urls": None}, {"urls": []}, {"urls": [""]}, {"urls": ["file:///x", "https:"]}])
@pytest.mark.parametrize("layer_type", [FOREIGN, f"{FOREIGN}+zstd", *DOCKER_FOREIGN])
def test_a_foreign_layer_without_an_address_goes_along(layer_type: str, layer: dict[str, Any]) -> None:
    source, registry = Source(), Registry()
    events = copied(source, source.index(source.manifest("amd64", layer_type, **layer)), registry)
    assert str(Digest.of(LAYER)) in registry.log
    assert "address" not in " ".join(map(str, events))


def test_a_foreign_layer_that_is_nowhere_is_an_error() -> None:
    source = Source()
    target = source.index(source.manifest("amd64", FOREIGN))

    class Without(Source):
        def blob(self, reference: Reference, descriptor: Descriptor, **given: Any) -> Transfer:
            if descriptor.digest == Digest.of(LAYER):
                raise ReferenceNotFoundError(f"{descriptor.digest}: isn't there")
            return super().blob(reference, descriptor, **given)

    other = Without()
    other.content = source.content
    with pytest.raises(ReferenceNotFoundError) as caught:
        written(other, target)
    assert "foreign layer whose descriptor has no address" in caught.value.hint


def test_an_index_that_is_listed_twice_goes_once() -> None:
    source = Source()
    shared = source.index(source.manifest("arm64"))
    upper = source.index(source.manifest("amd64"), shared)
    log = written(source, source.index(shared, source.index(upper, source.index(upper, shared)), shared))
    assert len(log) == len(set(log))
    assert log.index(shared["digest"]) < log.index(upper["digest"]) < log.index("1")


@pytest.mark.parametrize("code", ["BLOB_UNKNOWN", "MANIFEST_BLOB_UNKNOWN"])
@pytest.mark.parametrize("status", [400, 404])
def test_a_blob_that_the_registry_lost_is_looked_for_again(status: int, code: str) -> None:
    source, registry = Source(), Registry(httpx.Response(status, json={"errors": [{"code": code}]}))
    manifest = source.manifest("amd64")
    copied(source, source.index(manifest), registry)
    counts = [registry.log.count(each) for each in (str(Digest.of(LAYER)), manifest["digest"], "1")]
    assert counts == [2, 2, 1]


def test_a_blob_that_stays_unknown_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("imagestore.store.copy.registry_target._PAUSES", (0.0, 0.0))
    source = Source()
    registry = Registry(*(httpx.Response(404, json={"errors": [{"code": "BLOB_UNKNOWN"}]}) for _ in range(9)))
    manifest = source.manifest("amd64")
    with pytest.raises(ReferenceNotFoundError, match="BLOB_UNKNOWN"):
        copied(source, source.index(manifest), registry)
    assert registry.log.count(manifest["digest"]) == 3


def test_a_name_with_tag_and_digest_gets_the_tag() -> None:
    source = Source()
    target = source.index(source.manifest("amd64"))
    assert written(source, target, f"registry.example/app:new@{target['digest']}")[-1] == "new"
    assert written(source, target, f"registry.example/app@{target['digest']}")[-1] == target["digest"]
