"""What containerd should have, computed from the store's records; and what differs from what it has.

Nothing here asks anybody: records, configuration and containerd's list go in, names and actions come out.

An image id has these names in containerd; each leads to a *manifest*, never to an index, since containerd matches only
an index against the host's platform (core/images, ``Manifest``):

========================================  ================================================================
``sha256:<config>``                       every image: the default handler's manifest if it has this id, else that of
                                          the first record by (handler, reference)
``repository@sha256:<manifest>``          every record
``repository:tag``, ``repository@sha256:<index>``  only the default handler's records: a name has one target
========================================  ================================================================
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from imagestore.oci import MAX_LABEL_BYTES, Reference

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from imagestore.metadata import ImageRecord
    from imagestore.oci import Descriptor
    from imagestore.util.machine import MachineMark

#: Labels that containerd's CRI plugin sets itself. Without the first one it takes a record for a foreign one and makes
#: or retargets the record of the id (internal/cri/store/image; ``UpdateImage``).
MANAGED: Final = "io.cri-containerd.image"
PINNED: Final = "io.cri-containerd.pinned"
#: Version of this label, hash of the record's own name, handlers, snapshotters. ``ctr images tag`` copies labels to the
#: new name: only a record whose hash is of its own name is ours.
PUBLISHED: Final = "io.imagestore.published"
#: The store's id: two stores on one containerd leave each other's records alone.
STORE: Final = "io.imagestore.store"
#: The machine's mark: a store that was copied to another node brings its id along.
MACHINE: Final = "io.imagestore.machine"
_VERSION: Final = "1"
_HASH_CHARACTERS: Final = 16
_MOST_BYTES: Final = MAX_LABEL_BYTES // 2


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose records they are: labels that all records of one store on one machine have."""

    store_id: str
    machine: MachineMark


@dataclass(frozen=True, slots=True)
class ActualImage:
    """An image record of containerd."""

    name: str
    target: str
    labels: Mapping[str, str] = field(hash=False)

    def is_of(self, owner: Owner) -> bool:
        """Whether this store published it under this very name."""
        return self.labels.get(STORE) == owner.store_id and self._is_published_here

    def is_of_another_store(self, owner: Owner) -> bool:
        """Whether another store published it under this very name."""
        return self.labels.get(STORE, owner.store_id) != owner.store_id and self._is_published_here

    def is_from_elsewhere(self, owner: Owner) -> bool:
        """Whether a store with this id published it on another machine."""
        return self.is_of(owner) and owner.machine.is_another(self.labels.get(MACHINE, ""))

    @property
    def _is_published_here(self) -> bool:
        return self.labels.get(PUBLISHED, "").split(" ")[:2] == [_VERSION, _name_hash(self.name)]


@dataclass(frozen=True, slots=True)
class WantedImage:
    """One image id as containerd should have it.

    Attributes:
        image_id: digest of the config.
        names: containerd's names, that of the id first, each with the manifest it leads to.
        records: the store's records that have it, the default handler's first, then by handler and reference.
        handlers: their handlers, sorted.
        snapshotters: for which its layers are unpacked, sorted.
        is_pinned: whether a record or the configuration pins it.
    """

    image_id: str
    names: Mapping[str, Descriptor] = field(hash=False)
    records: tuple[ImageRecord, ...]
    handlers: tuple[str, ...]
    snapshotters: tuple[str, ...]
    is_pinned: bool

    @property
    def manifests(self) -> tuple[Descriptor, ...]:
        """The manifests that its names lead to, each once; several may share one config."""
        return tuple({manifest.digest: manifest for manifest in self.names.values()}.values())

    def needs_no_more_than(self, brought: WantedImage) -> bool:
        """Whether all that its names and handlers need is among what another value of it needs."""
        return {*self.manifests} <= {*brought.manifests} and {*self.snapshotters} <= {*brought.snapshotters}

    def labels(self, name: str, owner: Owner) -> dict[str, str]:
        """The labels of one of its records."""
        made_for = f"{','.join(self.handlers)} {','.join(self.snapshotters)}"
        if len(made_for.encode()) > _MOST_BYTES:  # containerd refuses labels that are too long
            made_for = f"{len(self.handlers)} {hashlib.sha256(made_for.encode()).hexdigest()}"
        labels = {
            MANAGED: "managed",
            PUBLISHED: f"{_VERSION} {_name_hash(name)} {made_for}",
            STORE: owner.store_id,
            MACHINE: owner.machine.text,
        }
        return labels | {PINNED: "pinned"} if self.is_pinned else labels

    def unmet_names(
        self, actual: Mapping[str, ActualImage], owner: Owner, accepted: Collection[tuple[str, str, str]] = ()
    ) -> list[str]:
        """The names that containerd lacks, or has with another target or other labels.

        Args:
            actual: containerd's records by name.
            owner: whose records they should be.
            accepted: (name, target, image id) of somebody else's records that are left as they are.
        """
        return [
            name
            for name, manifest in self.names.items()
            if not self._is_met(name, manifest, actual.get(name), owner, accepted)
        ]

    def _is_met(
        self,
        name: str,
        manifest: Descriptor,
        found: ActualImage | None,
        owner: Owner,
        accepted: Collection[tuple[str, str, str]],
    ) -> bool:
        if found is None:
            return False
        if not found.is_of(owner) and (name, found.target, self.image_id) in accepted:
            return True
        labels = self.labels(name, owner)
        if found.target != str(manifest.digest) or not labels.items() <= found.labels.items():
            return False
        return PINNED in labels or PINNED not in found.labels


