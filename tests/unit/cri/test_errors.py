"""CRI's image calls where something is wrong: secrets, errors with their codes, bugs, deadlines."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagestore import CancelToken, ImageStore, Secret, platforms
from imagestore import config as configuration
from imagestore.cri.client import CriImageService
from imagestore.cri.errors import data_of
from imagestore.cri.model import SandboxMetadata
from imagestore.errors import (
    AccessDeniedError,
    AuthenticationError,
    DeadlineExceededError,
    ImageDeniedError,
    ImageNotFoundError,
    ImageServiceError,
    ImageStoreError,
    InvalidInputError,
    NoMatchingManifestError,
    NotFoundError,
    OperationCancelledError,
    ProtocolError,
    RateLimitedError,
    RegistryUnavailableError,
    StoreCorruptError,
    StoreError,
    StoreFullError,
    UnknownRuntimeHandlerError,
)
from imagestore.registry import AuthConfig
from imagestore.testing import BasicAuth, FaultRule, Image, RegistryServer, TokenAuth, Where, build_image
from imagestore.testing import synthetic_layer as large_layer
from imagestore.testing.faults import Drip, Stall
from imagestore.util.rpc import MOST_TEXT_BYTES, text_of
from tests.support.cri_server import cri_server
from tests.support.node import HYPERV, PROCESS, Node, node
from tests.support.patience import until
from tests.unit.cri.image_calls import CANARY, HOST, WINDOWS, spec


@pytest.mark.parametrize("auth_kind", ["basic", "token"])
def test_credentials_count_for_their_own_call_only(tmp_path: Path, auth_kind: str, images: dict[str, Image]) -> None:
    users = {"alice": CANARY}
    guard = BasicAuth(users) if auth_kind == "basic" else TokenAuth(users, allow_anonymous=False)
    name = f"{HOST}/user:uid"
    with (
        node(tmp_path, images, auth=guard) as here,
        cri_server(here.store) as server,
        CriImageService(server.endpoint) as client,
    ):
        image_id = client.pull(spec(name), auth=AuthConfig(username="alice", password=Secret(CANARY)))
        assert image_id
        # The image is here, but a caller without credentials, or with others, may not use it.
        for auth in (
            None,
            AuthConfig(username="alice", password=Secret("wrong")),
            AuthConfig(username="alice", password=Secret(CANARY), server_address="https://elsewhere.example"),
        ):
            with pytest.raises(AuthenticationError) as caught:
                client.pull(spec(name), auth=auth)
            assert CANARY not in str(caught.value) + caught.value.hint
        assert client.pull(spec(name), auth=AuthConfig(auth=Secret("YWxpY2U6Y2FuYXJ5LTdmM2E="))) == image_id


def test_credentials_that_cannot_be_read_matter_only_where_a_registry_asks_for_them(
    tmp_path: Path, here: Node, client: CriImageService, images: dict[str, Image]
) -> None:
    name, auth = f"{HOST}/user:uid", AuthConfig(auth=Secret("no base64!"))
    assert client.pull(spec(name), auth=auth) == client.pull(spec(name))
    with (
        node(tmp_path / "other", images, auth=BasicAuth({"alice": CANARY})) as guarded,
        cri_server(guarded.store) as server,
        CriImageService(server.endpoint) as other,
        pytest.raises(InvalidInputError, match="CRI AuthConfig: auth: expected base64"),
    ):
        other.pull(spec(name), auth=auth)


def test_no_secret_is_in_an_error_or_a_log(
    tmp_path: Path, images: dict[str, Image], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    secrets = [
        AuthConfig(username="alice", password=Secret(CANARY)),
        AuthConfig(username=f"a:{CANARY}", password=Secret(CANARY)),
        AuthConfig(username="alice", password=Secret("x" * 300_000 + CANARY)),
        AuthConfig(auth=Secret(CANARY)),
        AuthConfig(auth=Secret("Y2FuYXJ5LTdmM2E=")),
        AuthConfig(identity_token=Secret(f"{CANARY}\n")),
        AuthConfig(registry_token=Secret(f"{CANARY} \u00e9")),
        AuthConfig(registry_token=Secret(CANARY)),
    ]
    texts: list[str] = []
    with (
        node(tmp_path, images, auth=TokenAuth({"bob": "right"}, allow_anonymous=False)) as here,
        cri_server(here.store) as server,
        CriImageService(server.endpoint) as client,
    ):
        for auth in secrets:
            with pytest.raises(ImageStoreError) as caught:
                client.pull(spec(f"{HOST}/user:uid"), auth=auth)
            texts += [str(caught.value), caught.value.hint]
    shown = "\n".join(texts) + caplog.text
    assert CANARY not in shown.replace(f"a:{CANARY}", "")
    assert "Y2FuYXJ5" not in shown


def test_a_failed_pull_is_logged_with_its_image_and_handler(
    client: CriImageService, caplog: pytest.LogCaptureFixture
) -> None:
    pod = SandboxMetadata("web", "u-1", "prod")
    with caplog.at_level("INFO", logger="imagestore.cri.image_service"), pytest.raises(ImageStoreError):
        client.pull(spec(f"{HOST}/nothing:1", PROCESS), sandbox=pod)
    (line,) = (record for record in caplog.records if record.message == "pull failed")
    shown = {name: getattr(line, name) for name in ("reference", "handler", "pod", "pod_uid")}
    assert shown == {"reference": f"{HOST}/nothing:1", "handler": PROCESS, "pod": "prod/web", "pod_uid": "u-1"}


def test_a_pod_is_logged_no_longer_than_pods_are_named(
    client: CriImageService, caplog: pytest.LogCaptureFixture
) -> None:
    pod = SandboxMetadata("w" * 253, "u" * 100_000, "n" * 63)
    longer = SandboxMetadata("w" * 100_000, "u", "n" * 100_000)
    for each in (pod, longer):
        with caplog.at_level("INFO", logger="imagestore.cri.image_service"), pytest.raises(ImageStoreError):
            client.pull(spec(f"{HOST}/nothing:1", PROCESS), sandbox=each)
    first, second = (vars(record) for record in caplog.records if record.message == "pull failed")
    assert (first["pod"], len(first["pod_uid"])) == (f"{pod.namespace}/{pod.name}", 64)
    assert len(second["pod"]) == len(first["pod"])


def test_missing_and_unmatched_images_have_different_errors(client: CriImageService) -> None:
    with pytest.raises(NotFoundError, match="404"):
        client.pull(spec(f"{HOST}/none:1"))
    with pytest.raises(NoMatchingManifestError) as caught:
        client.pull(spec(f"{HOST}/team/tags:1", HYPERV))
    assert caught.value.wanted == "windows(10.0.17763)/amd64"
    assert caught.value.offered == (WINDOWS, "linux/amd64")


class Failing:
    """A verifier that always ends in the same error."""

    def __init__(self, error: ImageStoreError) -> None:
        self.error = error

    def verify(self, reference: str, target: object, *, cancel: CancelToken) -> None:
        raise self.error


@pytest.mark.parametrize(
    ("error", "code", "beginning"),
    [
        (RegistryUnavailableError("no answer"), "UNKNOWN", "RegistryUnavailable: no answer"),
        (ImageDeniedError("app:1", "cosign", "unsigned"), "UNKNOWN", "SignatureValidationFailed: app:1: denied by"),
        (RateLimitedError("slow down", retry_after=3), "RESOURCE_EXHAUSTED", "slow down"),
        (AccessDeniedError("no"), "PERMISSION_DENIED", "no"),
        (ProtocolError("no HTTP", hint="use https"), "FAILED_PRECONDITION", "no HTTP (use https)"),
        (StoreFullError("full"), "RESOURCE_EXHAUSTED", "full"),
        (StoreCorruptError("torn"), "DATA_LOSS", "torn"),
        (StoreError("odd"), "INTERNAL", "odd"),
        (ImageNotFoundError("gone"), "NOT_FOUND", "gone"),
        (ProtocolError("\u00e9\n" * 9000), "FAILED_PRECONDITION", "\u00e9\\n"),
    ],
)
def test_every_error_has_its_code_and_its_text(
    tmp_path: Path, images: dict[str, Image], error: ImageStoreError, code: str, beginning: str
) -> None:
    with (
        node(tmp_path, images, verifier=Failing(error)) as here,
        cri_server(here.store) as server,
        CriImageService(server.endpoint) as client,
        pytest.raises(ImageStoreError) as caught,
    ):
        client.pull(spec(f"{HOST}/user:uid"))
    status: object = caught.value.__cause__
    assert isinstance(status, grpc.Call)
    assert (status.code().name, (status.details() or "")[: len(beginning)]) == (code, beginning)


def test_what_only_words_or_data_tell_becomes_the_same_error_again(tmp_path: Path, images: dict[str, Image]) -> None:
    unsigned = ImageDeniedError("app:1", "cosign", "unsigned")
    other = NoMatchingManifestError(
        "app:1", "windows(10.0.17763)/amd64", [WINDOWS], hint="use the handler of its build"
    )
    for error in (
        RegistryUnavailableError("no answer"),
        unsigned,
        StoreFullError("full"),
        RateLimitedError("slow"),
        other,
    ):
        with (
            node(tmp_path, images, verifier=Failing(error)) as here,
            cri_server(here.store) as server,
            CriImageService(server.endpoint) as client,
            pytest.raises(type(error)) as caught,
        ):
            client.pull(spec(f"{HOST}/user:uid"))
        assert (str(caught.value), caught.value.hint) == (str(error), error.hint)


class Broken:
    """A verifier with a bug, and a secret in its text."""

    def verify(self, reference: str, target: object, *, cancel: CancelToken) -> None:
        raise RuntimeError(CANARY)


def test_a_bug_is_logged_and_its_text_kept_from_the_caller(
    tmp_path: Path, images: dict[str, Image], caplog: pytest.LogCaptureFixture
) -> None:
    with (
        node(tmp_path, images, verifier=Broken()) as here,
        cri_server(here.store) as server,
        CriImageService(server.endpoint) as client,
        pytest.raises(ImageServiceError, match="internal error") as caught,
    ):
        client.pull(spec(f"{HOST}/user:uid"))
    assert CANARY not in str(caught.value)
    assert CANARY in caplog.text


def test_a_deadline_ends_the_download_and_the_next_pull_goes_on_there(tmp_path: Path) -> None:
    size = 512 * 400
    image = build_image(WINDOWS, layers=[large_layer("slow", size)])
    (part,) = image.layers
    slow = FaultRule(Drip(200_000.0), Where(reference=str(part.digest)), times=0)
    with (
        node(tmp_path, {f"{HOST}/slow:1": image}, faults=[slow]) as here,
        cri_server(here.store) as server,
        CriImageService(server.endpoint) as client,
    ):
        # On a busy machine the deadline may come before the bytes.
        for _ in range(100):
            with pytest.raises(DeadlineExceededError):
                client.pull(spec(f"{HOST}/slow:1"), cancel=CancelToken(0.5))
            until(lambda: not server.pulls.in_progress, "the pull has ended")
            until(lambda: not list(here.store.metadata.leases.find()), "its thread has ended")
            if any(ingest.offset for ingest in here.store.content.statuses()):
                break
        (ingest,) = here.store.content.statuses()
        assert 0 < ingest.offset < size
        assert client.status(spec(f"{HOST}/slow:1")) is None
        client.pull(spec(f"{HOST}/slow:1"))
        *_, last = here.registry.ledger.select(digest=part.digest)
        assert last.range == f"bytes={ingest.offset}-"


def test_a_second_identical_pull_joins_the_first_and_survives_its_caller(tmp_path: Path) -> None:
    image = build_image(WINDOWS, layers=[large_layer("slow", 512 * 200)])
    slow = FaultRule(Drip(50_000.0), Where(kind="blob"), times=0)
    first_token = CancelToken()
    with (
        node(tmp_path, {f"{HOST}/slow:1": image}, faults=[slow]) as here,
        cri_server(here.store) as server,
        CriImageService(server.endpoint) as client,
        ThreadPoolExecutor(2) as pool,
    ):
        first = pool.submit(client.pull, spec(f"{HOST}/slow:1"), cancel=first_token)
        until(lambda: here.registry.ledger.count(kind="blob") > 1, "the first pull asks for blobs")
        second = pool.submit(client.pull, spec("registry.example/slow:1", PROCESS))
        threading.Timer(1.0, first_token.cancel, ["enough"]).start()
        with pytest.raises(OperationCancelledError, match="enough"):
            first.result()
        assert second.result() == str(image.manifests[0].config.digest)
        assert here.registry.ledger.count(kind="manifest") == 1


def test_a_pull_with_other_credentials_joins_no_pull(tmp_path: Path) -> None:
    image = build_image(WINDOWS, layers=[large_layer("slow", 512 * 200)])
    slow = FaultRule(Drip(50_000.0), Where(kind="blob"), times=0)
    guard = BasicAuth({"alice": CANARY})
    with (
        node(tmp_path, {f"{HOST}/slow:1": image}, faults=[slow], auth=guard) as here,
        cri_server(here.store) as server,
        CriImageService(server.endpoint) as client,
        ThreadPoolExecutor(1) as pool,
    ):
        right = AuthConfig(username="alice", password=Secret(CANARY))
        first = pool.submit(client.pull, spec(f"{HOST}/slow:1"), auth=right)
        until(lambda: here.registry.ledger.count(kind="blob") > 1, "the first pull asks for blobs")
        for auth in (None, AuthConfig(username="alice", password=Secret("wrong"))):
            with pytest.raises(AuthenticationError):
                client.pull(spec(f"{HOST}/slow:1"), auth=auth)
        assert not first.done()
        assert first.result() == str(image.manifests[0].config.digest)


def test_a_passed_deadline_starts_nothing(here: Node, client: CriImageService) -> None:
    with pytest.raises(DeadlineExceededError):
        client.pull(spec(f"{HOST}/user:uid"), cancel=CancelToken(0.0))
    assert not here.registry.ledger.entries


@pytest.mark.parametrize("size", [64 * 1024, 4 * 1024 * 1024], ids=["small", "large"])
def test_a_pull_that_receives_nothing_ends_as_the_configuration_says(tmp_path: Path, size: int) -> None:
    name, part = f"{HOST}/stalls:1", large_layer("stalls", size)
    text = 'version = 3\n[plugins."io.containerd.cri.v1.images"]\nimage_pull_progress_timeout = "200ms"\n'
    here = platforms.parse("linux/amd64")
    stall = FaultRule(Stall(1024, 60.0), Where(reference=str(part.digest)), times=0)
    with (
        RegistryServer({name: build_image("linux/amd64", layers=[part])}, faults=[stall]) as source,
        ImageStore(tmp_path, config=configuration.loads(text, host=here), host=here) as store,
        cri_server(store) as server,
        CriImageService(server.endpoint, timeout_seconds=50) as client,
        pytest.raises(OperationCancelledError, match=r"nothing was received for 0.2 s \(image_pull_progress_timeout"),
    ):
        client.pull(spec(source.server.reference(name)))


@given(st.text(max_size=3000), st.text(max_size=3000))
def test_a_statuss_text_fits_its_header(message: str, hint: str) -> None:
    text = text_of(ImageStoreError(message, hint=hint))
    encoded = text.encode("utf-8")
    assert sum(1 if 0x20 <= byte < 0x7F and byte != 0x25 else 3 for byte in encoded) <= MOST_TEXT_BYTES
    whole = str(ImageStoreError(message))
    assert text.startswith(whole) or text.endswith("...")


@pytest.mark.parametrize(
    "error",
    [
        UnknownRuntimeHandlerError("x" * 254, ["runc"]),
        UnknownRuntimeHandlerError("x", ["y" * 100] * 100),
        NoMatchingManifestError("r", "w" * 3000, []),
        ImageStoreError("plain"),
    ],
)
def test_data_that_would_not_fit_is_left_out(error: ImageStoreError) -> None:
    assert data_of(error) == b""
