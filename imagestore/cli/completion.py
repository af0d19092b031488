"""``imagestore completion``, and the words that shells complete: runtime handlers and images.

A shell asks while the line is typed: nothing is written, no server is called, and what can't be read completes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from imagestore.cli.app import App

if TYPE_CHECKING:
    from collections.abc import Iterator

#: bash splits words at colons, which names of images have.
_BASH: Final = "COMP_WORDBREAKS=${COMP_WORDBREAKS//:}\n"


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script that lets SHELL complete commands, options, runtime handlers and images.

    \b
    bash: imagestore completion bash > ~/.local/share/bash-completion/completions/imagestore
    zsh:  imagestore completion zsh > ~/.zfunc/_imagestore
    fish: imagestore completion fish > ~/.config/fish/completions/imagestore.fish
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    source = kind(ctx.find_root().command, {}, "imagestore", "_IMAGESTORE_COMPLETE").source()
    click.echo(f"{_BASH if shell == 'bash' else ''}{source}")


def handlers(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """The configuration's runtime handlers that begin with the typed text."""
    try:
        app = _app(ctx)
        return [] if app is None else [name for name in app.config.handlers if name.startswith(incomplete)]
    except Exception:  # noqa: BLE001 - see above
        return []


def images(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """The local store's references that begin with the typed text, as people write them."""
    try:
        app = _app(ctx)
        return [] if app is None else list(dict.fromkeys(_references(app, incomplete)))
    except Exception:  # noqa: BLE001 - see above
        return []


def _app(ctx: click.Context) -> App | None:
    """The local store that the line names; None if it names a CRI server."""
    given = ctx.find_root().params
    return None if given.get("endpoint") else App(given.get("root"), given.get("config_path"))


def _references(app: App, incomplete: str) -> Iterator[str]:
    from imagestore.cli.describe import familiar
    from imagestore.metadata.sqlite.summaries import read_summaries

    for each in read_summaries(app.root / "metadata.db") or ():
        reference = each.reference
        short = reference if "@" in reference else ":".join(familiar(reference))
        yield from [form for form in (short, reference) if form.startswith(incomplete)][:1]
