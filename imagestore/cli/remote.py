"""``images``, ``inspecti``, ``rmi`` and ``pull`` against a CRI server, by runtime handler, which crictl can't name.

Images have the JSON members of a local store's; those that CRI doesn't have are null. The verbose status of our own
server has nearly all of them, containerd's has the image config. Both come from outside, so each member is checked.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

import click

from imagestore.cli import describe, render
from imagestore.cli.exit_codes import note, say_untried
from imagestore.cli.signals import cancelled_by_signals
from imagestore.cri.model import ImageSpec
from imagestore.errors import ImageNotFoundError, ImageStoreError, InvalidInputError, UnsupportedError
from imagestore.oci.reference import Reference
from imagestore.platforms import Platform
from imagestore.store.record_lookup import missing_hint, refuse_unreadable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from imagestore.cri.client import CriImageService
    from imagestore.cri.model import ImageDetails, ServedImage
    from imagestore.registry.credentials.cri import AuthConfig

_ID: Final = re.compile(r"(?:sha256:)?[a-f0-9]{4,64}")


def show_list(
    service: CriImageService,
    name: str | None,
    handler: str | None,
    *,
    is_quiet: bool,
    has_whole_ids: bool,
    output: str,
) -> None:
    """``images``."""
    if name:
        refuse_unreadable(name)
    found = _listed(service, name or "", handler or "")
    named = [(each, text) for each in found for text in names_meant(each, name or "")]
    if output == "json":
        render.dump_json({"images": [image(each, text) for each, text in named]})
        return
    if is_quiet:
        for each, _ in named:
            print(render.printable(each.id))
        return
    rows = [
        (
            *describe.familiar(text),
            each.spec.runtime_handler or "-",
            "-",
            each.id if has_whole_ids else each.id.removeprefix("sha256:")[:12],
            render.size(each.size),
        )
        for each, text in named
    ]
    render.table(describe.IMAGE_HEADINGS, rows)


def show_image(service: CriImageService, name: str, handler: str | None, *, output: str) -> None:
    """``inspecti``."""
    refuse_unreadable(name)
    details = service.inspect(ImageSpec(name, handler or ""))
    if details is None:
        under = f" under runtime handler {handler!r}" if handler else ""
        raise ImageNotFoundError(f"image {name!r} is not on {service.endpoint}{under}", hint=missing_hint(name))
    shown = image_in_full(details, names_meant(details.image, name)[0])
    if output == "json":
        render.dump_json(shown)
        return
    references = (*details.image.repo_tags, *details.image.repo_digests)
    render.table(("FIELD", "VALUE"), describe.facts(shown, references, layer_lines(shown["layers"])))


def remove(
    service: CriImageService, names: Sequence[str], handler: str | None, *, is_everywhere: bool, output: str
) -> None:
    """``rmi``."""
    gone: list[tuple[str, str]] = []
    try:
        for name in dict.fromkeys(names):
            removed = _remove(service, name, handler or "", is_everywhere=is_everywhere)
            if not removed:
                note(f"{name}: not on the server, nothing removed")
            gone += removed
    finally:
        # Also those removed before a failure.
        lines = (f"removed {reference} ({owner or '-'})" for reference, owner in gone)
        render.show(output, {"removed": describe.keys(gone), "bytesFreed": None}, lines)


def _remove(service: CriImageService, name: str, handler: str, *, is_everywhere: bool) -> list[tuple[str, str]]:
    """The removed names, from lists before and after, since CRI's answer has none."""
    if not name:
        raise InvalidInputError("an empty name means no image")
    refuse_unreadable(name)
    meant = _meant(service, service.list(), name, handler)
    owners = sorted({each.spec.runtime_handler for each in meant})
    if handler and owners == [""]:
        # Such a server would remove the image itself.
        raise UnsupportedError(
            f"image {name!r}: {service.endpoint} has no runtime handlers for images; nothing was removed",
            hint="remove the image without --runtime-handler",
        )
    if not meant:
        return []
    for owner in owners if is_everywhere else [handler]:
        service.remove(ImageSpec(name, owner))
    left = {(each.id, each.spec.runtime_handler) for each in service.list()}
    return [
        (text, each.spec.runtime_handler)
        for each in meant
        if (each.id, each.spec.runtime_handler) not in left
        for text in names(each)
    ]


def pull(
    service: CriImageService,
    work: Sequence[tuple[str, str]],
    *,
    auth: AuthConfig | None,
    deadline_seconds: float | None,
    output: str,
) -> None:
    """``pull``: references and handlers, one after the other."""
    specs = [ImageSpec(str(Reference.parse(text)), handler) for text, handler in work]
    pulled: list[tuple[str, ServedImage]] = []
    try:
        with cancelled_by_signals(deadline_seconds=deadline_seconds) as token:
            for spec in specs:
                image_id = service.pull(spec, auth=auth, cancel=token)
                status = service.status(spec)
                if status is None:
                    raise ImageNotFoundError(f"image {spec.image!r} was pulled as {image_id}, but is gone again")
                pulled.append((spec.image, status))
                if spec.runtime_handler and not status.spec.runtime_handler:
                    ignored = f"names no runtime handler for it; {spec.runtime_handler!r} was ignored"
                    note(f"{spec.image}: {service.endpoint} {ignored}")
    except ImageStoreError:
        say_untried(work[len(pulled) + 1 :])
        raise
    finally:
        # Also those pulled before a failure.
        if pulled:
            shown = {"images": [image(status, reference) for reference, status in pulled]}
            lines = (f"{name} ({status.spec.runtime_handler or '-'}): {status.id}" for name, status in pulled)
            render.show(output, shown, lines)


