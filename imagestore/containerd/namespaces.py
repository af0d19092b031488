"""containerd.services.namespaces.v1: namespaces and labels. Using one creates it; the store's own always exists."""

from __future__ import annotations

from typing import TYPE_CHECKING

from imagestore.containerd.calls import changed_map, checked_mask
from imagestore.containerd.filters import Filter, labelled
from imagestore.errors import PreconditionError
from imagestore.metadata.records import HOME, checked_namespace
from imagestore.protos.containerd import namespaces_pb2 as wire
from imagestore.protos.containerd.namespaces_pb2_grpc import NamespacesServicer
from imagestore.protos.google.protobuf.empty_pb2 import Empty

if TYPE_CHECKING:
    from imagestore.containerd.calls import Context
    from imagestore.containerd.filters import Fields
    from imagestore.store.image_store import ImageStore
    from imagestore.store.workers import StoreWorkers
    from imagestore.util.cancel import CancelToken


class NamespacesService(NamespacesServicer):
    """Serves namespaces."""

    def __init__(self, workers: StoreWorkers) -> None:
        self._workers = workers

    async def Get(self, request: wire.GetNamespaceRequest, context: Context) -> wire.GetNamespaceResponse:
        """One namespace; an unknown one has no labels."""

        def _work(store: ImageStore) -> wire.GetNamespaceResponse:
            labels = store.metadata.namespaces.find().get(checked_namespace(request.name), {})
            return wire.GetNamespaceResponse(namespace=wire.Namespace(name=request.name, labels=labels))

        return await self._workers.quick(_work)

    async def List(self, request: wire.ListNamespacesRequest, context: Context) -> wire.ListNamespacesResponse:
        """All namespaces; the filter may ask for name and labels."""

        def _work(store: ImageStore, cancel: CancelToken) -> wire.ListNamespacesResponse:
            wanted = Filter.parse([request.filter] if request.filter else [])
            found = [
                wire.Namespace(name=name, labels=labels) for name, labels in store.metadata.namespaces.find().items()
            ]
            return wire.ListNamespacesResponse(namespaces=wanted.among(found, _fields, cancel))

        return await self._workers.transfer(_work)

    async def Create(self, request: wire.CreateNamespaceRequest, context: Context) -> wire.CreateNamespaceResponse:
        """Make a namespace."""

        def _work(store: ImageStore) -> wire.CreateNamespaceResponse:
            name = checked_namespace(request.namespace.name)
            store.metadata.namespaces.create(name, dict(request.namespace.labels))
            return wire.CreateNamespaceResponse(namespace=request.namespace)

        return await self._workers.quick(_work)

    async def Update(self, request: wire.UpdateNamespaceRequest, context: Context) -> wire.UpdateNamespaceResponse:
        """Change labels."""

        def _work(store: ImageStore) -> wire.UpdateNamespaceResponse:
            name, paths = checked_namespace(request.namespace.name), list(request.update_mask.paths)
            checked_mask(paths, whole=("labels",), keyed=("labels",))
            with store.metadata.exclusive():
                before = store.metadata.namespaces.find().get(name)
                # As in containerd, an absent namespace is created.
                labels = changed_map("labels", before or {}, dict(request.namespace.labels), paths)
                store.metadata.namespaces.label(name, labels)
            return wire.UpdateNamespaceResponse(namespace=wire.Namespace(name=name, labels=labels))

        return await self._workers.quick(_work)

    async def Delete(self, request: wire.DeleteNamespaceRequest, context: Context) -> Empty:
        """Remove a namespace with nothing in it."""

        def _work(store: ImageStore) -> Empty:
            name = checked_namespace(request.name)
            if name == HOME:
                raise PreconditionError(f"namespace {HOME} is the store's own and stays")
            if not store.metadata.namespaces.remove(name):
                raise PreconditionError(
                    f"namespace {name!r} must be empty, but it has images, content, leases or unfinished writes",
                    hint="remove those first",
                )
            return Empty()

        return await self._workers.quick(_work)


def _fields(namespace: wire.Namespace) -> Fields:
    return labelled({"name": namespace.name}, labels=namespace.labels)
