"""A mirror that has something else under a blob's name: the registry is asked."""

from __future__ import annotations

import gzip
from pathlib import Path

import httpx
import pytest

from imagestore import ImageStore, config
from imagestore.registry import connect
from imagestore.testing import Registry, build_image, layer
from tests.support.node import HOST

NAME = "registry.example/team/app:1"
IMAGE = build_image("linux/amd64", layers=[layer("one"), layer("two")])
PAGE = b"<html>please log in</html>"


@pytest.mark.parametrize("coding", ["", "gzip"])
@pytest.mark.parametrize(
    "body",
    [PAGE, PAGE * 10_000, gzip.compress(PAGE), gzip.compress(PAGE * 10_000), gzip.compress(PAGE)[:12] + bytes(99)],
    ids=["short", "long", "gzip-short", "gzip-long", "gzip-damaged"],
)
def test_what_a_mirror_sends_without_a_length_instead_of_a_blob_is_had_from_the_registry(
    tmp_path: Path, body: bytes, coding: str
) -> None:
    folder = tmp_path / "certs" / "registry.example"
    folder.mkdir(parents=True)
    folder.joinpath("hosts.toml").write_text('[host."https://mirror.example"]\ncapabilities = ["pull"]\n')
    registry = Registry({NAME: IMAGE})

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.host != "mirror.example":
            return registry.transport.handle_request(request)
        if "/manifests/" in request.url.path:
            return httpx.Response(404)
        return httpx.Response(200, headers={"Content-Encoding": coding} if coding else {}, content=iter([body]))

    text = f'version = 3\n[plugins."io.containerd.cri.v1.images".registry]\nconfig_path = "{tmp_path / "certs"}"\n'
    settings = config.loads(text, filename="config.toml", host=HOST)
    with (
        connect(config=settings, transport=httpx.MockTransport(answer)) as client,
        ImageStore(tmp_path / "store", config=settings, host=HOST, registry=client) as store,
    ):
        image = store.pull(NAME)
        assert [path.stat().st_size for path in image.layer_paths] == [each.size for each in image.layers]
