"""CRI's image calls against the store, as a client over a socket sees them."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from imagestore import Digest, Secret
from imagestore.cri import NoMeter
from imagestore.cri.client import CriImageService
from imagestore.cri.model import ImageSpec, SandboxMetadata
from imagestore.cri.records import ImageUsers
from imagestore.errors import (
    InvalidInputError,
    UnknownRuntimeHandlerError,
)
from imagestore.protos.cri import api_pb2, api_pb2_grpc
from imagestore.registry import AuthConfig
from imagestore.testing import Image, build_artifact, build_image
from tests.support.cri_server import CriServer, cri_server
from tests.support.node import CONFIG, HYPERV, PROCESS, PYTHON, Node, node
from tests.unit.cri.image_calls import CANARY, HOST, WINDOWS, spec

OPTIONS = [("grpc.default_authority", "localhost")]


def test_version_and_status_have_what_clients_insist_on(client: CriImageService) -> None:
    version = client.version()
    assert (version.name, version.api_version) == ("imagestore", "v1")
    assert version.version
    status = client.runtime_status()
    assert [(each.name, each.is_met) for each in status.conditions] == [("RuntimeReady", True), ("NetworkReady", True)]
    assert status.handlers == ("", "kata", HYPERV, PROCESS)
    shown = json.loads(status.info["config"])
    assert shown["runtimeHandlers"][HYPERV]["platform"] == "windows(10.0.17763)/amd64"
    assert shown["defaultRuntimeHandler"] == PROCESS


def test_an_empty_store_has_no_images_no_containers_and_no_bytes(client: CriImageService) -> None:
    assert (list(client.list()), list(client.containers())) == ([], [])
    (system,) = client.filesystems().image_filesystems
    assert (system.used_bytes, system.inodes_used) == (0, 0)
    assert abs(system.timestamp_ns - time.time_ns()) < 60 * 10**9


def test_a_list_that_nears_the_limit_is_warned_of_and_one_above_it_has_a_clear_error(
    here: Node, images: dict[str, Image], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Numbers(NoMeter):
        def __init__(self) -> None:
            self.sizes: list[int] = []

        def images_listed(self, size: int) -> None:
            self.sizes.append(size)

    numbers = Numbers()
    with cri_server(here.store, meter=numbers) as server, grpc.insecure_channel(server.endpoint, OPTIONS) as channel:
        stub = api_pb2_grpc.ImageServiceStub(channel)
        with CriImageService(server.endpoint) as client:
            client.pull(spec(next(iter(images))))
        whole = stub.ListImages(api_pb2.ListImagesRequest()).ByteSize()
        assert numbers.sizes[-1] == whole
        assert "grows too long" not in caplog.text
        monkeypatch.setattr("imagestore.cri.image_service.MESSAGE_BYTES", whole)
        for _ in range(2):
            stub.ListImages(api_pb2.ListImagesRequest())
        assert caplog.text.count("grows too long") == 1
        monkeypatch.setattr("imagestore.cri.image_service.MESSAGE_BYTES", whole - 1)
        with pytest.raises(grpc.RpcError, match=r"1 images take .* StreamImages") as caught:
            stub.ListImages(api_pb2.ListImagesRequest())
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert [len(each.images) for each in stub.StreamImages(api_pb2.StreamImagesRequest())] == [1]


def test_three_names_of_one_image_are_one_entry_per_handler(client: CriImageService, images: dict[str, Image]) -> None:
    names = [name for name in images if "/tags" in name]
    ids = {client.pull(spec(name)) for name in names}
    assert len(ids) == 1
    kata = client.pull(spec(names[0], "kata"))
    listed = {(each.id, each.spec.runtime_handler): each for each in client.list()}
    assert listed.keys() == {(ids.pop(), PROCESS), (kata, "kata")}
    digest = images[names[0]].target.digest
    found = {each.spec.runtime_handler: each for each in listed.values()}
    assert found[PROCESS].repo_tags == (names[2], names[0], names[1])
    assert found[PROCESS].repo_digests == (f"{HOST}/other/tags@{digest}", f"{HOST}/team/tags@{digest}")
    assert found["kata"].repo_tags == (names[0],)
    assert found["kata"].spec == ImageSpec(names[0], "kata")


def test_every_name_of_an_image_has_the_same_status(client: CriImageService) -> None:
    for tag in ("1", "2"):
        image_id = client.pull(spec(f"{HOST}/team/tags:{tag}"))
    status = client.status(spec(image_id))
    assert status is not None
    names = (*status.repo_tags, *status.repo_digests, image_id.removeprefix("sha256:"), image_id[:19], image_id[7:15])
    assert [client.status(spec(name)) for name in names] == [status] * len(names)


@pytest.mark.parametrize(
    ("name", "uid", "username"),
    [
        ("uid", 1002, ""),
        ("name", None, "www-data"),
        ("uid-group", 1003, ""),
        ("name-group", None, "www-data"),
        ("nobody", None, ""),
        ("below-0", -5, ""),
        ("signed", 7, ""),
        ("most", 2**63 - 1, ""),
        ("least", -(2**63), ""),
        ("many", 7, ""),
        ("too-many", None, str(2**63)),
        ("arabic", None, "\u0663"),
        ("blank", None, " 7"),
        ("sign", None, "-"),
        ("underscore", None, "1_0"),
    ],
)
def test_the_user_is_a_number_or_a_name(client: CriImageService, name: str, uid: int | None, username: str) -> None:
    client.pull(spec(f"{HOST}/user:{name}"))
    for image in (*client.list(), client.status(spec(f"{HOST}/user:{name}"))):
        assert image is not None
        assert (image.uid, image.username) == (uid, username)


class Raw:
    """Content that is one text, whatever is asked for."""

    def __init__(self, text: str) -> None:
        self.text = text

    def read(self, digest: Digest, *, limit_bytes: int) -> bytes:
        return self.text.encode()


@pytest.mark.parametrize(
    "text",
    [
        "no JSON",
        "[]",
        '{"config": 1}',
        '{"config": [[1, 2]]}',
        '{"config": {"User": 7}}',
        "[" * 100_000,
        '{"config": null}',
        '{"config": {"User": "\\ud800"}}',
        '{"config": {"User": "' + "x" * 5000 + '"}}',
    ],
)
def test_a_config_of_any_shape_has_at_most_no_user(text: str) -> None:
    assert ImageUsers().of(Digest.of(text.encode()), Raw(text)) == ""  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "user"),
    [
        ('{"user": "7"}', "7"),
        ('{"U\u017fer": "7"}', "7"),
        ('{"User": "1000", "user": "0"}', "0"),
        ('{"USER": "0", "User": "1000", "Use": "1"}', "1000"),
    ],
)
def test_the_user_is_the_one_that_a_container_starts_as(settings: str, user: str) -> None:
    """Go's decoder takes any case, and the last one: a node that hears another number lets root through."""
    text = f'{{"config": {settings}}}'
    assert ImageUsers().of(Digest.of(text.encode()), Raw(text)) == user  # type: ignore[arg-type]


