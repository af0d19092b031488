"""Copies into the store: a pull or an import under another name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from imagestore.errors import InvalidInputError
from imagestore.oci.reference import Reference
from imagestore.store.archive import importing
from imagestore.store.archive.contents import NAMELESS
from imagestore.store.archive.oci_layout import image_finders
from imagestore.store.copy.opening import as_import
from imagestore.store.copy.options import CopyReport, LocationKind
from imagestore.store.copy.referrers import find_referrers, no_referrers
from imagestore.store.copy.stored_referrers import keep_referrers
from imagestore.store.image_source import in_archive, in_registry
from imagestore.store.pull.choice import for_each_handler
from imagestore.store.pull.pull_work import pull_work
from imagestore.store.pull.sources import remove_damaged
from imagestore.store.tagging import further_reference

if TYPE_CHECKING:
    from collections.abc import Iterable

    from imagestore.events import Observer
    from imagestore.metadata.records import ImageRecord
    from imagestore.registry.credentials.model import CredentialLookup
    from imagestore.store.copy.options import CopyOptions, ImageLocation
    from imagestore.store.image_source import ImageSource
    from imagestore.store.parts import StoreParts
    from imagestore.util.cancel import CancelToken


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
        InvalidInputError, InvalidReferenceError: it comes from the store, an option has no meaning there, or the name
            is none that an image can be given.
        ImageStoreError: as a pull or an import, and as _bring_referrers().
    """
    _refuse(origin, options)
    further = further_reference(name)  # refused before the source is opened
    referrers, content = 0, parts.content
    if origin.kind is LocationKind.REGISTRY:
        reference = Reference.parse(origin.name)
        with parts.operation(cancel, observer) as token:
            records = _pulled(parts, reference, further, options, credentials, observer, token)
            if options.referrers:
                client = parts.client(observer, credentials)
                source = in_registry(client, reference, token, content=content)
                referrers = _bring_referrers(parts, records, source, observer, token)
            parts.metadata.keep_copy()
    else:
        with importing.opened(parts, origin.name, as_import(options, name), observer, cancel) as work:
            if options.referrers:
                contents = image_finders(work.source)[0](work.source, work.cancel)
                source = in_archive(contents, NAMELESS, work.cancel, content=content)
                if source.referrers is None:
                    raise no_referrers(work.source.what)
            records = [image.record for image in work.run().images]
            if options.referrers:
                referrers = _bring_referrers(parts, records, source, observer, work.cancel)
    platforms = tuple(dict.fromkeys(str(record.platform) for record in records))
    return CopyReport(
        destination=f"store:{further}", target=records[0].target, platforms=platforms, left_out=(), referrers=referrers
    )


def _refuse(origin: ImageLocation, options: CopyOptions) -> None:
    """Refuse a copy into the store whose source or options don't fit."""
    if origin.kind is LocationKind.STORE:
        raise InvalidInputError(
            f"{origin}: source and destination are both in the store", hint="imagestore tag gives it a further name"
        )
    if options.dry_run:
        raise InvalidInputError("a copy into the store has no dry run", hint="imagestore pull --dry-run has")
    if options.all_platforms and origin.kind is LocationKind.REGISTRY:
        raise InvalidInputError(
            "the store keeps what handlers run, not all platforms of a registry's image",
            hint="copy it to an archive with --all-platforms, and import that",
        )


def _pulled(
    parts: StoreParts,
    reference: Reference,
    further: Reference,
    options: CopyOptions,
    credentials: CredentialLookup | None,
    observer: Observer,
    cancel: CancelToken,
) -> list[ImageRecord]:
    def _pull(handler: str) -> ImageRecord:
        work = pull_work(
            parts,
            reference,
            handler,
            options.platform or None,
            observer,
            cancel,
            credentials=credentials,
            recorded_as=further,
            may_move=options.replace,
        )
        return work.run()

    # After an error of one handler's the records of those before stay.
    handlers = importing.handlers_for(parts, as_import(options))
    return for_each_handler(handlers, _pull, is_lenient=options.all_handlers, observer=observer)


def _bring_referrers(
    parts: StoreParts,
    records: Iterable[ImageRecord],
    source: ImageSource,
    observer: Observer,
    cancel: CancelToken,
) -> int:
    """Bring what refers to images that were just recorded into the store.

    Returns:
        How many referrers there are.

    Raises:
        ImageStoreError: as find_referrers() and keep_referrers(); the images stay, without what is missing.
    """
    subjects = dict.fromkeys(digest for record in records for digest in (record.target.digest, *record.roots))
    found = tuple(find_referrers(source, subjects, observer=observer))
    remove_damaged(parts.content, source.documents.take_damaged())
    keep_referrers(parts, subjects, found, source, observer=observer, cancel=cancel)
    return len(found)
