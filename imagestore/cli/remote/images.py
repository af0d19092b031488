"""``images``, ``inspecti``, ``rmi`` and ``pull`` against a CRI server, by runtime handler, which crictl can't name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from imagestore.cli import render
from imagestore.cli.exit_codes import say, say_untried
from imagestore.cli.remote import describe
from imagestore.cli.signals import cancelled_by_signals
from imagestore.cri.model import ImageSpec
from imagestore.errors import ImageNotFoundError, ImageStoreError, InvalidInputError, UnsupportedError
from imagestore.oci.reference import Reference
from imagestore.store.record_lookup import missing_hint, refuse_unreadable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from imagestore.cri.client import CriImageService
    from imagestore.cri.model import ServedImage
    from imagestore.registry.credentials.cri import AuthConfig


def show_list(
    service: CriImageService,
    name: str | None,
    handler: str | None,
    *,
    is_quiet: bool,
    has_whole_ids: bool,
    output: str,
) -> None:
    """``images``.

    Raises:
        InvalidReferenceError: the name can mean no image.
    """
    if name:
        refuse_unreadable(name)
    found = _listed(service, name or "", handler or "")
    named = [(each, text) for each in found for text in describe.names_meant(each, name or "")]
    if output == "json":
        render.dump_json({"images": [describe.image(each, text) for each, text in named]})
        return
    if is_quiet:
        for each, _ in named:
            print(render.printable(each.id))
        return
    headings = ("IMAGE", "TAG", "RUNTIME HANDLER", "PLATFORM", "IMAGE ID", "SIZE")
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
    render.table(headings, rows)


def show_image(service: CriImageService, name: str, handler: str | None, *, output: str) -> None:
    """``inspecti``.

    Raises:
        ImageNotFoundError: the server doesn't have it.
        InvalidReferenceError: the name can mean no image.
    """
    refuse_unreadable(name)
    details = service.inspect(ImageSpec(name, handler or ""))
    if details is None:
        under = f" under runtime handler {handler!r}" if handler else ""
        raise ImageNotFoundError(f"image {name!r} is not on {service.endpoint}{under}", hint=missing_hint(name))
    shown = describe.image_in_full(details, describe.names_meant(details.image, name)[0])
    if output == "json":
        render.dump_json(shown)
        return
    config = shown["config"] or {}
    facts = [
        *(("reference", text) for text in (*details.image.repo_tags, *details.image.repo_digests)),
        ("runtime handler", shown["runtimeHandler"] or "-"),
        ("image id", shown["id"]),
        ("platform", (shown["platform"] or {}).get("text", "-")),
        ("wanted platform", str(shown["wantedPlatform"] or "-")),
        ("target", describe.pointer(shown["target"])),
        ("manifest", describe.pointer(shown["manifest"])),
        ("size", render.size(shown["size"])),
        ("updated", shown["updatedAt"] or "-"),
        *((key.lower(), render.shortened(value)) for key, value in config.items() if value),
        *(("warning", str(warning)) for warning in shown["warnings"] or ()),
        *(("layer", text) for text in describe.layer_lines(shown["layers"])),
    ]
    render.table(("FIELD", "VALUE"), facts)


def remove(
    service: CriImageService, names: Sequence[str], handler: str | None, *, is_everywhere: bool, output: str
) -> None:
    """``rmi``.

    Raises:
        UnsupportedError: one handler's image is meant, and the server doesn't know handlers.
        InvalidInputError: a name can mean no image.
    """
    gone: list[tuple[str, str]] = []
    try:
        for name in dict.fromkeys(names):
            removed = _remove(service, name, handler or "", is_everywhere=is_everywhere)
            if not removed:
                _warn(f"{name}: not on the server, nothing removed")
            gone += removed
    finally:
        # Also those removed before a failure.
        if output == "json":
            pairs = [{"reference": reference, "runtimeHandler": owner} for reference, owner in gone]
            render.dump_json({"removed": pairs, "bytesFreed": None})
        else:
            for reference, owner in gone:
                print(render.printable(f"removed {reference} ({owner or '-'})"))


def _remove(service: CriImageService, name: str, handler: str, *, is_everywhere: bool) -> list[tuple[str, str]]:
    """The removed names, by listing before and after, since CRI's answer has none."""
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
        for text in describe.names(each)
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
                    _warn(f"{spec.image}: {service.endpoint} {ignored}")
    except ImageStoreError:
        say_untried(work[len(pulled) + 1 :])
        raise
    finally:
        # Also those pulled before a failure.
        if output != "json":
            for reference, status in pulled:
                print(render.printable(f"{reference} ({status.spec.runtime_handler or '-'}): {status.id}"))
        elif pulled:
            render.dump_json({"images": [describe.image(status, reference) for reference, status in pulled]})


def refuse_empty_handler(handler: str | None) -> None:
    """Refuse an empty handler: unlike in a local store, to CRI it means the images of every handler.

    Raises:
        UsageError: the handler is an empty text.
    """
    if handler == "":
        raise click.UsageError("an empty --runtime-handler: to CRI it means every handler's image; name one")


def refuse_local_options(given: dict[str, object]) -> None:
    """Refuse options that only a local store supports.

    Raises:
        UsageError: one of them was given.
    """
    for option, value in given.items():
        if value:
            raise click.UsageError(f"{option} is for a local store; a CRI server decides that itself")


def _warn(text: str) -> None:
    say(f"imagestore: {render.printable(text)}")


def _listed(service: CriImageService, name: str, handler: str) -> list[ServedImage]:
    found = service.list(ImageSpec(name, handler))
    # Servers may ignore a list's filter.
    meant = _meant(service, found, name, handler) if name else found
    return [each for each in meant if not handler or each.spec.runtime_handler == handler]


def _meant(service: CriImageService, images: Sequence[ServedImage], name: str, handler: str) -> list[ServedImage]:
    """The listed images that a name means: those of this tag; else of this id or digest; else what the server says.

    Lists don't contain every name that a server accepts, such as the digest of the manifest.
    """
    tagged = [each for each in images if describe.is_tagged(each, name)]
    if tagged:
        return tagged
    ids = {each.id for each in images if describe.fits(each, name)}
    if not ids:
        found = service.status(ImageSpec(name, handler))
        ids = {found.id} if found is not None else set()
    return [each for each in images if each.id in ids]
