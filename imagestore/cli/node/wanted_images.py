"""The images that a kubelet needs for the pods of a file: of containers, init containers and image volumes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import click

from imagestore.cli.exit_codes import warn
from imagestore.cli.render import printable
from imagestore.cri.model import SandboxMetadata
from imagestore.errors import InvalidResourcesError
from imagestore.node.image_names import PullPolicy
from imagestore.resources.documents import members_of, pod_in, spec_of
from imagestore.resources.pod_resources import refusal, target_of
from imagestore.resources.remarks import remarks
from imagestore.util.logins import reference_without_login

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from imagestore.cli.app import App
    from imagestore.cli.node.manifests import Manifest
    from imagestore.cli.node.services import Connected
    from imagestore.util.members import Members

#: In the order in which a kubelet needs their images.
_CONTAINERS: Final = ("initContainers", "containers", "ephemeralContainers")


@dataclass(frozen=True, slots=True)
class WantedImage:
    """One image for one container of a pod, or for one of its volumes.

    Attributes:
        container: its name, or that of the volume; empty where only an image is given.
        image: as written.
        pod: whose it is.
        policy: as the pod says; None for the API server's default.
        handler: runtime handler for image calls.
    """

    container: str
    image: str
    pod: SandboxMetadata
    policy: PullPolicy | None
    handler: str

    def where(self) -> dict[str, object]:
        """Members for JSON; none where only an image is given."""
        if not self.container:
            return {}
        return {"pod": f"{self.pod.namespace}/{self.pod.name}", "container": self.container}

    def print_heading(self, *, is_first: bool) -> None:
        """Print pod, container and image; nothing where only an image is given."""
        if self.container:
            image = reference_without_login(self.image)
            heading = f"pod {self.pod.namespace}/{self.pod.name}, container {self.container}, image {image}"
            print(f"{'' if is_first else chr(10)}{printable(heading)}")


def wanted_images(app: App, found: Connected, pods: Iterable[Manifest], handler: str) -> list[WantedImage]:
    """The images of a file's pods, in its order. Warnings go to standard error.

    Args:
        app: the configuration, with the system that each handler of the store runs.
        found: the image service.
        pods: of a file.
        handler: for all pods, instead of that of their RuntimeClass; empty for none.

    Raises:
        InvalidResourcesError: a pod's images can't be read, or no pod is left.
        UnknownRuntimeHandlerError: the store's configuration has no such handler.
        UsageError: the gate is on, and a pod names an unknown RuntimeClass.
    """
    wanted: list[WantedImage] = []
    for each in pods:
        own = handler or _handler(each, found)
        refused = refusal(each.pod, target_of(app.config, own, host=app.host)) if found.is_store else ""
        warn(each.name, remarks(each.document, each.pod, is_about_numbers=False))
        warn(each.name, each.warnings)
        warn(each.name, [f"{refused}; passed over"] if refused else [])
        if not refused:
            wanted += _images(each, own)
    if not wanted:
        raise InvalidResourcesError(
            "the file has no image for this node", hint="'imagestore node resources' shows what its pods are for"
        )
    return wanted


def _handler(given: Manifest, found: Connected) -> str:
    """The runtime handler for image calls; empty while the gate is off."""
    if not found.settings.gates.runtime_class_in_image_cri or not given.pod.runtime_class:
        return ""
    if given.runtime_class is None:
        raise click.UsageError(
            f"{given.name or 'the pod'} has runtimeClassName {given.pod.runtime_class[:100]}: "
            "give the cluster's objects with --runtime-classes, or its handler with --runtime-handler"
        )
    return given.runtime_class.handler


def _images(given: Manifest, handler: str) -> Iterator[WantedImage]:
    template = pod_in(given.document)
    spec, pod = spec_of(template), _pod(members_of(given.document), template)
    for kind in _CONTAINERS:
        for number, container in enumerate(spec.objects(kind)):
            name = container.text("name") or f"{kind}[{number}]"
            yield _image(container, "image", "imagePullPolicy", WantedImage(name, "", pod, None, handler))
    for number, volume in enumerate(spec.objects("volumes")):
        source = volume.object("image")
        if source.values:
            name = f"volume {volume.text('name') or number}"
            yield _image(source, "reference", "pullPolicy", WantedImage(name, "", pod, None, handler))


def _image(source: Members, image: str, policy: str, whose: WantedImage) -> WantedImage:
    name, text = source.text(image), source.text(policy)
    if not name:
        source.refuse(image, "expected the name of an image, got none")
    if text and text not in list(PullPolicy):
        raise InvalidResourcesError(
            f"{source.at(policy)}: {text[:100]!r}: expected {', '.join(PullPolicy)}",
            hint="Kubernetes' API server would refuse this pod",
        )
    return WantedImage(whose.container, name, whose.pod, PullPolicy(text) if text else None, whose.handler)


def _pod(document: Members, template: Members) -> SandboxMetadata:
    """The pod's names: its own, or those of the object that makes it."""
    own, maker = template.object("metadata"), document.object("metadata")
    return SandboxMetadata(
        uid=own.text("uid"),
        namespace=own.text("namespace") or maker.text("namespace") or "default",
        name=own.text("name") or maker.text("name") or "imagestore",
        annotations=own.labels("annotations"),
    )
