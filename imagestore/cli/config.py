"""``imagestore config``: check a configuration, print one to start from, print the one in effect."""

from __future__ import annotations

import math
import os
import tomllib
from dataclasses import replace
from datetime import date, time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from imagestore.cli import describe, render
from imagestore.cli.app import App, all_plugins, config_places, pass_app
from imagestore.cli.exit_codes import ExitStatus
from imagestore.cli.options import GivenPath, output_option
from imagestore.config.findings import Severity
from imagestore.errors import ConfigError, ImageStoreError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from imagestore.config import Config, Finding, HandlerPlatform, Report
    from imagestore.platforms import Platform

#: Where the documentation's unit has the socket of ``serve --kubelet``.
KUBELET_SOCKET: Final = "unix:///run/imagestore/kubelet.sock"
_FILE = click.argument("file", type=GivenPath(path_type=Path), required=False)


_host_option = click.option(
    "--host",
    "host_text",
    metavar="P",
    help="The node it is for, as a platform: linux/arm64, 'windows(10.0.20348)/amd64'. Default: this machine.",
)


@click.group()
def config() -> None:
    """Check or print a configuration, or write a new one."""


@config.command()
@_FILE
@_host_option
@click.option("--strict", is_flag=True, help="End with status 9 also when there are only warnings.")
@click.option(
    "--containerd-config",
    type=GivenPath(path_type=Path),
    metavar="FILE",
    help="containerd's own file, to compare with where publishing is configured. Default: /etc/containerd/config.toml.",
)
@output_option
@pass_app
def check(
    app: App, file: Path | None, host_text: str | None, strict: bool, containerd_config: Path | None, output: str
) -> ExitStatus:
    """Look FILE over (default: the configuration in use) with everything it imports.

    Lists every runtime handler with the platform its images are chosen for and where each part of it comes from; then
    what is wrong, with file, line and hint, also in the tables and folders of registries. Exit status 9 when loading
    the file, or a folder of a registry's host, is refused; 0 when there are only warnings. Files that were checked and
    places that couldn't be looked at are named.

    Where publishing is configured (plugins."io.imagestore.publish.v1"), the kubelet's settings are printed, and
    warnings about containerd's own file and the images of the store.
    """
    import imagestore.config as configuration
    from imagestore.publish import PUBLISH_PLUGIN

    host, path = _host(host_text), file or app.config_path
    if path is None:
        report = configuration.check_config(configuration.default(host))
    else:
        report = configuration.check(path, host=host, plugins=all_plugins())
    passed_over = [] if file or app.given_config else list(_passed_over(app.config_path))
    kubelet = None
    if report.config is not None and (address := report.config.plugin(PUBLISH_PLUGIN).address):
        app.given_config = path
        kubelet = _kubelet_settings(address)
        found = _publishing_findings(app, report.config, containerd_config, passed_over)
        order = list(Severity)
        findings = sorted([*report.findings, *found], key=lambda each: order.index(each.severity))
        report = replace(report, findings=tuple(findings))
    if output == "json":
        render.dump_json({**_as_json(report), "kubelet": kubelet, "passedOver": passed_over})
    else:
        _print(report, passed_over)
        _print_kubelet(kubelet)
    return ExitStatus.CONFIG if report.has_errors or (strict and report.has_warnings) else ExitStatus.OK


@config.command()
@_host_option
@output_option
def default(host_text: str | None, output: str) -> None:
    """Print a complete, commented configuration to start from; as JSON its keys alone."""
    from imagestore.config import default_text

    text = default_text(_host(host_text))
    if output == "json":
        render.dump_json(_plain(tomllib.loads(text)))
    else:
        click.echo(text, nl=False)


@config.command()
@_FILE
@_host_option
@output_option
@pass_app
def dump(app: App, file: Path | None, host_text: str | None, output: str) -> None:
    """Print the configuration in effect, with imports merged, and handlers, images and registries as in version 3.

    Of keys that imagestore doesn't know no texts and numbers are shown, and of logins only the user's name. Keys that
    only containerd reads stay as they were written.
    """
    from imagestore.config import dumps, effective, load

    if host_text is not None:
        app.host = _host(host_text)
    app.plugins = all_plugins()
    loaded = app.config if file is None else load(file, host=app.host, plugins=app.plugins)
    if output == "json":
        render.dump_json(_plain(effective(loaded)))
    else:
        click.echo(dumps(loaded), nl=False)


