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
from imagestore.resources.documents import object_in, objects_in, pod_in, text_in
from imagestore.resources.pod_resources import refusal, target_of
from imagestore.resources.remarks import remarks
from imagestore.util.logins import reference_without_login

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from imagestore.cli.app import App
    from imagestore.cli.node.manifests import Manifest
    from imagestore.cli.node.services import Connected
    from imagestore.resources.documents import Document

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
    template, path = pod_in(given.document)
    if "spec" in template:
        spec, path = object_in(template, "spec", path), f"{path}.spec"
    else:
        spec = template
    pod = _pod(given.document, template)
    for kind in _CONTAINERS:
        for number, container in enumerate(objects_in(spec, kind, path)):
            here = f"{path}.{kind}[{number}]"
            name = text_in(container, "name", here) or f"{kind}[{number}]"
            yield _image(container, "image", "imagePullPolicy", here, WantedImage(name, "", pod, None, handler))
    for number, volume in enumerate(objects_in(spec, "volumes", path)):
        here = f"{path}.volumes[{number}]"
        source = object_in(volume, "image", here)
        if source:
            name = f"volume {text_in(volume, 'name', here) or number}"
            whose = WantedImage(name, "", pod, None, handler)
            yield _image(source, "reference", "pullPolicy", f"{here}.image", whose)


def _image(source: Document, image: str, policy: str, path: str, whose: WantedImage) -> WantedImage:
    name, text = text_in(source, image, path), text_in(source, policy, path)
    if not name:
        raise InvalidResourcesError(f"{path}.{image}: expected the name of an image, found none")
    if text and text not in list(PullPolicy):
        raise InvalidResourcesError(
            f"{path}.{policy}: {text[:100]!r}: expected {', '.join(PullPolicy)}",
            hint="Kubernetes' API server would refuse this pod",
        )
    return WantedImage(whose.container, name, whose.pod, PullPolicy(text) if text else None, whose.handler)


def _pod(document: Document, template: Document) -> SandboxMetadata:
    """The pod's names: its own, or those of the object that makes it."""
    own, maker = object_in(template, "metadata", "$"), object_in(document, "metadata", "$")
    annotations = object_in(own, "annotations", "$.metadata")
    return SandboxMetadata(
        uid=text_in(own, "uid", "$.metadata"),
        namespace=text_in(own, "namespace", "$.metadata") or text_in(maker, "namespace", "$.metadata") or "default",
        name=text_in(own, "name", "$.metadata") or text_in(maker, "name", "$.metadata") or "imagestore",
        annotations={name: text_in(annotations, name, "$.metadata.annotations") for name in annotations},
    )