def test_an_artifact_is_an_image_without_user_and_config(tmp_path: Path) -> None:
    artifact = build_artifact("application/vnd.example", {"model": b"weights"})
    with (
        node(tmp_path, {f"{HOST}/artifact:1": artifact}) as here,
        cri_server(here.store) as server,
        CriImageService(server.endpoint) as client,
    ):
        client.pull(spec(f"{HOST}/artifact:1"))
        details = client.inspect(spec(f"{HOST}/artifact:1"))
        assert details is not None
        assert (details.image.uid, details.image.username) == (None, "")
        assert details.info.keys() == {"imagestore"}


def test_a_digest_reference_has_no_tag(client: CriImageService, images: dict[str, Image]) -> None:
    name = f"{HOST}/team/tags@{images[f'{HOST}/team/tags:1'].target.digest}"
    client.pull(spec(name))
    (image,) = client.list()
    assert (image.repo_tags, image.repo_digests) == ((), (name,))
    client.pull(spec(name.replace("@", ":1@")))
    (image,) = client.list()
    assert (image.repo_tags, image.repo_digests) == ((), (name,))


def test_a_filter_selects_by_name_by_id_and_by_handler(client: CriImageService) -> None:
    first, other = f"{HOST}/team/tags:1", f"{HOST}/user:uid"
    image_id = client.pull(spec(first))
    client.pull(spec(f"{HOST}/team/tags:2"))
    client.pull(spec(first, "kata"))
    client.pull(spec(other))
    listed = client.list()

    def handlers(selected: ImageSpec) -> list[tuple[str, int]]:
        return sorted((each.spec.runtime_handler, len(each.repo_tags)) for each in client.list(selected))

    assert client.list(spec("")) == listed
    assert handlers(spec(first)) == [("kata", 1), (PROCESS, 2)]
    assert handlers(spec(first, "kata")) == [("kata", 1)]
    assert handlers(spec("", "kata")) == [("kata", 1)]
    assert handlers(spec(image_id)) == [(PROCESS, 2)]
    assert handlers(spec(f"{HOST}/none:1")) == []
    assert handlers(spec("", HYPERV)) == []


