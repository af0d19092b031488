"""What click's commands have in common: the App they are handed, and their output option."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, TypeVar

import click

from imagestore.cli.app import App as App

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

F = TypeVar("F", bound="Callable[..., Any]")


class GivenPath(click.Path):
    """A path that isn't empty: an unset variable of a script must not mean the folder that it runs in.

    Whether it can be read is for who needs it to tell, in words of ours.
    """

    def __init__(self, **given: Any) -> None:
        super().__init__(readable=False, **given)

    def split_envvar_value(self, rv: str) -> Sequence[str]:
        """Paths between colons, as click does, without the nothing that a script leaves at an end."""
        return [each for each in super().split_envvar_value(rv) if each]

    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> str | bytes | os.PathLike[str]:
        """Refuse an empty text, and read the rest as click does."""
        if not os.fspath(value):
            self.fail("expected a path, it is empty", param, ctx)
        return super().convert(value, param, ctx)


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
