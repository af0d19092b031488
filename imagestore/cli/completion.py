"""``imagestore completion``."""

from __future__ import annotations

from typing import Final

import click
from click.shell_completion import get_completion_class

_VARIABLE: Final = "_IMAGESTORE_COMPLETE"
#: bash splits words at colons, which names of images have.
_BASH: Final = "COMP_WORDBREAKS=${COMP_WORDBREAKS//:}\n"


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print what makes SHELL complete commands, options, runtime handlers and images.

    \b
    bash: imagestore completion bash > ~/.local/share/bash-completion/completions/imagestore
    zsh:  imagestore completion zsh > ~/.zfunc/_imagestore
    fish: imagestore completion fish > ~/.config/fish/completions/imagestore.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None
    source = kind(ctx.find_root().command, {}, "imagestore", _VARIABLE).source()
    click.echo(f"{_BASH if shell == 'bash' else ''}{source}")
