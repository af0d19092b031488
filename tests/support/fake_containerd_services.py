"""The services of a fake containerd: messages to calls of its state, and back."""

from __future__ import annotations

import contextlib
import itertools
import queue
import re
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import grpc

import imagestore.protos.containerd.containers_pb2 as containers_pb2
import imagestore.protos.containerd.containers_pb2_grpc as containers_grpc
import imagestore.protos.containerd.content_pb2 as content_pb2
import imagestore.protos.containerd.content_pb2_grpc as content_grpc
import imagestore.protos.containerd.diff_pb2 as diff_pb2
import imagestore.protos.containerd.diff_pb2_grpc as diff_grpc
import imagestore.protos.containerd.events_pb2 as events_pb2
import imagestore.protos.containerd.events_pb2_grpc as events_grpc
import imagestore.protos.containerd.images_pb2 as images_pb2
import imagestore.protos.containerd.images_pb2_grpc as images_grpc
import imagestore.protos.containerd.introspection_pb2 as introspection_pb2
import imagestore.protos.containerd.introspection_pb2_grpc as introspection_grpc
import imagestore.protos.containerd.leases_pb2 as leases_pb2
import imagestore.protos.containerd.leases_pb2_grpc as leases_grpc
import imagestore.protos.containerd.snapshots_pb2 as snapshots_pb2
import imagestore.protos.containerd.snapshots_pb2_grpc as snapshots_grpc
import imagestore.protos.containerd.version_pb2 as version_pb2
import imagestore.protos.containerd.version_pb2_grpc as version_grpc
import imagestore.protos.cri.api_pb2 as cri_pb2
import imagestore.protos.cri.api_pb2_grpc as cri_grpc
from imagestore.protos.containerd.types_pb2 import Descriptor, Envelope, Mount
from imagestore.protos.google.protobuf.empty_pb2 import Empty
from tests.support.fake_containerd_state import RefusedError

if TYPE_CHECKING:
    from tests.support.fake_containerd import FakeContainerd
    from tests.support.fake_containerd_state import State

_MOUNT = "fake"
_NAMES = re.compile(r'name==("(?:[^"\\]|\\.)*"|\S+)')


class Service:
    """What all services need."""

    def __init__(self, fake: FakeContainerd) -> None:
        self.fake = fake

    @contextlib.contextmanager
    def call(self, context: grpc.ServicerContext) -> Iterator[tuple[State, str, str]]:
        """Alone with the state: it, the call's namespace and its lease."""
        headers = {key: str(value) for key, value in context.invocation_metadata()}
        namespace = headers.get("containerd-namespace", "")
        if not namespace:
            raise RefusedError(grpc.StatusCode.FAILED_PRECONDITION, "namespace is required: failed precondition")
        with self.fake.lock:
            yield self.fake.state, namespace, headers.get("containerd-lease", "")
            if self.fake.rules.is_hostile:
                self.fake.state.collect()


class Content(Service, content_grpc.ContentServicer):
    """Blobs and writes."""

    def Info(self, request: content_pb2.InfoRequest, context: grpc.ServicerContext) -> content_pb2.InfoResponse:
        with self.call(context) as (state, namespace, _):
            blob = state.blob(namespace, request.digest)
            info = content_pb2.Info(digest=request.digest, size=blob.size, labels=blob.labels)
            return content_pb2.InfoResponse(info=info)

    def Update(self, request: content_pb2.UpdateRequest, context: grpc.ServicerContext) -> content_pb2.UpdateResponse:
        with self.call(context) as (state, namespace, _):
            state.label(namespace, request.info.digest, dict(request.info.labels), list(request.update_mask.paths))
            return content_pb2.UpdateResponse(info=request.info)

    def Read(
        self, request: content_pb2.ReadContentRequest, context: grpc.ServicerContext
    ) -> Iterator[content_pb2.ReadContentResponse]:
        with self.call(context) as (state, namespace, _):
            data = state.read(namespace, request.digest)
        yield content_pb2.ReadContentResponse(offset=0, data=data)

    def Abort(self, request: content_pb2.AbortRequest, context: grpc.ServicerContext) -> Empty:
        with self.call(context) as (state, namespace, _):
            state.abort_write(namespace, request.ref)
            return Empty()

    def Write(
        self, request_iterator: Iterator[content_pb2.WriteContentRequest], context: grpc.ServicerContext
    ) -> Iterator[content_pb2.WriteContentResponse]:
        first = next(request_iterator, None)
        if first is None:
            return
        with self.call(context) as (state, namespace, lease):
            ingest = state.open_write(namespace, first.ref, first.expected, first.total, lease)
        try:
            for request in itertools.chain((first,), request_iterator):
                with self.call(context):
                    answer = state.write(namespace, first.ref, ingest, first.expected, request, lease)
                yield answer
        finally:  # also when the client is gone; what it wrote stays
            ingest.is_locked = False


