"""What is remembered, as values: image records, leases, and what else keeps content alive.

An image record is keyed by (reference, runtime handler) and holds *roots*: the digests of its manifest and of every
index on the way to it. A lease holds digests by name while work is under way.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from imagestore.metadata.namespace_api import HOME
from imagestore.oci.gc_labels import ContentTerms

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from imagestore.oci.descriptor import Descriptor
    from imagestore.oci.digest import Digest
    from imagestore.platforms.platform import Platform


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
        content_size: bytes of indexes, manifest, config and layers as they travel.
        labels: free text by key.
        warnings: what was accepted although it is doubtful.
        created_at: seconds since 1970 when the record first appeared.
        updated_at: seconds since 1970 when it last changed.
        is_pinned: policies spare it.
        used_at: seconds since 1970 when it was last used, to the minute; 0 when never.
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


class ListedImage(NamedTuple):
    """What a node's list of images shows of a record: whatever it shows differs only if one of these differs.

    Attributes:
        reference: canonical text.
        handler: name of the runtime handler.
        image_id: digest of the config in text form, as it stands in the database.
        target: digest of what the reference resolved to, likewise.
        content_size: bytes of its content as they travel.
        is_pinned: policies spare it.
    """

    reference: str
    handler: str
    image_id: str
    target: str
    content_size: int
    is_pinned: bool

    @classmethod
    def of(cls, record: ImageRecord) -> ListedImage:
        """What is shown of a record."""
        target = str(record.target.digest)
        return cls(
            record.reference, record.handler, str(record.image_id), target, record.content_size, record.is_pinned
        )


@dataclass(frozen=True, slots=True)
class Lease:
    """Keeps content alive until released or expired.

    Attributes:
        id: its name.
        created_at: seconds since 1970.
        expires_at: seconds since 1970, infinite for a lease that only its deletion ends.
        is_flat: keeps what it lists, but not what that refers to.
        labels: free text by key.
        namespace: whose it is among containerd's clients.
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
class ObjectRow:
    """Which object of a bucket holds some content.

    Attributes:
        digest: of the content.
        size: in bytes.
        key: the object's key below the bucket's prefix.
        stored_at: seconds since 1970.
    """

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
    """A root: a record, an unexpired lease, a gc.root label on the content itself, or another namespace's word for it.

    Attributes:
        kind: which of them.
        name: reference, lease id, the label's key, the named image, or who knows the content.
        handler: the record's runtime handler; empty otherwise.
    """

    kind: HolderKind
    name: str
    handler: str = ""


@dataclass(frozen=True, slots=True)
class Everything:
    """All records, as far as removing them goes.

    Attributes:
        number: of the last change of a record.
        ids: reference, handler and image id of every record, in this order.
        roots: what they hold, digests in text form.
    """

    number: int
    ids: Sequence[tuple[str, str, str]]
    roots: Sequence[str]

    @property
    def keys(self) -> list[tuple[str, str]]:
        """(reference, handler) of every record."""
        return [(reference, handler) for reference, handler, _ in self.ids]
