"""The client against servers that are old, odd or hostile."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from imagestore import CancelToken, Secret
from imagestore.cri.client import CriImageService
from imagestore.cri.model import ContainerImage, ImageSpec, SandboxMetadata
from imagestore.errors import (
    DeadlineExceededError,
    ImageDeniedError,
    ImageServiceError,
    InvalidInputError,
    NoMatchingManifestError,
    NotFoundError,
    OperationCancelledError,
    RegistryUnavailableError,
    ServiceUnavailableError,
    UnknownRuntimeHandlerError,
)
from imagestore.node import ImageService
from imagestore.protos.cri import api_pb2 as cri
from imagestore.registry import AuthConfig
from tests.unit.cri.scripted_cri import aborting, serving

IMAGE = cri.Image(id="sha256:1", size=7, repo_tags=["registry.example/app:1"])


def test_a_server_without_streams_is_asked_for_lists_from_then_on() -> None:
    with serving(ListImages=lambda *_: cri.ListImagesResponse(images=[IMAGE])) as (client, scripted):
        for _ in range(2):
            assert [each.repo_tags for each in client.list()] == [("registry.example/app:1",)]
        assert [name for name, _ in scripted.calls] == ["StreamImages", "ListImages", "ListImages"]


def test_a_stream_that_breaks_off_gives_nothing() -> None:
    def broken(_: Any, context: grpc.ServicerContext) -> Iterator[cri.StreamImagesResponse]:
        yield cri.StreamImagesResponse(images=[IMAGE])
        context.abort(grpc.StatusCode.INTERNAL, "disk")

    with serving(StreamImages=broken) as (client, _), pytest.raises(ImageServiceError, match=r"StreamImages: .*disk"):
        client.list()


def test_an_image_without_id_is_an_error() -> None:
    image = cri.Image(size=1, repo_tags=["a:1"])
    with (
        serving(
            StreamImages=lambda *_: iter([cri.StreamImagesResponse(images=[IMAGE, image])]),
            ImageStatus=lambda *_: cri.ImageStatusResponse(image=image),
        ) as (client, _),
    ):
        with pytest.raises(ImageServiceError, match="image 'a:1': expected an id and a size"):
            client.list()
        with pytest.raises(ImageServiceError, match="expected an id and a size"):
            client.status(ImageSpec("a:1"))


def test_an_image_without_size_is_an_error_by_itself_and_hides_no_other_in_a_list() -> None:
    image = cri.Image(id="sha256:1")
    with (
        serving(
            StreamImages=lambda *_: iter([cri.StreamImagesResponse(images=[IMAGE, image])]),
            ImageStatus=lambda *_: cri.ImageStatusResponse(image=image),
        ) as (client, _),
    ):
        assert [each.size for each in client.list()] == [IMAGE.size, 0]
        with pytest.raises(ImageServiceError, match="expected an id and a size"):
            client.status(ImageSpec("a:1"))


def test_a_pull_without_an_id_and_a_version_with_gaps_are_errors() -> None:
    with serving(
        PullImage=lambda *_: cri.PullImageResponse(),
        Version=lambda *_: cri.VersionResponse(version="0.1.0", runtime_name="odd"),
    ) as (client, _):
        with pytest.raises(ImageServiceError, match="expected an image id"):
            client.pull(ImageSpec("a:1"))
        with pytest.raises(ImageServiceError, match="got no runtime version, API version"):
            client.version()


def test_a_pull_sends_everything_it_was_given_and_logs_nothing_of_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    auth = AuthConfig("host", "user", *(Secret(f"canary-{at}") for at in range(4)))
    with serving(PullImage=lambda *_: cri.PullImageResponse(image_ref="sha256:1")) as (client, scripted):
        spec = ImageSpec("a:1", "kata", {"b": "c"}, "a")
        assert client.pull(spec, auth=auth, sandbox=SandboxMetadata("pod", "uid", "space", {"d": "e"})) == "sha256:1"
        ((_, request),) = scripted.calls
    assert (request.image.runtime_handler, dict(request.image.annotations)) == ("kata", {"b": "c"})
    assert request.auth == cri.AuthConfig(
        server_address="host",
        username="user",
        password="canary-0",
        auth="canary-1",
        identity_token="canary-2",
        registry_token="canary-3",
    )
    assert (request.sandbox_config.metadata.namespace, request.sandbox_config.annotations["d"]) == ("space", "e")
    assert "canary" not in caplog.text + repr(auth)


UNKNOWN, INVALID = grpc.StatusCode.UNKNOWN, grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("code", "details", "data", "kind", "text"),
    [
        (UNKNOWN, "RegistryUnavailable: down", None, RegistryUnavailableError, "down"),
        (UNKNOWN, "RegistryUnavailable", None, RegistryUnavailableError, "RegistryUnavailable"),
        (UNKNOWN, "RegistryUnavailable, again", None, RegistryUnavailableError, "RegistryUnavailable, again"),
        (UNKNOWN, "SignatureValidationFailed", None, ImageDeniedError, "denied by image verifier unix://"),
        # CRI's words count under the code that the kubelet reads them with.
        (INVALID, "RegistryUnavailable: down", None, InvalidInputError, "RegistryUnavailable: down"),
        (INVALID, "SignatureValidationFailed: no", None, InvalidInputError, "SignatureValidationFailed: no"),
        (UNKNOWN, "failed to pull", None, ImageServiceError, "failed to pull"),
        (UNKNOWN, "", None, ImageServiceError, "PullImage: unknown error"),
        (INVALID, "bad name", None, InvalidInputError, "bad name"),
        (INVALID, "", None, InvalidInputError, "PullImage: invalid argument"),
        (grpc.StatusCode.NOT_FOUND, "\x1b[31m" + "x" * 6000, None, NotFoundError, "\\x1b[31mx"),
        (grpc.StatusCode.UNAVAILABLE, "busy", None, ServiceUnavailableError, "not available: busy"),
        (grpc.StatusCode.CANCELLED, "bye", None, OperationCancelledError, "bye"),
        (grpc.StatusCode.ABORTED, "again", None, ImageServiceError, "PullImage: aborted: again"),
        (
            INVALID,
            "x",
            {"kind": "UnknownRuntimeHandlerError", "handler": "h", "known": ["a", 1]},
            UnknownRuntimeHandlerError,
            "known handlers: a",
        ),
        (
            grpc.StatusCode.NOT_FOUND,
            "x",
            {"kind": "NoMatchingManifestError", "reference": "r", "wanted": "w", "offered": None},
            NoMatchingManifestError,
            "r: no manifest for w",
        ),
        (UNKNOWN, "x", {"kind": "ImageDeniedError", "reference": "r", "verifier": "v"}, ImageDeniedError, "by image"),
        # What doesn't fit is as if it weren't there.
        (INVALID, "plain", {"kind": "UnknownRuntimeHandlerError", "handler": 1}, InvalidInputError, "plain"),
        (INVALID, "plain", {"kind": "RuntimeError"}, InvalidInputError, "plain"),
        (INVALID, "plain", [1], InvalidInputError, "plain"),
        (INVALID, "plain", b"\xff{", InvalidInputError, "plain"),
        (INVALID, "plain", b"[" * 3000, InvalidInputError, "plain"),
    ],
)
def test_a_status_becomes_an_error(
    code: grpc.StatusCode, details: str, data: object, kind: type[Exception], text: str
) -> None:
    with (
        serving(PullImage=aborting(code, details, data)) as (client, _),
        pytest.raises(kind) as caught,
    ):
        client.pull(ImageSpec("a:1"))
    assert type(caught.value) is kind
    assert text in str(caught.value)
    assert len(str(caught.value)) < 5000


def test_what_a_server_lacks_says_so() -> None:
    with serving() as (client, _), pytest.raises(ImageServiceError, match="ListContainers: unimplemented"):
        client.containers()


def test_an_absent_server_is_an_error_with_a_hint(tmp_path: Path) -> None:
    with (
        CriImageService(str(tmp_path / "none.sock")) as client,
        pytest.raises(ServiceUnavailableError, match=r"none\.sock: Version: not available") as caught,
    ):
        client.version()
    assert "is the server running" in caught.value.hint


def test_a_server_that_answers_is_not_asked_whether_it_runs() -> None:
    def busy(_: Any, context: grpc.ServicerContext) -> Any:
        context.set_trailing_metadata((("x-request-id", "r1"),))
        context.abort(grpc.StatusCode.UNAVAILABLE, "store: is busy (try again)")

    with (
        serving(PullImage=busy) as (client, _),
        pytest.raises(ServiceUnavailableError, match="not available: store: is busy") as caught,
    ):
        client.pull(ImageSpec("a:1"))
    assert caught.value.hint == ""


def test_containers_tell_their_images_and_those_they_mount() -> None:
    containers = [
        cri.Container(
            id="new", image_id="sha256:1", image_ref="a@sha256:9", image=cri.ImageSpec(runtime_handler="kata")
        ),
        cri.Container(id="old", image_ref="sha256:2"),
        cri.Container(id="gone", image_id="sha256:3"),
    ]

    def status(request: Any, context: grpc.ServicerContext) -> cri.ContainerStatusResponse:
        if request.container_id == "gone":
            context.abort(grpc.StatusCode.NOT_FOUND, "gone")
        mounts = [cri.Mount(image=cri.ImageSpec(image="sha256:4")), cri.Mount(host_path="/x")]
        return cri.ContainerStatusResponse(
            status=cri.ContainerStatus(mounts=mounts if request.container_id == "new" else [])
        )

    listed = cri.ListContainersResponse(containers=containers)
    with serving(ListContainers=lambda *_: listed, ContainerStatus=status) as (client, _):
        assert list(client.containers()) == [
            ContainerImage("new", "sha256:1", "kata", ("sha256:4",)),
            ContainerImage("old", "sha256:2"),
            ContainerImage("gone", "sha256:3"),
        ]


def test_file_systems_may_have_no_inodes() -> None:
    usage = cri.FilesystemUsage(timestamp=3, fs_id=cri.FilesystemIdentifier(mountpoint="/x"))
    answer = cri.ImageFsInfoResponse(image_filesystems=[usage], container_filesystems=[usage])
    with serving(ImageFsInfo=lambda *_: answer) as (client, _):
        found = client.filesystems()
    assert found.image_filesystems == found.container_filesystems
    assert (found.image_filesystems[0].used_bytes, found.image_filesystems[0].inodes_used) == (0, None)


def test_a_token_ends_a_call_and_the_server_hears_of_it() -> None:
    heard, token = threading.Event(), CancelToken()

    def endless(_: Any, context: grpc.ServicerContext) -> cri.PullImageResponse:
        context.add_callback(heard.set)
        threading.Timer(0.05, token.cancel, ["the user left"]).start()
        assert heard.wait(60)
        return cri.PullImageResponse()

    with serving(PullImage=endless) as (client, _):
        with pytest.raises(OperationCancelledError, match="the user left"):
            client.pull(ImageSpec("a:1"), cancel=token)
        assert heard.wait(60)


def test_a_slow_server_runs_into_the_limit_of_quick_calls() -> None:
    go = threading.Event()

    def slow(*_: Any) -> cri.VersionResponse:
        go.wait(60)
        return cri.VersionResponse()

    with serving(Version=slow) as (client, _):
        with (
            CriImageService(client.endpoint, timeout_seconds=0.1) as hasty,
            pytest.raises(DeadlineExceededError, match="Version: no answer"),
        ):
            hasty.version()
        go.set()


def test_a_limit_beyond_grpcs_range_does_not_end_calls_at_once() -> None:
    answer = cri.VersionResponse(version="1", runtime_name="n", runtime_version="2", runtime_api_version="v1")
    with (
        serving(Version=lambda *_: answer) as (client, _),
        CriImageService(client.endpoint, timeout_seconds=2562047 * 3600.0) as patient,
    ):
        assert patient.version().name == "n"


def test_images_and_containers_may_be_on_two_endpoints() -> None:
    with (
        serving(
            Version=lambda *_: cri.VersionResponse(
                version="1", runtime_name="n", runtime_version="2", runtime_api_version="v1"
            )
        ) as (first, runtime),
        serving(ListImages=lambda *_: cri.ListImagesResponse()) as (second, images),
        CriImageService(first.endpoint, image_endpoint=second.endpoint) as both,
    ):
        both.version()
        both.list()
        assert [name for name, _ in runtime.calls] == ["Version"]
        assert [name for name, _ in images.calls] == ["StreamImages", "ListImages"]


def test_the_client_is_the_port(tmp_path: Path) -> None:
    with CriImageService(str(tmp_path / "none.sock")) as client:
        service: ImageService = client
        assert all(callable(getattr(service, name)) for name in vars(ImageService) if not name.startswith("_"))


def test_lists_of_sixteen_mebibytes_come_through() -> None:
    many = [cri.Image(id=f"sha256:{at:064x}", size=1, repo_tags=["x" * 900]) for at in range(15_000)]
    with serving(ListImages=lambda *_: cri.ListImagesResponse(images=many)) as (client, _):
        assert len(client.list()) == len(many)


def test_a_list_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("imagestore.cri.client._MOST_LIST_BYTES", 1000)
    is_left = threading.Event()

    def endless(_: Any, context: grpc.ServicerContext) -> Iterator[cri.StreamImagesResponse]:
        context.add_callback(is_left.set)
        while context.is_active():
            yield cri.StreamImagesResponse(images=[IMAGE])

    with serving(StreamImages=endless) as (client, _):
        with pytest.raises(ImageServiceError, match="StreamImages: expected at most 1000 bytes of images"):
            client.list()
        assert is_left.wait(60), "the server hears of it"


def test_a_closed_client_says_so() -> None:
    client = CriImageService("/run/none.sock")
    client.close()
    for ask, name in ((client.version, "Version"), (client.list, "StreamImages")):
        with pytest.raises(ImageServiceError, match=f"unix:///run/none.sock: {name}: this client was closed"):
            ask()


@pytest.mark.parametrize(
    ("spec", "sandbox", "named"),
    [
        (ImageSpec("a:1", annotations={"k": "\ud800"}), None, "image 'a:1': annotations"),
        (ImageSpec("a:1", annotations={"\udcff": ""}), None, "image 'a:1': annotations"),
        (ImageSpec("a:1", user_specified_image="\udcff"), None, "image 'a:1': name in the pod"),
        (ImageSpec("a:1"), SandboxMetadata("p", "u", "\ud800"), "pod 'p'"),
        (ImageSpec("a:1"), SandboxMetadata("p", "u", "n", {"k": "\ud800"}), "pod 'p'"),
    ],
)
def test_what_is_no_text_is_refused_before_anything_is_sent(
    spec: ImageSpec, sandbox: SandboxMetadata | None, named: str
) -> None:
    with CriImageService("/run/none.sock") as client, pytest.raises(InvalidInputError, match=f"{named}: expected UTF"):
        client.pull(spec, sandbox=sandbox)
