"""What containerd's clients keep besides our records: namespaces, named images, and which of them knows which content.

A namespace is a client's own world (containerd, core/metadata): its own images, leases, labels and its own view of
content. ``HOME`` is that of the store itself, the one containerd's CRI uses too: records by (reference, handler),
leases of pulls and all that the store fetched are in it. The others know only what their clients wrote or shared.

An *owner* is who a content record belongs to: a namespace, or a containerd that keeps its content here (see
``proxy_owner``). A record holds the file until it goes; a namespace's goes by the marks of its own images, leases and
labels, a proxy's only when that containerd deletes it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from imagestore.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from imagestore.oci.descriptor import Descriptor
    from imagestore.oci.digest import Digest

HOME: Final = "k8s.io"
#: Begins the owner of a proxy's content; no namespace has a colon.
PROXY: Final = "proxy:"
_NAMESPACE: Final = re.compile(r"[A-Za-z0-9]+(?:[._-][A-Za-z0-9]+)*")
_LONGEST: Final = 76


@dataclass(frozen=True, slots=True)
class NamedImage:
    """An image that a client of containerd's services made.

    Attributes:
        namespace: whose.
        name: free text, unique in the namespace.
        target: media type, digest and size; what it names need not be there.
        annotations: those of the target.
        labels: free text by key.
        created_at: seconds since 1970.
        updated_at: seconds since 1970.
        also_keeps: what it keeps besides its target and what its labels name; our indexes have no edges to manifests.
    """

    namespace: str
    name: str
    target: Descriptor
    annotations: Mapping[str, str] = field(default_factory=dict, hash=False)
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)
    created_at: float = 0.0
    updated_at: float = 0.0
    also_keeps: tuple[Digest, ...] = ()


def image_name(reference: str, handler: str, default_handler: str) -> str:
    """The name in ``HOME`` of the record of (reference, handler).

    >>> image_name("r.example/x:1", "kata", "runc")
    'r.example/x:1@kata'
    """
    return reference if handler == default_handler else f"{reference}@{handler}"


@dataclass(frozen=True, slots=True)
class ContentRecord:
    """That an owner knows a blob; the file may still be on its way.

    Attributes:
        digest: which.
        size: in bytes.
        labels: the owner's.
        created_at: seconds since 1970.
        updated_at: seconds since 1970.
    """

    digest: Digest
    size: int
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)
    created_at: float = 0.0
    updated_at: float = 0.0


def checked_namespace(text: str) -> str:
    """A namespace's name, as containerd allows it.

    Raises:
        InvalidInputError: it breaks the rule.

    >>> checked_namespace("k8s.io")
    'k8s.io'
    """
    if len(text) > _LONGEST or not _NAMESPACE.fullmatch(text):
        raise InvalidInputError(
            f"namespace {text[:100]!r}: expected letters and digits with single '.', '_' or '-' between them,"
            f" at most {_LONGEST} characters"
        )
    return text


def proxy_owner(name: str) -> str:
    """The owner of what one containerd keeps here through its proxy content store.

    Raises:
        InvalidInputError: the name is none that a namespace could have.
    """
    return PROXY + checked_namespace(name)
