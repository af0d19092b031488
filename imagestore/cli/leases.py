"""``imagestore leases``."""

from __future__ import annotations

import math
import uuid
from typing import TYPE_CHECKING, Any

import click

from imagestore.cli import describe, render
from imagestore.cli.app import App, pass_app
from imagestore.cli.options import duration_option, output_option
from imagestore.errors import InvalidInputError, LeaseNotFoundError
from imagestore.oci.digest import Digest

if TYPE_CHECKING:
    from imagestore.metadata.records import Lease


@click.group()
def leases() -> None:
    """List, make, renew and delete leases.

    A lease keeps content from being collected until it is deleted or its time is over. Running pulls hold one.
    """


@leases.command("list")
@output_option
@pass_app
def list_leases(app: App, output: str) -> None:
    """List leases with what they hold."""
    app.missing = "unnamed"
    found = app.store.metadata.leases.find()
    if output == "json":
        render.dump_json({"leases": [_json(app, each) for each in found]})
        return
    headings = ("LEASE", "CREATED", "EXPIRES", "BLOBS", "FLAT")
    rows = [
        (
            each.id,
            describe.time(each.created_at),
            _end(each),
            str(len(_held(app, each)[0])),
            "yes" if each.is_flat else "",
        )
        for each in found
    ]
    render.table(headings, rows)


@leases.command()
@click.argument("lease_id", metavar="[ID]", required=False)
@click.option("--content", "digests", metavar="DIGEST", multiple=True, help="Content to hold; may be repeated.")
@duration_option(
    "--expires", default="24h", show_default=True, help="When it ends, for example 7d; 0 means only when deleted."
)
@click.option("--label", "labels", metavar="KEY=VALUE", multiple=True, help="A label; may be repeated.")
@click.option("--flat", is_flag=True, help="Hold the named content only, not what that refers to.")
@output_option
@pass_app
def create(
    app: App,
    lease_id: str | None,
    digests: tuple[str, ...],
    expires: float,
    labels: tuple[str, ...],
    flat: bool,
    output: str,
) -> None:
    """Make a lease; without ID one is chosen and printed."""
    from imagestore.oci import gc_labels

    if lease_id == "":
        raise click.UsageError("an empty ID means no lease; leave it out to have one chosen")
    held = [Digest.parse(text) for text in digests]
    kept = dict(_label(text) for text in labels)
    if flat:
        kept[gc_labels.FLAT] = "true"
    app.missing = "make"
    made = app.store.metadata.leases.create(
        lease_id or f"user-{uuid.uuid4().hex}", lifetime_seconds=expires or math.inf, labels=kept, content=held
    )
    render.show(output, _json(app, made), [made.id])


@leases.command()
@click.argument("lease_id", metavar="ID")
@duration_option(
    "--expires", default="24h", show_default=True, help="From now, for example 7d; 0 means only when deleted."
)
@output_option
@pass_app
def renew(app: App, lease_id: str, expires: float, output: str) -> None:
    """Move the end of a lease."""
    metadata = app.store.metadata
    with metadata.exclusive():
        metadata.leases.renew(lease_id, lifetime_seconds=expires or math.inf)
        renewed = metadata.leases.get(lease_id)
    assert renewed is not None
    render.show(output, _json(app, renewed), [f"{lease_id}: expires {_end(renewed)}"])


@leases.command()
@click.argument("lease_ids", metavar="ID...", nargs=-1, required=True)
@output_option
@pass_app
def delete(app: App, lease_ids: tuple[str, ...], output: str) -> None:
    """Delete leases; what only they held goes with the next 'imagestore gc'. A running pull's lease belongs to it."""
    app.is_freeing = True
    deleted: list[str] = []
    missing: list[str] = []
    try:
        for lease_id in dict.fromkeys(lease_ids):
            (deleted if app.store.metadata.leases.delete(lease_id) else missing).append(lease_id)
    finally:
        # Also what was done before a failure.
        render.show(output, {"deleted": deleted}, ())
    if missing:
        raise LeaseNotFoundError(f"leases not in the store: {', '.join(missing)}")


def _label(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise InvalidInputError(f"label {text!r}: expected KEY=VALUE")
    return key, value


def _end(lease: Lease) -> str:
    return "never" if math.isinf(lease.expires_at) else describe.time(lease.expires_at)


def _held(app: App, lease: Lease) -> tuple[tuple[Digest, ...], tuple[str, ...]]:
    """The content and the images that a lease holds; nothing if it was released since it was listed."""
    metadata = app.store.metadata
    try:
        return metadata.leases.content(lease.id), metadata.leases.images(lease.id)
    except LeaseNotFoundError:
        return (), ()


def _json(app: App, lease: Lease) -> dict[str, Any]:
    content, images = _held(app, lease)
    return {
        "id": lease.id,
        "createdAt": describe.time(lease.created_at),
        "expiresAt": None if math.isinf(lease.expires_at) else describe.time(lease.expires_at),
        "flat": lease.is_flat,
        "labels": dict(lease.labels),
        "content": [str(digest) for digest in content],
        "images": list(images),
    }
