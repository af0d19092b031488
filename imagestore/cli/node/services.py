"""The options that choose the image service of a node command, and the open service."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from imagestore.cli.exit_codes import ExitStatus, needed, report, warn
from imagestore.cli.node.settings import settings_of
from imagestore.cli.options import GivenPath, all_of, output_option
from imagestore.cri.model import ContainerImage
from imagestore.errors import ConfigError, ImageNotFoundError, ImageStoreError, UnsupportedError
from imagestore.node.config_members import socket_path as path_of
from imagestore.node.edged.config import load
from imagestore.node.edged.settings import DOCKER, STALL_LIMIT
from imagestore.node.metrics import NodeMetrics
from imagestore.oci.digest import Digest
from imagestore.util.endpoint import Endpoint
from imagestore.util.files import write_whole
from imagestore.util.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from imagestore.cli.app import App
    from imagestore.node.edged.settings import EdgedSettings
    from imagestore.node.image_service import ImageService
    from imagestore.node.kubelet_config import KubeletImageSettings
    from imagestore.node.kubelet_messages import NodeEvent
    from imagestore.store.image_store import ImageStore

_WHOLE_ID: Final = re.compile(r"sha256:[a-f0-9]{64}")
DOCKER_SOCKET: Final = "/var/run/docker.sock"


@dataclass(frozen=True, slots=True)
class ServiceChoice:
    """The values of the options.

    Attributes:
        endpoint, image_endpoint: of CRI; empty for none.
        docker: socket of a Docker Engine; empty for none.
        edged: KubeEdge's file, or None.
        kubelet_config: a KubeletConfiguration, or None.
        feature_gates: ``Name=true,…`` as for the kubelet; None when not given.
        state: folder of pull records and image uses; None means one for each service in the store's folder.
    """

    endpoint: str
    image_endpoint: str
    docker: str
    edged: Path | None
    kubelet_config: Path | None
    feature_gates: str | None
    state: Path | None

    def folder(self, app: App, socket_path: str) -> Path:
        """The state folder of the service at a socket; of the store itself for an empty path.

        Each service has its own, since a collection prunes the records of images it doesn't see.
        """
        if self.state is not None:
            return self.state
        # Independent of spelling: /var/run is a link to /run. Sixteen digits of the hash suffice for one node.
        part = Digest.of(os.fsencode(os.path.realpath(socket_path))).encoded[:16] if socket_path else ""
        return app.root / "node" / part


@dataclass(frozen=True, slots=True)
class Connected:
    """An open service with its settings.

    Attributes:
        service: the service.
        name: for people.
        folder: of its state.
        settings: of the kubelet, with the gates of the options.
        sandbox_image: of KubeEdge's file; empty without it.
        default_handler: name under which the service lists the default handler's images; empty if unknown.
        is_store: whether it is the store itself, whose handlers are those of the configuration.
    """

    service: ImageService
    name: str
    folder: Path
    settings: KubeletImageSettings
    sandbox_image: str
    default_handler: str = ""
    is_store: bool = False


def clean_up_command(app: App, choice: ServiceChoice, *, sandbox_image: str = "") -> str:
    """The command that cleans up this service after a change of the gate, with the same options."""
    words = ["imagestore"]
    remote = app.remote
    for option, value in (
        ("--root", app.given_root),
        ("--config", app.given_config),
        ("--endpoint", remote and remote.endpoint),
        ("--image-endpoint", remote and remote.image_endpoint),
        ("--crictl-config", remote and remote.crictl_config),
    ):
        words += [option, str(value)] if value else []
    words += ["node", "gc", "--after-gate-change"]
    for name in ServiceChoice.__dataclass_fields__:
        value = getattr(choice, name)
        words += [f"--{name.replace('_', '-')}", str(value)] if value else []
    words += ["--sandbox-image", sandbox_image] if sandbox_image else []
    return shlex.join(words)


_PATH: Final = GivenPath(path_type=Path, dir_okay=False)
_options: Final = all_of(
    click.option("--metrics", type=click.Path(path_type=Path, dir_okay=False), help="Write Prometheus metrics here."),
    output_option,
    click.option(
        "--endpoint",
        metavar="URL",
        default="",
        help="CRI endpoint. Default: that of 'imagestore --endpoint', else the store itself.",
    ),
    click.option("--image-endpoint", metavar="URL", default="", help="CRI image service, where it is another one."),
    click.option(
        "--docker",
        metavar="SOCKET",
        is_flag=False,
        flag_value=DOCKER_SOCKET,
        default="",
        help=f"Docker Engine at this socket [without a value: {DOCKER_SOCKET}].",
    ),
    click.option("--edged", type=_PATH, help="KubeEdge configuration that says which service to use."),
    click.option("--kubelet-config", type=_PATH, help="KubeletConfiguration to go by (v1beta1)."),
    click.option(
        "--feature-gates",
        metavar="NAME=BOOL,…",
        help="As for the kubelet. Without it and without a file RuntimeClassInImageCriApi is on here.",
    ),
    click.option(
        "--state",
        type=GivenPath(path_type=Path, file_okay=False),
        help="Folder of pull records and of what was seen. Default: node in the store's folder.",
    ),
)


def service_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """``--metrics``, ``--output``, and the options that choose a service, which arrive as one ``choice``."""

    @functools.wraps(function)
    def _command(**given: Any) -> Any:
        choice = ServiceChoice(**{name: given.pop(name) for name in ServiceChoice.__dataclass_fields__})
        if sum(map(bool, (choice.endpoint, choice.docker, choice.edged))) > 1:
            raise click.UsageError("give one of --endpoint, --docker and --edged")
        if choice.image_endpoint and not (choice.endpoint or choice.edged):
            raise click.UsageError("--image-endpoint needs --endpoint or --edged")
        return function(choice=choice, **given)

    return _options(_command)


def metrics_for(file: Path | None) -> NodeMetrics | None:
    """The counters for a metrics file; None without a file."""
    return None if file is None else NodeMetrics()


def write_metrics(file: Path | None, numbers: NodeMetrics | None) -> ExitStatus:
    """Write metrics to the file, if given; a failure is reported after the command's own result."""
    if file is None or numbers is None:
        return ExitStatus.OK
    try:
        write_whole(file, numbers.text().encode())
    except ImageStoreError as error:
        report(error)
        return ExitStatus.FAILURE
    return ExitStatus.OK


