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


class LyingAnswers(httpx.BaseTransport):
    """Changes one field of every answer to a method."""

    def __init__(self, inner: httpx.BaseTransport, method: str, name: str, value: str) -> None:
        self.inner, self.method, self.name, self.value = inner, method, name, value
        self.asked: list[tuple[str, str]] = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.asked.append((request.method, request.url.path.rpartition("/")[2]))
        answer = self.inner.handle_request(request)
        if request.method == self.method:
            answer.headers[self.name] = self.value
        return answer


def bench(folder: Path, name: str, value: str, method: str = "HEAD") -> Bench:
    plain = Bench(folder / "plain", {REFERENCE: IMAGE})
    with plain:
        inner = plain.registry.transport
    return Bench(folder, transport=LyingAnswers(inner, method, name, value))


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
        for _ in range(2):
            assert here.pull().target == IMAGE.target


def test_a_tags_body_that_is_not_what_its_answer_says_is_asked_for_again_by_digest(tmp_path: Path) -> None:
    with bench(tmp_path, "Docker-Content-Digest", str(Digest.of(b"other")), "GET") as here:
        assert here.pull().target == IMAGE.target
        assert isinstance(here.transport, LyingAnswers)
        assert here.transport.asked[:3] == [("GET", "1"), ("HEAD", "1"), ("GET", str(IMAGE.target.digest))]


def test_a_tag_whose_answer_names_another_algorithm_keeps_that_digest(tmp_path: Path) -> None:
    raw = IMAGE.documents[IMAGE.target.digest].data
    with bench(tmp_path, "Docker-Content-Digest", str(Digest.of(raw, "sha512")), "GET") as here:
        assert here.pull().target.digest == Digest.of(raw, "sha512")


def test_a_tags_body_without_an_announced_digest_is_not_believed_alone(tmp_path: Path) -> None:
    """It may have been cut short where its end is the connection's."""
    with bench(tmp_path, "Docker-Content-Digest", "", "GET") as here:
        assert here.pull().target == IMAGE.target
        assert isinstance(here.transport, LyingAnswers)
        assert ("GET", str(IMAGE.target.digest)) in here.transport.asked


def test_a_pinned_digest_with_another_size_is_no_reason_to_believe_the_body(tmp_path: Path) -> None:
    with bench(tmp_path, "Content-Length", "7") as here, pytest.raises(IntegrityError):
        here.pull(f"{REFERENCE}@{IMAGE.target.digest}")


def test_damage_under_the_digest_that_a_head_announces_is_not_explained_away_by_the_body(tmp_path: Path) -> None:
    other = build_image(seed="other")
    plain = Bench(tmp_path / "plain", {REFERENCE: IMAGE, REFERENCE.rpartition(":")[0] + ":2": other})
    with plain:
        inner = plain.registry.transport
    lying = LyingAnswers(inner, "HEAD", "Docker-Content-Digest", str(other.target.digest))
    with Bench(tmp_path, transport=LyingAnswers(lying, "HEAD", "Content-Length", "7")) as here:
        assert here.pull().target == IMAGE.target
        # Now that there is a record, a HEAD is asked first.
        with pytest.raises(IntegrityError):
            here.pull()
