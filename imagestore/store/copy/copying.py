"""A copy from one place to another: opens the source, chooses, and writes to the target."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from imagestore.errors import ReferenceNotFoundError
from imagestore.events import Noticed
from imagestore.oci.reference import Reference
from imagestore.store.copy.compressing import compressed, made_manifest
from imagestore.store.copy.into_store import copy_here
from imagestore.store.copy.opening import SourceOpener
from imagestore.store.copy.options import CopyOptions, CopyReport, ImageLocation, LocationKind
from imagestore.store.copy.referrers import no_referrers, referrers_of
from imagestore.store.copy.registry_target import RegistryTarget
from imagestore.store.copy.targets import ArchiveTarget

if TYPE_CHECKING:
    from collections.abc import Iterator

    from imagestore.events import Observer
    from imagestore.registry.client import RegistryClient
    from imagestore.registry.credentials.model import CredentialLookup
    from imagestore.store.archive.index_survey import ExportedImage
    from imagestore.store.copy.targets import Target
    from imagestore.store.image_source import ImageSource
    from imagestore.store.parts import StoreParts
    from imagestore.util.cancel import CancelToken

#: Signatures, attestations and bills of materials.
_COSIGN_KINDS: Final = ("sig", "att", "sbom")


def copy(
    parts: StoreParts,
    origin: ImageLocation,
    destination: ImageLocation,
    options: CopyOptions,
    credentials: CredentialLookup | None,
    observer: Observer,
    cancel: CancelToken | None,
) -> CopyReport:
    """Copy an image.

    Raises:
        InvalidInputError: source and destination don't go together, or an option doesn't go with them.
        ImageStoreError: as SourceOpener.opened(), referrers_of() and Target.write(); into the store as copy_here().
    """
    for place in (origin, destination):
        if options.referrers and place.kind is LocationKind.DOCKER_ARCHIVE:
            raise no_referrers(str(place))
    if destination.kind is LocationKind.STORE:
        return copy_here(parts, origin, destination.name, options, credentials, observer, cancel)
    chosen = options.between(origin, destination)
    with parts.operation(cancel, observer) as token:
        client = parts.client(observer, credentials)
        opener = SourceOpener(parts=parts, client=client, options=chosen, observer=observer, cancel=token)
        name, target = str(destination), _target(opener, destination)
        if isinstance(target, RegistryTarget):
            name = str(target.reference)
        with opener.opened(origin) as found, _fitting(opener, origin, destination, *found) as (image, source):
            referrers = referrers_of(image, source, observer=observer) if chosen.referrers else ()
            is_signed = chosen.referrers and origin.kind is destination.kind is LocationKind.REGISTRY
            # Before anything is written: a registry may refuse to say.
            signatures = list(_signatures(client, source.reference, image, token)) if is_signed else []
            report = CopyReport(
                destination=name,
                target=image.target,
                platforms=image.platforms,
                left_out=image.left_out,
                blobs=target.write(image, source, referrers),
                referrers=len(referrers),
                is_dry_run=chosen.dry_run,
            )
        alone = CopyOptions(all_platforms=True, dry_run=chosen.dry_run)
        named = []
        for tag, place in signatures:
            there = ImageLocation(LocationKind.REGISTRY, f"{Reference.parse(name).name}:{tag}")
            named.append(copy(parts, place, there, alone, credentials, observer, token))
        blobs = [blob for each in named for blob in each.blobs]
        return replace(report, blobs=(*report.blobs, *blobs), referrers=report.referrers + len(named))


def _signatures(
    client: RegistryClient, reference: Reference, image: ExportedImage, cancel: CancelToken
) -> Iterator[tuple[str, ImageLocation]]:
    """What cosign keeps under tags made of digests, where it uses no referrers: each tag, and its place."""
    for digest in dict.fromkeys([image.target.digest, *(each.descriptor.digest for each in image.manifests)]):
        for kind in _COSIGN_KINDS:
            tag = f"{digest.algorithm}-{digest.encoded}.{kind}"
            found = Reference.parse(f"{reference.name}:{tag}")
            try:
                client.resolve(found, cancel=cancel)
            except ReferenceNotFoundError:
                continue
            yield tag, ImageLocation(LocationKind.REGISTRY, str(found))


def _target(work: SourceOpener, destination: ImageLocation) -> Target:
    if destination.is_archive:
        return ArchiveTarget(destination, work.options, work.observer, work.cancel)
    return RegistryTarget(work.client, Reference.parse(destination.name), work.options, work.observer, work.cancel)


@contextlib.contextmanager
def _fitting(
    work: SourceOpener, origin: ImageLocation, destination: ImageLocation, image: ExportedImage, source: ImageSource
) -> Iterator[tuple[ExportedImage, ImageSource]]:
    """The image in a form for its destination: that of a docker-archive has no digest to keep, all others have."""
    is_registry = destination.kind is LocationKind.REGISTRY
    is_saved = origin.is_archive and source.referrers is None
    # Imported, or exported again: it has the digest that was made at the import.
    is_kept = origin.kind is not LocationKind.REGISTRY and is_registry and not work.options.referrers
    is_bound = is_registry and Reference.parse(destination.name).digest is not None
    made = made_manifest(image) if is_saved or is_kept else None
    if made is None or is_bound or destination.kind is LocationKind.DOCKER_ARCHIVE:
        yield image, source
        return
    scratch = work.parts.content.scratch
    with compressed(image, source, made, scratch, is_oci=not is_registry, cancel=work.cancel) as (packed, there):
        if not is_saved and packed is not image:
            told = f"{packed.target.digest}, not {image.target.digest}"
            work.observer(
                Noticed(f"a docker-archive's plain layers are sent compressed, so the digest there is {told}")
            )
        yield packed, there
