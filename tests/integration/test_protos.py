"""The messages of containerd's services: numbered as in its own files, and understood by a containerd."""

from __future__ import annotations

import gzip
import hashlib
import importlib
import io
import pkgutil
import subprocess
import tarfile
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from google.protobuf import descriptor_pb2

import imagestore.protos.containerd
from imagestore.errors import AlreadyExistsError, NotFoundError, PreconditionError
from imagestore.protos.containerd import (
    containers_pb2,
    content_pb2,
    diff_pb2,
    events_pb2,
    image_events_pb2,
    images_pb2,
    introspection_pb2,
    leases_pb2,
    snapshots_pb2,
    types_pb2,
    version_pb2,
)
from imagestore.protos.containerd.containers_pb2_grpc import ContainersStub
from imagestore.protos.containerd.content_pb2_grpc import ContentStub
from imagestore.protos.containerd.diff_pb2_grpc import DiffStub
from imagestore.protos.containerd.events_pb2_grpc import EventsStub
from imagestore.protos.containerd.images_pb2_grpc import ImagesStub
from imagestore.protos.containerd.introspection_pb2_grpc import IntrospectionStub
from imagestore.protos.containerd.leases_pb2_grpc import LeasesStub
from imagestore.protos.containerd.snapshots_pb2_grpc import SnapshotsStub
from imagestore.protos.containerd.version_pb2_grpc import VersionStub
from imagestore.protos.google.protobuf.empty_pb2 import Empty
from imagestore.util.endpoint import Endpoint
from imagestore.util.grpc_channel import GrpcChannel
from tests.support.peers import need
from tests.support.private_containerd import private_containerd

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from imagestore.protos.google.protobuf.any_pb2 import Any

pytestmark = pytest.mark.integration

DEBIAN = Path("/usr/share/gocode/src")
#: Members, messages and calls that came after the version that Debian has.
NEWER = {
    "containerd.services.containers.v1.Container.sandbox",
    "containerd.services.diff.v1.ApplyRequest.sync_fs",
    "containerd.services.images.v1.CreateImageRequest.source_date_epoch",
    "containerd.services.images.v1.DeleteImageRequest.target",
    "containerd.services.images.v1.UpdateImageRequest.source_date_epoch",
    "containerd.services.introspection.v1.DeprecationWarning",
    "containerd.services.introspection.v1.Introspection.PluginInfo",
    "containerd.services.introspection.v1.PluginInfoRequest",
    "containerd.services.introspection.v1.PluginInfoResponse",
    "containerd.services.introspection.v1.ServerResponse.deprecations",
    "containerd.services.introspection.v1.ServerResponse.pid",
    "containerd.services.introspection.v1.ServerResponse.pidns",
    "containerd.services.snapshots.v1.CommitSnapshotRequest.parent",
    "containerd.types.Platform.os_features",
    "containerd.types.Platform.os_version",
}
#: Moved to another package with nothing in it changed.
MOVED = {".containerd.services.events.v1.Envelope": ".containerd.types.Envelope"}


def test_names_and_numbers_are_those_of_containerds_own_files(tmp_path: Path) -> None:
    ours: dict[str, tuple[object, ...]] = {}
    for each in pkgutil.iter_modules(imagestore.protos.containerd.__path__):
        if each.name.endswith("_pb2"):
            module = importlib.import_module(f"imagestore.protos.containerd.{each.name}")
            ours |= members(descriptor_pb2.FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb))
    theirs = debians(tmp_path / "set")
    assert ours.keys() - theirs.keys() == NEWER | {name for name in ours if name.rpartition(".")[0] in NEWER}
    assert {name: ours[name] for name in ours.keys() & theirs.keys()} == {
        name: theirs[name] for name in ours.keys() & theirs.keys()
    }


def members(file: descriptor_pb2.FileDescriptorProto) -> dict[str, tuple[object, ...]]:
    """Messages, their fields, the values of enumerations and the calls of a file, by their full names."""
    found: dict[str, tuple[object, ...]] = {}

    def add(message: descriptor_pb2.DescriptorProto, package: str) -> None:
        name = MOVED.get(f".{package}.{message.name}", f".{package}.{message.name}")[1:]
        found[name] = ()
        for field in message.field:
            found[f"{name}.{field.name}"] = (field.number, field.type, field.label, field.type_name)
        for nested in message.nested_type:
            add(nested, name)

    for message in file.message_type:
        add(message, file.package)
    for enumeration in file.enum_type:
        for value in enumeration.value:
            found[f"{file.package}.{enumeration.name}.{value.name}"] = (value.number,)
    for service in file.service:
        for method in service.method:
            types = tuple(MOVED.get(each, each) for each in (method.input_type, method.output_type))
            streams = (method.client_streaming, method.server_streaming)
            found[f"{file.package}.{service.name}.{method.name}"] = (*types, *streams)
    return found


