"""``imagestore node``: what a node agent asks, one module for each command."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from imagestore.cli.lazy import LazyGroup

if TYPE_CHECKING:
    from imagestore.cli.lazy import Table

#: The commands, as in :data:`imagestore.cli.main.COMMANDS`.
COMMANDS: Final[Table] = {
    "ensure": ("imagestore.cli.node.ensure", "ensure", "Make sure that an image is there and a pod may use it."),
    "gc": ("imagestore.cli.node.gc", "gc", "Collect images by age and space, by (image, runtime handler)."),
    "edged-config": ("imagestore.cli.node.edged_config", "edged_config", "Show what a KubeEdge configuration means."),
    "resources": (
        "imagestore.cli.node.resources",
        "resources",
        "Show what requests and limits become, number by number.",
    ),
}


@click.group(cls=LazyGroup, sections={"Commands": COMMANDS})
def node() -> None:
    """The node side: what a kubelet does with images and resources."""
