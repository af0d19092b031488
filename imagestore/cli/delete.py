"""``imagestore delete``: tags and manifests of a registry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from imagestore.cli import completion, options, render
from imagestore.cli.app import App, pass_app
from imagestore.cli.options import access_options, output_option
from imagestore.cli.signals import cancelled_by_signals
from imagestore.oci.reference import Reference

if TYPE_CHECKING:
    from collections.abc import Iterator

    from imagestore.registry import Deletion


@click.command()
@click.argument("reference", shell_complete=completion.images)
@click.option("--dry-run", "-n", is_flag=True, help="Only show what would be deleted.")
@click.option("--force", "-f", is_flag=True, help="Delete a manifest also if an index or referrers need it.")
@access_options
@output_option
@pass_app
def delete(
    app: App, reference: str, dry_run: bool, force: bool, creds_stdin: bool, anonymous: bool, output: str
) -> None:
    """Delete REFERENCE in its registry: a tag, or by its digest an index or manifest. The store keeps its images.

    With a tag only the tag goes: its manifest and other tags stay. With a digest the manifest goes, and all tags that
    lead to it; manifests that an index lists stay. A manifest that a tagged index lists, or that has referrers, is
    refused, unless --force is given. The registry frees blobs when it collects garbage.

    Registries need not support this. docker-registry before version 3 deletes no tags, only manifests by their digest,
    and those only with storage.delete.enabled.

    \b
    imagestore delete registry.example/app:1 --dry-run
    imagestore delete registry.example/app@$(imagestore digest registry.example/app:1)
    """
    parsed = Reference.parse(reference)
    # Not the default tag, and not a tag with a digest, of which other commands ignore the tag.
    if bool(parsed.tag) == (parsed.digest is not None) or not reference.endswith(
        (f":{parsed.tag}", f"@{parsed.digest}")
    ):
        raise click.UsageError(f"{reference}: expected {parsed.familiar_name}:TAG or {parsed.familiar_name}@DIGEST")
    app.credentials = options.lookup(parsed.host, creds_stdin=creds_stdin, anonymous=anonymous)
    with cancelled_by_signals() as cancel:
        writer = app.store.registry.writer(parsed, cancel=cancel)
        found = writer.delete(parsed.digest or parsed.tag, force=force, dry_run=dry_run)
    render.show(output, _document(parsed.name, found, is_dry_run=dry_run), _lines(parsed.name, found, dry_run))


def _document(repository: str, found: Deletion, *, is_dry_run: bool) -> dict[str, Any]:
    return {
        "repository": repository,
        "target": found.target.members(),
        "tags": list(found.tags),
        "withManifest": found.with_manifest,
        "neededBy": [
            {"kind": each.kind, "digest": str(each.digest), "tags": list(each.tags)} for each in found.needed_by
        ],
        "unread": list(found.unread),
        "dryRun": is_dry_run,
    }


def _lines(repository: str, found: Deletion, is_dry_run: bool) -> Iterator[str]:
    did, stays = ("would delete", "would stay") if is_dry_run else ("deleted", "stays")
    for tag in found.tags:
        yield f"{did} tag {repository}:{tag}"
    name = f"{found.target.kind.value} {repository}@{found.target.digest}"
    yield f"{did} {name}" if found.with_manifest else f"{name} {stays}"
    for each in found.needed_by:
        yield f"still needed by {each}"