def debians(target: Path) -> dict[str, tuple[object, ...]]:
    """The same of every file of containerd's API that Debian packages."""
    api = DEBIAN / "github.com" / "containerd" / "containerd" / "api"
    files = [path.relative_to(DEBIAN) for path in sorted(api.rglob("*.proto")) if path.parts[-3] != "shim"]
    places = [DEBIAN, DEBIAN / "github.com/gogo/protobuf", DEBIAN / "github.com/gogo/googleapis"]
    command = [need("protoc"), *(f"-I{place}" for place in places), "--include_imports", f"-o{target}"]
    done = subprocess.run(
        [*command, *(str(each) for each in files)], cwd=DEBIAN, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, tuple[object, ...]] = {}
    for file in descriptor_pb2.FileDescriptorSet.FromString(target.read_bytes()).file:
        found |= members(file)
    return found


LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
NAMESPACE = (("containerd-namespace", "k8s.io"),)
LEASED = (*NAMESPACE, ("containerd-lease", "work"))


@pytest.fixture
def containerd(tmp_path: Path) -> Iterator[GrpcChannel]:
    with private_containerd(tmp_path) as server:
        endpoint = Endpoint(f"{server.folder}/containerd.sock")
        endpoint.check_socket()
        with GrpcChannel(endpoint, 60) as channel:
            yield channel


