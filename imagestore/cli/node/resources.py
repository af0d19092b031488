"""``imagestore node resources``: a pod's requests and limits as every number they become."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from imagestore.cli import render
from imagestore.cli.app import App, pass_app
from imagestore.cli.exit_codes import warn
from imagestore.cli.node.manifests import (
    Manifest,
    manifests,
    naming_object,
    read_pod_documents,
    read_runtime_classes,
    runtime_classes_option,
)
from imagestore.cli.options import all_of, host_option, output_option

if TYPE_CHECKING:
    from imagestore.resources.node import KubeletSettings, Node
    from imagestore.resources.pod_resources import ContainerPlan, PodPlan, Target

_AMOUNTS = ("cpu-request", "cpu-limit", "memory-request", "memory-limit")


_amount_options = all_of(
    click.option(
        "--huge-page-limit",
        "huge_pages",
        metavar="SIZE=QUANTITY",
        multiple=True,
        help="The container's limit of one page size, such as 2Mi=64Mi; may be repeated.",
    ),
    click.option("--cpu-request", metavar="QUANTITY", help="The container's request of cpu, such as 250m."),
    click.option("--cpu-limit", metavar="QUANTITY", help="The container's limit of cpu, such as 250m."),
    click.option("--memory-request", metavar="QUANTITY", help="The container's request of memory, such as 1Gi."),
    click.option("--memory-limit", metavar="QUANTITY", help="The container's limit of memory, such as 1Gi."),
)
_node_options = all_of(
    click.option("--cgroup", type=click.Choice(["v1", "v2"]), default="v2", show_default=True),
    click.option("--node-memory", metavar="QUANTITY", help="Capacity of memory; default: this machine's."),
    click.option("--node-allocatable", metavar="QUANTITY", help="Memory for pods; default: all of it."),
    click.option("--node-swap", metavar="QUANTITY", default="0", show_default=True, help="Capacity of swap."),
    click.option("--processors", type=click.IntRange(1), help="Logical processors; default: this machine's."),
    click.option("--no-swap-controller", is_flag=True, help="The node's kernel does not count swap."),
    click.option("--node-huge-page", "huge_page_sizes", metavar="SIZE", multiple=True, help="Such as 2MB."),
)
_kubelet_options = all_of(
    click.option(
        "--mapping",
        type=click.Choice(["kubelet", "proposal"]),
        default="kubelet",
        show_default=True,
        help="Today's kubelet, or the designs of 2018 (Windows) and Kubernetes 1.22 (Linux).",
    ),
    click.option("--no-cpu-quota", is_flag=True, help="cpuCFSQuota is off."),
    click.option("--cpu-period", type=int, default=100_000, show_default=True, help="cpuCFSQuotaPeriod, in µs."),
    click.option("--swap", type=click.Choice(["NoSwap", "LimitedSwap"]), default="NoSwap", show_default=True),
    click.option(
        "--memory-qos",
        type=click.Choice(["None", "TieredReservation", "Request"]),
        help="Gate MemoryQoS with this reservation policy.",
    ),
)


@click.command()
@click.argument("document", type=click.Path(dir_okay=False, allow_dash=True, path_type=Path), required=False)
@_amount_options
@click.option(
    "--runtime-handler", "--handler", "handler", metavar="H", help="Platform and isolation are this handler's."
)
@runtime_classes_option
@host_option
@click.option("--os", "system", type=click.Choice(["linux", "windows"]), help="Instead of a handler.")
@click.option("--isolation", type=click.Choice(["process", "hyperv"]), help="With --os windows; default: process.")
@_node_options
@_kubelet_options
@click.option("--weight", type=click.Choice(["curve", "linear"]), default="curve", show_default=True)
@click.option("--conflict", type=click.Choice(["refuse", "precedence", "keep"]), default="refuse", show_default=True)
@click.option("--explain", is_flag=True, help="Show each number with its formula and the field it comes from.")
@output_option
@pass_app
def resources(
    app: App,
    /,
    document: Path | None,
    handler: str | None,
    runtime_classes: Path | None,
    host: str | None,
    system: str | None,
    isolation: str | None,
    weight: str,
    conflict: str,
    explain: bool,
    output: str,
    **given: Any,
) -> None:
    """Show what a pod's requests and limits become: CRI messages, OCI resources, control group files.

    DOCUMENT is a file (- for standard input) with JSON or YAML: a pod, a pod spec, a container, or requests and limits
    alone. The template of a Deployment or of another object with a pod template is taken. Each pod of several YAML
    documents or of a list is shown; objects without pods are passed over. Without a DOCUMENT, the options make one
    container.

    Without --runtime-handler and --os, the pod's runtimeClassName chooses, looked up in --runtime-classes and in the
    DOCUMENT, else its spec.os, node selector or required node affinity, else the default handler's platform. What is
    doubtful about the document is said on standard error. --weight names the runtime's formula of cpu.weight (runc and
    crun before mid-2025: linear), --conflict what happens when a Windows container gets more than one CPU control.

    \b
    Example:
        imagestore node resources deployment.yaml --runtime-classes classes.yaml --explain
    """
    from imagestore.resources import pod_resources as numbers
    from imagestore.resources.cgroup import WeightFormula
    from imagestore.resources.oci_spec import CpuConflict

    amounts = {name: given.pop(name.replace("-", "_")) for name in _AMOUNTS}
    pods, passed_over = manifests(
        _described(document, amounts, given.pop("huge_pages")), read_runtime_classes(runtime_classes)
    )
    if host is not None:
        import imagestore.platforms as platforms

        app.host = platforms.parse(host)
    node, settings = _node(**given), _settings(**given)
    choices = numbers.Choices(WeightFormula(weight), CpuConflict(conflict))
    warn("", passed_over)
    items = []
    for number, each in enumerate(pods):
        name = (each.name or f"object {number + 1}") if len(pods) > 1 else ""
        with naming_object(name):
            target = _target(app, handler, system, isolation, each)
            warnings = _doubts(each, target, is_named=bool(handler))
            warn(name, warnings)
            planned = numbers.plan(each.pod, target, node=node, settings=settings, choices=choices)
        items.append({**_as_json(planned, node, settings, explain=explain), "warnings": warnings})
        if output != "json":
            print(f"{chr(10) if number else ''}{render.printable(name)}:\n" if name else "", end="")
            _print(planned, explain=explain)
        elif name:
            items[-1] = {"object": name, **items[-1]}
    if output == "json" and len(items) > 1:
        render.dump_json({"items": items, "warnings": passed_over})
    elif output == "json":
        render.dump_json({**items[0], "warnings": [*passed_over, *items[0]["warnings"]]})


def _described(
    document: Path | None, amounts: dict[str, str | None], huge_pages: tuple[str, ...]
) -> list[dict[str, Any]]:
    is_described = bool(huge_pages) or any(value is not None for value in amounts.values())
    if (document is None) != is_described:
        raise click.UsageError("give either a DOCUMENT or options such as --cpu-limit")
    if document is not None:
        return read_pod_documents(document)
    parts: dict[str, dict[str, str]] = {"requests": {}, "limits": {}}
    for name, value in amounts.items():
        kind, _, part = name.partition("-")
        if value is not None:
            parts[f"{part}s"][kind] = value
    for text in huge_pages:
        size, equals, value = text.partition("=")
        if not equals:
            raise click.UsageError(f"--huge-page-limit {text}: expected SIZE=QUANTITY, such as 2Mi=64Mi")
        parts["limits"][f"hugepages-{size}"] = value
    return [parts]


def _doubts(given: Manifest, target: Target, *, is_named: bool) -> list[str]:
    from imagestore.resources.pod_resources import refusal
    from imagestore.resources.remarks import remarks

    pod = given.pod
    found = [*remarks(given.document, pod), *given.warnings]
    if refused := refusal(pod, target):
        found.append(refused)
    if pod.runtime_class and given.runtime_class is None and not is_named:
        mine = f"runtime handler {target.handler}" if target.handler else target.os
        found.append(
            f"the numbers are for {mine}; name the handler of runtimeClassName {pod.runtime_class[:100]} "
            "with --runtime-handler, or the cluster's classes with --runtime-classes"
        )
    return found


def _target(app: App, handler: str | None, system: str | None, isolation: str | None, given: Manifest) -> Target:
    from imagestore.resources.pod_resources import Target, refusal, target_of
    from imagestore.resources.windows import Isolation

    own = {None: None, "process": Isolation.PROCESS, "hyperv": Isolation.HYPERVISOR}[isolation]
    if system is not None:
        if handler is not None:
            raise click.UsageError("give either --runtime-handler or --os")
        if system == "linux" and own is not None:
            raise click.UsageError("--isolation is for Windows")
        return Target(system, (own or Isolation.PROCESS) if system == "windows" else None)
    pod = given.pod
    if handler is None and given.runtime_class is not None:
        handler = given.runtime_class.handler
    found = target_of(app.config, handler or "", host=app.host)
    if handler is None and refusal(pod, found):
        # No handler is named, so the pod says for which system its numbers are.
        found = Target(pod.os, Isolation.PROCESS if pod.os == "windows" else None)
    if own is not None and found.os != "windows":
        raise click.UsageError(f"--isolation is for Windows, and runtime handler {found.handler!r} runs {found.os}")
    return replace(found, isolation=own) if own is not None else found


def _node(
    *,
    cgroup: str,
    node_memory: str | None,
    node_allocatable: str | None,
    node_swap: str,
    processors: int | None,
    no_swap_controller: bool,
    huge_page_sizes: tuple[str, ...],
    **_: object,
) -> Node:
    from imagestore.resources.node import CgroupVersion, Node

    memory = (
        os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        if node_memory is None
        else _bytes("--node-memory", node_memory)
    )
    return Node(
        memory_bytes=memory,
        allocatable_memory_bytes=memory if node_allocatable is None else _bytes("--node-allocatable", node_allocatable),
        swap_bytes=_bytes("--node-swap", node_swap),
        processors=processors or os.cpu_count() or 1,
        huge_page_sizes=huge_page_sizes,
        cgroup=CgroupVersion(cgroup),
        has_swap_controller=not no_swap_controller,
    )


def _bytes(option: str, text: str) -> int:
    from imagestore.util.quantity import Quantity

    value = Quantity.parse(text).value()
    if not 0 <= value < 2**63:
        raise click.BadParameter(f"{text!r}: expected 0 to 2^63-1 bytes", param_hint=option)
    return value


def _settings(
    *, mapping: str, no_cpu_quota: bool, cpu_period: int, swap: str, memory_qos: str | None, **_: object
) -> KubeletSettings:
    from imagestore.resources.cpu import Mapping
    from imagestore.resources.node import KubeletSettings, MemoryReservationPolicy, SwapBehavior

    return KubeletSettings(
        has_cpu_quota=not no_cpu_quota,
        cpu_period=cpu_period,
        swap_behavior=SwapBehavior(swap),
        has_memory_qos=memory_qos is not None,
        memory_reservation=MemoryReservationPolicy(memory_qos or "None"),
        mapping=Mapping(mapping),
    )


def _as_json(planned: PodPlan, node: Node, settings: KubeletSettings, *, explain: bool) -> dict[str, Any]:
    target = planned.target
    return {
        "runtimeHandler": target.handler,
        "os": target.os,
        "isolation": target.isolation.value if target.isolation else None,
        "mapping": settings.mapping.value,
        "node": {
            "memoryBytes": node.memory_bytes,
            "allocatableMemoryBytes": node.allocatable_memory_bytes,
            "swapBytes": node.swap_bytes,
            "processors": node.processors,
            "cgroup": node.cgroup.value if target.os == "linux" else None,
        },
        "qosClass": planned.qos.value,
        "podCgroup": None if planned.cgroup is None else planned.cgroup.to_json(),
        "containers": [_container_json(each, explain=explain) for each in planned.containers],
    }


def _container_json(each: ContainerPlan, *, explain: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"name": each.name, "cri": each.cri.to_json(), "oci": each.oci}
    if each.oom_score_adj is not None:
        found["oci"] = {"process": {"oomScoreAdj": each.oom_score_adj}, **each.oci}
        found["cgroupFiles"] = dict(each.cgroup_files)
    if explain:
        found["explanation"] = [line.to_json() for line in each.lines]
    return found


def _print(planned: PodPlan, *, explain: bool) -> None:
    target = planned.target
    isolation = f", {target.isolation.value} isolation" if target.isolation else ""
    handler = f", runtime handler {target.handler}" if target.handler else ""
    print(f"{planned.qos.value} pod on {target.os}{isolation}{handler}")
    if planned.cgroup is not None:
        written = [f"{name} {value}" for name, value in planned.cgroup.to_json().items() if value not in ({}, None)]
        print(f"pod control group: {', '.join(written)}")
    rows = [
        (each.name or "-", line.field, line.value, *((line.formula or "-", line.source) if explain else ()))
        for each in planned.containers
        for line in each.lines
    ]
    render.table(("CONTAINER", "FIELD", "VALUE", *(("FORMULA", "FROM") if explain else ())), rows)
