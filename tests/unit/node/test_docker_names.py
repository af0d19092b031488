"""What names of images and handlers mean to a Docker Engine's service, and the limits of its calls."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from imagestore import CancelToken, platforms
from imagestore.cri import ImageSpec
from imagestore.errors import DeadlineExceededError, InvalidInputError, UnknownRuntimeHandlerError
from imagestore.node.docker.service import DockerImageService
from imagestore.util.durations import Duration
from tests.support.docker_engine import Engine, docker_engine, id_of

if TYPE_CHECKING:
    from pathlib import Path

APP = "registry.example/team/app"
HEX = "docker.io/library/beef"


@pytest.mark.parametrize(
    ("timeout_seconds", "stall_seconds"), [(0, 60), (-1, 60), (float("nan"), 60), (120, 0), (120, -1)]
)
def test_a_limit_under_which_nothing_could_end_is_refused(timeout_seconds: float, stall_seconds: float) -> None:
    with pytest.raises(InvalidInputError, match="expected more than zero"):
        DockerImageService("/s", timeout_seconds=timeout_seconds, stall_limit=Duration.of_seconds(stall_seconds))


def test_limits_longer_than_a_socket_can_wait_are_limits(tmp_path: Path) -> None:
    with docker_engine(tmp_path / "s", Engine({APP: {"1": "content"}})):
        service = DockerImageService(str(tmp_path / "s"), timeout_seconds=1e12, stall_limit=Duration.of_seconds(1e12))
        assert service.pull(ImageSpec(f"{APP}:1")) == id_of("content", "linux/amd64")
        service.close()


def test_a_name_in_the_digits_of_ids_is_a_name(tmp_path: Path) -> None:
    with docker_engine(tmp_path / "s", Engine({HEX: {"latest": "content"}})) as engine:
        service = DockerImageService(str(tmp_path / "s"), platforms={"arm": platforms.parse("linux/arm64")})
        default = service.pull(ImageSpec("beef"))
        arm = service.pull(ImageSpec("beef", "arm"))
        engine.tags["beef"] = engine.tags[f"{HEX}:latest"]  # what the engine makes of the short name
        found = [service.status(ImageSpec("beef", handler)) for handler in ("", "arm")]
        assert [each.id if each is not None else None for each in found] == [default, arm]
        by_id = service.status(ImageSpec(default.removeprefix("sha256:")[:12]))
        assert by_id is not None
        assert by_id.id == default
        service.close()


def test_the_default_handler_has_a_name_too(tmp_path: Path) -> None:
    with docker_engine(tmp_path / "s", Engine({APP: {"1": "content"}})):
        service = DockerImageService(str(tmp_path / "s"), default_handler="runc")
        image_id = service.pull(ImageSpec(f"{APP}:1", "runc"))
        for handler in ("", "runc"):
            spec = ImageSpec(f"{APP}:1", handler)
            (listed,) = service.list(ImageSpec("", handler))
            assert (listed.id, listed.spec.runtime_handler) == (image_id, "runc")
            assert service.status(spec) == service.list(spec)[0]
        with pytest.raises(UnknownRuntimeHandlerError, match="known handlers: runc"):
            service.status(ImageSpec(APP, "kata"))
        service.remove(ImageSpec(f"{APP}:1", "runc"))
        assert service.list() == []
        service.close()


LINUX = platforms.parse("linux/amd64")


def shared(folder: Path) -> DockerImageService:
    """One image for two handlers, the default one among them."""
    service = DockerImageService(str(folder / "s"), platforms={"kata": LINUX}, default_handler="runc")
    assert service.pull(ImageSpec(f"{APP}:1")) == service.pull(ImageSpec(f"{APP}:1", "kata"))
    return service


@pytest.mark.parametrize(
    ("kind", "handler", "left"),
    [
        ("name", "", ["kata"]),
        ("name", "runc", ["kata"]),
        ("name", "kata", ["runc"]),
        ("id", "", []),
        ("id", "runc", ["kata"]),
        ("id", "kata", ["runc"]),
    ],
)
def test_removal_by_name_or_handler_spares_the_others(tmp_path: Path, kind: str, handler: str, left: list[str]) -> None:
    with docker_engine(tmp_path / "s", Engine({APP: {"1": "content"}})):
        service = shared(tmp_path)
        image_id = service.list()[0].id
        service.remove(ImageSpec(image_id if kind == "id" else f"{APP}:1", handler))
        assert [each.spec.runtime_handler for each in service.list()] == left
        for each in ("runc", "kata"):
            for text in (image_id, f"{APP}:1"):
                assert (service.status(ImageSpec(text, each)) is not None) == (each in left)
        service.close()


def test_a_reference_with_a_digest_is_no_tag(tmp_path: Path) -> None:
    with docker_engine(tmp_path / "s", Engine({APP: {"1": "content"}})):
        text = f"{APP}@{id_of('index', 'content')}"
        service = DockerImageService(str(tmp_path / "s"))
        service.pull(ImageSpec(f"{APP}:1"))
        service.pull(ImageSpec(text))
        (listed,) = service.list()
        assert (listed.repo_tags, listed.repo_digests) == ((f"{APP}:1",), (text,))
        pinned = DockerImageService(str(tmp_path / "s"), sandbox_image=text)
        assert pinned.list()[0].is_pinned
        service.close()
        pinned.close()


def test_a_deadline_ends_a_blocked_pull(tmp_path: Path) -> None:
    let_go = threading.Event()
    engine = Engine({APP: {"1": "content"}})
    engine.on_stream = lambda: (let_go.wait(60), None)[1]
    with docker_engine(tmp_path / "s", engine):
        service = DockerImageService(str(tmp_path / "s"))
        with pytest.raises(DeadlineExceededError):
            service.pull(ImageSpec(f"{APP}:1"), cancel=CancelToken(0.1))
        let_go.set()
        service.close()
