"""Which image service a node command talks to, and the kubelet's settings it goes by."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from imagestore.cli.context import GivenPath
from imagestore.cli.extras import needed
from imagestore.cli.failure import ExitStatus, report, say
from imagestore.cli.render import printable
from imagestore.errors import ConfigError, ImageNotFoundError
from imagestore.oci.digest import Digest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from imagestore.cli.context import App
    from imagestore.cri.model import ContainerImage
    from imagestore.node.edged.settings import EdgedSettings
    from imagestore.node.image_service import ImageService
    from imagestore.node.kubelet_config import KubeletImageSettings
    from imagestore.node.metrics import NodeMetrics
    from imagestore.platforms import Platform
    from imagestore.store.image_store import ImageStore

_WHOLE_ID: Final = re.compile(r"sha256:[a-f0-9]{64}")
DOCKER_SOCKET: Final = "/var/run/docker.sock"
#: What Go takes for true and for false.
_SWITCHES: Final = dict.fromkeys(("1", "t", "T", "true", "True", "TRUE"), True) | dict.fromkeys(
    ("0", "f", "F", "false", "False", "FALSE"), False
)


@dataclass(frozen=True, slots=True)
class ServiceChoice:
    """What the options say.

    Attributes:
        endpoint, image_endpoint: of CRI; empty for none.
        docker: socket of a Docker Engine; empty for none.
        edged: KubeEdge's file, or None.
        kubelet_config: a KubeletConfiguration, or None.
        feature_gates: ``Name=true,…`` as for the kubelet; None when not given.
        state: folder of pull records and memories; None means one for each service below the store's folder.
    """

    endpoint: str
    image_endpoint: str
    docker: str
    edged: Path | None
    kubelet_config: Path | None
    feature_gates: str | None
    state: Path | None

    def folder(self, app: App, socket_path: str = "") -> Path:
        """Where state is kept: what is pruned after a collection of one service must not be another one's.

        Args:
            app: has the store's folder.
            socket_path: of the service; empty for the store itself.
        """
        if self.state is not None:
            return self.state
        own = app.root / "node"
        if not socket_path:
            return own
        # However it is spelled: /var/run leads to /run. Sixteen digits of the hash are enough for a node's services.
        path = os.fsencode(os.path.realpath(socket_path))
        return own / Digest.of(path).encoded[:16]


@dataclass(frozen=True, slots=True)
class Connected:
    """An open service with what it goes by.

    Attributes:
        service: the service.
        name: for people.
        folder: where state is kept.
        settings: of the kubelet, with the gates of the options.
        edged: what its file says, if it was given.
        default_handler: how the service lists the default handler's images; empty where nothing tells.
    """

    service: ImageService
    name: str
    folder: Path
    settings: KubeletImageSettings
    edged: EdgedSettings | None
    default_handler: str = ""

    @property
    def sandbox_image(self) -> str:
        """As KubeEdge's file says."""
        return self.edged.sandbox_image if self.edged is not None else ""


def clean_up_command(app: App, choice: ServiceChoice, *, sandbox_image: str = "") -> str:
    """The command that cleans up after a change of the gate, with what led to this service and this value."""
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