@pytest.mark.parametrize("call", ["pull", "status", "inspect", "remove", "list"])
def test_an_unknown_handler_is_refused_everywhere_before_anything_is_sent(
    here: Node, client: CriImageService, call: str
) -> None:
    with pytest.raises(UnknownRuntimeHandlerError) as caught:
        getattr(client, call)(spec(f"{HOST}/team/tags:1", "gvisor"))
    assert (caught.value.handler, caught.value.known) == ("gvisor", ("kata", HYPERV, PROCESS))
    assert not here.registry.ledger.entries


def test_a_megabyte_where_a_name_should_be_is_refused_or_absent(client: CriImageService) -> None:
    huge = "x" * 1_000_000
    assert client.status(spec(huge)) is None
    assert list(client.list(spec(huge))) == []
    client.remove(spec(huge))
    for wrong in (spec(huge), spec(f"{HOST}/user:uid", huge), spec(f"{HOST}/user:uid", "\u00e9" * 100_000)):
        with pytest.raises(InvalidInputError):
            client.pull(wrong)


def test_what_is_no_text_is_refused_before_it_is_sent(client: CriImageService) -> None:
    for wrong in (spec("\udc80"), spec("a", "\udc80")):
        with pytest.raises(InvalidInputError, match="expected UTF-8"):
            client.status(wrong)
    with pytest.raises(InvalidInputError, match="credentials: expected UTF-8") as caught:
        client.pull(spec("a"), auth=AuthConfig(password=Secret(f"{CANARY}\udc80")))
    assert CANARY not in repr(caught.getrepr(chain=True))


def test_absence_is_an_answer(client: CriImageService) -> None:
    for name in (f"{HOST}/none:1", "0" * 64, "sha256:" + "0" * 64, "", "Not A Name"):
        assert client.status(spec(name)) is None
        assert client.inspect(spec(name, "kata")) is None
    for name in (f"{HOST}/none:1", "0" * 64, "Not A Name"):
        client.remove(spec(name))
        client.remove(spec(name, "kata"))


@pytest.mark.parametrize("name", ["", "Not A Name", f"{HOST}/Upper:1"])
def test_a_name_that_cannot_be_pulled_is_the_callers_fault(client: CriImageService, name: str) -> None:
    with pytest.raises(InvalidInputError):
        client.pull(spec(name))


def test_removal_follows_the_rules_for_handlers(client: CriImageService) -> None:
    first, second = f"{HOST}/team/tags:1", f"{HOST}/team/tags:2"
    single = f"{HOST}/user:uid"

    def handlers() -> list[str]:
        return sorted(each.spec.runtime_handler for each in client.list())

    for name, handler in ((first, ""), (second, ""), (first, "kata")):
        client.pull(spec(name, handler))
    client.remove(spec(second))
    assert handlers() == ["kata"]
    client.remove(spec(first))
    assert handlers() == []
    client.pull(spec(first))
    client.pull(spec(first, "kata"))
    client.remove(spec(first, "kata"))
    assert handlers() == [PROCESS]
    client.remove(spec(first))
    image_id = client.pull(spec(single))
    client.remove(spec(image_id))
    assert handlers() == []
    assert client.filesystems().image_filesystems[0].used_bytes == 0


def test_removing_at_the_same_time_is_no_error(client: CriImageService) -> None:
    image_id = client.pull(spec(f"{HOST}/team/tags:1"))

    def remove(_: int) -> object:
        client.remove(spec(image_id))
        return client.status(spec(image_id))

    with ThreadPoolExecutor(5) as pool:
        assert list(pool.map(remove, range(5))) == [None] * 5


def test_a_pinned_image_says_so_and_goes_all_the_same(here: Node, client: CriImageService) -> None:
    client.pull(spec(f"{HOST}/user:uid"))
    here.store.pin(f"{HOST}/user:uid")
    assert [each.is_pinned for each in client.list()] == [True]
    client.remove(spec(f"{HOST}/user:uid"))
    assert list(client.list()) == []


def test_the_configurations_sandbox_image_is_pinned(tmp_path: Path, images: dict[str, Image]) -> None:
    pinned = '\n[plugins."io.containerd.cri.v1.images".pinned_images]\n'
    text = f'{CONFIG}{pinned}sandbox = "{HOST}/user:uid"\nother = "Not A Name"\n'
    with (
        node(tmp_path, images, text=text) as here,
        cri_server(here.store) as server,
        CriImageService(server.endpoint) as client,
    ):
        client.pull(spec(f"{HOST}/user:uid"))
        client.pull(spec(f"{HOST}/user:name"))
        assert {each.username: each.is_pinned for each in client.list()} == {"": True, "www-data": False}


