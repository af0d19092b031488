"""``imagestore catalog`` and ``imagestore tags``: what a registry lists."""

from __future__ import annotations

import click

from imagestore.cli import options, render
from imagestore.cli.app import App, output_option, pass_app
from imagestore.cli.options import access_options


@click.command()
@click.argument("host")
@access_options
@output_option
@pass_app
def catalog(app: App, host: str, creds_stdin: bool, anonymous: bool, output: str) -> None:
    """List the repositories of the registry HOST, one on each line, in the registry's order.

    Registries need not have such a list, and many show one to administrators only.

    \b
    imagestore catalog registry.example
    """
    from imagestore.errors import InvalidReferenceError, ReferenceNotFoundError
    from imagestore.oci.reference import Reference
    from imagestore.util.cancel import CancelToken

    try:
        parsed = Reference.parse(f"{host}/repository")
    except InvalidReferenceError as error:
        raise click.UsageError(f"{host!r}: expected a registry's host, such as registry.example:5000") from error
    if parsed.name != f"{host}/repository":
        raise click.UsageError(f"{host!r}: expected a registry's host, such as registry.example:5000")
    app.credentials = options.lookup(parsed.host, creds_stdin=creds_stdin, anonymous=anonymous)
    try:
        found = app.store.registry.repositories(parsed.host, cancel=CancelToken())
    except ReferenceNotFoundError as error:
        error.hint = "this registry has no list of repositories"
        raise
    if output == "json":
        render.dump_json({"registry": parsed.host, "repositories": list(found)})
        return
    for path in found:
        print(f"{parsed.host}/{path}")


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
