"""A client of one containerd: the calls that publishing needs, with our values and errors.

``Containerd`` has one method for each call; what several calls mean together is in the modules above. Every call but
the streams of events and content has a time limit. Calls with a lease act under it: what they touch joins it.
"""

from __future__ import annotations

import datetime
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

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
import imagestore.protos.containerd.types_pb2 as types_pb2
import imagestore.protos.containerd.version_pb2_grpc as version_grpc
import imagestore.protos.cri.api_pb2 as cri_pb2
import imagestore.protos.cri.api_pb2_grpc as cri_grpc
from imagestore.errors import AlreadyExistsError, NotFoundError
from imagestore.protos.google.protobuf.empty_pb2 import Empty
from imagestore.protos.google.protobuf.field_mask_pb2 import FieldMask
from imagestore.publish.containerd_values import Container, Plugins, Usage, error_of
from imagestore.publish.wanted import PINNED, ActualImage
from imagestore.util.cancel import CancelToken
from imagestore.util.endpoint import Endpoint
from imagestore.util.grpc_channel import GrpcChannel

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from imagestore.oci import Descriptor, Digest
    from imagestore.util.grpc_channel import Exchange

NAMESPACE_HEADER: Final = "containerd-namespace"
LEASE_HEADER: Final = "containerd-lease"
CALL_SECONDS: Final = 60.0
#: Applying a layer takes as long as unpacking it.
APPLY_SECONDS: Final = 3600.0
EXPIRE: Final = "containerd.io/gc.expire"
SNAPSHOT_REF: Final = "containerd.io/snapshot.ref"
_CONTENT_PLUGIN: Final = ("io.containerd.content.v1", "content")
_SNAPSHOTTER_TYPE: Final = "io.containerd.snapshotter.v1"