def refuse_empty_handler(handler: str | None) -> None:
    """Refuse an empty handler: unlike in a local store, to CRI it means the images of every handler."""
    if handler == "":
        raise click.UsageError("an empty --runtime-handler: to CRI it means every handler's image; name one")


def refuse_local_options(given: dict[str, object]) -> None:
    """Refuse options that only a local store supports."""
    for option, value in given.items():
        if value:
            raise click.UsageError(f"{option} is for a local store; a CRI server decides that itself")


def _listed(service: CriImageService, name: str, handler: str) -> list[ServedImage]:
    found = service.list(ImageSpec(name, handler))
    # Servers may ignore a list's filter.
    meant = _meant(service, found, name, handler) if name else found
    return [each for each in meant if not handler or each.spec.runtime_handler == handler]


def _meant(service: CriImageService, images: Sequence[ServedImage], name: str, handler: str) -> list[ServedImage]:
    """The listed images that a name means: those of this tag; else of this id or digest; else what the server says.

    Lists don't contain every name that a server accepts, such as the digest of the manifest.
    """
    tagged = [each for each in images if is_tagged(each, name)]
    if tagged:
        return tagged
    ids = {each.id for each in images if fits(each, name)}
    if not ids:
        found = service.status(ImageSpec(name, handler))
        ids = {found.id} if found is not None else set()
    return [each for each in images if each.id in ids]


def names(image: ServedImage) -> tuple[str, ...]:
    """What to show an image under: its tags; its digests when it has none; at least one text."""
    return image.repo_tags or image.repo_digests or ("",)


def names_meant(image: ServedImage, name: str) -> tuple[str, ...]:
    """What to show an image under that was found by a name: its tag or its repository's, as in a local store."""
    wanted = _reference(name)
    if wanted is None:
        return names(image)
    if str(wanted) in image.repo_tags:
        return (str(wanted),)
    same = tuple(tag for tag in image.repo_tags if wanted.digest and tag.startswith(f"{wanted.name}:"))
    return same or names(image)


def is_tagged(image: ServedImage, name: str) -> bool:
    """Whether a name is one of the image's tags."""
    wanted = _reference(name)
    return wanted is not None and str(wanted) in image.repo_tags


def fits(image: ServedImage, name: str) -> bool:
    """Whether an image id, the beginning of one or a digest, alone or behind a name, means this image."""
    if _ID.fullmatch(name) and image.id.removeprefix("sha256:").startswith(name.removeprefix("sha256:")):
        return True
    wanted = _reference(name)
    if wanted is not None and wanted.digest is not None:
        return str(wanted.with_digest(wanted.digest)) in image.repo_digests
    return any(each.endswith(f"@{name}") for each in image.repo_digests)


def _reference(name: str) -> Reference | None:
    """A name as a reference; None for what isn't one."""
    try:
        return Reference.parse(name)
    except ValueError:
        return None


def image(value: ServedImage, name: str) -> dict[str, Any]:
    """One name of one image."""
    return {
        "reference": name or None,
        "runtimeHandler": value.spec.runtime_handler,
        "id": value.id,
        "platform": None,
        "wantedPlatform": None,
        "target": None,
        "manifest": None,
        "size": value.size,
        "labels": None,
        "warnings": None,
        "createdAt": None,
        "updatedAt": None,
        "pinned": value.is_pinned,
    }


def image_in_full(details: ImageDetails, name: str) -> dict[str, Any]:
    """One image with its verbose status; ``info`` has the server's texts."""
    info = {key: parsed(text) for key, text in details.info.items()}
    own, containerds = _table(info.get("imagestore")), _table(info.get("info"))
    config = _table(containerds.get("imageSpec"))
    shown = image(details.image, name)
    for key in ("wantedPlatform", "target", "manifest"):
        shown[key] = own.get(key)
    warnings = own.get("warnings")
    shown["warnings"] = warnings if isinstance(warnings, list) else None
    for key in ("createdAt", "updatedAt"):
        moment = own.get(key)
        shown[key] = describe.time(moment) if isinstance(moment, float) and 0 <= moment < 2**33 else None
    return {
        **shown,
        "platform": _platform(config),
        "layers": own.get("layers"),
        "config": {"created": config.get("created"), **_table(config.get("config"))} if config else None,
        "info": info,
    }


def _platform(config: Mapping[str, Any]) -> dict[str, Any] | None:
    members = [config.get(key, "") for key in ("os", "architecture", "variant", "os.version")]
    if not all(isinstance(member, str) for member in members) or not members[0]:
        return None
    return describe.platform(Platform(*members))


def layer_lines(value: object) -> list[str]:
    """Layers as lines of a table; CRI has no paths."""
    layers = map(_table, value) if isinstance(value, list) else ()
    sizes = ((each.get("digest"), each.get("size")) for each in layers)
    return [
        f"{digest} ({render.size(size)})"
        for digest, size in sizes
        if isinstance(digest, str) and type(size) is int and 0 <= size < 2**63
    ]


def parsed(text: str) -> Any:
    """A text of an info map: as in crictl, a text that starts like an object is parsed."""
    if not text.startswith("{"):
        return text.strip('"')
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _table(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
