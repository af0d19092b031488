"""Uploads against a registry in memory that keeps, loses, limits and lies as a test says."""

from __future__ import annotations

from typing import Self

import httpx
import pytest

from imagestore import CancelToken, Descriptor, Digest, Reference, TransferPolicy
from imagestore.errors import (
    AccessDeniedError,
    DigestMismatchError,
    OperationCancelledError,
    ProtocolError,
    RegistryUnavailableError,
    SizeMismatchError,
)
from imagestore.events import Event
from imagestore.registry import connect
from imagestore.registry.blobs import Transfer
from imagestore.registry.retry import Timing
from tests.support.upload_registry import (
    LARGE,
    SMALL,
    TARGET,
    Registry,
    Source,
    client_of,
    described,
    key,
    upload,
)


@pytest.mark.parametrize("data", [b"", SMALL, LARGE, LARGE + b"x"])
def test_a_blob_arrives_whole(data: bytes) -> None:
    registry = Registry()
    assert upload(registry, data).sent == len(data)
    assert registry.blobs == {key(data): data}
    assert registry.uploads == {}


def test_what_is_there_is_not_sent() -> None:
    registry = Registry(blobs={key(LARGE): LARGE})
    assert upload(registry, LARGE).sent == 0
    assert [line.partition(" ")[0] for line in registry.log] == ["HEAD"]


def test_a_blob_is_mounted() -> None:
    registry = Registry(blobs={key(LARGE, "other"): LARGE})
    done = upload(registry, LARGE, mount_from="other")
    assert (done.sent, done.mounted_from) == (0, "other")
    assert key(LARGE) in registry.blobs


@pytest.mark.parametrize("status", [302, 307, 400, 404, 405, 406, 409, 422, 429, 500, 501, 503])
def test_a_mount_that_fails_is_an_upload(status: int) -> None:
    registry = Registry(faults=[("POST", httpx.Response(status, headers={"Retry-After": "1000"}))])
    done = upload(registry, LARGE, mount_from="other")
    assert (done.sent, done.mounted_from) == (len(LARGE), "")
    assert registry.blobs == {key(LARGE): LARGE}


@pytest.mark.parametrize("status", [401, 403])
def test_a_mount_that_is_refused_is_looked_into_and_then_an_upload(status: int) -> None:
    registry = Registry(faults=[("POST", httpx.Response(status))])
    assert upload(registry, LARGE, mount_from="other").sent == len(LARGE)


@pytest.mark.parametrize("fault", [httpx.ReadTimeout("late"), httpx.RemoteProtocolError("no HTTP")])
def test_a_mount_without_an_answer_is_an_upload(fault: Exception) -> None:
    class Silent(Registry):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            if "mount=" in str(request.url):
                raise fault
            return super().handle_request(request)

    assert upload(Silent(), LARGE, mount_from="other").sent == len(LARGE)


@pytest.mark.parametrize(
    ("status", "location"),
    [
        (200, "/v2/team/app/blobs/{}"),
        (201, "/v2/team/app/blobs/{}"),
        (201, ""),
        (204, "https://r.example/v2/a/blobs/{}"),
    ],
)
def test_a_mount_may_succeed_with_any_success(status: int, location: str) -> None:
    answer = httpx.Response(status, headers={"Location": location.format(Digest.of(LARGE))})
    done = upload(Registry(faults=[("POST", answer)]), LARGE, mount_from="other")
    assert (done.sent, done.mounted_from) == (0, "other")


@pytest.mark.parametrize("status", [200, 201, 204])
def test_an_upload_may_begin_with_any_success(status: int) -> None:
    class Other(Registry):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            answer = super().handle_request(request)
            answer.status_code = status if request.method == "POST" else answer.status_code
            return answer

    registry = Other()
    assert upload(registry, LARGE, mount_from="other").sent == len(LARGE)
    assert registry.blobs == {key(LARGE): LARGE}


