"""Copies into the store: what a pull or an import brings, under the name that is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from imagestore.errors import InvalidInputError, NoMatchingManifestError
from imagestore.registry.events import Noticed
from imagestore.store.archive.importing import ImportOptions
from imagestore.store.copy.locations import LocationKind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from imagestore.metadata.records import ImageRecord
    from imagestore.registry.events import Observer
    from imagestore.store.copy.locations import ImageLocation
    from imagestore.store.copy.options import CopyOptions
    from imagestore.store.pull.pull_work import PullWork


def refuse(origin: ImageLocation, options: CopyOptions) -> None:
    """Refuse a copy into the store that isn't one.

    Raises:
        InvalidInputError: it comes from the store, or an option has no meaning there.
    """
    if origin.kind is LocationKind.STORE:
        raise InvalidInputError(
            f"{origin}: source and destination are both in the store", hint="imagestore tag gives it a further name"
        )
    if options.is_dry_run:
        raise InvalidInputError("a copy into the store has no dry run", hint="imagestore pull --dry-run has")
    if options.has_referrers:
        raise InvalidInputError("the store keeps no referrers", hint="copy them to a registry")
    if options.has_all_platforms and origin.kind is LocationKind.REGISTRY:
        raise InvalidInputError(
            "the store keeps what handlers run, not all platforms of a registry's image",
            hint="copy it to an archive with --all-platforms, and import that",
        )


def import_options(options: CopyOptions, name: str) -> ImportOptions:
    """An import of one image under a name, by a copy's options."""
    return ImportOptions(
        options.runtime_handlers,
        options.has_all_handlers,
        options.platform,
        options.has_all_platforms,
        (options.image,) if options.image else (),
        name,
        options.may_replace,
    )


def pull_each(works: Iterable[PullWork], *, is_lenient: bool, observer: Observer) -> list[ImageRecord]:
    """Pull for several handlers, one after the other.

    Args:
        works: one for each handler.
        is_lenient: handlers for which the image has nothing are only noted, unless that holds of all.
        observer: hears which.

    Raises:
        NoMatchingManifestError: it has nothing for a handler; if lenient, for any.
        ImageStoreError: as PullWork.run(); what came for the handlers before stays.
    """
    records: list[ImageRecord] = []
    refusals: list[NoMatchingManifestError] = []
    for work in works:
        try:
            records.append(work.run())
        except NoMatchingManifestError as error:
            if not is_lenient:
                raise
            refusals.append(error)
            observer(Noticed(f"left out for {work.handler}: {error}"))
    if not records:
        raise refusals[0]
    return records
