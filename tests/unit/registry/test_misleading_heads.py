"""Registries whose HEAD says something else than their GET: the bytes decide, and a digest that was asked for stays."""

from __future__ import annotations

import itertools
from pathlib import Path

import httpx
import pytest

from imagestore import CancelToken, Digest, ImageStore, TransferPolicy
from imagestore.testing import FaultRule, RegistryServer, Where, build_image
from imagestore.testing.faults import Effect
from imagestore.testing.faults.bodies import Reset, SlowHead
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


def test_a_tags_body_that_is_not_what_its_answer_says_is_confirmed_by_digest(tmp_path: Path) -> None:
    with bench(tmp_path, "Docker-Content-Digest", str(Digest.of(b"other")), "GET") as here:
        assert here.pull().target == IMAGE.target
        assert isinstance(here.transport, LyingAnswers)
        assert here.transport.asked[:2] == [("GET", "1"), ("GET", str(IMAGE.target.digest))]


def test_a_tag_whose_answer_names_another_algorithm_keeps_that_digest(tmp_path: Path) -> None:
    raw = IMAGE.documents[IMAGE.target.digest].data
    with bench(tmp_path, "Docker-Content-Digest", str(Digest.of(raw, "sha512")), "GET") as here:
        assert here.pull().target.digest == Digest.of(raw, "sha512")


def test_a_tags_body_without_an_announced_digest_is_taken(tmp_path: Path) -> None:
    with bench(tmp_path, "Docker-Content-Digest", "", "GET") as here:
        assert here.pull().target == IMAGE.target
        assert isinstance(here.transport, LyingAnswers)
        assert ("GET", str(IMAGE.target.digest)) not in here.transport.asked


@pytest.mark.parametrize(
    ("name", "value"), [("Content-Length", "7"), ("Docker-Content-Digest", str(Digest.of(b"other")))]
)
def test_a_pinned_digest_is_pulled_whatever_its_head_says(tmp_path: Path, name: str, value: str) -> None:
    with bench(tmp_path, name, value) as here:
        for _ in range(2):
            assert here.pull(f"{REFERENCE}@{IMAGE.target.digest}").target == IMAGE.target


@pytest.mark.parametrize("act", ["match", "plan", "pull"])
@pytest.mark.parametrize("times", [1, 2])
def test_every_way_to_resolve_a_tag_asks_with_get_where_head_fails(tmp_path: Path, act: str, times: int) -> None:
    class NoHead(LyingAnswers):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            answer = super().handle_request(request)
            return httpx.Response(503, headers={"Retry-After": "300"}) if request.method == "HEAD" else answer

    plain = Bench(tmp_path / "plain", {REFERENCE: IMAGE})
    with plain:
        inner = plain.registry.transport
    with Bench(tmp_path, transport=NoHead(inner, "", "", "")) as here:
        if times > 1:
            here.pull()
        if act == "match":
            (selection,) = here.store.match(REFERENCE).values()
            assert selection.chosen is not None
        elif act == "plan":
            (plan,) = here.store.plan([(REFERENCE, "")])
            assert plan.is_current is (times > 1)
        else:
            assert here.pull().target == IMAGE.target


@pytest.mark.parametrize("how", [SlowHead(120.0), Reset(before_head=True)], ids=["silent", "reset"])
def test_a_head_that_is_never_answered_is_followed_by_a_get(tmp_path: Path, how: Effect) -> None:
    fault = FaultRule(how, Where(method="HEAD"), times=0)
    policy = TransferPolicy(head_seconds=0.2)
    with (
        RegistryServer({REFERENCE: IMAGE}, faults=[fault]) as server,
        ImageStore(tmp_path / "store", transfer=policy) as store,
    ):
        name = f"{server.address}/team/app:1"
        for _ in range(2):
            pulled = store.pull(name, platform="linux/amd64", cancel=CancelToken(60))
            assert pulled.target == IMAGE.target
        tags = [each.method for each in server.ledger.entries if each.path.endswith("/manifests/1")]
        # A kept connection that breaks may have been stale, so the HEAD is sent on a new one too.
        assert [method for method, _ in itertools.groupby(tags)] == ["GET", "HEAD", "GET"]