@contextlib.contextmanager
def connected(app: App, choice: ServiceChoice, in_use: Sequence[str] = ()) -> Iterator[Connected]:
    """Open the chosen service and close it afterwards.

    Args:
        app: the global options.
        choice: the service.
        in_use: images of containers, as ``IMAGE[,HANDLER]``; the store itself doesn't know them.

    Raises:
        ImageNotFoundError: one of in_use is no image; a mistyped name would leave the intended image unprotected.
        ConfigError, UnsupportedRuntimeTypeError: a file is invalid, or the gRPC libraries are missing.
        ImageStoreError: the store can't be opened.
    """
    edged = None if choice.edged is None else load(choice.edged)
    warn(str(choice.edged), () if edged is None else edged.warnings)
    settings = settings_of(choice.kubelet_config, choice.feature_gates, edged=edged, edged_file=choice.edged)
    if edged is not None:
        try:
            edged.check_services()
        except ConfigError as error:
            raise ConfigError(f"{choice.edged}: {error}", hint=error.hint) from error
    found = _open(app, choice, edged, settings, in_use)
    with contextlib.closing(found.service):
        yield found


def _open(
    app: App,
    choice: ServiceChoice,
    edged: EdgedSettings | None,
    settings: KubeletImageSettings,
    in_use: Sequence[str],
) -> Connected:
    if app.remote is not None and (choice.docker or edged is not None):
        raise click.UsageError("'imagestore --endpoint' names a server already; leave out --docker and --edged")
    is_store = app.remote is None and edged is None and not choice.docker and not choice.endpoint
    if in_use and not is_store:
        raise click.UsageError("--in-use is for the store; other services report their containers")
    if choice.docker or (edged is not None and edged.runtime_type == DOCKER):
        return _docker(app, choice, edged, settings)
    if choice.endpoint or edged is not None or app.remote is not None:
        return _endpoint(app, choice, edged, settings)
    if app.is_shared:
        raise UnsupportedError(
            "node: a kubelet lists and removes the images of its node, and here are those of all machines",
            hint="give the node a store of its own",
        )
    from imagestore.node.embedded import EmbeddedImageService

    containers = [used for text in in_use for used in _used(app.store, text)]
    store = EmbeddedImageService(app.store, containers=lambda: containers)
    default = app.config.default_handler
    return Connected(store, f"store in {app.root}", choice.folder(app, ""), settings, "", default, is_store=True)