def _plain(value: Any) -> Any:
    """Values of TOML that JSON can't have, as text: dates, times, infinity and NaN."""
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    if isinstance(value, date | time):
        return value.isoformat()
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _host(text: str | None) -> Platform:
    import imagestore.platforms as platforms

    return platforms.host.detect() if text is None else platforms.parse(text)


def _passed_over(used: Path | None) -> Iterator[str]:
    """The places before the one in use that can't be looked at, and why."""
    for path in config_places():
        if path == used:
            return
        try:
            os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            yield f"{path}: {error.strerror}"


def _publishing_findings(
    app: App, config: Config, containerd_path: Path | None, passed_over: list[str]
) -> list[Finding]:
    """What is wrong for publishing, in our configuration, containerd's own and the store.

    What can't be looked at is added to ``passed_over``.
    """
    from imagestore.config import load
    from imagestore.publish import advice

    found: list[Finding] = []
    path = containerd_path or Path(advice.CONTAINERD_FILE)
    containerd = config
    if path.as_posix() not in config.files:
        try:
            containerd = load(path, host=config.host)
        except ConfigError as error:
            if containerd_path is not None:
                raise
            passed_over.append(f"containerd's own file: {error}")
    found += advice.configuration_findings(config, containerd)
    if not app.is_shared and (app.root / "metadata.db").exists():
        app.missing = "refuse"
        try:
            found += advice.store_findings(app.store)
        except ImageStoreError as error:
            passed_over.append(f"the store: {error}")
    return found


def _kubelet_settings(address: str) -> dict[str, Any]:
    """A KubeletConfiguration's members for a node whose store is published."""
    return {
        "imageServiceEndpoint": KUBELET_SOCKET,
        "containerRuntimeEndpoint": f"unix://{address.removeprefix('unix://')}",
        "featureGates": {"RuntimeClassInImageCriApi": True},
    }


def _print_kubelet(settings: dict[str, Any] | None) -> None:
    if settings is None:
        return
    images, runtime = settings["imageServiceEndpoint"], settings["containerRuntimeEndpoint"]
    print("\nfor the kubelet, in its KubeletConfiguration:")
    print(f"  imageServiceEndpoint: {images}  # the socket of 'imagestore serve --kubelet'")
    print(f"  containerRuntimeEndpoint: {runtime}")
    print("  featureGates: {RuntimeClassInImageCriApi: true}")
    print("or as flags:")
    print(f"  --image-service-endpoint={images} --container-runtime-endpoint={runtime}")
    print("  --feature-gates=RuntimeClassInImageCriApi=true")


def _print(report: Report, passed_over: Sequence[str]) -> None:
    if report.config is not None:
        rows = [row for resolved in report.handlers for row in _rows(resolved, report.config.default_handler)]
        render.table(["HANDLER", "PLATFORM", "MEMBER", "VALUE", "FROM"], rows)
        files = ", ".join(map(render.printable, report.config.files))
        click.echo(f"\nchecked: {files or 'the built-in default (no file was found)'}")
    for each in passed_over:
        click.echo(f"passed over: {render.printable(each)}")
    render.print_findings(report.findings)


def _rows(resolved: HandlerPlatform, default_handler: str) -> Iterator[tuple[str, ...]]:
    import imagestore.platforms as platforms

    name = resolved.handler.name
    heading = (f"{name} (default)" if name == default_handler else name, platforms.format_all(resolved.platform))
    for member, value in describe.members(resolved.platform):
        yield (*heading, member, value, resolved.origin[member])
        heading = ("", "")


def _as_json(report: Report) -> dict[str, Any]:
    import imagestore.platforms as platforms

    return {
        "host": platforms.format_all(report.host),
        "files": [] if report.config is None else list(report.config.files),
        "version": None if report.config is None else report.config.version,
        "defaultRuntimeHandler": None if report.config is None else report.config.default_handler,
        "handlers": [describe.handler(resolved) for resolved in report.handlers],
        "findings": [describe.finding(each) for each in report.findings],
    }
