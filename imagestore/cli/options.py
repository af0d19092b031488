"""Options that many commands have, each with its words written once; ``--output`` is in ``context``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import click

from imagestore.cli import complete

if TYPE_CHECKING:
    from collections.abc import Callable

F = TypeVar("F", bound="Callable[..., Any]")


def handler_option(help_text: str) -> Callable[[F], F]:
    """``--runtime-handler H``; arrives as ``runtime_handler``, None where it isn't given."""
    return click.option("--runtime-handler", metavar="H", shell_complete=complete.handlers, help=help_text)


def handlers_option(help_text: str) -> Callable[[F], F]:
    """``--runtime-handler H``, as often as wanted; arrives as ``handlers``."""
    return click.option(
        "--runtime-handler",
        "handlers",
        metavar="H",
        multiple=True,
        shell_complete=complete.handlers,
        help=help_text,
    )


def progress_option(
    help_text: str = "What to show on standard error; auto draws bars on a terminal and prints lines elsewhere.",
) -> Callable[[F], F]:
    """``--progress``; arrives as ``progress``, a style of ``progress.observer()``."""
    return click.option(
        "--progress",
        type=click.Choice(["auto", "bar", "plain", "json", "none"]),
        default="auto",
        show_default=True,
        help=help_text,
    )


def host_option(function: F) -> F:
    """``--host P``; arrives as ``host``, None for this machine."""
    option = click.option(
        "--host", metavar="P", help="Pretend to be a node of this platform, e.g. 'windows(10.0.20348)/amd64'."
    )
    return option(function)
