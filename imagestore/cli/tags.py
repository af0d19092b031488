"""``imagestore tags``: the tags that a repository has in its registry."""

from __future__ import annotations

import click

from imagestore.cli import options, render
from imagestore.cli.app import App, output_option, pass_app
from imagestore.cli.options import access_options


@click.command()
@click.argument("repository")
@access_options
@output_option
@pass_app
def tags(app: App, repository: str, creds_stdin: bool, anonymous: bool, output: str) -> None:
    """List the tags of REPOSITORY in its registry, one on each line, in the registry's order.

    Hosts that may be asked what a tag means are asked, in the order that 'hosts' shows, until one has a list. Names
    that are no tags are left out.
    """
    from imagestore.oci.reference import Reference
    from imagestore.util.cancel import CancelToken

    parsed = Reference.parse(repository)
    if parsed.digest is not None or repository.endswith(f":{parsed.tag}"):
        raise click.UsageError(f"{repository}: expected a repository, without tag or digest: {parsed.familiar_name}")
    app.credentials = options.lookup(parsed.host, creds_stdin=creds_stdin, anonymous=anonymous)
    found = app.store.registry.tags(parsed, cancel=CancelToken())
    if output == "json":
        render.dump_json({"repository": parsed.name, "tags": list(found)})
        return
    for tag in found:
        print(tag)
