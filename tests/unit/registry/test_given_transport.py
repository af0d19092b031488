"""A store whose registry is answered by a transport of httpx that was given, as its testing page says."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
import respx

from imagestore import Digest, ImageStore
from imagestore.errors import DocumentError, ProtocolError
from imagestore.registry.client_factory import connect
from imagestore.testing import Registry, build_image

IMAGE = build_image()
REFERENCE = "registry.example/team/app:1"


def handler(request: httpx.Request) -> httpx.Response:
    """A registry of one image."""
    kind, _, name = request.url.path.removeprefix("/v2/team/app/").partition("/")
    if kind == "manifests":
        found = IMAGE.documents[IMAGE.target.digest]
        return httpx.Response(200, headers={"Content-Type": IMAGE.target.media_type}, content=found.data)
    return httpx.Response(200, content=b"".join(IMAGE.blobs[Digest.parse(name)].chunks()))


def mock() -> httpx.BaseTransport:
    return httpx.MockTransport(handler)


def routed() -> httpx.BaseTransport:
    router = respx.MockRouter()
    router.route(host="registry.example").mock(side_effect=handler)
    return httpx.MockTransport(router.handler)


def recorded() -> httpx.BaseTransport:
    return Registry({REFERENCE: IMAGE}).transport


@pytest.mark.parametrize("make", [mock, routed, recorded])
def test_a_store_pulls_from_the_transport_that_was_given(
    tmp_path: Path, make: Callable[[], httpx.BaseTransport]
) -> None:
    with connect(transport=make()) as registry, ImageStore(tmp_path, registry=registry) as store:
        assert store.pull(REFERENCE, platform="linux/amd64").target == IMAGE.target


@pytest.mark.parametrize(
    "content_type",
    [
        "application/json",
        "application/octet-stream",
        "application/vnd.oci.image.index.v1+json",
        "image/png",
        "text/html",
    ],
)
def test_of_a_blob_only_digest_and_size_count(tmp_path: Path, content_type: str) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        response = handler(request)
        if "/blobs/" in request.url.path:
            response.headers["Content-Type"] = content_type
        return response

    with connect(transport=httpx.MockTransport(answer)) as registry, ImageStore(tmp_path, registry=registry) as store:
        assert store.pull(REFERENCE, platform="linux/amd64").target == IMAGE.target


@pytest.mark.parametrize(
    "content_type",
    [
        "application/gzip",
        "application/vnd.oci.image.config.v1+json",
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.oci.image.manifest.v2+json",
        "application/xml",
        "image/png",
        "text/html",
    ],
)
@pytest.mark.parametrize("name", [REFERENCE, f"registry.example/team/app@{IMAGE.target.digest}"])
def test_a_manifest_under_another_type_is_refused(tmp_path: Path, content_type: str, name: str) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        response = handler(request)
        if "/manifests/" in request.url.path:
            response.headers["Content-Type"] = content_type
        return response

    with (
        connect(transport=httpx.MockTransport(answer)) as registry,
        ImageStore(tmp_path, registry=registry) as store,
        pytest.raises((ProtocolError, DocumentError), match=re.escape(content_type)),
    ):
        store.pull(name, platform="linux/amd64")
