"""The part of ``runtime.v1.RuntimeService`` that image clients use; every other method is UNIMPLEMENTED.

An image server runs no containers: lists of sandboxes and containers are empty, as a client needs to know that spares
images of running containers. Status names the handlers for image calls; as in containerd the default handler is listed
twice, by its name and by the empty name.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, Final

import grpc

import imagestore.platforms as platforms
from imagestore._version import __version__
from imagestore.protos.cri import api_pb2

if TYPE_CHECKING:
    from typing import NoReturn

    from imagestore.config import Config
    from imagestore.store.image_store import ImageStore
    from imagestore.store.workers import StoreWorkers

    Context = grpc.aio.ServicerContext[Any, Any]

#: containerd's version of the kubelet-runtime interface; clients only need it to be non-empty.
KUBELET_INTERFACE_VERSION: Final = "0.1.0"
API_VERSION: Final = "v1"
RUNTIME_NAME: Final = "imagestore"
_SYSTEMD_FOLDER: Final = "/run/systemd/system"


class RuntimeServicer:
    """Answers version, status and handlers; has no containers."""

    def __init__(self, workers: StoreWorkers) -> None:
        self._workers = workers

    def handlers(self, service: str) -> grpc.GenericRpcHandler:
        """The calls that are answered here, for a server; ``service`` is the full name of theirs."""
        unary = grpc.unary_unary_rpc_method_handler
        served = (
            (self.Version, api_pb2.VersionRequest, api_pb2.VersionResponse),
            (self.Status, api_pb2.StatusRequest, api_pb2.StatusResponse),
            (self.RuntimeConfig, api_pb2.RuntimeConfigRequest, api_pb2.RuntimeConfigResponse),
            (self.ListPodSandbox, api_pb2.ListPodSandboxRequest, api_pb2.ListPodSandboxResponse),
            (self.ListContainers, api_pb2.ListContainersRequest, api_pb2.ListContainersResponse),
            (self.ContainerStatus, api_pb2.ContainerStatusRequest, api_pb2.ContainerStatusResponse),
            (self.ListContainerStats, api_pb2.ListContainerStatsRequest, api_pb2.ListContainerStatsResponse),
            (self.ListPodSandboxStats, api_pb2.ListPodSandboxStatsRequest, api_pb2.ListPodSandboxStatsResponse),
        )
        methods = {
            method.__name__: unary(method, request.FromString, answer.SerializeToString)
            for method, request, answer in served
        }
        return grpc.method_handlers_generic_handler(service, methods)

    async def Version(  # noqa: N802 - the interface's name
        self, request: api_pb2.VersionRequest, context: Context
    ) -> api_pb2.VersionResponse:
        """Names and versions, for any version of the client."""
        return api_pb2.VersionResponse(
            version=KUBELET_INTERFACE_VERSION,
            runtime_name=RUNTIME_NAME,
            runtime_version=__version__,
            runtime_api_version=API_VERSION,
        )

    async def Status(  # noqa: N802 - the interface's name
        self, request: api_pb2.StatusRequest, context: Context
    ) -> api_pb2.StatusResponse:
        """Ready, with the configured handlers."""
        with self._workers.lend() as store:
            ready = ("RuntimeReady", "NetworkReady")
            status = api_pb2.RuntimeStatus(
                conditions=[api_pb2.RuntimeCondition(type=name, status=True) for name in ready]
            )
            handlers = [api_pb2.RuntimeHandler(name=name) for name in ("", *sorted(store.config.handlers))]
            for handler in handlers:
                handler.features.SetInParent()
            return api_pb2.StatusResponse(
                status=status,
                info=_info(store) if request.verbose else {},
                runtime_handlers=handlers,
                features=api_pb2.RuntimeFeatures(),
            )

    async def RuntimeConfig(  # noqa: N802 - the interface's name
        self, request: api_pb2.RuntimeConfigRequest, context: Context
    ) -> api_pb2.RuntimeConfigResponse:
        """The cgroup driver of the default handler; nothing on other systems than Linux."""
        with self._workers.lend() as store:
            if store.host.os != "linux":
                return api_pb2.RuntimeConfigResponse()
            is_systemd = uses_systemd(store.config, is_systemd_host=os.path.isdir(_SYSTEMD_FOLDER))
        driver = api_pb2.SYSTEMD if is_systemd else api_pb2.CGROUPFS
        return api_pb2.RuntimeConfigResponse(linux=api_pb2.LinuxRuntimeConfiguration(cgroup_driver=driver))

    async def ListPodSandbox(  # noqa: N802 - the interface's name
        self, request: api_pb2.ListPodSandboxRequest, context: Context
    ) -> api_pb2.ListPodSandboxResponse:
        """None."""
        return api_pb2.ListPodSandboxResponse()

    async def ListContainers(  # noqa: N802 - the interface's name
        self, request: api_pb2.ListContainersRequest, context: Context
    ) -> api_pb2.ListContainersResponse:
        """None."""
        return api_pb2.ListContainersResponse()

    async def ListContainerStats(  # noqa: N802 - the interface's name
        self, request: api_pb2.ListContainerStatsRequest, context: Context
    ) -> api_pb2.ListContainerStatsResponse:
        """None."""
        return api_pb2.ListContainerStatsResponse()

    async def ListPodSandboxStats(  # noqa: N802 - the interface's name
        self, request: api_pb2.ListPodSandboxStatsRequest, context: Context
    ) -> api_pb2.ListPodSandboxStatsResponse:
        """None."""
        return api_pb2.ListPodSandboxStatsResponse()

    async def ContainerStatus(  # noqa: N802 - the interface's name
        self, request: api_pb2.ContainerStatusRequest, context: Context
    ) -> NoReturn:
        """There are no containers."""
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "ContainerStatus: this server keeps images, it runs nothing")


def uses_systemd(config: Config, *, is_systemd_host: bool) -> bool:
    """Whether the default handler uses systemd's cgroup driver: its option SystemdCgroup, else the host's init."""
    configured = config.handler("").options.get("SystemdCgroup")
    return configured if isinstance(configured, bool) else is_systemd_host


def _info(store: ImageStore) -> dict[str, str]:
    """The additional output of ``crictl info``: root, files, and each handler's platform."""
    handlers = {
        name: {
            "platform": platforms.format_all(store.config.handler_platform(name, host=store.host).platform),
            "snapshotter": handler.snapshotter or store.config.settings.snapshotter,
        }
        for name, handler in sorted(store.config.handlers.items())
    }
    shown = {
        "root": store.name,
        "configurationFiles": list(store.config.files),
        "hostPlatform": platforms.format_all(store.host),
        "defaultRuntimeHandler": store.config.default_handler,
        "runtimeHandlers": handlers,
    }
    return {"config": json.dumps(shown)}
