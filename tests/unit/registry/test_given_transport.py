"""A store whose registry is answered by a transport of httpx that was given, as its testing page says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
import respx

from imagestore import Digest, ImageStore
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
