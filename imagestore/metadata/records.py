"""What is stored besides content, as values: image records, leases, and what containerd's clients keep.

Times are seconds since 1970.

An image record is keyed by (reference, runtime handler) and holds *roots*: the digests of its manifest and of every
index on the way to it. A lease holds digests by name while work is under way.

A namespace is a client's own world (containerd, core/metadata): its own images, leases, labels and its own view of
content. ``HOME`` is the store's own, the one containerd's CRI uses too: records by (reference, handler), leases of
pulls and all that the store fetched are in it. The others know only what their clients wrote or shared.

An *owner* is what a content record belongs to: a namespace, or a containerd that keeps its content here (see
``proxy_owner``). A content record keeps the file. A namespace's is removed when its own images, leases and labels no
longer reach it, a proxy's only when that containerd deletes it.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from imagestore.errors import InvalidInputError
from imagestore.oci.gc_labels import EXPIRE, ContentTerms, LeaseTerms

if TYPE_CHECKING:
    from collections.abc import Mapping

    from imagestore.oci.descriptor import Descriptor
    from imagestore.oci.digest import Digest
    from imagestore.platforms.platform import Platform

HOME: Final = "k8s.io"
#: Prefix of the owner of a proxy's content; no namespace has a colon.
PROXY: Final = "proxy:"
_NAMESPACE: Final = re.compile(r"[A-Za-z0-9]+(?:[._-][A-Za-z0-9]+)*")
_LONGEST: Final = 76


@dataclass(frozen=True, slots=True)
class ImageRecord:
    """One image for one runtime handler.

    Attributes:
        reference: canonical text, for example ``docker.io/library/python:3``.
        handler: name of the runtime handler, never empty.
        target: what the reference resolved to: an index or a manifest.
        manifest: the manifest chosen from it (or the target itself).
        image_id: digest of the config.
        platform: what the chosen manifest is for.
        wanted: text form of the platform that was asked for.
        roots: digests the record holds: manifest and every index on the way.
        content_size: bytes of indexes, manifest, config and layers as transferred.
        labels: free text by key.
        warnings: what was accepted although it is doubtful.
        created_at: when the record first appeared.
        updated_at: when it last changed.
        is_pinned: never removed by policies.
        used_at: when it was last used, to the minute; 0 when never.
    """

    reference: str
    handler: str
    target: Descriptor
    manifest: Descriptor
    image_id: Digest
    platform: Platform
    wanted: str
    roots: tuple[Digest, ...]
    content_size: int
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)
    warnings: tuple[str, ...] = ()
    created_at: float = 0.0
    updated_at: float = 0.0
    is_pinned: bool = False
    used_at: float = 0.0

    @property
    def labelled(self) -> tuple[Digest, ...]:
        """What its labels keep besides its roots."""
        return ContentTerms.of(self.labels).references

    @property
    def held(self) -> tuple[Digest, ...]:
        """All that it keeps by itself."""
        return (*self.roots, *self.labelled)

    def has_expired(self, now: float) -> bool:
        """Whether its gc.expire label is past."""
        return EXPIRE in self.labels and LeaseTerms.of(self.labels).expires_at <= now


class ListedImage(NamedTuple):
    """The part of a record that a node's list of images shows.

    Attributes:
        reference: canonical text.
        handler: name of the runtime handler.
        image_id: digest of the config in text form, as it stands in the database.
        target: digest of what the reference resolved to, likewise.
        manifest: digest of the manifest chosen from it, likewise.
        content_size: bytes of its content as transferred.
        is_pinned: never removed by policies.
    """

    reference: str
    handler: str
    image_id: str
    target: str
    manifest: str
    content_size: int
    is_pinned: bool

    @classmethod
    def of(cls, record: ImageRecord) -> ListedImage:
        """What is shown of a record."""
        return cls(
            record.reference,
            record.handler,
            str(record.image_id),
            str(record.target.digest),
            str(record.manifest.digest),
            record.content_size,
            record.is_pinned,
        )


def image_name(reference: str, handler: str, default_handler: str) -> str:
    """The name in ``HOME`` of the record of (reference, handler).

    >>> image_name("r.example/x:1", "kata", "runc")
    'r.example/x:1@kata'
    """
    return reference if handler == default_handler else f"{reference}@{handler}"


@dataclass(frozen=True, slots=True)
class Lease:
    """Keeps content alive until released or expired.

    Attributes:
        id: unique among all namespaces; see lease_key().
        expires_at: infinite for a lease that only its deletion ends.
        is_flat: keeps what it lists, but not what that refers to.
    """

    id: str
    created_at: float
    expires_at: float
    is_flat: bool = False
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)
    namespace: str = HOME

    @property
    def name(self) -> str:
        """What its namespace calls it; the id of other namespaces' leases begins with theirs."""
        return self.id if self.namespace == HOME else self.id.removeprefix(f"{self.namespace}/")


def lease_key(namespace: str, name: str) -> str:
    """The id of a namespace's lease.

    >>> lease_key("default", "mine"), lease_key("k8s.io", "mine")
    ('default/mine', 'mine')
    """
    return name if namespace == HOME else f"{namespace}/{name}"


@dataclass(frozen=True, slots=True)
class NamedImage:
    """An image that a client of containerd's services made.

    Attributes:
        name: free text, unique in the namespace.
        target: media type, digest and size; the content need not be present.
        annotations: those of the target.
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


@dataclass(frozen=True, slots=True)
class ContentRecord:
    """That an owner knows a blob, with the owner's labels; the file may still be on its way."""

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
        InvalidInputError: no namespace could have this name.
    """
    return PROXY + checked_namespace(name)


@dataclass(frozen=True, slots=True)
class ObjectRow:
    """Which object of a bucket, by its key below the bucket's prefix, holds some content."""

    digest: Digest
    size: int
    key: str
    stored_at: float


class HolderKind(enum.Enum):
    """What may keep content alive by itself."""

    IMAGE = "image"
    LEASE = "lease"
    FLAT_LEASE = "flat lease"
    LABEL = "label"
    NAMED_IMAGE = "named image"
    NAMESPACE = "namespace"

    @property
    def is_flat(self) -> bool:
        """Whether it keeps what it lists and nothing below."""
        return self in (HolderKind.FLAT_LEASE, HolderKind.NAMESPACE)


@dataclass(frozen=True, slots=True)
class Holder:
    """A root: a record, an unexpired lease, a gc.root label on the content itself, or a content record of an owner.

    Attributes:
        kind: which of them.
        name: reference, lease id, the label's key, the named image, or the owner.
        handler: the record's runtime handler; empty otherwise.
    """

    kind: HolderKind
    name: str
    handler: str = ""
