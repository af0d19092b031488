"""Copies into the store: a pull or an import under another name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from imagestore.errors import InvalidInputError
from imagestore.oci.reference import Reference
from imagestore.store.archive import importing
from imagestore.store.archive.contents import NAMELESS
from imagestore.store.archive.oci_layout import image_finders
from imagestore.store.copy.options import CopyReport, LocationKind
from imagestore.store.copy.referrers import find_referrers, no_referrers
from imagestore.store.copy.sources import archive_referrers, registry_referrers
from imagestore.store.copy.stored_referrers import keep_referrers
from imagestore.store.pull.choice import for_each_handler
from imagestore.store.pull.pull_work import pull_work
from imagestore.store.pull.sources import Documents, remove_damaged
from imagestore.store.tagging import further_reference

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from imagestore.events import Observer
    from imagestore.metadata.records import ImageRecord
    from imagestore.registry.credentials.model import CredentialLookup
    from imagestore.store.copy.options import CopyOptions, ImageLocation
    from imagestore.store.copy.sources import ReferrerList
    from imagestore.store.parts import StoreParts
    from imagestore.store.pull.pull_work import PullWork
    from imagestore.store.pull.sources import Origin
    from imagestore.util.cancel import CancelToken


def refuse(origin: ImageLocation, options: CopyOptions) -> None:
    """Refuse a copy into the store whose source or options don't fit.

    Raises:
        InvalidInputError: it comes from the store, or an option has no meaning there.
    """
    if origin.kind is LocationKind.STORE:
        raise InvalidInputError(
            f"{origin}: source and destination are both in the store", hint="imagestore tag gives it a further name"
        )
    if options.dry_run:
        raise InvalidInputError("a copy into the store has no dry run", hint="imagestore pull --dry-run has")
    if options.referrers and origin.kind is LocationKind.DOCKER_ARCHIVE:
        raise no_referrers(str(origin))
    if options.all_platforms and origin.kind is LocationKind.REGISTRY:
        raise InvalidInputError(
            "the store keeps what handlers run, not all platforms of a registry's image",
            hint="copy it to an archive with --all-platforms, and import that",
        )


def copy_here(
    parts: StoreParts,
    origin: ImageLocation,
    name: str,
    options: CopyOptions,
    credentials: CredentialLookup | None,
    observer: Observer,
    cancel: CancelToken | None,
) -> CopyReport:
    """Copy into the store: a pull or an import that is recorded under another name.

    Raises:
        InvalidInputError, InvalidReferenceError: as refuse(), or the name is none that an image can be given.
        ImageStoreError: as a pull or an import, and as _bring_referrers().
    """
    refuse(origin, options)
    further = further_reference(name)  # refused before the source is opened
    if origin.kind is LocationKind.REGISTRY:
        return _from_registry(parts, origin.name, further, options, credentials, observer, cancel)
    referrers = 0
    with importing.opened(parts, origin.name, _import_options(options, name), observer, cancel) as work:
        contents = image_finders(work.source)[0](work.source, work.cancel) if options.referrers else None
        listed = None if contents is None else archive_referrers(contents, NAMELESS, work.cancel)
        if contents is not None and listed is None:
            raise no_referrers(work.source.what)
        records = [image.record for image in work.run().images]
        if contents is not None and listed is not None:
            referrers = _bring_referrers(
                parts,
                records,
                listed=listed,
                origin=contents.origin,
                reference=NAMELESS,
                observer=observer,
                cancel=work.cancel,
            )
    return _report(further, records, referrers)


def _from_registry(
    parts: StoreParts,
    origin: str,
    further: Reference,
    options: CopyOptions,
    credentials: CredentialLookup | None,
    observer: Observer,
    cancel: CancelToken | None,
) -> CopyReport:
    reference, referrers = Reference.parse(origin), 0
    handlers = list(parts.config.handlers) if options.all_handlers else options.runtime_handlers or ("",)
    with parts.operation(cancel, observer) as token:
        works = [
            pull_work(
                parts,
                reference,
                handler,
                options.platform or None,
                observer,
                token,
                credentials=credentials,
                recorded_as=further,
                may_move=options.replace,
            )
            for handler in handlers
        ]
        records = pull_each(works, is_lenient=options.all_handlers, observer=observer)
        if options.referrers:
            client = works[0].client
            referrers = _bring_referrers(
                parts,
                records,
                listed=registry_referrers(client, reference, token),
                origin=client,
                reference=reference,
                observer=observer,
                cancel=token,
            )
        parts.metadata.keep_copy()
    return _report(further, records, referrers)


def _report(name: Reference, records: Sequence[ImageRecord], referrers: int) -> CopyReport:
    platforms = tuple(dict.fromkeys(str(record.platform) for record in records))
    return CopyReport(
        destination=f"store:{name}", target=records[0].target, platforms=platforms, left_out=(), referrers=referrers
    )


def _import_options(options: CopyOptions, name: str) -> importing.ImportOptions:
    """An import of one image under a name, by a copy's options."""
    return importing.ImportOptions(
        runtime_handlers=options.runtime_handlers,
        all_handlers=options.all_handlers,
        platform=options.platform,
        all_platforms=options.all_platforms,
        images=(options.image,) if options.image else (),
        name=name,
        replace=options.replace,
    )


def pull_each(works: Iterable[PullWork], *, is_lenient: bool, observer: Observer) -> list[ImageRecord]:
    """Pull for several handlers, one after the other; see for_each_handler(). After an error the earlier ones stay."""
    by_handler = {work.handler: work for work in works}
    return for_each_handler(
        by_handler, lambda handler: by_handler[handler].run(), is_lenient=is_lenient, observer=observer
    )


def _bring_referrers(
    parts: StoreParts,
    records: Iterable[ImageRecord],
    *,
    listed: ReferrerList,
    origin: Origin,
    reference: Reference,
    observer: Observer,
    cancel: CancelToken,
) -> int:
    """Bring what refers to images that were just recorded into the store.

    Args:
        listed: lists what refers to a document.

    Returns:
        How many referrers there are.

    Raises:
        ImageStoreError: as find_referrers() and keep_referrers(); the images stay, without what is missing.
    """
    subjects = dict.fromkeys(digest for record in records for digest in (record.target.digest, *record.roots))
    documents = Documents(parts.content, origin, reference, cancel)
    found = tuple(find_referrers(listed, str(reference), subjects, documents, observer=observer))
    remove_damaged(parts.content, documents.take_damaged())
    keep_referrers(
        subjects,
        found,
        origin,
        reference,
        content=parts.content,
        metadata=parts.metadata,
        observer=observer,
        cancel=cancel,
    )
    return len(found)
