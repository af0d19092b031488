"""The Docker Engine as an image service: the contract over recorded answers, and the API's corners."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from imagestore import CancelToken, Secret, platforms
from imagestore.cri import ContainerImage, ImageSpec
from imagestore.errors import (
    AccessDeniedError,
    AuthenticationError,
    DeadlineExceededError,
    ImageServiceError,
    ImageStoreError,
    OperationCancelledError,
    RateLimitedError,
    ReferenceNotFoundError,
    RegistryUnavailableError,
    ServiceUnavailableError,
    StoreCorruptError,
)
from imagestore.events import PartAdvanced
from imagestore.node.docker.handler_table import HandlerTable
from imagestore.node.docker.service import DockerImageService
from imagestore.registry import AuthConfig
from imagestore.util.durations import Duration
from tests.support.docker_engine import RECORDED, Engine, docker_engine, id_of, recorded
from tests.support.image_service_contract import Bench, HandlerContract

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from imagestore.events import Event

APP = "registry.example/team/app"
ARM = platforms.parse("linux/arm64")


@dataclass
class Bed:
    """A service, the engine it asks, and how to make another one."""

    service: DockerImageService
    engine: Engine
    opened: list[DockerImageService]
    socket: str

    def another(self, **settings: Any) -> DockerImageService:
        self.opened.append(DockerImageService(self.socket, **settings))
        return self.opened[-1]


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Bed]:
    engine = Engine({APP: {"1": "content", "2": "content"}, "docker.io/library/busybox": {"latest": "busybox"}})
    with docker_engine(tmp_path / "s", engine):
        service = DockerImageService(
            str(tmp_path / "s"), platforms={"arm": ARM}, timeout_seconds=5, stall_limit=Duration.of_seconds(5)
        )
        found = Bed(service, engine, [service], str(tmp_path / "s"))
        yield found
        for each in found.opened:
            each.close()


@pytest.fixture
def bench(bed: Bed) -> Bench:
    return Bench(bed.service, f"{APP}:1", f"{APP}:2", f"{APP}:9", "arm")


class TestContract(HandlerContract):
    """An engine keeps the contract."""


def test_the_version_is_negotiated_once(bed: Bed) -> None:
    bed.service.list()
    bed.service.containers()
    assert [path for _, path, _, _ in bed.engine.requests] == ["/_ping", "/v1.41/images/json", "/v1.41/containers/json"]
    assert bed.service.version().api_version == "1.41.0"


def test_a_pull_completes_the_name(bed: Bed) -> None:
    events: list[Event] = []
    image_id = bed.service.pull(ImageSpec("busybox"), observer=events.append)
    query = next(query for _, path, query, _ in bed.engine.requests if path == "/v1.41/images/create")
    assert query == {"fromImage": "docker.io/library/busybox", "tag": "latest"}
    assert image_id == id_of("busybox", "linux/amd64")
    assert events[0] == PartAdvanced("2", "Pulling from team/app", None, None)
    assert len(events) == 3


def test_a_handler_is_a_platform_and_its_digest_wins_over_the_tag(bed: Bed) -> None:
    digest = id_of("index", "content")
    bed.service.pull(ImageSpec(f"{APP}:1@{digest}", "arm"))
    query = next(query for _, path, query, _ in bed.engine.requests if path.endswith("/images/create"))
    assert query == {"fromImage": APP, "tag": digest, "platform": "linux/arm64"}


def test_a_handlers_pull_leaves_the_tag_where_it_was(bed: Bed) -> None:
    default = bed.service.pull(ImageSpec(f"{APP}:1"))
    bed.service.pull(ImageSpec(f"{APP}:1", "arm"))
    assert bed.engine.tags[f"{APP}:1"] == default


def test_a_table_on_disk_outlives_the_service(bed: Bed, tmp_path: Path) -> None:
    def service() -> DockerImageService:
        return bed.another(platforms={"arm": ARM}, table=HandlerTable(tmp_path / "state" / "t"))

    image_id = service().pull(ImageSpec(f"{APP}:1", "arm"))
    found = service().status(ImageSpec(f"{APP}:1", "arm"))
    assert found is not None
    assert found.id == image_id
    assert service().status(ImageSpec(f"{APP}:1")) is None


def test_a_row_of_a_gone_image_counts_no_more(bed: Bed) -> None:
    bed.service.pull(ImageSpec(f"{APP}:1", "arm"))
    bed.engine.ids.clear()
    bed.engine.tags.clear()
    assert bed.service.status(ImageSpec(f"{APP}:1", "arm")) is None


@pytest.mark.parametrize("text", ["", "[]", '{"version": 2, "images": []}', '{"version": 1, "images": [["a", "b"]]}'])
def test_a_damaged_table_is_told(tmp_path: Path, text: str) -> None:
    (tmp_path / "t").write_text(text)
    with pytest.raises(StoreCorruptError):
        HandlerTable(tmp_path / "t")


def test_images_that_others_pulled_are_the_defaults(bed: Bed) -> None:
    bed.engine.ids[id_of("x")] = id_of("index", "x")
    bed.engine.tags["busybox:latest"] = id_of("x")
    listed = bed.service.list()
    assert [(each.repo_tags, each.spec.runtime_handler) for each in listed] == [
        (("docker.io/library/busybox:latest",), "")
    ]
    assert bed.service.status(ImageSpec(id_of("x"), "arm")) is None


def test_an_image_in_use_is_not_removed(bed: Bed) -> None:
    image_id = bed.service.pull(ImageSpec(f"{APP}:1"))
    bed.engine.containers.append({"Id": "c1", "ImageID": image_id})
    assert bed.service.containers() == [ContainerImage("c1", image_id)]
    with pytest.raises(ImageServiceError, match="image is being used"):
        bed.service.remove(ImageSpec(f"{APP}:1"))


@pytest.mark.parametrize("handler", ["", "arm"])
def test_an_image_that_could_not_be_removed_stays_its_handlers(bed: Bed, handler: str) -> None:
    mine = ImageSpec(f"{APP}:1", "arm")
    image_id = bed.service.pull(mine)
    bed.engine.containers.append({"Id": "c1", "ImageID": image_id})
    with pytest.raises(ImageServiceError, match="image is being used"):
        bed.service.remove(ImageSpec(image_id, handler))
    found = bed.service.status(mine)
    assert found is not None
    assert (found.id, found.spec.runtime_handler) == (image_id, "arm")
    bed.engine.containers.clear()
    bed.service.remove(ImageSpec(image_id, handler))
    assert (bed.service.status(mine), bed.service.list()) == (None, [])


def test_the_sandbox_image_is_pinned(bed: Bed) -> None:
    service = bed.another(sandbox_image=f"{APP}:1")
    service.pull(ImageSpec(f"{APP}:1"))
    service.pull(ImageSpec("busybox"))
    assert sorted((each.repo_tags[0], each.is_pinned) for each in service.list()) == [
        ("docker.io/library/busybox:latest", False),
        (f"{APP}:1", True),
    ]


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, AuthenticationError),
        (403, AccessDeniedError),
        (404, ReferenceNotFoundError),
        (429, RateLimitedError),
        (500, ImageServiceError),
        (503, ImageServiceError),
    ],
)
def test_errors_before_the_stream_have_their_kind(bed: Bed, status: int, kind: type[ImageStoreError]) -> None:
    bed.engine.stream = (status, RECORDED["refused"]["body"].encode())
    with pytest.raises(kind, match="connection refused"):
        bed.service.pull(ImageSpec(f"{APP}:1"))


@pytest.mark.parametrize(
    ("body", "kind", "text"),
    [
        (b'{"status":"x"}{"errorDetail":{"message":"unauthorized"},"error":"old"}', ImageServiceError, "unauthorized"),
        (b'{"error":"old words"}\n', ImageServiceError, "old words"),
        (b'{"errorDetail":{"code":401,"message":"m"}}', AuthenticationError, ": m$"),
        (b'{"errorDetail":{"code":403,"message":"m"},"error":"m"}\r\n', AccessDeniedError, ": m$"),
        (b'{"status":"x"}\n{"errorDetail":{"code":404},"error":"old"}', ReferenceNotFoundError, ": old$"),
        (b'{"errorDetail":{"code":429,"message":"m"}}', RateLimitedError, ": m$"),
        (b'{"errorDetail":{"code":500,"message":"m"}}', RegistryUnavailableError, ": m$"),
        (b'{"errorDetail":{"code":503,"message":"m"}}', RegistryUnavailableError, ": m$"),
        (b'{"errorDetail":{"code":400,"message":"m"}}', ImageServiceError, ": m$"),
        (b'{"errorDetail":{"code":1,"message":"m"}}', ImageServiceError, ": m$"),
        (b'{"errorDetail":{"code":"403","message":"m"}}', ImageServiceError, ": m$"),
        (b'{"errorDetail":{"code":true,"message":"m"}}', ImageServiceError, ": m$"),
        (b'{"errorDetail":{"code":403}}', AccessDeniedError, "the engine reports a failure"),
        (b'{"errorDetail":{}}', ImageServiceError, "the engine reports a failure"),
        (b'{"status":"cut', ServiceUnavailableError, "in the middle of an object"),
        (b"", ServiceUnavailableError, "registry.example|docker engine"),
        (b"Internal error", ImageServiceError, "malformed"),
        (b"[1]", ImageServiceError, "malformed"),
        (b'{"a":1}}', ImageServiceError, "malformed"),
        (b"{a}\n", ImageServiceError, "malformed"),
    ],
)
def test_errors_in_the_stream_are_failures(bed: Bed, body: bytes, kind: type[ImageStoreError], text: str) -> None:
    bed.engine.stream = (200, body)
    with pytest.raises(kind, match=text):
        bed.service.pull(ImageSpec(f"{APP}:1"))


def test_a_pull_without_a_result_is_an_error(bed: Bed) -> None:
    bed.engine.stream = (200, b'{"status":"done"}')
    with pytest.raises(ImageServiceError, match="doesn't have the image"):
        bed.service.pull(ImageSpec(f"{APP}:1"))


def test_a_pull_that_stands_still_is_given_up(bed: Bed) -> None:
    let_go = threading.Event()
    bed.engine.on_stream = lambda: (let_go.wait(60), None)[1]
    service = bed.another(stall_limit=Duration.of_seconds(0.05))
    with pytest.raises(DeadlineExceededError):
        service.pull(ImageSpec(f"{APP}:1"))
    let_go.set()


def test_a_call_has_the_request_timeout(bed: Bed) -> None:
    service = bed.another(timeout_seconds=1)
    service.list()
    let_go = threading.Event()
    original = bed.engine.answer
    bed.engine.answer = lambda *args: (let_go.wait(60), original(*args))[1]  # type: ignore[method-assign]
    with pytest.raises(DeadlineExceededError):
        service.list()
    let_go.set()


def test_cancelling_ends_a_blocked_pull(bed: Bed) -> None:
    token, let_go = CancelToken(), threading.Event()
    bed.engine.on_stream = lambda: (let_go.wait(60), None)[1]
    threading.Timer(0.05, token.cancel, ("enough",)).start()
    with pytest.raises(OperationCancelledError):
        bed.service.pull(ImageSpec(f"{APP}:1"), cancel=token)
    let_go.set()


def test_cancelling_between_two_objects_ends_a_pull(bed: Bed) -> None:
    token = CancelToken()
    bed.engine.stream = (200, b'{"status":"a"}{"status":"b"}')
    with pytest.raises(OperationCancelledError):
        bed.service.pull(ImageSpec(f"{APP}:1"), observer=lambda event: token.cancel("enough"), cancel=token)


def test_nobody_on_the_socket_is_unavailable(tmp_path: Path) -> None:
    service = DockerImageService(str(tmp_path / "none"))
    for call in (service.version, service.list, service.containers, service.filesystems):
        with pytest.raises(ServiceUnavailableError, match="can't be reached"):
            call()
    service.close()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/version", b"[]"),
        ("/version", b"{"),
        ("/info", b"{}"),
        ("/system/df", b'{"LayersSize":"x"}'),
        ("/images/json", b"{}"),
        ("/images/json", b'[{"Id":""}]'),
        ("/images/json", b'[{"Id":"../containers/c1"}]'),
        ("/images/json", b'[{"Id":"a\\u0000"}]'),
        ("/containers/json", b"{}"),
        ("/containers/json", b'[{"Id":1}]'),
    ],
)
def test_answers_are_checked(bed: Bed, path: str, body: bytes) -> None:
    bed.engine.answers[path] = (200, body)
    calls: dict[str, Callable[[], object]] = {
        "/version": bed.service.version,
        "/images/json": bed.service.list,
        "/containers/json": bed.service.containers,
    }
    with pytest.raises(ImageServiceError):
        calls.get(path, bed.service.filesystems)()


def test_odd_members_of_images_are_tolerated(bed: Bed) -> None:
    odd = {
        "Id": "sha256:1",
        "RepoTags": None,
        "RepoDigests": ["<none>@<none>", 5, "not a name"],
        "Size": 0,
    }
    bed.engine.answers["/images/json"] = (200, json.dumps([odd]).encode())
    (found,) = bed.service.list()
    assert (found.repo_tags, found.repo_digests, found.size) == ((), ("not a name",), 1)


@pytest.mark.parametrize(
    ("member", "size"), [("ImageUsage", 42), ("ImageUsage", 0), ("ImagesUsage", 42), ("ImagesUsage", 0)]
)
def test_newer_engines_tell_usage_elsewhere(bed: Bed, member: str, size: int) -> None:
    bed.engine.api = "1.52"
    bed.engine.answers["/system/df"] = (200, json.dumps({member: {"TotalSize": size}}).encode())
    (usage,) = bed.service.filesystems().image_filesystems
    assert (usage.mountpoint, usage.used_bytes) == ("/var/lib/docker", size)
    assert bed.engine.requests[-1][2] == {"type": "image"}


def test_credentials_are_sent(bed: Bed) -> None:
    bed.service.pull(ImageSpec(f"{APP}:1"), auth=AuthConfig(username="u", password=Secret("p")))
    assert sum("X-Registry-Auth" in headers for _, _, _, headers in bed.engine.requests) == 1
    bed.service.pull(ImageSpec(f"{APP}:1", "arm"), auth=AuthConfig(username="u", password=Secret("p")))
    asked = [path for _, path, _, headers in bed.engine.requests if "X-Registry-Auth" in headers]
    assert f"/v1.41/distribution/{APP}:1/json" in asked


def test_recorded_answers_have_the_members_we_read() -> None:
    assert {"Id", "RepoTags", "RepoDigests", "Size"} <= set(recorded("images")[0])
    assert recorded("images")[0]["RepoTags"] == ["<none>:<none>"]
    assert RECORDED["create"]["body"].count("\r\n") == 3


def test_pulls_of_one_reference_for_two_handlers_dont_mix(bed: Bed) -> None:
    found: dict[str, str] = {}

    def pull(handler: str) -> None:
        found[handler] = bed.service.pull(ImageSpec(f"{APP}:1", handler))

    threads = [threading.Thread(target=pull, args=(handler,)) for handler in ("", "arm") * 4]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == {"": id_of("content", "linux/amd64"), "arm": id_of("content", "linux/arm64")}
    for handler, image_id in found.items():
        status = bed.service.status(ImageSpec(f"{APP}:1", handler))
        assert status is not None
        assert status.id == image_id
