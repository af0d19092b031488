"""Groups of commands that are imported when they run, so that ``--help`` loads none of them."""

from __future__ import annotations

import difflib
import importlib
from typing import TYPE_CHECKING, Any, TypeAlias

import click

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Command name to module, attribute and the one line that --help shows.
Table: TypeAlias = "Mapping[str, tuple[str, str, str]]"


class LazyGroup(click.Group):
    """A group that imports a command's module only when the command runs.

    Args:
        sections: the commands under the headings of --help, in its order.
        settings: everything else a click group takes.
    """

    def __init__(self, *, sections: Mapping[str, Table], **settings: Any) -> None:
        super().__init__(**settings)
        self.sections = sections
        self.table = {name: entry for table in sections.values() for name, entry in table.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of the table."""
        return [*self.table, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command."""
        entry = self.table.get(cmd_name)
        if entry is None:
            return super().get_command(ctx, cmd_name)
        module, attribute, _ = entry
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command; a name that none has is told with those that are near."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            name = args[0]
            if name in self.table or name.startswith("-"):
                raise
            near = " or ".join(map(repr, difflib.get_close_matches(name, self.table)))
            if not near:
                raise
            raise click.UsageError(f"{error.message} Did you mean {near}?", ctx) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The command list, from the tables alone."""
        width = max(map(len, self.table))
        for heading, table in self.sections.items():
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(width), line) for name, (_, _, line) in table.items()])