def layer() -> tuple[bytes, str]:
    """A compressed layer with one file, and its diff id."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        member = tarfile.TarInfo("hello")
        member.size = 5
        archive.addfile(member, io.BytesIO(b"world"))
    plain = packed.getvalue()
    return gzip.compress(plain), f"sha256:{hashlib.sha256(plain).hexdigest()}"


def test_a_layer_goes_into_a_snapshot_under_a_lease(containerd: GrpcChannel) -> None:
    leases, snapshots = LeasesStub(containerd.raw), SnapshotsStub(containerd.raw)
    containerd.call(leases.Create, leases_pb2.CreateRequest(id="work"), "Create", metadata=NAMESPACE)
    blob, diff_id = layer()
    digest = write(containerd, blob)
    with pytest.raises(NotFoundError, match=f"Stat: snapshot {diff_id} does not exist"):
        stat(containerd, diff_id)
    prepare = snapshots_pb2.PrepareSnapshotRequest(snapshotter="native", key="extract", labels={"a": "b"})
    mounts = containerd.call(snapshots.Prepare, prepare, "Prepare", metadata=LEASED).mounts
    assert mounts
    source = types_pb2.Descriptor(media_type=LAYER, digest=digest, size=len(blob))
    applied = containerd.call(
        DiffStub(containerd.raw).Apply, diff_pb2.ApplyRequest(diff=source, mounts=mounts), "Apply", metadata=LEASED
    ).applied
    assert applied.digest == diff_id
    commit = snapshots_pb2.CommitSnapshotRequest(snapshotter="native", name=diff_id, key="extract")
    containerd.call(snapshots.Commit, commit, "Commit", metadata=LEASED)
    assert stat(containerd, diff_id).kind == snapshots_pb2.COMMITTED
    with pytest.raises(AlreadyExistsError):
        containerd.call(
            snapshots.Prepare,
            snapshots_pb2.PrepareSnapshotRequest(snapshotter="native", key=diff_id),
            "Prepare",
            metadata=LEASED,
        )
    usage = snapshots_pb2.UsageRequest(snapshotter="native", key=diff_id)
    assert containerd.call(snapshots.Usage, usage, "Usage", metadata=NAMESPACE).inodes >= 2
    listed = containerd.stream(
        snapshots.List, snapshots_pb2.ListSnapshotsRequest(snapshotter="native"), "List", metadata=NAMESPACE
    )
    assert [each.name for part in listed for each in part.info] == [diff_id]
    held = containerd.call(
        leases.ListResources, leases_pb2.ListResourcesRequest(id="work"), "ListResources", metadata=NAMESPACE
    )
    assert {(each.type, each.id) for each in held.resources} == {("content", digest), ("snapshots/native", diff_id)}
    containerd.call(leases.Delete, leases_pb2.DeleteRequest(id="work", sync=True), "Delete", metadata=NAMESPACE)
    with pytest.raises(NotFoundError):
        stat(containerd, diff_id)


def stat(channel: GrpcChannel, key: str) -> snapshots_pb2.Info:
    request = snapshots_pb2.StatSnapshotRequest(snapshotter="native", key=key)
    return channel.call(SnapshotsStub(channel.raw).Stat, request, "Stat", metadata=NAMESPACE).info


def write(channel: GrpcChannel, blob: bytes) -> str:
    """Send a blob as the API wants it: ask where to begin, the bytes, their end."""
    digest = f"sha256:{hashlib.sha256(blob).hexdigest()}"
    content = ContentStub(channel.raw)
    asked = content_pb2.WriteContentRequest(action=content_pb2.STAT, ref="work", total=len(blob), expected=digest)
    with channel.exchange(content.Write, "Write", metadata=LEASED) as exchange:
        exchange.send(asked)
        first = exchange.receive()
        assert first is not None
        assert first.offset == 0
        exchange.send(content_pb2.WriteContentRequest(action=content_pb2.WRITE, data=blob))
        second = exchange.receive()
        assert second is not None
        assert second.offset == len(blob)
        exchange.send(
            content_pb2.WriteContentRequest(
                action=content_pb2.COMMIT, offset=len(blob), total=len(blob), expected=digest
            )
        )
        third = exchange.receive()
        assert third is not None
        assert third.digest == digest
    with channel.exchange(content.Write, "Write", metadata=LEASED) as exchange:
        exchange.send(asked)
        with pytest.raises(AlreadyExistsError, match=digest):
            exchange.receive()
    return digest


def test_events_of_images_come_with_their_types(containerd: GrpcChannel) -> None:
    images = ImagesStub(containerd.raw)
    subscribe = events_pb2.SubscribeRequest(filters=['namespace==k8s.io,topic~="^/images/"'])
    events = containerd.stream(EventsStub(containerd.raw).Subscribe, subscribe, "Subscribe", has_limit=False)
    target = types_pb2.Descriptor(media_type="application/x", digest=f"sha256:{'0' * 64}", size=1)

    def put(name: str) -> None:
        image = images_pb2.Image(name=name, target=target, labels={"a": "b"})
        containerd.call(images.Create, images_pb2.CreateImageRequest(image=image), "Create", metadata=NAMESPACE)

    # A subscription has begun when its first event comes; until then events are lost.
    names = iter(range(10_000))
    first = first_event(events, lambda: put(f"early-{next(names)}"))
    assert isinstance(first, image_events_pb2.ImageCreate)
    assert first.labels == {"a": "b"}
    put("late")
    containerd.call(images.Delete, images_pb2.DeleteImageRequest(name="late"), "Delete", metadata=NAMESPACE)
    seen = []
    for envelope in events:
        assert envelope.namespace == "k8s.io"
        seen.append((envelope.topic, image_event(envelope.event)))
        if envelope.topic == "/images/delete":
            break
    events.close()
    assert [(topic, event.name) for topic, event in seen if not event.name.startswith("early-")] == [
        ("/images/create", "late"),
        ("/images/delete", "late"),
    ]


def test_what_containerd_is_made_of(containerd: GrpcChannel) -> None:
    assert containerd.call(VersionStub(containerd.raw).Version, Empty(), "Version") != version_pb2.VersionResponse()
    introspection = IntrospectionStub(containerd.raw)
    assert containerd.call(introspection.Server, Empty(), "Server").uuid
    asked = introspection_pb2.PluginsRequest(filters=["type==io.containerd.content.v1,id==content"])
    (plugin,) = containerd.call(introspection.Plugins, asked, "Plugins").plugins
    assert plugin.exports["root"].endswith("/io.containerd.content.v1.content")
    asked = introspection_pb2.PluginsRequest(filters=["type==io.containerd.snapshotter.v1,id==zfs"])
    (plugin,) = containerd.call(introspection.Plugins, asked, "Plugins").plugins
    assert plugin.init_err.code
    assert plugin.init_err.message
    containers = ContainersStub(containerd.raw)
    nothing = containerd.call(containers.List, containers_pb2.ListContainersRequest(), "List", metadata=NAMESPACE)
    assert list(nothing.containers) == []
    with pytest.raises(PreconditionError, match="namespace is required"):
        containerd.call(containers.List, containers_pb2.ListContainersRequest(), "List")


ImageEvent = image_events_pb2.ImageCreate | image_events_pb2.ImageUpdate | image_events_pb2.ImageDelete


def image_event(event: Any) -> ImageEvent:
    """The event inside; containerd names its type without an address before it."""
    kinds = (image_events_pb2.ImageCreate, image_events_pb2.ImageUpdate, image_events_pb2.ImageDelete)
    (kind,) = (each for each in kinds if each.DESCRIPTOR.full_name == event.TypeName())
    return kind.FromString(event.value)


def first_event(events: Iterator[types_pb2.Envelope], cause: Callable[[], None]) -> ImageEvent:
    """Cause events until one of them comes."""
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(next, events)
        while not coming.done():
            cause()
            wait([coming], timeout=0.05)
        return image_event(coming.result().event)
