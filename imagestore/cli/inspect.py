"""``imagestore inspect``: what a registry, or the store, says of an image, in one view."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

import click

from imagestore.cli import describe, render
from imagestore.cli.documents import Source, config_id, show_config, show_manifest, with_source
from imagestore.cli.options import refuse_together
from imagestore.cli.signals import cancelled_by_signals
from imagestore.errors import (
    DocumentError,
    IntegrityError,
    NoMatchingManifestError,
    RateLimitedError,
    RegistryError,
)
from imagestore.oci.image_config import config_of
from imagestore.oci.index import Index
from imagestore.oci.manifest import Manifest
from imagestore.oci.media_types import Kind
from imagestore.oci.reference import Reference

if TYPE_CHECKING:
    from collections.abc import Iterator

    from imagestore.cli.app import App
    from imagestore.oci.descriptor import Descriptor
    from imagestore.oci.image_config import ImageConfig
    from imagestore.registry import RegistryClient
    from imagestore.util.cancel import CancelToken

#: Tags that are shown.
_MOST_TAGS: Final = 20
#: Manifests of an index that are read for their sizes: some registries count each of these requests as a pull.
_MOST_SIZES: Final = 32


@click.command()
@click.option("--raw", is_flag=True, help="Print the index or manifest byte for byte, as 'manifest' does.")
@click.option("--config", "only_config", is_flag=True, help="Print the image config byte for byte, as 'image-config'.")
@with_source
def inspect(app: App, source: Source, reference: str, output: str, *, raw: bool, only_config: bool) -> None:
    """Show the image REFERENCE of a registry: platforms, config, tags and referrers. Nothing is stored.

    The config is that of the default handler's manifest, or of the one that --runtime-handler or --platform means; then
    only that manifest is shown, with its referrers. The manifests of an index are read for the sizes of its images (of
    the first 32). At most 20 tags are shown; 'tags' and 'referrers' list all. 'inspecti' shows an image of the store.

    \b
    imagestore inspect registry.example/app:1
    imagestore inspect registry.example/app:1 --platform linux/arm64 --output json
    imagestore inspect registry.example/app:1 --config | jq .config.Env
    """
    refuse_together(raw=raw, config=only_config)
    if raw or only_config:
        show = show_manifest if raw else show_config
        show(app, source, reference, output)
        return
    found = _of_store(app, source, reference) if source.is_local else _of_registry(app, source, reference)
    if output == "json":
        render.dump_json(found)
        return
    render.table(("FIELD", "VALUE"), list(_facts(found)))
    if found["platforms"]:
        print()
        rows = [
            (
                (each["platform"] or {}).get("text", "none stated"),
                each["manifest"]["digest"],
                "-" if each["contentSize"] is None else render.size(each["contentSize"]),
            )
            for each in found["platforms"]
        ]
        render.table(("PLATFORM", "MANIFEST", "SIZE"), rows)
    for remark in found["remarks"]:
        print(f"note: {render.printable(remark)}", file=sys.stderr)


def _of_store(app: App, source: Source, reference: str) -> dict[str, Any]:
    """What the store has; it knows neither the registry's tags nor its referrers."""
    target, raw = source.target(app, reference)
    chosen, manifest, config = source.chosen(app, reference)
    sizes = {str(chosen.digest): _content_size(_parsed(chosen, manifest))}
    return {
        "reference": str(Reference.parse(reference)),
        "target": target.members(),
        **_entries(target, raw, sizes),
        "chosen": _chosen(chosen, manifest, config),
        "tags": None,
        "moreTags": False,
        "referrers": None,
        "remarks": [],
    }


def _of_registry(app: App, source: Source, reference: str) -> dict[str, Any]:
    parsed, client, remarks = Reference.parse(reference), app.store.registry, list[str]()
    chosen: tuple[Descriptor, bytes, ImageConfig | None] | None = None
    if source.is_chosen:
        chosen = source.chosen(app, reference)
        target, raw, _ = chosen
    else:
        target, raw = source.target(app, reference)
        try:
            chosen = source.chosen(app, reference)
        except NoMatchingManifestError as error:
            remarks.append(str(error))
    with cancelled_by_signals() as cancel:
        if chosen is None and target.kind is Kind.MANIFEST:
            chosen = (target, raw, _config(client, parsed, _parsed(target, raw), cancel))
        sizes = _sizes(client, parsed, target, raw, remarks, cancel)
        tags = referrers = None
        try:
            tags = client.tags(parsed, limit=_MOST_TAGS + 1, cancel=cancel)
        except (RegistryError, DocumentError) as error:
            remarks.append(str(error))
        try:
            listed = client.referrers(parsed, target.digest, cancel=cancel)
            referrers = [describe.referrer(each) for each in listed.entries]
            remarks.extend(listed.remarks)
        except (RegistryError, DocumentError) as error:
            remarks.append(str(error))
    return {
        "reference": str(parsed),
        "target": target.members(),
        **_entries(target, raw, sizes),
        "chosen": None if chosen is None else _chosen(*chosen),
        "tags": None if tags is None else list(tags[:_MOST_TAGS]),
        "moreTags": tags is not None and len(tags) > _MOST_TAGS,
        "referrers": referrers,
        "remarks": remarks,
    }


