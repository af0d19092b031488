"""The list under a subject's fallback tag: no referrer is lost, whatever others do to it at the same time."""

from __future__ import annotations

import contextlib
import gzip
import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

import httpx
import pytest

from imagestore import CancelToken, Descriptor, Digest, Reference
from imagestore.errors import DocumentError, OperationCancelledError, RegistryUnavailableError
from imagestore.oci.media_types import OCI_INDEX, OCI_MANIFEST
from imagestore.oci.referrers import fallback_tag
from imagestore.registry import connect
from imagestore.registry.client import RegistryClient
from imagestore.registry.retry import Timing

TARGET: Final = Reference.parse("registry.example/team/app:1")
SUBJECT: Final = Digest.of(b"subject")
TAG: Final = fallback_tag(SUBJECT)


def nothing(_: Registry) -> None:
    pass


@dataclass
class Registry(httpx.BaseTransport):
    """A registry without referrers API.

    Attributes:
        manifests: bodies by tag or digest.
        kind: content type of what is under the fallback tag.
        before_read, after_write: called for the fallback tag.
        failures: statuses of the next writes of the tag.
        packs: answers come compressed.
    """

    manifests: dict[str, bytes] = field(default_factory=dict)
    kind: str = OCI_INDEX
    before_read: Callable[[Registry], None] = nothing
    after_write: Callable[[Registry], None] = nothing
    failures: list[int] = field(default_factory=list)
    packs: bool = False
    log: list[str] = field(default_factory=list)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        name = request.url.path.rpartition("/")[2]
        self.log.append(f"{request.method} {'tag' if name == TAG else 'digest'}")
        if request.method == "GET":
            found = self.manifests.get(name)
            self.before_read(self)
            if found is None:
                return httpx.Response(404)
            headers = {"Content-Type": self.kind} | ({"Content-Encoding": "gzip"} if self.packs else {})
            return httpx.Response(
                200, stream=httpx.ByteStream(gzip.compress(found) if self.packs else found), headers=headers
            )
        if name == TAG and self.failures:
            return httpx.Response(self.failures.pop(0))
        self.manifests[name] = request.read()
        if name == TAG:
            self.after_write(self)
        return httpx.Response(201)

    def write(self, *names: str, **members: Any) -> None:
        """Another client's index under the tag."""
        listed = [{"mediaType": OCI_MANIFEST, "digest": str(Digest.of(referrer(name))), "size": 9} for name in names]
        self.manifests[TAG] = json.dumps({"schemaVersion": 2, "manifests": listed, **members}).encode()

    @property
    def listed(self) -> list[str]:
        """The digests in the list."""
        return [each["digest"] for each in json.loads(self.manifests[TAG])["manifests"]]


def referrer(name: str) -> bytes:
    return json.dumps({"artifactType": f"a/{name}", "config": {}}).encode()


def digests(*names: str) -> list[str]:
    return [str(Digest.of(referrer(name))) for name in names]


def client_of(registry: Registry) -> RegistryClient:
    return connect(transport=registry, timing=Timing(sleep=lambda cancel, seconds: cancel.check(), random=lambda: 0.0))


def push(registry: Registry, name: str, cancel: CancelToken | None = None) -> None:
    raw = referrer(name)
    with client_of(registry) as client:
        writer = client.writer(TARGET, cancel=cancel or CancelToken())
        writer.manifest(Descriptor(OCI_MANIFEST, Digest.of(raw), len(raw)), raw, subject=SUBJECT)


def test_threads_that_push_at_the_same_time_lose_no_referrer() -> None:
    # Threads that read without a lock meet here, and all have read the same list.
    meeting, names = threading.Barrier(4), ["a", "b", "c", "d"]

    def meet(_: Registry) -> None:
        with contextlib.suppress(threading.BrokenBarrierError):
            meeting.wait(0.1)

    registry = Registry(before_read=meet)
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda name: push(registry, name), names))
    assert sorted(registry.listed) == sorted(digests(*names))


def test_a_list_that_another_client_overwrites_is_merged_and_written_again() -> None:
    others = [("x", "y"), ("x", "y", "z")]

    def overwrite(registry: Registry) -> None:
        if others:
            registry.write(*others.pop(0))

    registry = Registry(after_write=overwrite)
    push(registry, "a")
    assert registry.listed == digests("x", "y", "z", "a")


def test_what_others_wrote_and_another_client_overwrites_is_written_again_too() -> None:
    stale = ["y"]

    def overwrite(registry: Registry) -> None:
        if stale:
            registry.write(stale.pop())

    registry = Registry(after_write=overwrite)
    registry.write("x")
    push(registry, "a")
    assert registry.listed == digests("y", "x", "a")


def test_a_list_that_is_overwritten_again_and_again_is_an_error() -> None:
    registry = Registry(after_write=lambda registry: registry.write("x"))
    with pytest.raises(RegistryUnavailableError, match=digests("a")[0]) as failed:
        push(registry, "a")
    assert "push it again" in failed.value.hint
    assert registry.log.count("PUT tag") == 9
    assert registry.log.count("GET tag") == 10


def test_a_list_that_comes_compressed_is_kept() -> None:
    registry = Registry(packs=True)
    registry.write("x")
    push(registry, "a")
    assert registry.listed == digests("x", "a")


def test_the_list_is_read_again_before_a_second_try_of_a_write() -> None:
    registry = Registry(failures=[503, 429])
    registry.write("x", annotations={"of": "the list"})
    push(registry, "a")
    assert registry.listed == digests("x", "a")
    assert json.loads(registry.manifests[TAG])["annotations"] == {"of": "the list"}
    assert registry.log == ["PUT digest", *["GET tag", "PUT tag"] * 3, "GET tag"]


def test_what_is_listed_is_not_written() -> None:
    registry = Registry()
    registry.write("a")
    push(registry, "a")
    assert registry.log == ["PUT digest", "GET tag"]


@pytest.mark.parametrize(
    ("kind", "document"),
    [(OCI_MANIFEST, {"schemaVersion": 2, "config": {}, "layers": []}), (OCI_INDEX, {"manifests": "none"})],
)
def test_another_document_under_the_tag_is_not_overwritten(kind: str, document: dict[str, Any]) -> None:
    registry, body = Registry(kind=kind), json.dumps(document).encode()
    registry.manifests[TAG] = body
    with pytest.raises(DocumentError, match="index of referrers"):
        push(registry, "a")
    assert registry.manifests[TAG] == body


def test_a_cancelled_push_does_not_wait_for_another_one() -> None:
    began, go_on = threading.Event(), threading.Event()

    def hold(_: Registry) -> None:
        began.set()
        go_on.wait(30)

    registry = Registry(before_read=hold)
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(push, registry, "a")
        assert began.wait(30)
        with pytest.raises(OperationCancelledError):
            push(registry, "b", CancelToken(0.2))
        go_on.set()
        first.result()
    assert registry.listed == digests("a")