def _docker(app: App, choice: ServiceChoice, edged: EdgedSettings | None, settings: KubeletImageSettings) -> Connected:
    from imagestore.node.docker.handler_table import HandlerTable
    from imagestore.node.docker.service import DockerImageService

    sandbox_image = edged.sandbox_image if edged is not None else ""
    path = choice.docker or (edged.docker_endpoint if edged is not None else DOCKER_SOCKET)
    socket_path = path_of(path)
    folder = choice.folder(app, socket_path)
    engine = DockerImageService(
        socket_path,
        # The default handler's platform is the engine's own.
        platforms={
            name: app.config.handler_platform(name, host=app.host, explicit=None).platform
            for name in app.config.handlers
            if name != app.config.default_handler
        },
        default_handler=app.config.default_handler,
        sandbox_image=sandbox_image,
        table=HandlerTable(folder / "docker-handlers.json"),
        timeout_seconds=settings.runtime_request_timeout.seconds,
        stall_limit=edged.stall_limit if edged is not None else STALL_LIMIT,
    )
    return Connected(engine, f"Docker Engine at {path}", folder, settings, sandbox_image, app.config.default_handler)


def _endpoint(
    app: App, choice: ServiceChoice, edged: EdgedSettings | None, settings: KubeletImageSettings
) -> Connected:
    if not choice.endpoint and edged is None:
        address, remote = app.service.endpoint, app.service
    else:
        with needed("cri", what="CRI endpoints"):
            from imagestore.cri.client import CriImageService

        runtime = choice.endpoint or (edged.runtime_endpoint if edged is not None else "")
        images = choice.image_endpoint or (edged.image_endpoint if edged is not None else "")
        seconds = settings.runtime_request_timeout.seconds
        remote = CriImageService(runtime, image_endpoint=images, timeout_seconds=seconds, cancel=app.ending)
        address = images or runtime
    folder = choice.folder(app, Endpoint.parse(address).path)
    return Connected(remote, f"CRI at {address}", folder, settings, edged.sandbox_image if edged is not None else "")


def _used(store: ImageStore, text: str) -> list[ContainerImage]:
    """The containers that use an image; services report images of containers by id."""
    name, _, handler = text.partition(",")
    ids = {str(image.id) for image in store.list(name=name, runtime_handler=handler or None)}
    if not ids and not _WHOLE_ID.fullmatch(name):
        raise ImageNotFoundError(
            f"--in-use {text!r}: there is no such image in the store; nothing was removed",
            hint="'imagestore images' lists them",
        )
    # A container may outlive its image, so an id need not be there.
    return [ContainerImage("option --in-use", image_id, handler or None) for image_id in sorted(ids or {name})]


def print_events(heard: Iterable[NodeEvent]) -> None:
    """Print a kubelet's events."""
    for each in heard:
        print(f"event: {each.type} {each.reason}: {printable(each.message)}")


def events_json(heard: Iterable[NodeEvent]) -> list[dict[str, str]]:
    """A kubelet's events as JSON."""
    return [{"type": each.type, "reason": each.reason, "message": each.message} for each in heard]