def _config(client: RegistryClient, parsed: Reference, manifest: Manifest, cancel: CancelToken) -> ImageConfig | None:
    if not manifest.is_image:
        return None
    raw = client.document(parsed, manifest.config, cancel=cancel)
    return config_of(manifest, raw, what=f"image config {manifest.config.digest}")


def _sizes(
    client: RegistryClient,
    parsed: Reference,
    target: Descriptor,
    raw: bytes,
    remarks: list[str],
    cancel: CancelToken,
) -> dict[str, int]:
    """The bytes of the images of an index, by their manifests' digests; those that can't be read are remarked on."""
    if target.kind is not Kind.INDEX:
        return {}
    entries = Index.parse(raw, media_type=target.media_type, what=f"index {target.digest}").manifests
    images = [each for each in entries if each.kind is Kind.MANIFEST and not each.is_attestation]
    sizes = {}
    for each in images[:_MOST_SIZES]:
        try:
            sizes[str(each.digest)] = _content_size(_parsed(each, client.document(parsed, each, cancel=cancel)))
        except RateLimitedError as error:
            remarks.append(str(error))
            break
        except (RegistryError, DocumentError, IntegrityError) as error:
            remarks.append(str(error))
    return sizes


def _parsed(descriptor: Descriptor, raw: bytes) -> Manifest:
    return Manifest.parse(raw, media_type=descriptor.media_type, what=f"manifest {descriptor.digest}")


def _content_size(manifest: Manifest) -> int:
    """Bytes of a manifest's config and layers."""
    return manifest.config.size + sum(layer.size for layer in manifest.layers)


def _entries(target: Descriptor, raw: bytes, sizes: dict[str, int]) -> dict[str, Any]:
    """The entries of an index; none of a manifest."""
    entries: tuple[Descriptor, ...] = ()
    if target.kind is Kind.INDEX:
        entries = Index.parse(raw, media_type=target.media_type, what=f"index {target.digest}").manifests
    return {
        "platforms": [
            {
                "platform": None if each.platform is None else describe.platform(each.platform),
                "manifest": each.members(),
                "contentSize": sizes.get(str(each.digest)),
            }
            for each in entries
            if not each.is_attestation
        ],
        "attestations": [each.members() for each in entries if each.is_attestation],
    }


def _chosen(descriptor: Descriptor, raw: bytes, config: ImageConfig | None) -> dict[str, Any]:
    manifest = _parsed(descriptor, raw)
    platform = descriptor.platform or (None if config is None else config.platform)
    return {
        "manifest": descriptor.members(),
        "artifactType": manifest.artifact_type or None,
        "platform": None if platform is None else describe.platform(platform),
        "id": None if config is None else config_id(config),
        "contentSize": _content_size(manifest),
        "layers": [layer.members() for layer in manifest.layers],
        "annotations": dict(manifest.annotations),
        "config": None if config is None else {"created": config.created, **config.settings},
    }


def _facts(found: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The lines of the table."""
    yield "reference", found["reference"]
    yield "target", describe.pointer(found["target"])
    chosen = found["chosen"]
    if chosen is not None:
        yield "manifest", describe.pointer(chosen["manifest"])
        yield "platform", (chosen["platform"] or {}).get("text", "none stated")
        if chosen["artifactType"]:
            yield "artifact type", chosen["artifactType"]
        yield "image id", chosen["id"] or "-"
        yield "size", render.size(chosen["contentSize"])
        yield "layers", str(len(chosen["layers"]))
        settings = dict(chosen["config"] or {})
        labels = settings.pop("Labels", None) or {}
        yield from ((name.lower(), render.shortened(value)) for name, value in settings.items() if value)
        for kind, pairs in (("label", labels), ("annotation", chosen["annotations"])):
            yield from ((kind, f"{name}={render.shortened(value)}") for name, value in pairs.items())
    if found["attestations"]:
        yield "attestations", str(len(found["attestations"]))
    if found["tags"] is not None:
        yield "tags", ", ".join(found["tags"]) + (", ..." if found["moreTags"] else "")
    for each in found["referrers"] or ():
        yield "referrer", f"{each['digest']} ({each['artifactType'] or each['mediaType']})"
