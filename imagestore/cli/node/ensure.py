"""``imagestore node ensure``: EnsureImageExists for one image."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from imagestore.cli import completion, render
from imagestore.cli.app import App, pass_app
from imagestore.cli.exit_codes import ExitStatus, exit_status, note, say, warn
from imagestore.cli.node.manifests import (
    manifests,
    read_pod_documents,
    read_runtime_classes,
    runtime_classes_option,
)
from imagestore.cli.node.services import (
    clean_up_command,
    connected,
    events_json,
    metrics_for,
    print_events,
    service_options,
    write_metrics,
)
from imagestore.cli.node.wanted_images import WantedImage, wanted_images
from imagestore.cli.signals import cancelled_by_signals
from imagestore.cri.model import SandboxMetadata
from imagestore.errors import ConfigError
from imagestore.node.credentials import NodeKeyring, PullSecret
from imagestore.node.gate_change import GateMarker
from imagestore.node.image_manager import EnsureRequest, ImageManager
from imagestore.node.image_names import PullPolicy
from imagestore.node.kubelet_messages import ObjectReference, start_failure
from imagestore.node.pull_record_files import PullRecordFiles
from imagestore.node.pull_record_manager import PullManager
from imagestore.node.runtime_class import image_handler
from imagestore.registry.credentials.lookup import CredentialResolver
from imagestore.util import files

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from imagestore.cli.node.manifests import Manifest
    from imagestore.cli.node.services import Connected, ServiceChoice
    from imagestore.node.kubelet_messages import EnsureResult, NodeEvent
    from imagestore.node.metrics import NodeMetrics

_POLICIES: Final = ("Always", "IfNotPresent", "Never")
_MAX_SECRET_BYTES: Final = 1024 * 1024
_STATUSES: Final = {
    "InvalidImageName": ExitStatus.USAGE,
    "ErrImageNeverPull": ExitStatus.NOT_FOUND,
    "SignatureValidationFailed": ExitStatus.ACCESS,
    "RegistryUnavailable": ExitStatus.UNAVAILABLE,
}


@click.command()
@click.argument("image", shell_complete=completion.images, required=False)
@click.option(
    "-f",
    "--filename",
    "manifest",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False, allow_dash=True),
    help="All images of the pods in this YAML or JSON file (- for standard input) instead of IMAGE.",
)
@click.option("--policy", type=click.Choice(_POLICIES), help="Default: as the API server chooses for the image.")
@click.option(
    "--runtime-handler",
    "--handler",
    "handler",
    metavar="H",
    default="",
    shell_complete=completion.handlers,
    help="Runtime handler of the pod.",
)
@click.option("--runtime-class", metavar="NAME", help="RuntimeClass of the pod; needs --runtime-classes.")
@runtime_classes_option
@click.option("--pod", metavar="NAMESPACE/NAME", help="Whose IMAGE; default: default/imagestore.")
@click.option("--pod-uid", metavar="UID", default="", help="Of the pod.")
@click.option("--annotation", "annotations", metavar="KEY=VALUE", multiple=True, help="Of the pod; may be repeated.")
@click.option(
    "--pull-secret",
    "secrets",
    type=click.Path(path_type=Path, dir_okay=False),
    multiple=True,
    help="A pull secret of the pod: Docker's config.json, or the Secret as kubectl prints it; may be repeated.",
)
@service_options
@pass_app
def ensure(
    app: App,
    choice: ServiceChoice,
    image: str | None,
    manifest: Path | None,
    policy: str | None,
    handler: str,
    runtime_class: str | None,
    runtime_classes: Path | None,
    pod: str | None,
    pod_uid: str,
    annotations: tuple[str, ...],
    secrets: tuple[Path, ...],
    metrics: Path | None,
    output: str,
) -> int:
    """Make sure that IMAGE is there and that a pod may use it, as a kubelet does before it makes a container.

    With --filename, all images of a file's pods are ensured: several YAML documents, lists, and Deployments and other
    objects with a pod template. Names, annotations, pull policies and runtimeClassName come from there; a pod that a
    kubelet on this node refuses for its operating system is passed over.

    \b
    Example:
        imagestore node ensure -f deployment.yaml --runtime-classes classes.yaml

    Events and messages are the kubelet's. What was pulled with whose credentials is recorded in the state folder, so
    that a present image is only used by pods that may pull it. The back-off is shown, but not kept from run to run.
    """
    numbers = metrics_for(metrics)
    app.missing = "make"
    if (image is None) == (manifest is None):
        raise click.UsageError("give either an IMAGE or --filename")
    if manifest is not None and (pod or pod_uid or runtime_class):
        raise click.UsageError("--pod, --pod-uid and --runtime-class are for an IMAGE; the file says them")
    pods: list[Manifest] = []
    passed_over: list[str] = []
    if manifest is not None:
        pods, passed_over = manifests(read_pod_documents(manifest), read_runtime_classes(runtime_classes))
    pairs = [each.partition("=") for each in annotations]
    if not all(equals for _, equals, _ in pairs):
        raise click.BadParameter("expected KEY=VALUE", param_hint="--annotation")
    extra = {key: value for key, _, value in pairs}
    with connected(app, choice) as found:
        if pods:
            warn("", passed_over)
            wanted = wanted_images(app, found, pods, handler)
        else:
            given = _pod(pod or "default/imagestore", pod_uid)
            own = _handler(found, handler, runtime_class, runtime_classes)
            wanted = [WantedImage("", image or "", given, None, own)]
        change = GateMarker(found.folder).check(found.settings.gates)
        steps = () if change is None else change.steps(clean_up_command(app, choice))
        heard: list[NodeEvent] = []
        manager = _manager(found, heard, numbers)
        status, items = ExitStatus.OK, []
        with cancelled_by_signals() as token:
            for number, each in enumerate(wanted):
                heard.clear()
                request = _request(each, policy, extra, secrets)
                result = manager.ensure(request, cancel=token)
                if not result.is_there:
                    heard.append(start_failure(result, request.subject))
                if output == "json":
                    items.append({**each.where(), **_json(request, found.name, result, heard, steps)})
                else:
                    each.print_heading(is_first=not number)
                    _print(found.name, result, heard, steps)
                if not result.is_there:
                    _report(result)
                status = status or _status(result)
    if output == "json":
        render.dump_json({"items": items, "warnings": passed_over} if pods else items[0])
    written = write_metrics(metrics, numbers)
    return status or written


def _status(result: EnsureResult) -> ExitStatus:
    if result.is_there:
        return ExitStatus.OK
    known = _STATUSES.get(result.reason)
    if known is not None:
        return known
    return ExitStatus.FAILURE if result.cause is None else exit_status(result.cause)


def _request(
    wanted: WantedImage, policy: str | None, annotations: Mapping[str, str], secrets: Sequence[Path]
) -> EnsureRequest:
    who = replace(wanted.pod, annotations={**wanted.pod.annotations, **annotations})
    return EnsureRequest(
        wanted.image,
        who,
        PullPolicy(policy) if policy is not None else wanted.policy,
        wanted.handler,
        [secret for path in secrets for secret in _secrets(path, who.namespace)],
        ObjectReference("Pod", who.name, who.namespace, who.uid),
    )


def _manager(found: Connected, heard: list[NodeEvent], metrics: NodeMetrics | None) -> ImageManager:
    settings = found.settings
    return ImageManager(
        found.service,
        gates=settings.gates,
        keyring=NodeKeyring(CredentialResolver.standard()),
        puller=settings.puller(found.service),
        records=records_of(found, metrics) if settings.gates.ensure_secret_pulled_images else None,
        recorder=heard.append,
        metrics=metrics,
    )


def records_of(found: Connected, metrics: NodeMetrics | None) -> PullManager:
    """The pull records in the service's folder; pulls that were cut off are settled first.

    Raises:
        ImageStoreError: the folder can't be used, or the service can't list.
    """
    files = PullRecordFiles(found.folder)
    manager = PullManager(files, found.settings.verification(), metrics=metrics)
    if files.intents()[0]:
        manager.start(found.service.list())
    return manager


def _pod(text: str, uid: str) -> SandboxMetadata:
    namespace, slash, name = text.partition("/")
    if not slash or not namespace or not name:
        raise click.BadParameter(f"{text!r}: expected NAMESPACE/NAME", param_hint="--pod")
    return SandboxMetadata(name, uid, namespace)


def _secrets(path: Path, namespace: str) -> list[PullSecret]:
    from imagestore.node.pull_secret_file import pull_secrets

    try:
        data = files.read_regular(path, _MAX_SECRET_BYTES)
    except OSError as error:
        raise ConfigError(f"{path}: can't be read: {error.strerror}") from error
    found, remarks = pull_secrets(data, str(path), namespace=namespace, name=path.name)
    warn(str(path), remarks)
    return found


def _handler(found: Connected, handler: str, name: str | None, path: Path | None) -> str:
    if name is None:
        return handler
    if handler:
        raise click.UsageError("give --handler or --runtime-class, not both")
    if path is None:
        raise click.UsageError("--runtime-class needs --runtime-classes with the cluster's objects")
    return image_handler(name, read_runtime_classes(path), found.settings.gates)


def _print(service: str, result: EnsureResult, heard: Sequence[NodeEvent], gate: Sequence[str]) -> None:
    print(f"service: {render.printable(service)}")
    for line in gate:
        print(f"gate: {render.printable(line)}")
    for step in result.steps:
        print(f"step: {render.printable(step)}")
    print_events(heard)
    if result.is_there:
        print(f"image: {render.printable(result.image_ref)}")


def _report(result: EnsureResult) -> None:
    """Write what went wrong to standard error, as for every command."""
    note(result.message if result.message.startswith(result.reason) else f"{result.reason}: {result.message}")
    if result.cause is not None and result.cause.hint:
        say(f"  hint: {render.printable(result.cause.hint)}")


def _json(
    request: EnsureRequest,
    service: str,
    result: EnsureResult,
    heard: Sequence[NodeEvent],
    gate: Sequence[str],
) -> dict[str, object]:
    return {
        "image": request.image,
        "runtimeHandler": request.runtime_handler,
        "service": service,
        "imageRef": result.image_ref,
        "pulled": result.was_pulled,
        "reason": result.reason,
        "message": result.message,
        "events": events_json(heard),
        "steps": list(result.steps),
        "gateChange": list(gate),
    }
