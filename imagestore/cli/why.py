"""``imagestore why``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from imagestore.cli import complete, render
from imagestore.cli.app import App, output_option, pass_app
from imagestore.cli.exit_codes import ExitStatus
from imagestore.errors import ImageNotFoundError, InvalidDigestError
from imagestore.oci.digest import Digest
from imagestore.store import record_lookup

if TYPE_CHECKING:
    from imagestore.store.image import Image
    from imagestore.store.maintenance.why import Chain


@dataclass(frozen=True, slots=True)
class _Reasons:
    """What keeps a blob, and whether it is here at all."""

    digest: Digest
    is_here: bool
    chains: tuple[Chain, ...]


@click.command()
@click.argument("what", metavar="DIGEST|NAME", shell_complete=complete.images)
@output_option
@pass_app
def why(app: App, what: str, output: str) -> ExitStatus:
    """Show what keeps a blob: a chain from each image, lease or label down to it.

    DIGEST is the blob's. NAME is an image's reference, or the beginning (four digits or more) of an image id: each of
    its records is shown with what keeps its manifest. Ends with status 3 when the blob, or the image, isn't in the
    store.
    """
    wanted = _digest(what)
    app.missing = "unnamed"
    if wanted is None:
        found = [(image, _reasons(app, image.manifest.digest)) for image in _images(app, what)]
        reasons = [each for _, each in found]
        if output == "json":
            render.dump_json({"images": [_image_json(image, each) for image, each in found]})
        else:
            for image, each in found:
                print(f"{image.reference} ({image.runtime_handler}): manifest {each.digest}")
                _print(each, indent="  ")
    else:
        reasons = [_reasons(app, wanted)]
        if output == "json":
            render.dump_json(_json(reasons[0]))
        else:
            _print(reasons[0])
    return ExitStatus.OK if all(each.is_here for each in reasons) else ExitStatus.NOT_FOUND


def _digest(what: str) -> Digest | None:
    """None for a name: ``python:3`` has the form of a digest too, of an algorithm that nobody knows."""
    try:
        found = Digest.parse(what)
    except InvalidDigestError:
        return None
    return found if found.is_verifiable else None


def _reasons(app: App, digest: Digest) -> _Reasons:
    return _Reasons(digest, app.store.content.exists(digest), app.store.why(digest))


def _images(app: App, name: str) -> list[Image]:
    record_lookup.refuse_unreadable(name)
    found = list(app.store.list(name=name))
    if not found:
        raise ImageNotFoundError(
            f"{name!r} is no digest, and no image in the store has that name or id",
            hint="'imagestore images' lists them; a digest is sha256:<64 hex digits>",
        )
    return found


def _print(reasons: _Reasons, *, indent: str = "") -> None:
    for chain in reasons.chains:
        handler = f" ({chain.holder.handler})" if chain.holder.handler else ""
        path = " -> ".join(str(each) for each in chain.digests)
        print(f"{indent}{chain.holder.kind.value} {render.printable(chain.holder.name)}{handler} -> {path}")
    if not reasons.chains:
        more = "; the next 'imagestore gc' frees it" if reasons.is_here else ""
        print(f"{indent}{reasons.digest}: nothing keeps it{more}")
    elif not reasons.is_here:
        print(f"{indent}{reasons.digest}: is not in the store; try 'imagestore repair'")


def _image_json(image: Image, reasons: _Reasons) -> dict[str, Any]:
    return {"reference": str(image.reference), "runtimeHandler": image.runtime_handler, **_json(reasons)}


def _json(reasons: _Reasons) -> dict[str, Any]:
    kept_by = [
        {
            "kind": chain.holder.kind.value,
            "name": chain.holder.name,
            "runtimeHandler": chain.holder.handler,
            "chain": [str(each) for each in chain.digests],
        }
        for chain in reasons.chains
    ]
    return {"digest": str(reasons.digest), "inStore": reasons.is_here, "keptBy": kept_by}