def service_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options that choose a service; they arrive as one ``choice``."""
    path = GivenPath(path_type=Path, dir_okay=False)

    def command(**given: Any) -> Any:
        names = tuple(ServiceChoice.__dataclass_fields__)
        choice = ServiceChoice(**{name: given.pop(name) for name in names})
        chosen = [choice.endpoint, choice.docker, choice.edged]
        if sum(bool(each) for each in chosen) > 1:
            raise click.UsageError("give one of --endpoint, --docker and --edged")
        if choice.image_endpoint and not (choice.endpoint or choice.edged):
            raise click.UsageError("--image-endpoint needs --endpoint (or --edged) beside it")
        return function(choice=choice, **given)

    command.__name__, command.__doc__ = function.__name__, function.__doc__
    command.__click_params__ = getattr(function, "__click_params__", [])  # type: ignore[attr-defined]
    for option in (
        click.option(
            "--state",
            type=GivenPath(path_type=Path, file_okay=False),
            help="Folder of pull records and of what was seen. Default: node in the store's folder.",
        ),
        click.option(
            "--feature-gates",
            metavar="NAME=BOOL,…",
            help="As for the kubelet. Without it and without a file RuntimeClassInImageCriApi is on here.",
        ),
        click.option("--kubelet-config", type=path, help="KubeletConfiguration to go by (v1beta1)."),
        click.option("--edged", type=path, help="KubeEdge configuration that says which service to use."),
        click.option(
            "--docker",
            metavar="SOCKET",
            is_flag=False,
            flag_value=DOCKER_SOCKET,
            default="",
            help=f"Docker Engine at this socket [without a value: {DOCKER_SOCKET}].",
        ),
        click.option("--image-endpoint", metavar="URL", default="", help="CRI image service, where it is another one."),
        click.option(
            "--endpoint",
            metavar="URL",
            default="",
            help="CRI endpoint. Default: that of 'imagestore --endpoint', else the store itself.",
        ),
    ):
        command = option(command)
    return command


def settings_of(choice: ServiceChoice, edged: EdgedSettings | None) -> KubeletImageSettings:
    """The kubelet's settings: of its file, else of KubeEdge's, else the defaults; gates of the options win.

    Raises:
        ConfigError: a file or a gate can't be read, or the kubelet would refuse the values.
    """
    from imagestore.node.feature_gates import FeatureGates
    from imagestore.node.kubelet_config import KubeletImageSettings, unknown_members
    from imagestore.util.yaml_documents import read_documents

    if choice.kubelet_config is not None:
        documents = read_documents(choice.kubelet_config)
        given = documents[0] if documents else {}
        _check_kind(given, choice.kubelet_config)
        with naming(choice.kubelet_config):
            settings = KubeletImageSettings.parse(given)
        if len(documents) > 1:
            warn(choice.kubelet_config, [f"holds {len(documents)} documents; a kubelet reads the first one only"])
        warn(choice.kubelet_config, unknown_members(given))
    elif edged is not None:
        settings = edged.kubelet
    else:
        settings = KubeletImageSettings(gates=FeatureGates(runtime_class_in_image_cri=True))
    if choice.feature_gates is not None:
        settings = settings.with_gates(settings.gates.overridden(_gates(choice.feature_gates)))
    file = choice.kubelet_config or choice.edged
    with naming(file) if file is not None else contextlib.nullcontext():
        settings.check()
    return settings


def warn(file: Path, warnings: Iterable[str]) -> None:
    """Say on standard error what is doubtful about a file; the command goes on."""
    for warning in warnings:
        say(f"imagestore: warning: {printable(f'{file}: {warning}')}")


def metrics_for(file: Path | None) -> NodeMetrics | None:
    """What counts for a file, if one was named.

    Raises:
        ConfigError: prometheus_client is not installed.
    """
    if file is None:
        return None
    from imagestore.node.metrics import NodeMetrics

    return NodeMetrics()


def write_metrics(file: Path | None, numbers: NodeMetrics | None) -> ExitStatus:
    """Write metrics to the file, if one was named. A failure is reported, and changes nothing of what was done."""
    from imagestore.errors import ImageStoreError
    from imagestore.util.files import write_whole

    if file is None or numbers is None:
        return ExitStatus.OK
    try:
        write_whole(file, numbers.text().encode())
    except ImageStoreError as error:
        report(error)
        return ExitStatus.FAILURE
    return ExitStatus.OK


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Say in which file it is that something is wrong."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}", hint=error.hint) from error


def _check_kind(document: dict[str, Any], path: Path) -> None:
    """Another object, or one that doesn't say what it is, would pass for a configuration with every default."""
    wanted = {"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration"}
    hint = "begin it with " + " and ".join(f"'{member}: {value}'" for member, value in wanted.items())
    if not document:
        raise ConfigError(f"{path}: is empty, and a kubelet refuses that", hint=hint)
    for member, value in wanted.items():
        if document.get(member, value) != value:
            raise ConfigError(
                f"{path}: {member} {document[member]!r}: expected KubeletConfiguration of kubelet.config.k8s.io/v1beta1"
            )
    missing = [member for member in wanted if member not in document]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        raise ConfigError(f"{path}: {' and '.join(missing)} {verb} missing, and a kubelet refuses that", hint=hint)


def _gates(text: str) -> dict[str, object]:
    found: dict[str, object] = {}
    for part in filter(None, text.split(",")):
        name, _, value = part.partition("=")
        switched = _SWITCHES.get(value.strip())
        if switched is None:
            raise click.BadParameter(f"{part!r}: expected NAME=true or NAME=false", param_hint="--feature-gates")
        found[name.strip()] = switched
    return found


