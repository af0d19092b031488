"""Copies into the store: what a pull or an import brings, under another name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from imagestore.errors import AlreadyExistsError, ImageNotFoundError, InvalidInputError, NoMatchingManifestError
from imagestore.oci.reference import Reference
from imagestore.registry.events import Noticed
from imagestore.store.copy.locations import LocationKind
from imagestore.store.maintenance.tags import further_reference

if TYPE_CHECKING:
    from imagestore.config import Config
    from imagestore.platforms import Platform
    from imagestore.registry.credentials.model import CredentialLookup
    from imagestore.registry.events import Observer
    from imagestore.store.copy.locations import ImageLocation
    from imagestore.store.copy.options import CopyOptions
    from imagestore.store.image import Image
    from imagestore.util.cancel import CancelToken


class _Store(Protocol):
    """What is needed of ImageStore."""

    config: Config

    def get(self, name: str, *, runtime_handler: str | None = None) -> Image: ...

    def pull(
        self,
        reference: str,
        *,
        runtime_handler: str = "",
        platform: str | Platform | None = None,
        credentials: CredentialLookup | None = None,
        observer: Observer | None = None,
        cancel: CancelToken | None = None,
    ) -> Image: ...

    def tag(
        self, name: str, reference: str, *, runtime_handler: str | None = None, cancel: CancelToken | None = None
    ) -> tuple[Image, ...]: ...

    def remove(
        self, name: str, *, runtime_handler: str | None = None, only_name: bool = False
    ) -> tuple[tuple[str, str], ...]: ...


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


def pulled_as(
    store: _Store,
    reference: str,
    name: str,
    options: CopyOptions,
    credentials: CredentialLookup | None,
    observer: Observer,
    cancel: CancelToken | None,
) -> list[Image]:
    """Pull an image and record it under another name; under its own it stays only if it was there before.

    Raises:
        AlreadyExistsError: the name leads to other content, and may not be moved.
        NoMatchingManifestError: it has nothing for a handler; of all handlers, nothing for any.
        ImageStoreError: as ImageStore.pull() and tag().
    """
    further, own = further_reference(name), Reference.parse(reference)
    handlers = list(store.config.handlers) if options.has_all_handlers else list(options.runtime_handlers) or [""]
    images: list[Image] = []
    refusals: list[NoMatchingManifestError] = []
    for handler in handlers:
        before = _found(store, str(own), handler)
        there = _found(store, str(further), handler)
        try:
            image = store.pull(
                reference,
                runtime_handler=handler,
                platform=options.platform or None,
                credentials=credentials,
                observer=observer,
                cancel=cancel,
            )
        except NoMatchingManifestError as error:
            if not options.has_all_handlers:
                raise
            refusals.append(error)
            observer(Noticed(f"left out for {handler}: {error}"))
            continue
        if further == own:
            images.append(image)
            continue
        try:
            if there is not None and there.target.digest != image.target.digest and not options.may_replace:
                raise AlreadyExistsError(
                    f"{further} ({image.runtime_handler}): is in the store with {there.target.digest}, the "
                    f"registry has {image.target.digest}",
                    hint="--replace moves the name",
                )
            images += store.tag(image.reference, str(further), runtime_handler=image.runtime_handler, cancel=cancel)
        finally:
            if before is None:
                store.remove(image.reference, runtime_handler=image.runtime_handler, only_name=True)
    if not images:
        raise refusals[0]
    return images


def _found(store: _Store, name: str, handler: str) -> Image | None:
    try:
        return store.get(name, runtime_handler=handler)
    except ImageNotFoundError:
        return None
