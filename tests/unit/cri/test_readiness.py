"""Image calls where a runtime must have the image before it is present."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path

import grpc
import pytest

from imagestore import Digest
from imagestore.cri.model import FilesystemUsage
from imagestore.errors import ServiceUnavailableError
from imagestore.events import BlobDone, Event, Observer
from imagestore.protos.cri import api_pb2, api_pb2_grpc
from imagestore.testing import build_image, build_index
from imagestore.util.cancel import CancelToken
from tests.support.cri_server import cri_server
from tests.support.node import HYPERV, PROCESS, Node, node
from tests.support.patience import until

APP = "registry.example/app:1"
_INDEX = build_index(["windows(10.0.20348.1)/amd64", "windows(10.0.17763.1)/amd64"])
_SAME = build_image("windows(10.0.20348.1)/amd64", seed="same")
_RUNTIME = FilesystemUsage("/nowhere/snapshots", 7, 100, 3)


class Runtime:
    """A runtime that is told when it has an image."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.has: Future[None] = Future()
        self.removals = 0
        self.pulls: list[str] = []
        self.events: list[Event] = []

    def ensure(self, image_id: Digest) -> Future[None]:
        self.asked.append(str(image_id))
        return self.has

    def removed(self) -> Future[None]:
        self.removals += 1
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @contextlib.contextmanager
    def pulling(self, runtime_handler: str, observer: Observer, cancel: CancelToken) -> Iterator[Observer]:
        self.pulls.append(runtime_handler)

        def _both(event: Event) -> None:
            observer(event)
            self.events.append(event)

        yield _both

    def file_systems(self) -> Sequence[FilesystemUsage]:
        return (_RUNTIME,)


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Node]:
    with node(tmp_path, {APP: _INDEX, "registry.example/same:1": _SAME}) as running:
        yield running


@contextlib.contextmanager
def images(here: Node, runtime: Runtime, *, for_kubelet: bool = False) -> Iterator[api_pb2_grpc.ImageServiceStub]:
    with (
        cri_server(here.store, readiness=runtime, for_kubelet=for_kubelet) as server,
        grpc.insecure_channel(f"unix:{server.socket}", options=[("grpc.default_authority", "localhost")]) as channel,
    ):
        yield api_pb2_grpc.ImageServiceStub(channel)


def spec(image: str = APP, handler: str = "") -> api_pb2.ImageSpec:
    return api_pb2.ImageSpec(image=image, runtime_handler=handler)


def test_a_pull_answers_when_the_runtime_has_the_image(here: Node) -> None:
    runtime = Runtime()
    with images(here, runtime) as stub:
        call = stub.PullImage.future(api_pb2.PullImageRequest(image=spec(handler=HYPERV)))
        until(lambda: runtime.asked, "the runtime is asked")
        assert not call.done()
        runtime.has.set_result(None)
        assert call.result().image_ref == runtime.asked[0]
    assert runtime.pulls == [HYPERV]
    assert any(isinstance(event, BlobDone) for event in runtime.events)


def test_a_status_waits_and_a_list_does_not(here: Node) -> None:
    image_id = str(here.store.pull(APP, runtime_handler=PROCESS).id)
    runtime = Runtime()
    with images(here, runtime) as stub:
        call = stub.ImageStatus.future(api_pb2.ImageStatusRequest(image=spec()))
        until(lambda: runtime.asked == [image_id], "the runtime is asked")
        assert [each.id for each in stub.ListImages(api_pb2.ListImagesRequest()).images] == [image_id]
        assert not call.done()
        runtime.has.set_result(None)
        assert call.result().image.id == image_id
        assert not stub.ImageStatus(api_pb2.ImageStatusRequest(image=spec("registry.example/none:1"))).HasField("image")
    assert runtime.asked == [image_id]


