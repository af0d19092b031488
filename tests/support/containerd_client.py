"""A client of containerd's services for tests: one namespace, one line a call."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import grpc
import pytest

from imagestore import Digest
from imagestore.protos.containerd import content_pb2, images_pb2, leases_pb2, namespaces_pb2
from imagestore.protos.containerd.content_pb2_grpc import ContentStub
from imagestore.protos.containerd.images_pb2_grpc import ImagesStub
from imagestore.protos.containerd.leases_pb2_grpc import LeasesStub
from imagestore.protos.containerd.namespaces_pb2_grpc import NamespacesStub
from imagestore.protos.containerd.types_pb2 import Descriptor
from imagestore.protos.google.protobuf.field_mask_pb2 import FieldMask

STAT, WRITE, COMMIT = content_pb2.STAT, content_pb2.WRITE, content_pb2.COMMIT
INDEX_TYPE = "application/vnd.oci.image.index.v1+json"


def message(
    action: content_pb2.WriteAction.ValueType,
    ref: str = "",
    *,
    data: bytes = b"",
    offset: int = 0,
    total: int = 0,
    expected: str = "",
    labels: dict[str, str] | None = None,
) -> content_pb2.WriteContentRequest:
    """One message of a write."""
    return content_pb2.WriteContentRequest(
        action=action, ref=ref, data=data, offset=offset, total=total, expected=expected, labels=labels or {}
    )


@dataclass(frozen=True)
class Client:
    """Calls with headers."""

    channel: grpc.Channel
    namespace: str = "default"
    lease: str = ""

    def within(self, namespace: str) -> Client:
        """The same client in another namespace."""
        return replace(self, namespace=namespace)

    def leasing(self, lease: str) -> Client:
        """The same client under a lease."""
        return replace(self, lease=lease)

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        """What each call carries."""
        named = (("containerd-namespace", self.namespace),) if self.namespace else ()
        return (*named, ("containerd-lease", self.lease)) if self.lease else named

    @property
    def content(self) -> ContentStub:
        """The content service itself."""
        return ContentStub(self.channel)

    def write(self, *messages: content_pb2.WriteContentRequest) -> list[content_pb2.WriteContentResponse]:
        """One stream of writes, to its end."""
        return list(self.content.Write(iter(messages), metadata=self.headers))

    def ingest(self, data: bytes, *, ref: str = "r", labels: dict[str, str] | None = None) -> str:
        """Store content; its digest."""
        return self.write(message(COMMIT, ref, data=data, labels=labels))[-1].digest

    def info(self, digest: str) -> content_pb2.Info:
        """What the namespace knows of a blob."""
        return self.content.Info(content_pb2.InfoRequest(digest=digest), metadata=self.headers).info

    def knows(self, digest: str) -> bool:
        """Whether the namespace has a blob."""
        try:
            return self.info(digest).digest == digest
        except grpc.RpcError as error:
            assert code(error) is grpc.StatusCode.NOT_FOUND
            return False

    def read(self, digest: str, offset: int = 0, size: int = 0) -> list[content_pb2.ReadContentResponse]:
        """The messages of a read."""
        request = content_pb2.ReadContentRequest(digest=digest, offset=offset, size=size)
        return list(self.content.Read(request, metadata=self.headers))

    def bytes_of(self, digest: str) -> bytes:
        """A blob."""
        return b"".join(each.data for each in self.read(digest))

    def digests(self, *filters: str) -> list[str]:
        """The namespace's blobs."""
        found = self.content.List(content_pb2.ListContentRequest(filters=filters), metadata=self.headers)
        return [info.digest for each in found for info in each.info]

    def delete(self, digest: str) -> None:
        """Forget a blob."""
        self.content.Delete(content_pb2.DeleteContentRequest(digest=digest), metadata=self.headers)

    def label(self, digest: str, labels: dict[str, str], *paths: str) -> dict[str, str]:
        """Change labels of a blob."""
        info = content_pb2.Info(digest=digest, labels=labels)
        request = content_pb2.UpdateRequest(info=info, update_mask=FieldMask(paths=paths))
        return dict(self.content.Update(request, metadata=self.headers).info.labels)

    def status(self, ref: str) -> content_pb2.Status:
        """One unfinished write."""
        return self.content.Status(content_pb2.StatusRequest(ref=ref), metadata=self.headers).status

    def statuses(self, *filters: str) -> list[str]:
        """Names of unfinished writes."""
        request = content_pb2.ListStatusesRequest(filters=filters)
        return [each.ref for each in self.content.ListStatuses(request, metadata=self.headers).statuses]

    def abort(self, ref: str) -> None:
        """Throw an unfinished write away."""
        self.content.Abort(content_pb2.AbortRequest(ref=ref), metadata=self.headers)

    @property
    def images(self) -> ImagesStub:
        """The image service itself."""
        return ImagesStub(self.channel)

    def create_image(
        self,
        name: str,
        digest: str,
        *,
        size: int = 1,
        media_type: str = INDEX_TYPE,
        labels: dict[str, str] | None = None,
    ) -> images_pb2.Image:
        """Name a descriptor."""
        image = images_pb2.Image(
            name=name, target=target(digest, size=size, media_type=media_type), labels=labels or {}
        )
        return self.images.Create(images_pb2.CreateImageRequest(image=image), metadata=self.headers).image

    def image(self, name: str) -> images_pb2.Image:
        """One image."""
        return self.images.Get(images_pb2.GetImageRequest(name=name), metadata=self.headers).image

    def image_names(self, *filters: str) -> list[str]:
        """The namespace's images."""
        request = images_pb2.ListImagesRequest(filters=filters)
        return [each.name for each in self.images.List(request, metadata=self.headers).images]

    def update_image(self, image: images_pb2.Image, *paths: str) -> images_pb2.Image:
        """Change an image."""
        request = images_pb2.UpdateImageRequest(image=image, update_mask=FieldMask(paths=paths))
        return self.images.Update(request, metadata=self.headers).image

    def delete_image(self, name: str, *, digest: str = "", is_sync: bool = True) -> None:
        """Remove an image, and wait for the collection."""
        request = images_pb2.DeleteImageRequest(name=name, sync=is_sync)
        if digest:
            request.target.CopyFrom(target(digest))
        self.images.Delete(request, metadata=self.headers)

    @property
    def leases(self) -> LeasesStub:
        """The lease service itself."""
        return LeasesStub(self.channel)

    def create_lease(self, lease: str = "", **labels: str) -> str:
        """Make a lease; its id."""
        request = leases_pb2.CreateRequest(id=lease, labels={f"containerd.io/gc.{key}": labels[key] for key in labels})
        return self.leases.Create(request, metadata=self.headers).lease.id

    def delete_lease(self, lease: str, *, is_sync: bool = True) -> None:
        """End a lease, and wait for the collection."""
        self.leases.Delete(leases_pb2.DeleteRequest(id=lease, sync=is_sync), metadata=self.headers)

    def lease_ids(self, *filters: str) -> list[str]:
        """The namespace's leases."""
        return [
            each.id for each in self.leases.List(leases_pb2.ListRequest(filters=filters), metadata=self.headers).leases
        ]

    def add_resource(self, lease: str, name: str, kind: str = "content") -> None:
        """Put something under a lease."""
        resource = leases_pb2.Resource(id=name, type=kind)
        self.leases.AddResource(leases_pb2.AddResourceRequest(id=lease, resource=resource), metadata=self.headers)

    def delete_resource(self, lease: str, name: str, kind: str = "content") -> None:
        """Take something from under a lease."""
        resource = leases_pb2.Resource(id=name, type=kind)
        self.leases.DeleteResource(leases_pb2.DeleteResourceRequest(id=lease, resource=resource), metadata=self.headers)

    def resources(self, lease: str) -> list[tuple[str, str]]:
        """What a lease lists."""
        found = self.leases.ListResources(leases_pb2.ListResourcesRequest(id=lease), metadata=self.headers)
        return [(each.type, each.id) for each in found.resources]

    @property
    def namespaces(self) -> NamespacesStub:
        """The namespace service itself."""
        return NamespacesStub(self.channel)

    def namespace_names(self) -> list[str]:
        """All namespaces."""
        return [each.name for each in self.namespaces.List(namespaces_pb2.ListNamespacesRequest()).namespaces]