class Containerd:
    """One containerd, in one namespace; thread-safe. Connects at the first call.

    Args:
        address: ``unix:///absolute/path``, or the path.
        namespace: CRI's is ``k8s.io``.
        cancel: ends every call.

    Raises:
        InvalidInputError: the address is no unix socket's.

    Every method raises ServiceUnavailableError if containerd can't be reached, UnsupportedError if it lacks the
    service, NotFoundError, AlreadyExistsError, PreconditionError and other ImageStoreErrors by containerd's status.
    """

    def __init__(self, address: str, *, namespace: str = "k8s.io", cancel: CancelToken | None = None) -> None:
        endpoint = Endpoint.parse(address)
        self.address = endpoint.text
        self.namespace = namespace
        self._channel = GrpcChannel(endpoint, CALL_SECONDS, cancel=cancel, error_of=error_of)
        raw = self._channel.raw
        self._containers = containers_grpc.ContainersStub(raw)
        self._content = content_grpc.ContentStub(raw)
        self._diff = diff_grpc.DiffStub(raw)
        self._events = events_grpc.EventsStub(raw)
        self._images = images_grpc.ImagesStub(raw)
        self._introspection = introspection_grpc.IntrospectionStub(raw)
        self._leases = leases_grpc.LeasesStub(raw)
        self._snapshots = snapshots_grpc.SnapshotsStub(raw)
        self._version = version_grpc.VersionStub(raw)
        self._cri = cri_grpc.ImageServiceStub(raw)

    def close(self) -> None:
        """End the calls and the connection."""
        self._channel.close()

    def metadata(self, lease: str = "") -> tuple[tuple[str, str], ...]:
        """The headers of a call: the namespace, and perhaps the lease that it acts under."""
        own = ((NAMESPACE_HEADER, self.namespace),)
        return (*own, (LEASE_HEADER, lease)) if lease else own

    # Introspection.

    def version(self) -> str:
        """containerd's version, such as ``1.6.20``."""
        return self._channel.call(self._version.Version, Empty(), "Version").version

    def plugins(self) -> Plugins:
        """What containerd has loaded."""
        answer = self._channel.call(self._introspection.Plugins, introspection_pb2.PluginsRequest(), "Plugins")
        working = [plugin for plugin in answer.plugins if not plugin.init_err.code]
        roots = [plugin.exports.get("root", "") for plugin in working if (plugin.type, plugin.id) == _CONTENT_PLUGIN]
        root = next((Path(each) for each in roots if os.path.isabs(each)), None)
        snapshotters = frozenset(plugin.id for plugin in working if plugin.type == _SNAPSHOTTER_TYPE)
        return Plugins(root, snapshotters, frozenset(plugin.type for plugin in working))

    # Image records.

    def images(self, names: Sequence[str] = ()) -> list[ActualImage]:
        """The records of these names, or all of the namespace, in one call."""
        request = images_pb2.ListImagesRequest(filters=[f"name=={_quoted(name)}" for name in names])
        answer = self._channel.call(self._images.List, request, "Images.List", metadata=self.metadata())
        return [ActualImage(each.name, each.target.digest, dict(each.labels)) for each in answer.images]

    def put_image(self, name: str, target: Descriptor, labels: Mapping[str, str], lease: str) -> bool:
        """Make a record, or give one that is there this target and these labels; returns whether it is new.

        The pinned label is taken away unless it is given; other labels stay.
        """
        image = images_pb2.Image(name=name, labels=labels, target=descriptor_message(target))
        try:
            request = images_pb2.CreateImageRequest(image=image)
            self._channel.call(self._images.Create, request, "Images.Create", metadata=self.metadata(lease))
            return True
        except AlreadyExistsError:
            mask = FieldMask(paths=["target", *(f"labels.{key}" for key in sorted({*labels, PINNED}))])
            update = images_pb2.UpdateImageRequest(image=image, update_mask=mask)
            self._channel.call(self._images.Update, update, "Images.Update", metadata=self.metadata(lease))
            return False

    def delete_image(self, name: str, *, is_synced: bool = False) -> bool:
        """Delete a record; returns whether there was one. Synced: what only it kept is collected before the answer."""
        request = images_pb2.DeleteImageRequest(name=name, sync=is_synced)
        try:
            self._channel.call(self._images.Delete, request, "Images.Delete", metadata=self.metadata())
        except NotFoundError:
            return False
        return True

    # Leases.

    def create_lease(self, lease: str, expires_at: float) -> None:
        """Make a lease that ends at a time, in seconds since 1970.

        Raises:
            AlreadyExistsError: the id is taken.
        """
        request = leases_pb2.CreateRequest(id=lease, labels={EXPIRE: _time(expires_at)})
        self._channel.call(self._leases.Create, request, "Leases.Create", metadata=self.metadata())

    def delete_lease(self, lease: str, *, is_synced: bool, cancel: CancelToken | None = None) -> None:
        """End a lease; it need not exist. Synced: what only it kept is collected before the answer.

        Args:
            lease: its id.
            is_synced: see above.
            cancel: ends this call, instead of the client's token.
        """
        request = leases_pb2.DeleteRequest(id=lease, sync=is_synced)
        try:
            self._channel.call(self._leases.Delete, request, "Leases.Delete", cancel=cancel, metadata=self.metadata())
        except NotFoundError:
            return

    def leases(self) -> dict[str, str]:
        """The ids of all leases of the namespace, each with its end as written; empty for one without."""
        answer = self._channel.call(
            self._leases.List, leases_pb2.ListRequest(), "Leases.List", metadata=self.metadata()
        )
        return {each.id: each.labels.get(EXPIRE, "") for each in answer.leases}

    def lease_resources(self, lease: str) -> list[tuple[str, str]]:
        """(type, id) of what a lease holds."""
        request = leases_pb2.ListResourcesRequest(id=lease)
        answer = self._channel.call(self._leases.ListResources, request, "ListResources", metadata=self.metadata())
        return [(each.type, each.id) for each in answer.resources]

    def add_resource(self, lease: str, kind: str, name: str) -> None:
        """Let a lease hold something that is there, or may come: ``content``, ``snapshots/<snapshotter>``."""
        request = leases_pb2.AddResourceRequest(id=lease, resource=leases_pb2.Resource(id=name, type=kind))
        self._channel.call(self._leases.AddResource, request, "AddResource", metadata=self.metadata())

    # Content, but for writes.

    def content_labels(self, digest: Digest) -> dict[str, str] | None:
        """The labels of a blob; None if the namespace doesn't have it."""
        request = content_pb2.InfoRequest(digest=str(digest))
        try:
            answer = self._channel.call(self._content.Info, request, "Content.Info", metadata=self.metadata())
        except NotFoundError:
            return None
        return dict(answer.info.labels)

    def label_content(self, digest: Digest, labels: Mapping[str, str], lease: str) -> None:
        """Set labels of a blob; its others stay.

        Raises:
            NotFoundError: the namespace doesn't have it.
        """
        info = content_pb2.Info(digest=str(digest), labels=labels)
        request = content_pb2.UpdateRequest(
            info=info, update_mask=FieldMask(paths=[f"labels.{key}" for key in sorted(labels)])
        )
        self._channel.call(self._content.Update, request, "Content.Update", metadata=self.metadata(lease))

    def read_content(self, digest: Digest, limit_bytes: int) -> bytes:
        """A small blob, whole; as it lies there, unverified.

        Raises:
            NotFoundError: the namespace doesn't have it, or its file is gone.
        """
        request = content_pb2.ReadContentRequest(digest=str(digest), size=0)
        found = bytearray()
        for answer in self._channel.stream(self._content.Read, request, "Content.Read", metadata=self.metadata()):
            found += answer.data
            if len(found) > limit_bytes:
                break
        return bytes(found)

    def write(
        self, lease: str, cancel: CancelToken | None = None
    ) -> AbstractContextManager[Exchange[content_pb2.WriteContentRequest, content_pb2.WriteContentResponse]]:
        """A running write; see content_writes. With a token, its deadline is the only limit."""
        metadata = self.metadata(lease)
        return self._channel.exchange(
            self._content.Write, "Content.Write", cancel=cancel, has_limit=cancel is None, metadata=metadata
        )

    def abort_write(self, ref: str) -> None:
        """End an unfinished write; it need not exist."""
        try:
            request = content_pb2.AbortRequest(ref=ref)
            self._channel.call(self._content.Abort, request, "Content.Abort", metadata=self.metadata())
        except NotFoundError:
            return

    # Snapshots.

    def has_snapshot(self, snapshotter: str, name: str, lease: str = "") -> bool:
        """Whether a committed snapshot is there."""
        request = snapshots_pb2.StatSnapshotRequest(snapshotter=snapshotter, key=name)
        try:
            answer = self._channel.call(self._snapshots.Stat, request, "Snapshots.Stat", metadata=self.metadata(lease))
        except NotFoundError:
            return False
        return answer.info.kind == snapshots_pb2.COMMITTED

    def snapshots(self, snapshotter: str) -> set[str]:
        """The names of all committed snapshots, in one call."""
        request = snapshots_pb2.ListSnapshotsRequest(snapshotter=snapshotter)
        answers = self._channel.stream(self._snapshots.List, request, "Snapshots.List", metadata=self.metadata())
        return {each.name for part in answers for each in part.info if each.kind == snapshots_pb2.COMMITTED}

    def prepare_snapshot(
        self, snapshotter: str, key: str, parent: str, labels: Mapping[str, str], lease: str
    ) -> Sequence[types_pb2.Mount]:
        """A writable snapshot over a committed one; returns how to mount it.

        Raises:
            AlreadyExistsError: the key is taken, or a remote snapshotter has the layer.
        """
        request = snapshots_pb2.PrepareSnapshotRequest(snapshotter=snapshotter, key=key, parent=parent, labels=labels)
        answer = self._channel.call(
            self._snapshots.Prepare, request, "Snapshots.Prepare", metadata=self.metadata(lease)
        )
        return answer.mounts

    def commit_snapshot(self, snapshotter: str, name: str, key: str, lease: str) -> None:
        """Give what was written its name.

        Raises:
            AlreadyExistsError: another was faster.
        """
        request = snapshots_pb2.CommitSnapshotRequest(snapshotter=snapshotter, name=name, key=key)
        self._channel.call(self._snapshots.Commit, request, "Snapshots.Commit", metadata=self.metadata(lease))

    def remove_snapshot(self, snapshotter: str, key: str) -> None:
        """Remove a snapshot; it need not exist.

        Raises:
            PreconditionError: another stands on it.
        """
        request = snapshots_pb2.RemoveSnapshotRequest(snapshotter=snapshotter, key=key)
        try:
            self._channel.call(self._snapshots.Remove, request, "Snapshots.Remove", metadata=self.metadata())
        except NotFoundError:
            return

    def apply(self, layer: Descriptor, mounts: Sequence[types_pb2.Mount], lease: str, cancel: CancelToken) -> str:
        """Unpack a layer of containerd's content into mounts; returns the digest of what was unpacked (the diff id)."""
        request = diff_pb2.ApplyRequest(diff=descriptor_message(layer), mounts=mounts)
        metadata = self.metadata(lease)
        with cancel.child(deadline_seconds=APPLY_SECONDS) as token:
            answer = self._channel.call(
                self._diff.Apply, request, "Diff.Apply", cancel=token, has_limit=False, metadata=metadata
            )
        return answer.applied.digest

    # Events and containers.

    def events(self, filters: Sequence[str], cancel: CancelToken) -> Iterator[tuple[str, str]]:
        """(topic, namespace) of events, until the connection ends.

        The first item, of an empty topic, says that the call was sent; containerd doesn't say from when on it hears.
        """
        request = events_pb2.SubscribeRequest(filters=filters)
        stream = self._channel.stream(self._events.Subscribe, request, "Subscribe", cancel=cancel, has_limit=False)
        yield ("", "")
        for envelope in stream:
            yield (envelope.topic, envelope.namespace)

    def containers(self) -> list[Container]:
        """All containers of the namespace, sandboxes too, in one call."""
        request = containers_pb2.ListContainersRequest()
        answer = self._channel.call(self._containers.List, request, "Containers.List", metadata=self.metadata())
        return [Container(each.id, each.image, dict(each.labels)) for each in answer.containers]

    # containerd's CRI plugin.

    def cri_image_id(self, name: str) -> str:
        """The id that CRI resolves a name or an id to; empty if it doesn't know it."""
        request = cri_pb2.ImageStatusRequest(image=cri_pb2.ImageSpec(image=name))
        return self._channel.call(self._cri.ImageStatus, request, "ImageStatus").image.id

    def cri_names(self) -> dict[str, str]:
        """The id of each name that CRI knows, and of each id, in one call."""
        answer = self._channel.call(self._cri.ListImages, cri_pb2.ListImagesRequest(), "ListImages")
        found = {}
        for image in answer.images:
            for name in (image.id, *image.repo_tags, *image.repo_digests):
                found[name] = image.id
        return found

    def cri_image_filesystems(self, *, seconds: float) -> list[Usage]:
        """The file systems of CRI's images; the call ends after so many seconds."""
        request = cri_pb2.ImageFsInfoRequest()
        answer = self._channel.call(self._cri.ImageFsInfo, request, "ImageFsInfo", cancel=CancelToken(seconds))
        return [
            Usage(each.fs_id.mountpoint, each.used_bytes.value, each.inodes_used.value, each.timestamp)
            for each in answer.image_filesystems
        ]


def descriptor_message(descriptor: Descriptor) -> types_pb2.Descriptor:
    """containerd's message of a descriptor."""
    return types_pb2.Descriptor(media_type=descriptor.media_type, digest=str(descriptor.digest), size=descriptor.size)


def image_of_container(container: Container, names: Mapping[str, str]) -> str:
    """The image id of a container; empty if its name isn't known. ``names`` is cri_names()."""
    return names.get(container.image, container.image if container.image.startswith("sha256:") else "")


def _quoted(text: str) -> str:
    """A text as a value in containerd's filters."""
    return '"' + re.sub(r'(["\\])', r"\\\1", text) + '"'


def _time(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