@contextlib.contextmanager
def connected(app: App, choice: ServiceChoice, in_use: Sequence[str] = ()) -> Iterator[Connected]:
    """Open the chosen service and close it afterwards.

    Args:
        app: global options.
        choice: of the service.
        in_use: what containers of the store use, as ``IMAGE[,HANDLER]``, since it doesn't run them.

    Raises:
        ImageNotFoundError: one of these means no image, so a mistyped one can't cost the image that was meant.
        ConfigError, UnsupportedRuntimeTypeError: a file is wrong, or the gRPC libraries are missing.
        ImageStoreError: the store can't be opened.
    """
    edged = None
    if choice.edged is not None:
        from imagestore.node.edged.config import load

        edged = load(choice.edged)
        warn(choice.edged, edged.warnings)
    settings = settings_of(choice, edged)
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
    from imagestore.node.edged.settings import DOCKER

    if app.remote is not None and (choice.docker or edged is not None):
        raise click.UsageError("'imagestore --endpoint' names a server already; leave out --docker and --edged")
    is_store = app.remote is None and edged is None and not choice.docker and not choice.endpoint
    if in_use and not is_store:
        raise click.UsageError("--in-use is for the store; other services tell themselves what is used")
    if choice.docker or (edged is not None and edged.runtime_type == DOCKER):
        return _docker(app, choice, edged, settings)
    if choice.endpoint or edged is not None or app.remote is not None:
        return _endpoint(app, choice, edged, settings)
    from imagestore.node.embedded import EmbeddedImageService

    containers = [used for text in in_use for used in _used(app.store, text)]
    store = EmbeddedImageService(app.store, containers=lambda: containers)
    default = app.config.default_handler
    return Connected(store, f"store in {app.root}", choice.folder(app), settings, edged, default)


def _docker(app: App, choice: ServiceChoice, edged: EdgedSettings | None, settings: KubeletImageSettings) -> Connected:
    from imagestore.node.config_members import socket_path as path_of
    from imagestore.node.docker.handler_table import HandlerTable
    from imagestore.node.docker.service import DockerImageService
    from imagestore.node.edged.settings import STALL_LIMIT

    path = choice.docker or (edged.docker_endpoint if edged is not None else DOCKER_SOCKET)
    socket_path = path_of(path)
    folder = choice.folder(app, socket_path)
    engine = DockerImageService(
        socket_path,
        platforms=_platforms(app),
        default_handler=app.config.default_handler,
        sandbox_image=edged.sandbox_image if edged is not None else "",
        table=HandlerTable(folder / "docker-handlers.json"),
        timeout_seconds=settings.runtime_request_timeout.seconds,
        stall_limit=edged.stall_limit if edged is not None else STALL_LIMIT,
    )
    default = app.config.default_handler
    return Connected(engine, f"Docker Engine at {path}", folder, settings, edged, default)


def _endpoint(
    app: App, choice: ServiceChoice, edged: EdgedSettings | None, settings: KubeletImageSettings
) -> Connected:
    from imagestore.cri.endpoint import Endpoint

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
    return Connected(remote, f"CRI at {address}", choice.folder(app, Endpoint.parse(address).path), settings, edged)


def _used(store: ImageStore, text: str) -> list[ContainerImage]:
    """What a container holds that uses an image: services tell it by its id."""
    from imagestore.cri.model import ContainerImage

    name, _, handler = text.partition(",")
    ids = {str(image.id) for image in store.list(name=name, runtime_handler=handler or None)}
    if not ids and not _WHOLE_ID.fullmatch(name):
        raise ImageNotFoundError(
            f"--in-use {text!r}: there is no such image in the store; nothing was removed",
            hint="'imagestore images' lists them",
        )
    # A container may outlive its image, so an id need not be there.
    return [ContainerImage("option --in-use", image_id, handler or None) for image_id in sorted(ids or {name})]


def _platforms(app: App) -> dict[str, Platform | None]:
    """What each configured handler pulls for; the default handler's platform is the engine's own."""
    config = app.config
    return {
        name: config.handler_platform(name, host=app.host, explicit=None).platform
        for name in config.handlers
        if name != config.default_handler
    }
