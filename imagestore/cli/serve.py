"""``imagestore serve``: the store behind unix sockets, for node software."""

from __future__ import annotations

import functools
import logging
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from imagestore.cli import signals
from imagestore.cli.app import App, pass_app
from imagestore.cli.exit_codes import exit_status, needed
from imagestore.cli.options import GivenPath, StoreRoot, duration_option
from imagestore.errors import ImageStoreError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from imagestore.config import Config, Plugin
    from imagestore.publish import PublishSettings
    from imagestore.server.settings import ProxyContent
    from imagestore.store.image_store import ImageStore

log = logging.getLogger(__name__)

_MODE: Final = re.compile(r"0?[0-7]{3}")
_PROXY_NAME: Final = "containerd"
#: The folder of its content plugin, below its root.
_CONTAINERD_CONTENT: Final = "io.containerd.content.v1.content"


def mode(text: str) -> int:
    """Permission bits from octal digits."""
    if _MODE.fullmatch(text) is None:
        raise click.BadParameter(f"socket mode {text!r}: expected three octal digits, such as 0660")
    return int(text, 8)


def proxy(text: str) -> ProxyContent:
    """A content proxy's name and socket."""
    from imagestore.server.settings import ProxyContent
    from imagestore.util.endpoint import Endpoint

    name, equals, endpoint = text.partition("=")
    if not equals or "/" in name:
        name, endpoint = _PROXY_NAME, text
    return ProxyContent(name, Endpoint.parse(endpoint).path)


def sockets(listen: Iterable[str], proxy_content: Iterable[str]) -> tuple[tuple[str, ...], tuple[ProxyContent, ...]]:
    """Paths of the sockets to serve at, each once, and the content proxies.

    Raises:
        UsageError: two of them have the same socket, or two content proxies the same name.
    """
    from imagestore.util.endpoint import Endpoint

    proxies = tuple(proxy(each) for each in proxy_content)
    paths = tuple(dict.fromkeys(Endpoint.parse(each).path for each in listen))
    every = [*paths, *(each.path for each in proxies)]
    names = [each.name for each in proxies]
    for each in proxies:
        if every.count(each.path) > 1:
            raise click.UsageError(f"socket {each.path}: a content proxy needs a socket of its own")
        if names.count(each.name) > 1:
            raise click.UsageError(
                f"content proxy {each.name!r}: each needs a name of its own (NAME=unix:///PATH); under one name two"
                " containerds delete each other's content"
            )
    return paths, proxies


def group(text: str) -> int:
    """A group's number from its name or number."""
    if re.fullmatch(r"[0-9]{1,9}", text):
        return int(text)
    import grp

    try:
        return grp.getgrnam(text).gr_gid
    except (KeyError, ValueError):
        raise click.BadParameter(f"socket group {text!r}: there is no such group") from None


def _plugins(*, has_mirror: bool) -> tuple[Plugin[Any], ...]:
    """Those of what is started: without its options, the publisher's table says whether it is."""
    from imagestore.mirror import MIRROR_PLUGIN
    from imagestore.publish import PUBLISH_PLUGIN

    return (PUBLISH_PLUGIN, MIRROR_PLUGIN) if has_mirror else (PUBLISH_PLUGIN,)


def publish_settings(config: Config, address: str | None) -> PublishSettings | None:
    """Into which containerd images are published: the option, with the configuration's other settings; None for none.

    Raises:
        InvalidInputError: the address is no unix socket's.
    """
    from imagestore.publish import PUBLISH_PLUGIN
    from imagestore.util.endpoint import Endpoint

    settings = config.plugin(PUBLISH_PLUGIN)
    found = address or settings.address
    return replace(settings, address=Endpoint.parse(found).text) if found else None