@pytest.mark.parametrize("status", [200, 201, 204, 206])
def test_a_part_may_succeed_with_any_success(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = Registry(patched=status)
    upload(registry, LARGE)
    assert registry.blobs == {key(LARGE): LARGE}
    monkeypatch.setattr("imagestore.registry.uploads._CHUNK_BYTES", 1 << 20)
    registry = Registry(patched=status, faults=[("PATCH", httpx.Response(413))])
    upload(registry, LARGE)
    assert registry.blobs == {key(LARGE): LARGE}


@pytest.mark.parametrize("status", [301, 400, 401, 403, 416, 429, 500, 503])
def test_a_blob_that_cannot_be_looked_for_is_sent(status: int) -> None:
    faults = [("HEAD", httpx.Response(status)), ("GET", httpx.Response(status))]
    registry = Registry(faults=faults)
    assert upload(registry, LARGE).sent == len(LARGE)
    assert registry.blobs == {key(LARGE): LARGE}


@pytest.mark.parametrize("is_there", [True, False])
@pytest.mark.parametrize("status", [200, 405])
def test_a_head_that_says_nothing_is_followed_by_get(status: int, is_there: bool) -> None:
    class Short(Registry):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            answer = super().handle_request(request)
            return httpx.Response(status, headers={"Content-Length": "0"}) if request.method == "HEAD" else answer

    registry = Short(blobs={key(LARGE): LARGE} if is_there else {})
    assert upload(registry, LARGE).sent == (0 if is_there else len(LARGE))
    assert registry.blobs == {key(LARGE): LARGE}


@pytest.mark.parametrize("status", [307, 308])
@pytest.mark.parametrize("method", ["POST", "PATCH", "PUT"])
@pytest.mark.parametrize("data", [SMALL, LARGE])
def test_a_write_goes_where_it_is_sent(data: bytes, method: str, status: int) -> None:
    class Moved(Registry):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            if request.method == method and "moved" not in request.url.params:
                return httpx.Response(status, headers={"Location": str(request.url.copy_add_param("moved", "1"))})
            return super().handle_request(request)

    registry = Moved()
    upload(registry, data)
    assert registry.blobs == {key(data): data}


def test_a_write_is_not_turned_into_a_get() -> None:
    registry = Registry(faults=[("PATCH", httpx.Response(303, headers={"Location": "/v2/team/app/blobs/x"}))])
    with pytest.raises(ProtocolError, match="a PATCH is not redirected"):
        upload(registry, LARGE)


def test_a_mount_that_is_ignored_is_an_upload() -> None:
    registry = Registry()
    assert upload(registry, LARGE, mount_from="other").sent == len(LARGE)
    assert sum(line.startswith("POST") for line in registry.log) == 1


def test_an_upload_goes_on_where_it_broke() -> None:
    registry = Registry(breaks=[1 << 20, 1 << 20])
    assert upload(registry, LARGE).sent == len(LARGE)
    assert registry.received == len(LARGE)
    assert registry.blobs == {key(LARGE): LARGE}


def test_an_upload_begins_anew_where_nothing_was_kept() -> None:
    registry = Registry(breaks=[1 << 20], resumes=False)
    assert upload(registry, LARGE).sent == registry.received == len(LARGE) + (1 << 20)
    assert registry.blobs == {key(LARGE): LARGE}


@pytest.mark.parametrize("data", [SMALL, LARGE])
def test_a_registry_that_kept_part_of_the_first_piece_gets_it_once(data: bytes) -> None:
    registry = Registry(breaks=[1])
    upload(registry, data)
    assert registry.blobs == {key(data): data}


def test_a_lost_answer_to_the_commit_costs_no_second_upload() -> None:
    class Forgetful(Registry):
        is_lost = False

        def handle_request(self, request: httpx.Request) -> httpx.Response:
            answer = super().handle_request(request)
            if request.method == "PUT" and not self.is_lost:
                self.is_lost = True
                raise httpx.ReadError("the connection broke")
            return answer

    registry = Forgetful()
    assert upload(registry, LARGE).sent == len(LARGE)
    assert registry.received == len(LARGE)


@pytest.mark.parametrize("claimed", ["0-3000000", "0-99999999", "9-2", "nonsense"])
def test_a_registry_that_claims_more_than_it_got_is_not_believed(claimed: str) -> None:
    told = httpx.Response(204, headers={"Range": claimed})

    class Liar(Registry):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            if request.method == "GET" and self.log.count("liar") == 0:
                self.log.append("liar")
                return told
            return super().handle_request(request)

    registry = Liar(breaks=[1])
    upload(registry, LARGE)
    assert registry.blobs == {key(LARGE): LARGE}


def test_a_lost_upload_is_begun_anew_once() -> None:
    registry = Registry(breaks=[1 << 20], resumes=False)
    upload(registry, LARGE)
    assert sum(line.startswith("POST") for line in registry.log) == 2


def test_refused_beginnings_are_not_tried_squared() -> None:
    registry = Registry(faults=[("POST", httpx.Response(503))] * 100)
    with client_of(registry) as client:
        attempts = client.policy.attempts
    with pytest.raises(RegistryUnavailableError):
        upload(registry, LARGE)
    assert sum(line.startswith("POST") for line in registry.log) == attempts


@pytest.mark.parametrize("method", ["PATCH", "PUT"])
def test_a_registry_says_how_long_to_wait(method: str) -> None:
    registry, now = Registry(faults=[(method, httpx.Response(429, headers={"Retry-After": "7"}))]), [0.0]

    def sleep(cancel: CancelToken, seconds: float) -> None:
        now[0] += seconds

    timing = Timing(sleep=sleep, random=lambda: 0.0, monotonic=lambda: now[0])
    with connect(transport=registry, timing=timing) as client:
        writer = client.writer(TARGET, cancel=CancelToken())
        writer.blob(described(LARGE), lambda offset: Source(LARGE, offset))
    assert now[0] >= 7
    assert registry.blobs == {key(LARGE): LARGE}


@pytest.mark.parametrize(("method", "status"), [("HEAD", 405), ("PUT", 200), ("PUT", 204)])
def test_answers_that_other_tools_take(method: str, status: int) -> None:
    registry = Registry(faults=[(method, httpx.Response(status))] * (1 if method == "PUT" else 9))
    assert upload(registry, LARGE).sent == len(LARGE)


def test_an_upload_does_not_wait_for_its_source_in_the_same_registry() -> None:
    registry, token = Registry(blobs={key(LARGE, "other"): LARGE}), CancelToken(60)
    other = Reference.parse("registry.example/other:1")
    with connect(transport=registry, policy=TransferPolicy(connections_per_host=1)) as client:
        writer = client.writer(TARGET, cancel=token)
        done = writer.blob(
            described(LARGE), lambda offset: client.blob(other, described(LARGE), offset=offset, cancel=token)
        )
    assert done.sent == len(LARGE)


def test_sources_are_closed_whatever_happens() -> None:
    is_open: list[bool] = []

    class Counted(Source):
        def __enter__(self) -> Self:
            is_open.append(True)
            return self

        def __exit__(self, *_: object) -> None:
            is_open.pop()

    registry = Registry(breaks=[1 << 20] * 9, resumes=False)
    with client_of(registry) as client:
        writer = client.writer(TARGET, cancel=CancelToken())
        with pytest.raises(RegistryUnavailableError):
            writer.blob(described(LARGE), lambda offset: Counted(LARGE, offset))
    assert is_open == []


def test_a_body_that_is_too_large_goes_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("imagestore.registry.uploads._CHUNK_BYTES", 1 << 20)
    registry = Registry(faults=[("PATCH", httpx.Response(413))])
    assert upload(registry, LARGE + b"x").sent >= len(LARGE) + 1
    assert registry.blobs == {key(LARGE + b"x"): LARGE + b"x"}
    assert sum(line.startswith("PATCH") for line in registry.log) == 1 + 4
    registry = Registry(faults=[("PATCH", httpx.Response(413))], breaks=[1 << 18])
    upload(registry, LARGE)
    assert registry.blobs == {key(LARGE): LARGE}
    registry = Registry(faults=[("PATCH", httpx.Response(413))] * 2)
    with pytest.raises(ProtocolError, match="413"):
        upload(registry, LARGE)


def test_a_source_that_goes_on_too_long_is_refused() -> None:
    registry = Registry()
    with pytest.raises(SizeMismatchError):
        upload(registry, LARGE, source=LARGE + b"more")
    assert registry.blobs == {}


def test_tries_end() -> None:
    registry = Registry(breaks=[1] * 20, resumes=False)
    with pytest.raises(RegistryUnavailableError):
        upload(registry, LARGE)
    assert registry.blobs == {}


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH"])
def test_a_passing_fault_is_retried(method: str) -> None:
    registry = Registry(faults=[(method, httpx.Response(503))])
    assert upload(registry, LARGE).sent >= 0
    assert registry.blobs == {key(LARGE): LARGE}


def test_a_refusal_is_an_error_with_its_reason() -> None:
    denied = httpx.Response(403, json={"errors": [{"code": "DENIED", "message": "read only"}]})
    registry = Registry(faults=[("POST", denied), ("GET", httpx.Response(200))])
    with pytest.raises(AccessDeniedError, match="read only"):
        upload(registry, LARGE)


@pytest.mark.parametrize("data", [SMALL, LARGE])
def test_a_source_with_other_bytes_commits_nothing(data: bytes) -> None:
    registry = Registry()
    with pytest.raises(DigestMismatchError):
        upload(registry, data, source=data[:-1] + b"!")
    assert registry.blobs == {}
    assert registry.uploads == {}  # given up, not left to the registry


def test_a_source_that_fails_is_not_the_registrys_fault() -> None:
    registry = Registry()

    def opener(offset: int) -> Transfer:
        raise ProtocolError("source.example: broke", host="source.example")

    with client_of(registry) as client, pytest.raises(ProtocolError, match=r"source\.example"):
        client.writer(TARGET, cancel=CancelToken()).blob(described(LARGE), opener)
    assert sum(line.startswith("POST") for line in registry.log) == 1


@pytest.mark.parametrize("claimed", [str(Digest.of(b"other")), "no digest", "sha512:" + "0" * 128])
def test_a_header_says_nothing_of_what_was_stored(claimed: str) -> None:
    class Odd(Registry):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            answer = super().handle_request(request)
            answer.headers["Docker-Content-Digest"] = claimed
            return answer

    registry = Odd()
    assert upload(registry, LARGE).sent == len(LARGE)
    assert registry.blobs == {key(LARGE): LARGE}


def test_a_cancelled_upload_ends() -> None:
    token = CancelToken()
    registry = Registry()

    def opener(offset: int) -> Transfer:
        token.cancel("enough")
        return Source(LARGE, offset)

    with client_of(registry) as client, pytest.raises(OperationCancelledError):
        client.writer(TARGET, cancel=token).blob(described(LARGE), opener)
    assert registry.blobs == {}


def test_events_tell_how_far_it_is() -> None:
    events: list[Event] = []
    with client_of(Registry()).observed_by(events.append) as client:
        client.writer(TARGET, cancel=CancelToken()).blob(described(LARGE), lambda offset: Source(LARGE, offset))
    assert [type(event).__name__ for event in events][-1] == "BlobUploaded"
    sent = [event.sent for event in events if hasattr(event, "sent")]
    assert sent == sorted(sent)


def test_referrers_are_listed_under_a_tag_once() -> None:
    registry = Registry()
    subject = Digest.of(b"subject")
    tag = str(subject).replace(":", "-")
    with client_of(registry) as client:
        writer = client.writer(TARGET, cancel=CancelToken())
        for text in (b'{"artifactType":"a/b","config":{}}', b'{"config":{"mediaType":"c/d"}}', b'{"config":{}}'):
            for _ in range(2):
                kind = "application/vnd.oci.image.manifest.v1+json"
                writer.manifest(Descriptor(kind, Digest.of(text), len(text)), text, subject=subject)
    listed = httpx.Response(200, content=registry.manifests["team/app", tag]).json()["manifests"]
    assert [each.get("artifactType") for each in listed] == ["a/b", "c/d", None]
