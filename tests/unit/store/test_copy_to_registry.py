"""What a copy into a repository writes, and in which order."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any, Final

import httpx

from imagestore import CancelToken, CopyOptions, Descriptor, Digest, Reference
from imagestore.oci import media_types
from imagestore.registry import connect
from imagestore.registry.blobs import Transfer
from imagestore.store.archive.index_survey import ExportedImage, survey
from imagestore.store.copy.registry_target import RegistryTarget
from imagestore.store.copy.sources import CopySource
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

    def manifest(self, architecture: str, layer_type: str = media_types.OCI_LAYER) -> dict[str, Any]:
        platform = {"os": "linux", "architecture": architecture}
        config = self.add({**platform, "rootfs": {"type": "layers", "diff_ids": []}}, media_types.OCI_CONFIG)
        document = {"schemaVersion": 2, "config": config, "layers": [self.add(LAYER, layer_type)]}
        return {**self.add(document, media_types.OCI_MANIFEST), "platform": platform}

    def index(self, *entries: dict[str, Any]) -> dict[str, Any]:
        return self.add({"schemaVersion": 2, "manifests": list(entries)}, media_types.OCI_INDEX)

    def document(self, reference: Reference, descriptor: Descriptor, *, cancel: CancelToken) -> bytes:
        return self.content[descriptor.digest]

    def blob(
        self, reference: Reference, descriptor: Descriptor, *, offset: int, avoid: Collection[str], cancel: CancelToken
    ) -> Transfer:
        return Bytes([self.content[descriptor.digest]])


def written(source: Source, target: dict[str, Any], name: str = "registry.example/app:1") -> list[str]:
    """Paths of what a copy of all platforms put into a registry, in order."""
    log: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        if request.method == "HEAD":
            return httpx.Response(404)
        if request.method == "POST":
            return httpx.Response(202, headers={"Location": "/v2/app/blobs/uploads/one"})
        request.read()
        log.append(request.url.params.get("digest") or request.url.path.rpartition("/")[2])
        return httpx.Response(201)

    token = CancelToken()
    documents = Documents(None, source, NAME, token)
    root = Descriptor(target["mediaType"], Digest.parse(target["digest"]), target["size"])
    found = tuple(survey(root, documents, lambda wanted: [each.digest for each in wanted]))
    image = ExportedImage(NAME, root, found, (), ())
    options = CopyOptions(has_all_platforms=True)
    with connect(transport=httpx.MockTransport(answer)) as client:
        copy = RegistryTarget(client, Reference.parse(name), options, lambda event: None, token)
        copy.run(CopySource(image, documents, source))
    return log


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


def test_a_foreign_layer_stays() -> None:
    source = Source()
    assert str(Digest.of(LAYER)) not in written(source, source.index(source.manifest("amd64", FOREIGN)))


def test_a_name_with_tag_and_digest_gets_the_tag() -> None:
    source = Source()
    target = source.index(source.manifest("amd64"))
    assert written(source, target, f"registry.example/app:new@{target['digest']}")[-1] == "new"
    assert written(source, target, f"registry.example/app@{target['digest']}")[-1] == target["digest"]
