"""``imagestore node``: what a node agent asks, one module for each command."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from imagestore.cli.lazy import LazyGroup

if TYPE_CHECKING:
    from imagestore.cli.lazy import Table

#: The commands, as in :data:`imagestore.cli.main.COMMANDS`.
COMMANDS: Final[Table] = {
    "resources": (
        "imagestore.cli.node.resources",
        "resources",
        "Show what requests and limits become, number by number.",
    ),
}


@click.group(cls=LazyGroup, table=COMMANDS)
def node() -> None:
    """The node side: what a kubelet does with images and resources."""
