"""What click's commands have in common: the App they are handed, and their output option."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import click

from imagestore.cli.app import App as App
from imagestore.cli.app import cancelled_by_signals as cancelled_by_signals

if TYPE_CHECKING:
    from collections.abc import Callable

F = TypeVar("F", bound="Callable[..., Any]")

pass_app = click.make_pass_decorator(App)


def output_option(function: F) -> F:
    """``--output table|json`` for a command; arrives as ``output``."""
    option = click.option(
        "-o",
        "--output",
        type=click.Choice(["table", "json"]),
        default="table",
        show_default=True,
        help="Output format; json is stable for programs.",
    )
    return option(function)
