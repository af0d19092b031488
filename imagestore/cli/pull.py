"""``imagestore pull``."""

from __future__ import annotations

import contextlib
import signal
from typing import TYPE_CHECKING

import click

from imagestore.cli import access, describe, render
from imagestore.cli.access import access_options
from imagestore.cli.context import App, output_option, pass_app
from imagestore.reference import Reference

if TYPE_CHECKING:
    from collections.abc import Iterator

    from imagestore.cancel import CancelToken


@click.command()
@click.argument("references", nargs=-1, metavar="REFERENCE...")
@click.option("--sandbox", is_flag=True, help="Fetch the handler's sandbox (pause) image, for the same platform.")
@click.option(
    "--runtime-handler",
    "handlers",
    metavar="H",
    multiple=True,
    help="Pull for this handler's platform and keep it under its name; may be repeated. "
    "Default: the configured default handler.",
)
@click.option("--platform", metavar="P", help="Pull for this platform, for example 'windows(10.0.17763)/amd64'.")
@click.option("--deadline", type=float, metavar="SECONDS", help="Give up after this time; what came can be resumed.")
@click.option(
    "--progress",
    type=click.Choice(["auto", "bar", "plain", "json", "none"]),
    default="auto",
    show_default=True,
    help="What to show on standard error; auto draws bars on a terminal and prints lines elsewhere.",
)
@access_options
@output_option
@pass_app
def pull(
    app: App,
    references: tuple[str, ...],
    sandbox: bool,
    handlers: tuple[str, ...],
    platform: str | None,
    deadline: float | None,
    progress: str,
    creds_stdin: bool,
    anonymous: bool,
    output: str,
) -> None:
    """Fetch an image for a runtime handler (or a platform) and keep it.

    Of a multi-platform image only the manifest that the handler's sandbox can run is fetched. Content that another
    handler's image has already is not fetched again.
    """
    from imagestore.cancel import CancelToken
    from imagestore.cli import progress as shown

    if handlers and platform is not None:
        raise click.UsageError("--runtime-handler and --platform exclude each other")
    if not references and not sandbox:
        raise click.UsageError("Missing argument 'REFERENCE...'")
    work = [(reference, handler) for reference in references for handler in handlers or ("",)]
    if sandbox:
        work += [(app.config.sandbox_image(handler), handler) for handler in handlers or ("",)]
    hosts = {Reference.parse(reference).host for reference, _ in work}
    if creds_stdin and len(hosts) > 1:
        raise click.UsageError(f"--creds-stdin is for one registry, but the references name {', '.join(sorted(hosts))}")
    app.credentials = access.lookup(hosts.pop(), creds_stdin=creds_stdin, anonymous=anonymous)
    token = CancelToken(deadline)
    pulled = []
    with cancelled_by_signals(token), shown.observer(progress) as observer:
        for reference, handler in work:
            image = app.store.pull(
                reference, runtime_handler=handler, platform=platform, observer=observer, cancel=token
            )
            pulled.append(image)
    if output == "json":
        render.dump_json({"images": [describe.image(image) for image in pulled]})
        return
    for image in pulled:
        print(f"{image.reference} ({image.runtime_handler}): {image.id}")


@contextlib.contextmanager
def cancelled_by_signals(token: CancelToken) -> Iterator[None]:
    """Ctrl-C and SIGTERM end the pull in order, so that sockets close and the lease is released."""

    def cancel(_signum: int, _frame: object) -> None:
        token.cancel("interrupted")

    before = {number: signal.signal(number, cancel) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
