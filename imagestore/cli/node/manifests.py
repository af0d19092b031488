"""The pods of a file, for node commands: several YAML documents, lists, workloads by their template, RuntimeClasses."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from imagestore.errors import ConfigError, DocumentError, InvalidQuantityError, InvalidResourcesError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from imagestore.node.runtime_class import RuntimeClass
    from imagestore.resources.documents import Document
    from imagestore.resources.pod import Pod


@dataclass(frozen=True, slots=True)
class Manifest:
    """A pod of a file, or the pod that another object makes.

    Attributes:
        name: kind and name of the object, for messages; empty if it says neither.
        document: the object.
        pod: what is read of it.
        runtime_class: the class that the pod names, if the classes were given.
        warnings: about it.
    """

    name: str
    document: dict[str, Any]
    pod: Pod
    runtime_class: RuntimeClass | None = None
    warnings: tuple[str, ...] = ()


#: ``--runtime-classes FILE``; arrives as ``runtime_classes``.
runtime_classes_option = click.option(
    "--runtime-classes",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="YAML file with the cluster's RuntimeClass objects.",
)


def read_runtime_classes(path: Path | None) -> list[RuntimeClass]:
    """The classes of a file; none without one.

    Raises:
        ConfigError: it can't be read, or holds something else.
    """
    if path is None:
        return []
    from imagestore.cli.node.settings import naming
    from imagestore.node.runtime_class import parse_runtime_classes
    from imagestore.util.yaml_documents import read_documents

    documents = read_documents(path)
    with naming(path):
        return parse_runtime_classes(documents)


def read_pod_documents(path: Path) -> list[dict[str, Any]]:
    """The objects of a file (``-`` for standard input): JSON if it is one object of JSON, else YAML documents.

    Raises:
        InvalidResourcesError: it is neither, or there is no object in it.
        UsageError: it can't be read.
    """
    from imagestore.oci.decode import MAX_DOCUMENT_BYTES, decode
    from imagestore.util.yaml_documents import parse_documents

    what = _name_of(path)
    try:
        with click.open_file(str(path), "rb") as file:
            raw: bytes = file.read(MAX_DOCUMENT_BYTES + 1)
        if raw.lstrip().startswith(b"{") and b"\n---" not in raw:
            return [decode(raw, what)]
        found = parse_documents(raw, what)
    except OSError as error:
        raise click.UsageError(f"{path}: {error.strerror}") from error
    except (ConfigError, DocumentError) as error:
        hint = error.hint or "expected a pod, as kubectl get -o json gives"
        raise InvalidResourcesError(str(error), hint=hint) from error
    if not found:
        raise InvalidResourcesError(f"{what}: expected one document, found 0")
    return found


def manifests(documents: Sequence[dict[str, Any]], classes: Sequence[RuntimeClass]) -> tuple[list[Manifest], list[str]]:
    """The pods of a file's documents (at least one), after admission of their RuntimeClass; and what was passed over.

    Args:
        documents: of the file; RuntimeClass objects among them count too.
        classes: of the cluster. Without any, the RuntimeClass of a pod isn't looked up.

    Raises:
        InvalidResourcesError, InvalidQuantityError: a pod can't be read, or there is none.
        RuntimeClassNotFoundError: classes are known, and one that a pod names isn't among them.
        ConfigError: a RuntimeClass can't be read, or comes twice.
    """
    from imagestore.node.runtime_class import parse_runtime_class
    from imagestore.resources.documents import is_passed_over, name_of, objects_of
    from imagestore.resources.pod_reading import pod_from_json

    objects = objects_of(documents)
    own: list[Document] = []
    others: list[Document] = []
    taken: list[Document] = []
    for each in objects:
        is_class = each.get("kind") == "RuntimeClass"
        (own if is_class else others if is_passed_over(each) else taken).append(each)
    if not taken:
        if len(objects) == 1:
            pod_from_json(objects[0])  # raises with what it expected
        raise InvalidResourcesError(
            f"none of {len(objects)} objects is a pod, or has a pod template",
            hint="give a pod, or an object with a pod template, such as a Deployment",
        )
    known = [*classes, *map(parse_runtime_class, own)]
    found = [_manifest(dict(each), known, is_named=objects != [*documents] or len(taken) > 1) for each in taken]
    return found, [f"{name_of(each)}: has no pod, passed over" for each in others]


@contextlib.contextmanager
def naming_object(name: str) -> Iterator[None]:
    """Put an object's name, if it has one, in front of errors about its resources."""
    try:
        yield
    except (InvalidQuantityError, InvalidResourcesError) as error:
        if not name:
            raise
        raise InvalidResourcesError(f"{name}: {error}", hint=error.hint) from error


def _manifest(document: dict[str, Any], classes: Sequence[RuntimeClass], *, is_named: bool) -> Manifest:
    from imagestore.node.runtime_class import admit, class_named
    from imagestore.resources.documents import name_of, pod_in, spec_of
    from imagestore.resources.pod_reading import pod_from_json

    name = name_of(document)
    with naming_object(name if is_named else ""):
        read = Manifest(name, document, pod_from_json(document))
        if not read.pod.runtime_class or not classes:
            return read
        given = class_named(read.pod.runtime_class, classes)
        refused = admit(spec_of(pod_in(document)).values, given)
        return replace(read, pod=pod_from_json(document), runtime_class=given, warnings=tuple(refused))


def _name_of(path: Path) -> str:
    return "standard input" if str(path) == "-" else str(path)
