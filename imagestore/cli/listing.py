"""``imagestore catalog``, ``tags`` and ``referrers``: what a registry lists."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from imagestore.cli import describe, options, render
from imagestore.cli.app import App, pass_app
from imagestore.cli.options import access_options, all_of, output_option, progress_option
from imagestore.cli.progress import observer as observer_for
from imagestore.cli.signals import cancelled_by_signals
from imagestore.errors import InvalidReferenceError, ReferenceNotFoundError
from imagestore.oci.reference import Reference
from imagestore.util.cancel import CancelToken

if TYPE_CHECKING:
    from collections.abc import Sequence

    from imagestore.oci.descriptor import Descriptor
    from imagestore.registry.listing import Referrers


#: ``--limit`` and ``--after``.
paging_options = all_of(
    click.option("--limit", type=click.IntRange(min=1), metavar="N", help="At most N names; no further page is read."),
    click.option(
        "--after",
        metavar="NAME",
        default="",
        help="Only the names that follow NAME in the registry's order; some begin anew if there is no such name.",
    ),
)


def _pages_on(limit: int | None, found: Sequence[str], output: str) -> str | None:
    """The name after which a limited list goes on, if it does; said on standard error too."""
    if limit is None or len(found) < limit:
        return None
    if output != "json":
        print(f"there may be more: --after {render.printable(found[-1])}", file=sys.stderr)
    return found[-1]


@click.command()
@click.argument("host")
@paging_options
@access_options
@output_option
@pass_app
def catalog(
    app: App, host: str, limit: int | None, after: str, creds_stdin: bool, anonymous: bool, output: str
) -> None:
    """List the repositories of the registry HOST, one on each line, in the registry's order.

    Registries need not have such a list, and many show one to administrators only.

    \b
    imagestore catalog registry.example
    imagestore catalog registry.example --limit 100 --after team/app
    """
    usage = click.UsageError(f"{host!r}: expected a registry's host, such as registry.example:5000")
    try:
        parsed = Reference.parse(f"{host}/repository")
    except InvalidReferenceError as error:
        raise usage from error
    if "/" in host or parsed.name != f"{host}/repository":
        raise usage
    after = after.removeprefix(f"{host}/")
    app.credentials = options.lookup(parsed.host, creds_stdin=creds_stdin, anonymous=anonymous)
    try:
        found = app.store.registry.repositories(parsed.host, limit=limit, after=after, cancel=CancelToken())
    except ReferenceNotFoundError as error:
        error.hint = "this registry has no list of repositories"
        raise
    shown = {"registry": parsed.host, "repositories": list(found), "next": _pages_on(limit, found, output)}
    render.show(output, shown, (f"{parsed.host}/{path}" for path in found))


@click.command()
@click.argument("repository")
@paging_options
@access_options
@output_option
@pass_app
def tags(
    app: App, repository: str, limit: int | None, after: str, creds_stdin: bool, anonymous: bool, output: str
) -> None:
    """List the tags of REPOSITORY in its registry, one on each line, in the registry's order.

    Hosts that may be asked what a tag means are asked, in the order that 'hosts' shows, until one has a list. Names
    that are no tags are left out.

    \b
    imagestore tags registry.example/app --limit 100
    imagestore tags registry.example/app --limit 100 --after 1.27.3
    """
    parsed = Reference.parse(repository)
    if parsed.digest is not None or repository.endswith(f":{parsed.tag}"):
        raise click.UsageError(f"{repository}: expected a repository, without tag or digest: {parsed.familiar_name}")
    app.credentials = options.lookup(parsed.host, creds_stdin=creds_stdin, anonymous=anonymous)
    found = app.store.registry.tags(parsed, limit=limit, after=after, cancel=CancelToken())
    shown = {"repository": parsed.name, "tags": list(found), "next": _pages_on(limit, found, output)}
    render.show(output, shown, found)


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
        "referrers": [describe.referrer(one) for one in found.entries],
        "remarks": list(found.remarks),
    }
