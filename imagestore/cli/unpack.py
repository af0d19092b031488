"""``imagestore unpack`` and ``imagestore bundle``: an image as files, and as what an OCI runtime starts."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from imagestore.cli import completion, render
from imagestore.cli.app import App, pass_app
from imagestore.cli.exit_codes import note
from imagestore.cli.options import GivenPath, all_of, handler_option, output_option, progress_option
from imagestore.cli.progress import observer as observer_for
from imagestore.cli.signals import cancelled_by_signals

if TYPE_CHECKING:
    from collections.abc import Mapping

    from imagestore.resources.node import Node
    from imagestore.store.unpack.bundle import BundleOptions
    from imagestore.store.unpack.unpack import UnpackReport

_FOLDER = GivenPath(file_okay=False, path_type=Path)


_unpacking = all_of(
    click.argument("name", shell_complete=completion.images),
    click.argument("folder", type=_FOLDER),
    handler_option("This handler's image; by default the default handler's."),
    click.option("--rootless", is_flag=True, help="All files are this user's, and devices are left out."),
    click.option("--max-entries", type=click.IntRange(min=1), metavar="N", help="Refuse more files and folders."),
    click.option("--max-bytes", type=click.IntRange(min=1), metavar="N", help="Refuse more bytes of files."),
    progress_option(),
    output_option,
    pass_app,
)


@click.command()
@_unpacking
def unpack(app: App, name: str, folder: Path, output: str, **given: Any) -> None:
    """Unpack the root filesystem of an image of the store into FOLDER, a new or empty one.

    Layers are verified while they are read, and nothing is written outside of FOLDER, whatever they say. FOLDER appears
    when all is in it. Only root can give files to their owners; others use --rootless.

    \b
    imagestore pull busybox && sudo imagestore unpack busybox rootfs
    """
    _show(_unpacked(app, name, folder, None, **given), output)


@click.command()
@_unpacking
@click.option(
    "--pod",
    "pod_file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="A pod (YAML or JSON, - for standard input) whose resources, command, arguments and variables count.",
)
@click.option("--container", metavar="NAME", help="The pod's container; needed where it has several.")
@click.option("--no-volumes", is_flag=True, help="No mounts for the image's volumes: what it has there is seen.")
def bundle(
    app: App,
    name: str,
    folder: Path,
    output: str,
    pod_file: Path | None,
    container: str | None,
    no_volumes: bool,
    **given: Any,
) -> None:
    """Make a bundle in FOLDER, a new or empty one: 'rootfs' and the 'config.json' that runc and others start.

    The configuration is the image's, with containerd's defaults for what an image says nothing of; with --pod also what
    the pod says: requests and limits become control group values as the kubelet and the runtime handler compute them.
    Each volume that the image declares is an empty tmpfs; a line says where that hides what the image has.

    \b
    imagestore bundle busybox box --pod pod.yaml && sudo runc run --bundle box box
    """
    from imagestore.store.unpack.bundle import BundleOptions

    if pod_file is None and container is not None:
        raise click.UsageError("--container needs --pod")
    options = BundleOptions()
    if pod_file is not None:
        options = _of_pod(app, pod_file, container, given["runtime_handler"])
    options = dataclasses.replace(options, mount_volumes=not no_volumes)
    _show(_unpacked(app, name, folder, options, **given), output)


def _unpacked(
    app: App,
    name: str,
    folder: Path,
    options: BundleOptions | None,
    *,
    runtime_handler: str | None,
    rootless: bool,
    max_entries: int | None,
    max_bytes: int | None,
    progress: str,
) -> UnpackReport:
    from imagestore.store.unpack.limits import UnpackLimits

    app.missing = "unnamed"
    usual = UnpackLimits()
    limits = dataclasses.replace(usual, size=max_bytes or usual.size, entries=max_entries or usual.entries)
    with cancelled_by_signals() as token, observer_for(progress) as observer:
        return app.store.unpack(
            name,
            folder,
            runtime_handler=runtime_handler,
            bundle=options,
            limits=limits,
            rootless=rootless,
            observer=observer,
            cancel=token,
        )


def _of_pod(app: App, file: Path, name: str | None, handler: str | None) -> BundleOptions:
    from imagestore.cli.node.manifests import manifests, read_pod_documents
    from imagestore.cli.pod_process import pod_process
    from imagestore.errors import InvalidResourcesError
    from imagestore.resources import pod_resources as numbers
    from imagestore.store.unpack.bundle import BundleOptions

    found, _ = manifests(read_pod_documents(file), [])
    if len(found) != 1:
        raise InvalidResourcesError(f"{file}: expected one pod, found {len(found)}")
    pod = found[0].pod
    planned = numbers.plan(pod, numbers.target_of(app.config, handler or "", host=app.host), node=_this_node())
    chosen = [each for each in planned.containers if name in (None, each.name)]
    if len(chosen) != 1:
        names = ", ".join(each.name for each in planned.containers)
        what = f"no container {name!r}" if not chosen else f"{len(chosen)} containers"
        raise InvalidResourcesError(f"{file}: has {what}: {names}", hint="name one of them with --container")
    process = pod_process(found[0].document, chosen[0].name)
    for each in process.left_out:
        note(f"left out: {each}")
    linux = cast("Mapping[str, Any]", chosen[0].oci.get("linux", {}))
    return BundleOptions(
        name=chosen[0].name or "container",
        command=process.command,
        args=process.args,
        env=process.env,
        cwd=process.cwd,
        linux_resources=linux.get("resources"),
        oom_score_adj=chosen[0].oom_score_adj,
    )


def _this_node() -> Node:
    from imagestore.resources.node import CgroupVersion, Node

    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    is_second = os.path.exists("/sys/fs/cgroup/cgroup.controllers")
    return Node(
        memory_bytes=memory,
        allocatable_memory_bytes=memory,
        processors=os.cpu_count() or 1,
        cgroup=CgroupVersion.V2 if is_second else CgroupVersion.V1,
        has_swap_controller=is_second or os.path.exists("/sys/fs/cgroup/memory/memory.memsw.usage_in_bytes"),
    )


def _show(report: UnpackReport, output: str) -> None:
    for each in report.left_out:
        note(f"left out: {each}")
    if report.left_out_count > len(report.left_out):
        note(f"left out: {report.left_out_count - len(report.left_out)} more")
    for volume in report.hidden_volumes:
        note(f"hidden: the image's files in its volume {volume}, where the container has an empty tmpfs (--no-volumes)")
    shown = {
        "path": report.path,
        "entries": report.entries,
        "bytes": report.size,
        "leftOut": list(report.left_out),
        "leftOutCount": report.left_out_count,
        "hiddenVolumes": list(report.hidden_volumes),
    }
    render.show(output, shown, [f"{report.path}: {report.entries} entries, {render.size(report.size)} of files"])
