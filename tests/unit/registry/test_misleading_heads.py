"""Registries whose HEAD says something else than their GET: the bytes decide, and a digest that was asked for stays."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from imagestore.digest import Digest
from imagestore.errors import IntegrityError
from imagestore.testing import build_image
from tests.unit.registry.pitfall_bench import REFERENCE, Bench

IMAGE = build_image()


class LyingHead(httpx.BaseTransport):
    """Changes one field of every answer to a HEAD."""

    def __init__(self, inner: httpx.BaseTransport, name: str, value: str) -> None:
        self.inner, self.name, self.value = inner, name, value

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        answer = self.inner.handle_request(request)
        if request.method == "HEAD":
            answer.headers[self.name] = self.value
        return answer


def bench(folder: Path, name: str, value: str) -> Bench:
    plain = Bench(folder / "plain", {REFERENCE: IMAGE})
    with plain:
        inner = plain.registry.transport
    return Bench(folder, transport=LyingHead(inner, name, value))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Content-Length", "7"),
        ("Content-Length", str(IMAGE.target.size + 1)),
        ("Docker-Content-Digest", str(Digest.of(b"other"))),
    ],
)
def test_a_tag_is_read_from_the_body_when_its_head_misleads(tmp_path: Path, name: str, value: str) -> None:
    with bench(tmp_path, name, value) as here:
        assert here.pull().target == IMAGE.target


def test_a_pinned_digest_with_another_size_is_no_reason_to_believe_the_body(tmp_path: Path) -> None:
    with bench(tmp_path, "Content-Length", "7") as here, pytest.raises(IntegrityError):
        here.pull(f"{REFERENCE}@{IMAGE.target.digest}")