def test_what_the_runtime_does_not_get_is_not_present(here: Node) -> None:
    here.store.pull(APP, runtime_handler=PROCESS)
    runtime = Runtime()
    runtime.has.set_exception(ServiceUnavailableError("it is away"))
    with images(here, runtime) as stub:
        for ask in (
            lambda: stub.ImageStatus(api_pb2.ImageStatusRequest(image=spec())),
            lambda: stub.PullImage(api_pb2.PullImageRequest(image=spec())),
        ):
            with pytest.raises(grpc.RpcError) as refused:
                ask()
            assert (refused.value.code(), refused.value.details()) == (grpc.StatusCode.UNAVAILABLE, "it is away")


def test_a_status_that_takes_too_long_ends_and_the_work_goes_on(here: Node) -> None:
    here.store.pull(APP, runtime_handler=PROCESS)
    runtime = Runtime()
    with images(here, runtime) as stub:
        # The server keeps a second of the caller's time, so it has no time left to wait.
        with pytest.raises(grpc.RpcError) as late:
            stub.ImageStatus(api_pb2.ImageStatusRequest(image=spec()), timeout=1.5)
        assert late.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert "the work goes on" in (late.value.details() or "")
        assert not runtime.has.cancelled()
        runtime.has.set_result(None)
        assert stub.ImageStatus(api_pb2.ImageStatusRequest(image=spec())).HasField("image")


def test_a_caller_that_leaves_does_not_end_the_work(here: Node) -> None:
    here.store.pull(APP, runtime_handler=PROCESS)
    runtime = Runtime()
    with images(here, runtime) as stub:
        status = stub.ImageStatus.future(api_pb2.ImageStatusRequest(image=spec()))
        pull = stub.PullImage.future(api_pb2.PullImageRequest(image=spec()))
        until(lambda: len(runtime.asked) == 2, "the runtime is asked by both")
        status.cancel()
        pull.cancel()
        # The server's loop has seen both leave when it answers a later call.
        stub.ListImages(api_pb2.ListImagesRequest())
        assert not runtime.has.cancelled()
        runtime.has.set_result(None)
        assert stub.ImageStatus(api_pb2.ImageStatusRequest(image=spec())).HasField("image")


def test_a_removal_is_passed_on(here: Node) -> None:
    here.store.pull(APP, runtime_handler=PROCESS)
    runtime = Runtime()
    with images(here, runtime) as stub:
        stub.RemoveImage(api_pb2.RemoveImageRequest(image=spec()))
        assert (runtime.removals, list(here.store.list())) == (1, [])


def test_for_a_kubelet_an_id_is_one_entry_without_handler(here: Node) -> None:
    for handler in (PROCESS, HYPERV):
        here.store.pull("registry.example/same:1", runtime_handler=handler, platform="windows(10.0.20348.1)/amd64")
    here.store.tag("registry.example/same:1", "registry.example/same:2", runtime_handler=HYPERV)
    here.store.pin("registry.example/same:1", runtime_handler=HYPERV)
    runtime = Runtime()
    runtime.has.set_result(None)
    with images(here, runtime, for_kubelet=True) as stub:
        (entry,) = stub.ListImages(api_pb2.ListImagesRequest()).images
        (streamed,) = (each for part in stub.StreamImages(api_pb2.StreamImagesRequest()) for each in part.images)
        assert streamed == entry
        assert (entry.spec.runtime_handler, entry.pinned) == ("", True)
        assert list(entry.repo_tags) == ["registry.example/same:1", "registry.example/same:2"]
        assert stub.ImageStatus(api_pb2.ImageStatusRequest(image=spec(entry.id))).image == entry


def test_for_a_kubelet_the_runtimes_file_system_comes_first(here: Node) -> None:
    runtime = Runtime()
    with images(here, runtime, for_kubelet=True) as stub:
        first, second = stub.ImageFsInfo(api_pb2.ImageFsInfoRequest()).image_filesystems
        assert (first.fs_id.mountpoint, first.used_bytes.value, first.inodes_used.value) == (
            "/nowhere/snapshots",
            100,
            3,
        )
        assert second.fs_id.mountpoint == str(here.store.content.name)