class Images(Service, images_grpc.ImagesServicer):
    """Image records."""

    def List(
        self, request: images_pb2.ListImagesRequest, context: grpc.ServicerContext
    ) -> images_pb2.ListImagesResponse:
        names = {_unquoted(found[1]) for each in request.filters if (found := _NAMES.fullmatch(each))}
        assert len(names) == len(set(request.filters)), f"filters that the fake doesn't know: {request.filters}"
        with self.call(context) as (state, namespace, _):
            images = state.namespace(namespace).images
            chosen = [images[name] for name in sorted(images) if name in names or not names]
            return images_pb2.ListImagesResponse(images=chosen)

    def Create(
        self, request: images_pb2.CreateImageRequest, context: grpc.ServicerContext
    ) -> images_pb2.CreateImageResponse:
        with self.call(context) as (state, namespace, _):
            state.create_image(namespace, request.image.name, request.image.target, dict(request.image.labels))
            return images_pb2.CreateImageResponse(image=request.image)

    def Update(
        self, request: images_pb2.UpdateImageRequest, context: grpc.ServicerContext
    ) -> images_pb2.UpdateImageResponse:
        with self.call(context) as (state, namespace, _):
            made = state.update_image(namespace, request.image, list(request.update_mask.paths))
            return images_pb2.UpdateImageResponse(image=made)

    def Delete(self, request: images_pb2.DeleteImageRequest, context: grpc.ServicerContext) -> Empty:
        with self.call(context) as (state, namespace, _):
            state.delete_image(namespace, request.name)
            if request.sync:
                state.collect()
            return Empty()


class Leases(Service, leases_grpc.LeasesServicer):
    """Leases and what they hold."""

    def Create(self, request: leases_pb2.CreateRequest, context: grpc.ServicerContext) -> leases_pb2.CreateResponse:
        with self.call(context) as (state, namespace, _):
            state.create_lease(namespace, request.id, dict(request.labels))
            return leases_pb2.CreateResponse(lease=leases_pb2.Lease(id=request.id, labels=request.labels))

    def Delete(self, request: leases_pb2.DeleteRequest, context: grpc.ServicerContext) -> Empty:
        with self.call(context) as (state, namespace, _):
            state.lease(namespace, request.id)
            del state.namespace(namespace).leases[request.id]
            if request.sync:
                state.collect()
            return Empty()

    def List(self, request: leases_pb2.ListRequest, context: grpc.ServicerContext) -> leases_pb2.ListResponse:
        with self.call(context) as (state, namespace, _):
            found = sorted(state.namespace(namespace).leases.items())
            return leases_pb2.ListResponse(leases=[leases_pb2.Lease(id=id_, labels=e.labels) for id_, e in found])

    def AddResource(self, request: leases_pb2.AddResourceRequest, context: grpc.ServicerContext) -> Empty:
        with self.call(context) as (state, namespace, _):
            state.add_resource(namespace, request.id, request.resource.type, request.resource.id)
            return Empty()

    def ListResources(
        self, request: leases_pb2.ListResourcesRequest, context: grpc.ServicerContext
    ) -> leases_pb2.ListResourcesResponse:
        with self.call(context) as (state, namespace, _):
            held = sorted(state.lease(namespace, request.id).resources)
            resources = [leases_pb2.Resource(id=name, type=kind) for kind, name in held]
            return leases_pb2.ListResourcesResponse(resources=resources)


class Snapshots(Service, snapshots_grpc.SnapshotsServicer):
    """Snapshotters."""

    def Prepare(
        self, request: snapshots_pb2.PrepareSnapshotRequest, context: grpc.ServicerContext
    ) -> snapshots_pb2.PrepareSnapshotResponse:
        with self.call(context) as (state, namespace, lease):
            state.prepare(namespace, request.snapshotter, request.key, request.parent, dict(request.labels), lease)
            mount = Mount(type=_MOUNT, source=request.snapshotter, target=request.key)
            return snapshots_pb2.PrepareSnapshotResponse(mounts=[mount])

    def Commit(self, request: snapshots_pb2.CommitSnapshotRequest, context: grpc.ServicerContext) -> Empty:
        with self.call(context) as (state, namespace, lease):
            state.commit_snapshot(namespace, request.snapshotter, request.name, request.key, lease)
            return Empty()

    def Remove(self, request: snapshots_pb2.RemoveSnapshotRequest, context: grpc.ServicerContext) -> Empty:
        with self.call(context) as (state, namespace, _):
            state.remove_snapshot(namespace, request.snapshotter, request.key)
            return Empty()

    def Stat(
        self, request: snapshots_pb2.StatSnapshotRequest, context: grpc.ServicerContext
    ) -> snapshots_pb2.StatSnapshotResponse:
        with self.call(context) as (state, namespace, _):
            found = state.snapshot(namespace, request.snapshotter, request.key)
            kind = snapshots_pb2.COMMITTED if found.is_committed else snapshots_pb2.ACTIVE
            return snapshots_pb2.StatSnapshotResponse(info=snapshots_pb2.Info(name=request.key, kind=kind))

    def List(
        self, request: snapshots_pb2.ListSnapshotsRequest, context: grpc.ServicerContext
    ) -> Iterator[snapshots_pb2.ListSnapshotsResponse]:
        with self.call(context) as (state, namespace, _):
            kinds = {True: snapshots_pb2.COMMITTED, False: snapshots_pb2.ACTIVE}
            found = state.snapshots_of(namespace, request.snapshotter)
            info = [snapshots_pb2.Info(name=name, kind=kinds[each.is_committed]) for name, each in found.items()]
        yield snapshots_pb2.ListSnapshotsResponse(info=info)


