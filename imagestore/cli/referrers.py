"""``imagestore referrers``: what a registry has that refers to an image."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from imagestore.cli import options, render
from imagestore.cli.app import App, output_option, pass_app
from imagestore.cli.options import access_options, progress_option
from imagestore.cli.progress import observer as observer_for
from imagestore.cli.signals import cancelled_by_signals

if TYPE_CHECKING:
    from imagestore.oci.descriptor import Descriptor
    from imagestore.registry.listing import Referrers


@click.command()
@click.argument("reference")
@click.option("--artifact-type", metavar="T", default="", help="Only documents of this artifact type.")
@click.option(
    "--fetch", "folder", metavar="FOLDER", default="", help="Also fetch them, as an OCI layout into a new FOLDER."
)
@progress_option()
@access_options
@output_option
@pass_app
def referrers(
    app: App,
    reference: str,
    artifact_type: str,
    folder: str,
    progress: str,
    creds_stdin: bool,
    anonymous: bool,
    output: str,
) -> None:
    """List what refers to REFERENCE in its registry: signatures, bills of materials, attestations.

    Nothing says that the documents are genuine: signatures are not checked here. A registry without a referrers API is
    asked for the tag that stands for it. Documents may refer to an index or to one of its manifests: name the one that
    is meant by its digest.

    \b
    imagestore referrers registry.example/app:1 --fetch signatures
    """
    from imagestore.oci.reference import Reference
    from imagestore.store.copy.referrers import fetch_referrers

    parsed = Reference.parse(reference)
    app.credentials = options.lookup(parsed.host, creds_stdin=creds_stdin, anonymous=anonymous)
    with cancelled_by_signals() as cancel, observer_for(progress) as observer:
        client = app.store.registry.observed_by(observer)
        subject = client.resolve(parsed, cancel=cancel)
        found = client.referrers(parsed, subject.digest, artifact_type=artifact_type, cancel=cancel)
        if folder and found.entries:
            fetch_referrers(client, parsed, found.entries, folder, observer=observer, cancel=cancel)
    if output == "json":
        render.dump_json(_document(str(parsed), subject, found))
        return
    rows = [(one.artifact_type or one.media_type, str(one.digest), render.size(one.size)) for one in found.entries]
    render.table(("ARTIFACT TYPE", "DIGEST", "SIZE"), rows)
    for remark in found.remarks:
        print(f"note: {render.printable(remark)}", file=sys.stderr)
    if folder:
        print(f"fetched to {render.printable(folder)}" if found.entries else "nothing to fetch", file=sys.stderr)


def _document(reference: str, subject: Descriptor, found: Referrers) -> dict[str, Any]:
    return {
        "reference": reference,
        "subject": subject.members(),
        "isFromTag": found.is_from_tag,
        "referrers": [
            {
                **one.members(),
                "artifactType": one.artifact_type,
                "annotations": dict(one.annotations),
            }
            for one in found.entries
        ],
        "remarks": list(found.remarks),
    }
