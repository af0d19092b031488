"""``imagestore why``."""

from __future__ import annotations

import click

from imagestore.cli import render
from imagestore.cli.context import App, output_option
from imagestore.cli.failure import ExitStatus
from imagestore.digest import Digest


@click.command()
@click.argument("digest")
@output_option
@click.pass_context
def why(ctx: click.Context, digest: str, output: str) -> None:
    """Show what keeps a blob: a chain from each image, lease or label down to DIGEST.

    Ends with status 3 when the blob isn't in the store.
    """
    app = ctx.find_object(App)
    assert app is not None
    wanted = Digest.parse(digest)
    is_here = app.store.content.exists(wanted)
    chains = app.store.why(wanted)
    if output == "json":
        shown = [
            {
                "kind": chain.holder.kind.value,
                "name": chain.holder.name,
                "runtimeHandler": chain.holder.handler,
                "chain": [str(each) for each in chain.digests],
            }
            for chain in chains
        ]
        render.dump_json({"digest": str(wanted), "inStore": is_here, "keptBy": shown})
    else:
        for chain in chains:
            handler = f" ({chain.holder.handler})" if chain.holder.handler else ""
            path = " -> ".join(str(each) for each in chain.digests)
            print(f"{chain.holder.kind.value} {render.printable(chain.holder.name)}{handler} -> {path}")
        if not chains:
            print(f"{wanted}: nothing keeps it" + ("; the next 'imagestore gc' frees it" if is_here else ""))
        elif not is_here:
            print(f"{wanted}: is not in the store; try 'imagestore repair'")
    if not is_here:
        ctx.exit(ExitStatus.NOT_FOUND)