class Diff(Service, diff_grpc.DiffServicer):
    """Unpacks layers."""

    def Apply(self, request: diff_pb2.ApplyRequest, context: grpc.ServicerContext) -> diff_pb2.ApplyResponse:
        with self.call(context) as (state, namespace, _):
            (mount,) = request.mounts
            digest, size = state.apply(namespace, request.diff.digest, mount.source, mount.target)
            applied = Descriptor(media_type="application/vnd.oci.image.layer.v1.tar", digest=digest, size=size)
            return diff_pb2.ApplyResponse(applied=applied)


class Events(Service, events_grpc.EventsServicer):
    """The stream of events."""

    def Subscribe(self, request: events_pb2.SubscribeRequest, context: grpc.ServicerContext) -> Iterator[Envelope]:
        listener = Listener(list(request.filters))
        context.add_callback(listener.end)
        self.fake.listeners.append(listener)
        try:
            yield from listener
        finally:
            self.fake.listeners.remove(listener)


class Listener:
    """One subscription: filters are conditions on topics, of which one has to hold."""

    def __init__(self, filters: list[str]) -> None:
        self._accepts = [_condition(each) for each in filters]
        self._waiting: queue.SimpleQueue[Envelope | None] = queue.SimpleQueue()
        self.is_cut = False

    def hear(self, event: Envelope) -> None:
        """Take an event."""
        if not self._accepts or any(accepts(event.topic) for accepts in self._accepts):
            self._waiting.put(event)

    def end(self) -> None:
        """No event follows."""
        self._waiting.put(None)

    def cut(self) -> None:
        """End as a connection that is lost."""
        self.is_cut = True
        self.end()

    def __iter__(self) -> Iterator[Envelope]:
        yield from iter(self._waiting.get, None)
        if self.is_cut:
            raise RefusedError(grpc.StatusCode.UNAVAILABLE, "the connection was lost")


class Containers(Service, containers_grpc.ContainersServicer):
    """Containers."""

    def List(
        self, request: containers_pb2.ListContainersRequest, context: grpc.ServicerContext
    ) -> containers_pb2.ListContainersResponse:
        with self.call(context) as (state, namespace, _):
            found = state.namespace(namespace).containers
            made = [containers_pb2.Container(id=name, image=each.image) for name, each in sorted(found.items())]
            return containers_pb2.ListContainersResponse(containers=made)


class Introspection(Service, introspection_grpc.IntrospectionServicer):
    """Plugins."""

    def Plugins(
        self, request: introspection_pb2.PluginsRequest, context: grpc.ServicerContext
    ) -> introspection_pb2.PluginsResponse:
        exports = {"root": str(self.fake.root)} if self.fake.rules.shows_root else {}
        content = introspection_pb2.Plugin(type="io.containerd.content.v1", id="content", exports=exports)
        kind = "io.containerd.snapshotter.v1"
        snapshotters = [introspection_pb2.Plugin(type=kind, id=name) for name in self.fake.rules.snapshotters]
        return introspection_pb2.PluginsResponse(plugins=[content, *snapshotters])


class Version(Service, version_grpc.VersionServicer):
    """What it says it is."""

    def Version(self, request: Empty, context: grpc.ServicerContext) -> version_pb2.VersionResponse:
        return version_pb2.VersionResponse(version=self.fake.rules.version)