def wanted_images(
    records: Iterable[ImageRecord],
    *,
    default_handler: str,
    snapshotters: Callable[[str], Sequence[str]],
    pinned: Collection[str] = (),
) -> dict[str, WantedImage]:
    """What containerd should have, by image id.

    Args:
        records: all of the store's.
        default_handler: whose records have tags in containerd.
        snapshotters: those for which a handler's images are unpacked.
        pinned: canonical references that the configuration pins.
    """
    groups: dict[str, list[ImageRecord]] = defaultdict(list)
    for record in records:
        groups[str(record.image_id)].append(record)
    owners = _owners_of_names(groups, default_handler)
    found = {}
    for image_id, group in groups.items():
        group.sort(key=lambda each: (each.handler != default_handler, each.handler, each.reference))
        names = {image_id: group[0].manifest}
        for record in group:
            for name in _names(record, default_handler):
                if owners[name] == image_id:
                    names.setdefault(name, record.manifest)
        handlers = tuple(sorted({record.handler for record in group}))
        found[image_id] = WantedImage(
            image_id=image_id,
            names=names,
            records=tuple(group),
            handlers=handlers,
            snapshotters=tuple(sorted({each for handler in handlers for each in snapshotters(handler)})),
            is_pinned=any(record.is_pinned or record.reference in pinned for record in group),
        )
    return found


def _names(record: ImageRecord, default_handler: str) -> list[str]:
    """The names of one record, without that of its id."""
    reference = Reference.parse(record.reference)
    names = [str(reference.with_digest(record.manifest.digest))]
    if record.handler == default_handler:
        names.append(str(reference.with_digest(record.target.digest)))
        if reference.tag and reference.digest is None:
            names.append(record.reference)
    return names


def _owners_of_names(groups: Mapping[str, Sequence[ImageRecord]], default_handler: str) -> dict[str, str]:
    """The image id that each name leads to.

    One index may have given two images to the default handler, if its platform changed between two pulls: the later
    one counts.
    """
    dated = [
        (record.updated_at, record.reference, image_id, name)
        for image_id, group in groups.items()
        for record in group
        for name in _names(record, default_handler)
    ]
    return {name: image_id for _, _, image_id, name in sorted(dated)}


@dataclass(frozen=True, slots=True)
class Difference:
    """What a reconciliation has to do.

    Attributes:
        to_publish: image ids that lack a name, or have one with another target or other labels.
        published: image ids that need nothing.
        to_remove: names of this store's records that are wanted no more.
        foreign: wanted names whose record is somebody else's.
        from_elsewhere: names of records that a store of this id made on another machine.
    """

    to_publish: tuple[str, ...]
    published: tuple[str, ...]
    to_remove: tuple[str, ...]
    foreign: tuple[str, ...]
    from_elsewhere: tuple[str, ...]


def difference(
    wanted: Mapping[str, WantedImage],
    actual: Iterable[ActualImage],
    owner: Owner,
    accepted: Collection[tuple[str, str, str]] = (),
) -> Difference:
    """Compare what is wanted with all records of containerd's namespace; arguments as WantedImage.unmet_names()."""
    by_name = {image.name: image for image in actual}
    ours = {name: image for name, image in by_name.items() if image.is_of(owner)}
    names = {name for image in wanted.values() for name in image.names}
    met = {key for key, image in wanted.items() if not image.unmet_names(by_name, owner, accepted)}
    return Difference(
        to_publish=tuple(image_id for image_id in wanted if image_id not in met),
        published=tuple(sorted(met)),
        to_remove=tuple(sorted(ours.keys() - names)),
        foreign=tuple(sorted(name for name in names & by_name.keys() if name not in ours)),
        from_elsewhere=tuple(sorted(name for name, image in ours.items() if image.is_from_elsewhere(owner))),
    )


def left_to_others(
    wanted: Iterable[WantedImage], actual: Mapping[str, ActualImage], owner: Owner, cri_names: Mapping[str, str]
) -> set[tuple[str, str, str]]:
    """(name, target, image id) of others' records that don't stand against an image: CRI resolves the name to the same
    one, or another store on the same containerd wants the name, too.

    Args:
        wanted: the images.
        actual: containerd's records by name.
        owner: whose records they should be.
        cri_names: the image id of each name that CRI knows.
    """
    return {
        (name, found.target, image.image_id)
        for image in wanted
        for name in image.names
        if (found := actual.get(name)) is not None
        and not found.is_of(owner)
        and (cri_names.get(name) == image.image_id or found.is_of_another_store(owner))
    }


def _name_hash(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:_HASH_CHARACTERS]
