"""The kubelet settings of node commands: its file, KubeEdge's file, --feature-gates; and ``node edged-config``."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from imagestore.cli import render
from imagestore.cli.exit_codes import ExitStatus, warn
from imagestore.cli.options import output_option
from imagestore.errors import ConfigError
from imagestore.node.edged.config import load
from imagestore.node.feature_gates import FeatureGates
from imagestore.node.kubelet_config import KubeletImageSettings, unknown_members
from imagestore.util.logins import reference_without_login, without_login
from imagestore.util.text import go_boolean
from imagestore.util.yaml_documents import read_documents

if TYPE_CHECKING:
    from collections.abc import Iterator

    from imagestore.node.edged.settings import EdgedSettings


def settings_of(
    file: Path | None,
    feature_gates: str | None,
    *,
    edged: EdgedSettings | None = None,
    edged_file: Path | None = None,
) -> KubeletImageSettings:
    """The settings of a kubelet's file, else of KubeEdge's, else the defaults, with the gates of the option.

    Raises:
        ConfigError: a file or a gate can't be read, or the kubelet would refuse the values.
    """
    if file is not None:
        documents = read_documents(file)
        given = documents[0] if documents else {}
        _check_kind(given, file)
        with naming(file):
            settings = KubeletImageSettings.parse(given)
        if len(documents) > 1:
            warn(str(file), [f"holds {len(documents)} documents; a kubelet reads the first one only"])
        warn(str(file), unknown_members(given))
    elif edged is not None:
        settings = edged.kubelet
    else:
        settings = KubeletImageSettings(gates=FeatureGates(runtime_class_in_image_cri=True))
    if feature_gates is not None:
        settings = settings.with_gates(settings.gates.overridden(_gates(feature_gates)))
    source = file or edged_file
    with naming(source) if source is not None else contextlib.nullcontext():
        try:
            settings.check()
        except ConfigError as error:
            if file is not None or edged is None:
                raise
            raise ConfigError(edged.located(str(error)), hint=error.hint) from error
    return settings


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Put the file's name in front of configuration errors."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}", hint=error.hint) from error


def _check_kind(document: dict[str, Any], path: Path) -> None:
    """Refuse other objects: they would count as a configuration in which every member has its default."""
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
        switched = go_boolean(value.strip())
        if switched is None:
            raise click.BadParameter(f"{part!r}: expected NAME=true or NAME=false", param_hint="--feature-gates")
        found[name.strip()] = switched
    return found


@click.command("edged-config")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@output_option
def edged_config(file: Path, output: str) -> int:
    """Show which image service edged uses according to FILE, with the origin of each value.

    FILE is edgecore's configuration (v1alpha1 or v1alpha2), or the parameters of the design "CRI Support in edged".
    Values that the embedded kubelet would refuse lead to an error status.
    """
    settings = load(file)
    faults = [*map(settings.located, settings.kubelet.faults())] if settings.profile != "seed" else []
    values = _values(settings)
    if output == "json":
        shown = {name: {"value": value, "origin": origin} for name, value, origin in values}
        render.dump_json({**shown, "warnings": list(settings.warnings), "faults": faults})
    else:
        rows = [(name, "-" if value is None else str(value), origin) for name, value, origin in values]
        render.table(("VALUE", "IS", "FROM"), rows)
        for warning in settings.warnings:
            print(f"warning: {render.printable(warning)}")
        for fault in faults:
            print(f"fault: {render.printable(fault)}")
    return ExitStatus.CONFIG if faults else ExitStatus.OK


def _values(settings: EdgedSettings) -> list[tuple[str, str | int | None, str]]:
    """Names, values and origins, in the order of the output."""
    origins = {name: str(origin) for name, origin in settings.origins.items()}
    timeout = settings.request_timeout

    def _origin(name: str, other: str, default: str = "") -> str:
        """Where a value comes from, under the name of one API version or the other."""
        return origins.get(name) or origins.get(other) or default

    rows: list[tuple[str, str | int | None, str]] = [
        ("profile", settings.profile, "the file's form"),
        ("runtimeType", settings.runtime_type, _origin("runtimeType", "containerRuntime")),
        (
            "remoteRuntimeEndpoint",
            without_login(settings.runtime_endpoint) or None,
            _origin("remoteRuntimeEndpoint", "containerRuntimeEndpoint"),
        ),
        (
            "remoteImageEndpoint",
            without_login(settings.image_endpoint) or None,
            _origin("remoteImageEndpoint", "imageServiceEndpoint"),
        ),
        ("dockerEndpoint", settings.docker_endpoint, _origin("dockerAddress", "dockerEndpoint")),
        ("runtimeRequestTimeout", str(timeout) if timeout is not None else None, origins["runtimeRequestTimeout"]),
        ("podSandboxImage", reference_without_login(settings.sandbox_image) or None, origins["podSandboxImage"]),
        ("memoryCapacity", settings.memory_bytes, _origin("memoryCapacity", "edgedMemoryCapacity", "the machine's")),
        ("imagePullProgressDeadline", str(settings.stall_limit), origins.get("imagePullProgressDeadline", "default")),
    ]
    if settings.profile == "seed":
        return rows
    kubelet = settings.kubelet
    numbers: dict[str, str | int] = {
        "imageGCHighThresholdPercent": kubelet.image_gc_high_threshold_percent,
        "imageGCLowThresholdPercent": kubelet.image_gc_low_threshold_percent,
        "imageMinimumGCAge": str(kubelet.image_minimum_gc_age),
        "nodeStatusMaxImages": kubelet.node_status_max_images,
    }
    rows += [(name, value, "kubelet settings") for name, value in numbers.items()]
    gate = "on" if kubelet.gates.runtime_class_in_image_cri else "off"
    return [*rows, ("RuntimeClassInImageCriApi", gate, origins.get("featureGates", "default"))]
