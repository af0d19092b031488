"""containerd.services.leases.v1: leases of a namespace; ``imagestore leases`` lists those of all of them."""

from __future__ import annotations

import base64
import math
import os
import time
from typing import TYPE_CHECKING, Final

from imagestore.containerd.calls import checked_key, namespace_of, timestamp
from imagestore.containerd.content_view import content_view_of
from imagestore.containerd.filters import Filter, labelled
from imagestore.errors import InvalidInputError, LeaseNotFoundError, NotFoundError, UnsupportedError
from imagestore.oci.digest import Digest
from imagestore.protos.containerd import leases_pb2 as wire
from imagestore.protos.containerd.leases_pb2_grpc import LeasesServicer
from imagestore.protos.google.protobuf.empty_pb2 import Empty

if TYPE_CHECKING:
    from imagestore.containerd.calls import Context
    from imagestore.containerd.collector import Collector
    from imagestore.containerd.content_view import ContentView
    from imagestore.containerd.filters import Fields
    from imagestore.metadata.records import Lease
    from imagestore.store.image_store import ImageStore
    from imagestore.store.workers import StoreWorkers
    from imagestore.util.cancel import CancelToken

_CONTENT: Final = "content"
_IMAGES: Final = "images"
_INGESTS: Final = "ingests"
_TYPES: Final = (_CONTENT, _IMAGES, _INGESTS)


class LeasesService(LeasesServicer):
    """Serves leases."""

    def __init__(self, workers: StoreWorkers, collector: Collector) -> None:
        self._workers = workers
        self._collector = collector

    async def Create(self, request: wire.CreateRequest, context: Context) -> wire.CreateResponse:
        """Make a lease; without a gc.expire label it lives until it is deleted."""

        def _work(store: ImageStore) -> wire.CreateResponse:
            view = content_view_of(namespace_of(context))
            checked_key(f"lease {request.id[:100]!r}", request.id)
            key = view.lease_key(request.id or _new_id())
            lease = store.metadata.leases.create(
                key, lifetime_seconds=math.inf, labels=dict(request.labels), namespace=view.owner
            )
            return wire.CreateResponse(lease=_wire(lease))

        return await self._workers.quick(_work)

    async def Delete(self, request: wire.DeleteRequest, context: Context) -> Empty:
        """Delete a lease. A collection frees content that only it held; with sync, before the answer."""

        def _work(store: ImageStore) -> Empty:
            lease = _get(store, content_view_of(namespace_of(context)), request.id)
            store.metadata.leases.delete(lease.id)
            return Empty()

        done = await self._workers.quick(_work)
        if request.sync:
            await self._collector.run()
        return done

    async def List(self, request: wire.ListRequest, context: Context) -> wire.ListResponse:
        """Leases; a filter may ask for id and labels."""

        def _work(store: ImageStore, cancel: CancelToken) -> wire.ListResponse:
            wanted, namespace = Filter.parse(request.filters), namespace_of(context)
            found = wanted.among(store.metadata.leases.find(namespace=namespace), _fields, cancel)
            return wire.ListResponse(leases=map(_wire, found))

        return await self._workers.transfer(_work)

    async def AddResource(self, request: wire.AddResourceRequest, context: Context) -> Empty:
        """Put content, the name of an image or an unfinished write under a lease."""

        def _work(store: ImageStore) -> Empty:
            view, resource = content_view_of(namespace_of(context)), request.resource
            with store.metadata.exclusive():
                lease = _get(store, view, request.id)
                _check_type(resource)
                if resource.type == _CONTENT:
                    store.metadata.leases.add_content(lease.id, [Digest.parse(resource.id)])
                elif resource.type == _IMAGES:
                    if not resource.id:
                        raise InvalidInputError("a lease resource of type 'images' needs the name of an image")
                    checked_key(f"image {resource.id[:100]!r}", resource.id)
                    store.metadata.leases.add_image(lease.id, resource.id, store.config.default_handler)
                elif not store.metadata.namespaces.lease_ingest(view.owner, view.ref_on_disk(resource.id), lease.id):
                    raise NotFoundError(f"no unfinished write {resource.id!r} to lease")
            return Empty()

        return await self._workers.quick(_work)

    async def DeleteResource(self, request: wire.DeleteResourceRequest, context: Context) -> Empty:
        """Remove a resource from a lease; an absent one is no error."""

        def _work(store: ImageStore) -> Empty:
            view, resource = content_view_of(namespace_of(context)), request.resource
            with store.metadata.exclusive():
                lease = _get(store, view, request.id)
                _check_type(resource)
                if resource.type == _CONTENT:
                    store.metadata.leases.remove_content(lease.id, [Digest.parse(resource.id)])
                elif resource.type == _IMAGES:
                    store.metadata.leases.remove_image(lease.id, resource.id)
                else:
                    on_disk = view.ref_on_disk(resource.id)
                    _, holder = store.metadata.namespaces.ingests(view.owner).get(on_disk, ("", ""))
                    if holder == lease.id:
                        store.metadata.namespaces.lease_ingest(view.owner, on_disk, "")
            return Empty()

        return await self._workers.quick(_work)

    async def ListResources(self, request: wire.ListResourcesRequest, context: Context) -> wire.ListResourcesResponse:
        """The resources of a lease."""

        def _work(store: ImageStore) -> wire.ListResourcesResponse:
            view = content_view_of(namespace_of(context))
            lease = _get(store, view, request.id)
            content = map(str, store.metadata.leases.content(lease.id))
            images = store.metadata.leases.images(lease.id)
            writes = store.metadata.namespaces.ingests(view.owner).items()
            held = sorted(view.ref_of(ref) or ref for ref, (_, holder) in writes if holder == lease.id)
            listed = ((_CONTENT, content), (_IMAGES, images), (_INGESTS, held))
            return wire.ListResourcesResponse(
                resources=[wire.Resource(id=name, type=kind) for kind, names in listed for name in names]
            )

        return await self._workers.quick(_work)


def _get(store: ImageStore, view: ContentView, name: str) -> Lease:
    lease = store.metadata.leases.get(view.lease_key(name))
    if lease is not None and lease.namespace == view.owner:
        return lease
    raise LeaseNotFoundError(f"lease {name!r} is not in namespace {view.owner}")


def _check_type(resource: wire.Resource) -> None:
    if resource.type in _TYPES:
        return
    known, slash, _ = resource.type.partition("/")
    if slash and known in _TYPES:
        raise InvalidInputError(f"lease resource type {resource.type!r}: expected {known!r}")
    raise UnsupportedError(f"lease resource type {resource.type!r}: this store has {', '.join(_TYPES)} to lease")


def _new_id() -> str:
    """As containerd's clients make them: nanoseconds and some randomness."""
    return f"{time.time_ns() % 10**9}-{base64.urlsafe_b64encode(os.urandom(3)).decode()}"


def _fields(lease: Lease) -> Fields:
    return labelled({"id": lease.name}, labels=lease.labels)


def _wire(lease: Lease) -> wire.Lease:
    return wire.Lease(id=lease.name, created_at=timestamp(lease.created_at), labels=lease.labels)