def test_a_verbose_status_has_containerds_members_and_ours(
    here: Node, client: CriImageService, images: dict[str, Image]
) -> None:
    name = f"{HOST}/team/tags:1"
    client.pull(spec(name))
    details = client.inspect(spec(name))
    assert details is not None
    info, own = json.loads(details.info["info"]), json.loads(details.info["imagestore"])
    assert info["imageSpec"]["os.version"] == "10.0.20348.1"
    assert info["chainID"].startswith("sha256:")
    assert own["manifest"]["digest"] == str(images[name].manifests[0].descriptor.digest)
    assert [layer["digest"] for layer in own["layers"]] == [
        str(each.digest) for each in images[name].manifests[0].layers
    ]
    assert (own["platform"], own["wantedPlatform"]) == (WINDOWS, "windows(10.0.20348)/amd64")
    path = here.store.content.path(here.store.get(name).id)
    path.chmod(0o644)
    path.write_bytes(b"{}")
    details = client.inspect(spec(name))
    assert details is not None
    assert details.info.keys() == {"imagestore"}
    assert "expected" in json.loads(details.info["imagestore"])["damage"]


def test_the_handler_may_come_from_the_pods_annotation(client: CriImageService) -> None:
    sandbox = SandboxMetadata("pod", "uid", "namespace", {"io.containerd.cri.runtime-handler": "kata"})
    client.pull(spec(f"{HOST}/team/tags:1"), sandbox=sandbox)
    client.pull(spec(f"{HOST}/team/tags:1", PROCESS), sandbox=sandbox)
    assert sorted(each.spec.runtime_handler for each in client.list()) == ["kata", PROCESS]


def test_a_list_of_several_messages_has_every_image_once(here: Node, client: CriImageService) -> None:
    image = here.store.pull(f"{HOST}/user:uid")
    for number in range(250):
        other = replace(image.record, reference=f"{HOST}/many:{number}", image_id=Digest.of(str(number).encode()))
        here.store.metadata.images.put(other, {})
    assert len({each.id for each in client.list()}) == 251


def test_the_default_image_and_a_shared_reference_are_kept_apart(tmp_path: Path) -> None:
    with node(tmp_path) as here, cri_server(here.store) as server, CriImageService(server.endpoint) as client:
        process, hyperv = client.pull(spec(PYTHON)), client.pull(spec(PYTHON, HYPERV))
        assert process != hyperv
        for name, handler, expected in ((PYTHON, "", process), (PYTHON, HYPERV, hyperv), (hyperv, "", hyperv)):
            found = client.status(spec(name, handler))
            assert found is not None
            assert found.id == expected
        assert client.status(spec(hyperv, PROCESS)) is None


def test_tags_and_digests_of_an_image_are_sorted_in_every_answer(tmp_path: Path) -> None:
    """One id with two manifests: the order of the records' names is not that of the digests."""
    oci = build_image(WINDOWS, seed="both", layers=[])
    docker = build_image(WINDOWS, seed="both", layers=[], family="docker")
    later, first = sorted((oci, docker), key=lambda each: str(each.target.digest), reverse=True)
    names = (f"{HOST}/team/both:a", f"{HOST}/team/both:b")
    with node(tmp_path, dict(zip(names, (later, first), strict=True))) as here, cri_server(here.store) as server:
        with CriImageService(server.endpoint) as client:
            (image_id,) = {client.pull(spec(name)) for name in reversed(names)}
            expected = tuple(f"{HOST}/team/both@{each.target.digest}" for each in (first, later))
            status = client.status(spec(image_id))
            (listed,) = client.list()
        with grpc.insecure_channel(server.endpoint) as channel:
            (sent,) = api_pb2_grpc.ImageServiceStub(channel).ListImages(api_pb2.ListImagesRequest()).images
    assert status is not None
    assert (status.repo_digests, listed.repo_digests, tuple(sent.repo_digests)) == (expected,) * 3
    assert tuple(sent.repo_tags) == names


def test_removing_an_empty_name_is_ambiguous_unless_there_are_no_images(
    client: CriImageService, server: CriServer
) -> None:
    with grpc.insecure_channel(server.endpoint) as channel:
        remove = api_pb2_grpc.ImageServiceStub(channel).RemoveImage
        for request in (
            api_pb2.RemoveImageRequest(),
            api_pb2.RemoveImageRequest(image=api_pb2.ImageSpec(runtime_handler="kata")),
        ):
            assert remove(request) == api_pb2.RemoveImageResponse()
        client.pull(spec(f"{HOST}/team/tags:1"))
        with pytest.raises(grpc.RpcError, match="ambiguous") as caught:
            remove(api_pb2.RemoveImageRequest())
        assert caught.value.code() is grpc.StatusCode.UNKNOWN
        with pytest.raises(grpc.RpcError, match="nope") as caught:
            remove(api_pb2.RemoveImageRequest(image=api_pb2.ImageSpec(runtime_handler="nope")))
        assert caught.value.code() is not grpc.StatusCode.OK
    assert len(client.list()) == 1
