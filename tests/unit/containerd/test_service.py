"""What the server says of itself, and of what it hasn't."""

from __future__ import annotations

import os
from pathlib import Path

import grpc
import pytest

from imagestore import ImageStore, __version__
from imagestore.containerd.service import add_containerd, add_proxy_content
from imagestore.protos.containerd import introspection_pb2, snapshots_pb2
from imagestore.protos.containerd.introspection_pb2_grpc import IntrospectionStub
from imagestore.protos.containerd.snapshots_pb2_grpc import SnapshotsStub
from imagestore.protos.containerd.version_pb2_grpc import VersionStub
from imagestore.protos.google.protobuf.empty_pb2 import Empty
from imagestore.store import StoreWorkers
from tests.support.containerd_client import Client, refused
from tests.support.rpc_server import containerd_face


def test_the_version_is_ours(client: Client) -> None:
    assert VersionStub(client.channel).Version(Empty()).version == f"imagestore {__version__}"


def test_the_server_is_this_process_over_this_folder(client: Client) -> None:
    stub = IntrospectionStub(client.channel)
    answer = stub.Server(Empty())
    assert answer.pid == os.getpid()
    assert answer.pidns == os.stat("/proc/self/ns/pid").st_ino
    assert answer.uuid == stub.Server(Empty()).uuid != ""


def test_plugins_are_listed_filtered_and_found(client: Client, store: ImageStore) -> None:
    stub = IntrospectionStub(client.channel)
    found = stub.Plugins(introspection_pb2.PluginsRequest(filters=["type==io.containerd.content.v1"])).plugins
    assert [(each.id, each.exports["root"]) for each in found] == [("content", str(store.root / "content"))]
    assert len(stub.Plugins(introspection_pb2.PluginsRequest()).plugins) == 7
    request = introspection_pb2.PluginInfoRequest(type="io.containerd.grpc.v1", id="images")
    assert stub.PluginInfo(request).plugin.id == "images"
    with refused(grpc.StatusCode.NOT_FOUND):
        stub.PluginInfo(introspection_pb2.PluginInfoRequest(type="io.containerd.grpc.v1", id="tasks"))


def test_a_folder_whose_name_is_no_text_is_shown_as_well_as_it_goes(tmp_path: Path) -> None:
    store = ImageStore(tmp_path / os.fsdecode(b"r\xff"))
    with containerd_face(store, tmp_path / "s") as channel:
        stub = IntrospectionStub(channel)
        assert stub.Plugins(introspection_pb2.PluginsRequest()).plugins[0].exports["root"].endswith("/r\ufffd/content")
        assert stub.Server(Empty()).uuid


def test_there_is_never_a_snapshot(client: Client) -> None:
    stub = SnapshotsStub(client.channel)
    request = snapshots_pb2.StatSnapshotRequest(snapshotter="overlayfs", key="sha256:x")
    with refused(grpc.StatusCode.NOT_FOUND, "nothing is unpacked"):
        stub.Stat(request, metadata=client.headers)
    assert list(stub.List(snapshots_pb2.ListSnapshotsRequest(), metadata=client.headers)) == []
    with refused(grpc.StatusCode.FAILED_PRECONDITION, "namespace is required"):
        stub.Stat(request)
    with refused(grpc.StatusCode.FAILED_PRECONDITION, "namespace is required"):
        list(stub.List(snapshots_pb2.ListSnapshotsRequest()))


@pytest.mark.parametrize("method", ["List", "ListStream"])
def test_lists_of_containers_are_empty(client: Client, method: str) -> None:
    call: grpc.UnaryStreamMultiCallable[bytes, bytes] = client.channel.unary_stream(
        f"/containerd.services.containers.v1.Containers/{method}"
    )
    answers = list(call(b"\n\x09id==other", metadata=client.headers))
    assert b"".join(answers) == b""
    assert len(answers) == (method == "List")
    with refused(grpc.StatusCode.FAILED_PRECONDITION, "namespace is required"):
        list(call(b""))


@pytest.mark.parametrize(
    ("method", "says"),
    [
        ("containerd.services.containers.v1.Containers/Create", "runs no containers"),
        ("containerd.services.snapshots.v1.Snapshots/Prepare", "unpacks no layers"),
        ("containerd.services.transfer.v1.Transfer/Transfer", "--local"),
        ("containerd.services.something.v9.Something/New", "this store doesn't have it"),
    ],
)
def test_what_is_not_here_says_so(client: Client, method: str, says: str) -> None:
    call = client.channel.unary_unary(
        f"/{method}", request_serializer=Empty.SerializeToString, response_deserializer=Empty.FromString
    )
    with refused(grpc.StatusCode.UNIMPLEMENTED, f"{method} is not served here: ") as refusal:
        call(Empty(), metadata=client.headers)
    assert refusal.text.endswith(": not implemented")
    with refused(grpc.StatusCode.UNIMPLEMENTED, says):
        call(Empty(), metadata=client.headers)


@pytest.mark.parametrize(
    ("add", "count"), [(add_containerd, 7), (add_proxy_content, 2)], ids=["containerd", "proxy content"]
)
def test_the_services_are_named_for_reflection(store: ImageStore, add: object, count: int) -> None:
    import asyncio

    async def named() -> tuple[str, ...]:
        workers = StoreWorkers(store)
        try:
            assert callable(add)
            names = add(grpc.aio.server(), workers)
            assert isinstance(names, tuple)
            return names
        finally:
            workers.close()

    names = asyncio.run(named())
    assert len(set(names)) == count
    assert "containerd.services.content.v1.Content" in names