def target(digest: str, *, size: int = 1, media_type: str = INDEX_TYPE) -> Descriptor:
    """A descriptor on the wire."""
    return Descriptor(media_type=media_type, digest=digest, size=size)


def digest_of(data: bytes, algorithm: str = "sha256") -> str:
    """Its text."""
    return str(Digest.of(data, algorithm))


def code(error: grpc.RpcError) -> grpc.StatusCode:
    """The status of a failed call."""
    found = getattr(error, "code", None)
    assert callable(found)
    status = found()
    assert isinstance(status, grpc.StatusCode)
    return status


def details(error: grpc.RpcError) -> str:
    """The text of a failed call."""
    found = getattr(error, "details", None)
    assert callable(found)
    return str(found() or "")


def offsets(answers: Iterable[content_pb2.WriteContentResponse]) -> Sequence[int]:
    """Where a write was after each message."""
    return [each.offset for each in answers]


@dataclass
class Refusal:
    """How a call ended, once it has."""

    text: str = ""


@contextlib.contextmanager
def refused(expected: grpc.StatusCode, text: str = "") -> Iterator[Refusal]:
    """A call in the block must end with a status, and say something."""
    refusal = Refusal()
    with pytest.raises(grpc.RpcError) as caught:
        yield refusal
    refusal.text = details(caught.value)
    assert (code(caught.value), text in refusal.text) == (expected, True), refusal.text
