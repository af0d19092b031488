"""Keeping images in step between registries: what a file names is copied, unless it is there already."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from imagestore.errors import ImageStoreError, InvalidInputError
from imagestore.oci.descriptor import Descriptor
from imagestore.oci.media_types import OCI_INDEX
from imagestore.oci.reference import Reference
from imagestore.store.copy.options import CopyOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from imagestore.events import Observer
    from imagestore.oci.digest import Digest
    from imagestore.store.copy.sync_file import SyncedRepository, SyncFile
    from imagestore.store.image_store import ImageStore
    from imagestore.util.cancel import CancelToken

#: Where registries without a referrers API have the list of a document's referrers (distribution-spec, "Referrers Tag
#: Schema").
_REFERRERS_TAG: Final = re.compile(r"sha(?:256-[0-9a-f]{64}|384-[0-9a-f]{96}|512-[0-9a-f]{64,128})")


@dataclass(frozen=True, slots=True)
class SyncItem:
    """One image on its way; source and destination are references."""

    source: str
    destination: str
    referrers: bool


#: Called with what failed, and why; may raise.
Failed: TypeAlias = "Callable[[SyncItem, ImageStoreError], None]"


class SyncState(enum.Enum):
    """How it ended for one image."""

    COPIED = "copied"
    WOULD_COPY = "would copy"
    UNCHANGED = "unchanged"


@dataclass(frozen=True, slots=True)
class SyncResult:
    """What was done for one image.

    Attributes:
        item: of the plan.
        state: how it ended.
        digest: of the index or manifest in the destination.
        sent: bytes of blobs.
        referrers: how many went along.
    """

    item: SyncItem
    state: SyncState
    digest: Digest
    sent: int = 0
    referrers: int = 0


def plan(
    store: ImageStore,
    wanted: SyncFile,
    *,
    scoped: bool,
    referrers: bool,
    failed: Failed,
    cancel: CancelToken,
) -> list[SyncItem]:
    """What a file means now: asks registries for the tags of repositories that are named by rules.

    Args:
        store: whose registry client is used.
        wanted: the file.
        scoped: destinations have the source's host (``_`` before its port) and whole path; else the last part of its
            path alone, as in skopeo.
        referrers: what refers to images goes along, also where the file doesn't say so.
        failed: for a repository whose tags can't be listed, as an item without destination.
        cancel: ends it.

    Raises:
        InvalidInputError: two images would go to one place.
    """
    items: dict[str, SyncItem] = {}
    for each in wanted.repositories:
        try:
            found = list(_items(store, each, scoped=scoped, cancel=cancel))
        except ImageStoreError as error:
            failed(SyncItem(each.repository.name, "", each.referrers), error)
            continue
        for item in found:
            other = items.setdefault(item.destination, item)
            if other.source != item.source:
                raise InvalidInputError(
                    f"{other.source} and {item.source} would both go to {item.destination}",
                    hint="--scoped keeps hosts and paths apart",
                )
            has_referrers = referrers or other.referrers or item.referrers
            items[item.destination] = SyncItem(item.source, item.destination, has_referrers)
    return list(items.values())


def _items(store: ImageStore, wanted: SyncedRepository, *, scoped: bool, cancel: CancelToken) -> Iterator[SyncItem]:
    repository = wanted.repository
    names = list(wanted.names)
    if wanted.accepts is not None:
        names += filter(wanted.accepts, _tags(store, repository, cancel))
    # A port's colon can't stand in a path.
    path = repository.name.replace(":", "_") if scoped else repository.path.rpartition("/")[2]
    for name in names:
        part = f"@{name}" if ":" in name else f":{name}"
        for target in wanted.targets:
            destination = f"{target.rstrip('/')}/{path}{part}"
            Reference.parse(destination)
            yield SyncItem(f"{repository.name}{part}", destination, wanted.referrers)


def plan_of_tags(
    store: ImageStore, source: Reference, destination: Reference, *, referrers: bool, cancel: CancelToken
) -> list[SyncItem]:
    """Every tag of a repository into another one, under the same name.

    Raises:
        RegistryError: tags can't be listed.
    """
    return [
        SyncItem(f"{source.name}:{tag}", f"{destination.name}:{tag}", referrers) for tag in _tags(store, source, cancel)
    ]


def _tags(store: ImageStore, repository: Reference, cancel: CancelToken) -> list[str]:
    """All but lists of referrers, which are the target's own."""
    return [tag for tag in store.registry.tags(repository, cancel=cancel) if not _REFERRERS_TAG.fullmatch(tag)]


def sync(
    store: ImageStore, item: SyncItem, *, dry_run: bool, observer: Observer | None, cancel: CancelToken
) -> SyncResult:
    """Bring one image where it belongs, with all its platforms.

    What is there already costs a HEAD on each side, which registries don't count as a pull; with referrers it is looked
    through, since there may be new ones.

    Raises:
        ImageStoreError: as :meth:`imagestore.ImageStore.copy`.
    """
    source, destination = Reference.parse(item.source), Reference.parse(item.destination)
    there = store.registry.writer(destination, cancel=cancel).digest(destination)
    if not item.referrers and there is not None and _leads_to(store, source, there, cancel):
        return SyncResult(item, SyncState.UNCHANGED, there)
    options = CopyOptions(all_platforms=True, referrers=item.referrers, dry_run=dry_run)
    report = store.copy(item.source, item.destination, options=options, observer=observer, cancel=cancel)
    state = SyncState.WOULD_COPY if dry_run else SyncState.COPIED
    if there == report.target.digest and not report.sent:
        state = SyncState.UNCHANGED
    return SyncResult(item, state, report.target.digest, report.sent, report.referrers)


def _leads_to(store: ImageStore, source: Reference, digest: Digest, cancel: CancelToken) -> bool:
    known = Descriptor(OCI_INDEX, digest, 1)  # only its digest is compared
    return store.registry.resolve(source, known=[known], cancel=cancel).digest == digest