class ImageService(Service, cri_grpc.ImageServiceServicer):
    """What the CRI plugin knows of images."""

    def ImageStatus(
        self, request: cri_pb2.ImageStatusRequest, context: grpc.ServicerContext
    ) -> cri_pb2.ImageStatusResponse:
        image_id = self.fake.cri.resolve(request.image.image)
        return cri_pb2.ImageStatusResponse(image=cri_pb2.Image(id=image_id) if image_id else None)

    def ListImages(
        self, request: cri_pb2.ListImagesRequest, context: grpc.ServicerContext
    ) -> cri_pb2.ListImagesResponse:
        found: dict[str, cri_pb2.Image] = {}
        for name, image_id in self.fake.cri.known():
            image = found.setdefault(image_id, cri_pb2.Image(id=image_id))
            if "@" in name:
                image.repo_digests.append(name)
            elif name != image_id:
                image.repo_tags.append(name)
        return cri_pb2.ListImagesResponse(images=found.values())

    def ImageFsInfo(
        self, request: cri_pb2.ImageFsInfoRequest, context: grpc.ServicerContext
    ) -> cri_pb2.ImageFsInfoResponse:
        place = cri_pb2.FilesystemIdentifier(mountpoint=str(self.fake.root))
        used = cri_pb2.FilesystemUsage(fs_id=place, used_bytes=cri_pb2.UInt64Value(value=1000), timestamp=1)
        return cri_pb2.ImageFsInfoResponse(image_filesystems=[used])


class CriPlugin:
    """The CRI plugin's own list of images: it learns of records by events, and of all when it starts.

    A record that isn't its own (without its label) makes it make or move the record that is named by the id.
    """

    NAMESPACE = "k8s.io"
    _LABEL = "io.cri-containerd.image"

    def __init__(self, fake: FakeContainerd) -> None:
        self._fake = fake
        self._ids: dict[str, str] = {}
        self._waiting: list[str] = []
        self._lock = threading.Lock()

    def known(self) -> list[tuple[str, str]]:
        """Each name with its id."""
        with self._lock:
            return sorted(self._ids.items())

    def resolve(self, name: str) -> str:
        """The id of a name, or of an id; empty if it isn't known."""
        with self._lock:
            return name if name in self._ids.values() else self._ids.get(name, "")

    def start(self) -> None:
        """Look at all records."""
        with self._lock:
            self._ids.clear()
        self._waiting = sorted(self._fake.state.namespace(self.NAMESPACE).images)
        self.hear()

    def event(self, name: str) -> None:
        """A record has changed."""
        self._waiting.append(name)
        if not self._fake.rules.is_deaf:
            self.hear()

    def hear(self) -> None:
        """Look at the records of all events."""
        while self._waiting:
            self._look(self._waiting.pop(0))

    def _look(self, name: str) -> None:
        state = self._fake.state
        image = state.namespace(self.NAMESPACE).images.get(name)
        if image is None:
            with self._lock:
                self._ids.pop(name, None)
            return
        image_id = state.image_id(self.NAMESPACE, image.target)
        if not image_id:
            return
        with self._lock:
            self._ids[name] = image_id
        if image.labels.get(self._LABEL) != "managed":
            for each in (image_id, name):
                self._manage(each, image.target)

    def _manage(self, name: str, target: Descriptor) -> None:
        state, labels = self._fake.state, {self._LABEL: "managed"}
        try:
            found = state.image(self.NAMESPACE, name)
        except RefusedError:
            state.create_image(self.NAMESPACE, name, target, labels)
            return
        if found.target.digest != target.digest or found.labels.get(self._LABEL) != "managed":
            image = images_pb2.Image(name=name, target=target, labels=labels)
            state.update_image(self.NAMESPACE, image, ["target", f"labels.{self._LABEL}"])


#: Each with the function that adds it to a server.
SERVICES: tuple[tuple[type[Service], Callable[..., None]], ...] = (
    (Content, content_grpc.add_ContentServicer_to_server),
    (Images, images_grpc.add_ImagesServicer_to_server),
    (Leases, leases_grpc.add_LeasesServicer_to_server),
    (Snapshots, snapshots_grpc.add_SnapshotsServicer_to_server),
    (Diff, diff_grpc.add_DiffServicer_to_server),
    (Events, events_grpc.add_EventsServicer_to_server),
    (Containers, containers_grpc.add_ContainersServicer_to_server),
    (Introspection, introspection_grpc.add_IntrospectionServicer_to_server),
    (Version, version_grpc.add_VersionServicer_to_server),
    (ImageService, cri_grpc.add_ImageServiceServicer_to_server),
)


def _unquoted(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text[1:-1]) if text.startswith('"') else text


def _condition(text: str) -> Callable[[str], bool]:
    found = re.fullmatch(r'topic(==|~=)"([^"]+)"', text)
    assert found is not None, f"a filter that the fake doesn't know: {text}"
    operator, wanted = found.groups()
    return (lambda topic: re.search(wanted, topic) is not None) if operator == "~=" else (lambda topic: topic == wanted)
