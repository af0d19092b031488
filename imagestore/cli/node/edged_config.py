"""``imagestore node edged-config``: what KubeEdge's edged would do with a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from imagestore.cli import render
from imagestore.cli.app import output_option
from imagestore.cli.exit_codes import ExitStatus
from imagestore.node.edged.config import load

if TYPE_CHECKING:
    from imagestore.node.edged.settings import EdgedSettings


@click.command("edged-config")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@output_option
def edged_config(file: Path, output: str) -> int:
    """Show which image service edged uses according to FILE, with the origin of each value.

    FILE is edgecore's configuration (v1alpha1 or v1alpha2), or the parameters of the design "CRI Support in edged".
    Values that the embedded kubelet would refuse lead to an error status.
    """
    settings = load(file)
    faults = settings.kubelet.faults() if settings.profile != "seed" else ()
    values = _values(settings)
    if output == "json":
        shown = {name: {"value": value, "origin": origin} for name, value, origin in values}
        render.dump_json({**shown, "warnings": list(settings.warnings), "faults": list(faults)})
    else:
        render.table(("VALUE", "IS", "FROM"), [(name, _shown(value), origin) for name, value, origin in values])
        for warning in settings.warnings:
            print(f"warning: {render.printable(warning)}")
        for fault in faults:
            print(f"fault: {render.printable(fault)}")
    return ExitStatus.CONFIG if faults else ExitStatus.OK


def _values(settings: EdgedSettings) -> list[tuple[str, str | int | None, str]]:
    origins = {name: str(origin) for name, origin in settings.origins.items()}
    kubelet = settings.kubelet
    timeout = settings.request_timeout
    rows: list[tuple[str, str | int | None, str]] = [
        ("profile", settings.profile, "the file's form"),
        ("runtimeType", settings.runtime_type, origins.get("runtimeType") or origins["containerRuntime"]),
        (
            "remoteRuntimeEndpoint",
            settings.runtime_endpoint or None,
            origins.get("remoteRuntimeEndpoint") or origins.get("containerRuntimeEndpoint", ""),
        ),
        (
            "remoteImageEndpoint",
            settings.image_endpoint or None,
            origins.get("remoteImageEndpoint") or origins.get("imageServiceEndpoint", ""),
        ),
        ("dockerEndpoint", settings.docker_endpoint, origins.get("dockerAddress") or origins["dockerEndpoint"]),
        ("runtimeRequestTimeout", str(timeout) if timeout is not None else None, origins["runtimeRequestTimeout"]),
        ("podSandboxImage", settings.sandbox_image or None, origins["podSandboxImage"]),
        (
            "memoryCapacity",
            settings.memory_bytes,
            origins.get("memoryCapacity") or origins.get("edgedMemoryCapacity", "the machine's"),
        ),
        ("imagePullProgressDeadline", str(settings.stall_limit), origins.get("imagePullProgressDeadline", "default")),
    ]
    if settings.profile == "seed":
        return rows
    gate = "on" if kubelet.gates.runtime_class_in_image_cri else "off"
    return [
        *rows,
        ("imageGCHighThresholdPercent", kubelet.image_gc_high_threshold_percent, "kubelet settings"),
        ("imageGCLowThresholdPercent", kubelet.image_gc_low_threshold_percent, "kubelet settings"),
        ("imageMinimumGCAge", str(kubelet.image_minimum_gc_age), "kubelet settings"),
        ("nodeStatusMaxImages", kubelet.node_status_max_images, "kubelet settings"),
        ("RuntimeClassInImageCriApi", gate, origins.get("featureGates", "default")),
    ]


def _shown(value: str | int | None) -> str:
    return "-" if value is None else str(value)
