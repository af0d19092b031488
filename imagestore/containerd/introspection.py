"""containerd.services.version.v1 and introspection.v1: the program's version and its plugins."""

from __future__ import annotations

import os
import socket
import uuid
from typing import TYPE_CHECKING, Final

from imagestore._version import __version__
from imagestore.containerd.filters import Filter, labelled
from imagestore.errors import NotFoundError
from imagestore.protos.containerd import introspection_pb2 as wire
from imagestore.protos.containerd.introspection_pb2_grpc import IntrospectionServicer
from imagestore.protos.containerd.types_pb2 import Platform as WirePlatform
from imagestore.protos.containerd.version_pb2 import VersionResponse
from imagestore.protos.containerd.version_pb2_grpc import VersionServicer

if TYPE_CHECKING:
    from pathlib import Path

    from imagestore.containerd.calls import Context
    from imagestore.protos.google.protobuf.empty_pb2 import Empty
    from imagestore.store.image_store import ImageStore
    from imagestore.store.workers import StoreWorkers
    from imagestore.util.cancel import CancelToken

_GRPC: Final = "io.containerd.grpc.v1"
_CONTENT: Final = "io.containerd.content.v1"
_SERVICES: Final = ("content", "images", "introspection", "leases", "namespaces", "version")


class VersionService(VersionServicer):
    """Serves the version of this program."""

    async def Version(self, request: Empty, context: Context) -> VersionResponse:
        """The version of imagestore, not one of containerd."""
        return VersionResponse(version=f"imagestore {__version__}", revision="")


class IntrospectionService(IntrospectionServicer):
    """Lists the plugins that exist here, and identifies the server."""

    def __init__(self, workers: StoreWorkers) -> None:
        self._workers = workers

    async def Plugins(self, request: wire.PluginsRequest, context: Context) -> wire.PluginsResponse:
        """The content store and the services; a filter may ask for type and id."""

        def _work(store: ImageStore, cancel: CancelToken) -> wire.PluginsResponse:
            wanted = Filter.parse(request.filters)
            found = wanted.among(_plugins(store), lambda each: labelled({"type": each.type, "id": each.id}), cancel)
            return wire.PluginsResponse(plugins=found)

        return await self._workers.transfer(_work)

    async def Server(self, request: Empty, context: Context) -> wire.ServerResponse:
        """The process, with an identifier of the store's folder on this machine."""

        def _work(store: ImageStore) -> wire.ServerResponse:
            name = f"{socket.gethostname()}:{_text(store.root.absolute())}"
            return wire.ServerResponse(
                uuid=str(uuid.uuid5(uuid.NAMESPACE_URL, name)), pid=os.getpid(), pidns=_process_namespace()
            )

        return await self._workers.quick(_work)

    async def PluginInfo(self, request: wire.PluginInfoRequest, context: Context) -> wire.PluginInfoResponse:
        """One plugin, by type and id."""

        def _work(store: ImageStore) -> wire.PluginInfoResponse:
            for plugin in _plugins(store):
                if (plugin.type, plugin.id) == (request.type, request.id):
                    return wire.PluginInfoResponse(plugin=plugin)
            raise NotFoundError(f"no plugin {request.id!r} of type {request.type!r}")

        return await self._workers.quick(_work)


def _plugins(store: ImageStore) -> list[wire.Plugin]:
    host = store.host
    platform = WirePlatform(
        os=host.os,
        architecture=host.architecture,
        variant=host.variant,
        os_version=host.os_version,
        os_features=host.os_features,
    )
    content = wire.Plugin(
        type=_CONTENT, id="content", platforms=[platform], exports={"root": _text(store.content.name)}
    )
    return [content, *(wire.Plugin(type=_GRPC, id=name, requires=[_CONTENT]) for name in _SERVICES)]


def _text(path: Path | str) -> str:
    """A path as text for a message; bytes that are not UTF-8 are replaced."""
    return os.fsencode(path).decode("utf-8", "replace")


def _process_namespace() -> int:
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:  # not on Linux
        return 0