@click.command()
@click.option(
    "--listen",
    multiple=True,
    metavar="unix:///PATH",
    help="Serve at this socket; may be repeated.",
)
@click.option(
    "--proxy-content",
    multiple=True,
    metavar="[NAME=]unix:///PATH",
    help="Serve a containerd's content store at this socket (its proxy_plugins); each containerd needs its own NAME.",
)
@click.option(
    "--kubelet",
    multiple=True,
    metavar="unix:///PATH",
    help="Serve a kubelet (imageServiceEndpoint) at this socket; needs --publish.",
)
@click.option(
    "--publish",
    "publish_address",
    metavar="unix:///PATH",
    help="Publish every image into the containerd at this socket, so that its pods run them.",
)
@click.option(
    "--take-over",
    is_flag=True,
    help="Treat what this store's copy on another machine published as this store's (after a restore).",
)
@click.option(
    "--mirror",
    "mirror_address",
    metavar="ADDRESS:PORT",
    help="Serve a registry mirror at this address, for the upstreams of the configuration; :5000 is all addresses.",
)
@click.option("--root", type=StoreRoot(), help="As the global option.")
@click.option("--config", "config_path", type=GivenPath(path_type=Path), help="As the global option.")
@click.option(
    "--socket-mode", type=mode, default="0660", show_default=True, metavar="OCTAL", help="Permissions of the sockets."
)
@click.option("--socket-group", type=group, metavar="GROUP", help="Owning group of the sockets, by name or number.")
@click.option(
    "--max-concurrent-pulls",
    type=click.IntRange(1, 64),
    default=16,
    show_default=True,
    metavar="N",
    help="Pulls that run at one time; others wait. The first pull of a registry does not wait for other registries.",
)
@click.option(
    "--max-connections",
    type=click.IntRange(1, 65536),
    default=1024,
    show_default=True,
    metavar="N",
    help="Connections at one time, for each socket.",
)
@duration_option(
    "--drain-timeout", default="30s", show_default=True, help="How long running calls may continue after SIGTERM."
)
@duration_option(
    "--gc-interval",
    default="1h",
    show_default=True,
    help="Longest time between collections; after removals it is shorter. 0 leaves collection to 'imagestore gc'.",
)
@click.option("--metrics-listen", metavar="127.0.0.1:PORT", help="Publish metrics for Prometheus at a loopback port.")
@click.option("--tracing", is_flag=True, help="Export a span for each call (OTEL_TRACES_EXPORTER names the exporter).")
@click.option("--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="info: calls that change something, fail or take long; debug: every call.",
)
@pass_app
def serve(
    app: App,
    listen: tuple[str, ...],
    proxy_content: tuple[str, ...],
    kubelet: tuple[str, ...],
    publish_address: str | None,
    take_over: bool,
    mirror_address: str | None,
    root: Path | str | None,
    config_path: Path | None,
    socket_mode: int,
    socket_group: int | None,
    max_concurrent_pulls: int,
    max_connections: int,
    drain_timeout: float,
    gc_interval: float,
    metrics_listen: str | None,
    tracing: bool,
    log_format: str,
    log_level: str,
) -> None:
    """Serve the store to node software: CRI's image service and containerd's services, over unix sockets; with
    --mirror, to the cluster's nodes too, as a registry.

    SIGHUP reads the configuration again; a broken one changes nothing. SIGTERM drains: no new calls, those in progress
    get --drain-timeout, a second SIGTERM ends them at once. Unfinished downloads are resumed by the next pull.
    """
    from imagestore.server.settings import loopback_address

    paths, proxies = sockets((*listen, *kubelet), proxy_content)
    kubelet_paths = sockets(kubelet, ())[0]
    metrics = loopback_address(metrics_listen) if metrics_listen is not None else None
    given = replace(app, given_root=root or app.given_root, given_config=config_path or app.given_config)
    given.plugins = _plugins(has_mirror=mirror_address is not None)
    if given.is_shared and (paths or proxies or publish_address):
        raise UnsupportedError(
            "serve: runtimes on a node need files, and would list and remove the images of all other machines",
            hint="give the node a store of its own; of a shared store only --mirror is served",
        )
    from imagestore.server import logs

    logs.install(log_format, log_level)
    logs.take_over()
    if log_format == "json":
        # gRPC's core writes plain lines to standard error; the variable is read when it starts.
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    with needed("cri", what="serve"):
        from imagestore.server.main import ServerProcess
    from imagestore.server.settings import ServerSettings
    from imagestore.server.sockets import SocketRights
    from imagestore.server.tracing import Tracing, named_exporter

    mirror = None
    if mirror_address is not None:
        with needed("mirror", what="serve --mirror"):
            from imagestore.mirror.listener import parse_address
        mirror = parse_address(mirror_address)
    settings = ServerSettings(
        listen=tuple(path for path in paths if path not in kubelet_paths),
        kubelet=kubelet_paths,
        publish=publish_settings(replace(given).config, publish_address),
        take_over=take_over,
        proxies=proxies,
        rights=SocketRights(socket_mode, socket_group),
        drain_seconds=drain_timeout,
        max_concurrent_pulls=max_concurrent_pulls,
        max_connections=max_connections,
        gc_seconds=gc_interval,
        metrics=metrics,
        tracing=Tracing(named_exporter()) if tracing else None,
        mirror=mirror,
    )
    signals.raise_if_signalled()
    try:
        ServerProcess(settings, functools.partial(_opened, given, settings.publish is not None)).run()
    except ImageStoreError as error:
        if log_format != "json":
            raise
        log.critical("can't serve", extra={"error": str(error), "hint": error.hint})
        click.get_current_context().exit(exit_status(error))


def _opened(given: App, is_publishing: bool, config: Config | None) -> ImageStore:
    """The store, with a configuration or the one on disk."""
    # A new App each time, since an App reads the configuration once.
    opened = replace(given, missing="make", is_freeing=True)
    if config is not None:
        opened.config = config
    if is_publishing and not opened.is_shared:
        # What containerd has already isn't fetched again.
        content = Path(opened.config.containerd_root, _CONTAINERD_CONTENT)
        opened.sources = tuple(dict.fromkeys((*given.sources, content)))
    return opened.store
