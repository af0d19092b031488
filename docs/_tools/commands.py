"""The commands of the command line as values, for their pages and man pages."""

from __future__ import annotations

import inspect
from dataclasses import dataclass

import click

from imagestore.cli.main import cli


@dataclass(frozen=True)
class Found:
    """A command.

    Attributes:
        path: its words behind ``imagestore``; none for the program itself.
        summary: its line in the list of commands.
        usage: the words that follow its name.
        paragraphs: its help.
        options: each option with its help.
        children: commands of a group.
    """

    path: tuple[str, ...]
    summary: str
    usage: str
    paragraphs: tuple[str, ...]
    options: tuple[tuple[str, str], ...]
    children: tuple[Found, ...]

    @property
    def name(self) -> str:
        """As it is typed."""
        return " ".join(("imagestore", *self.path))


def all_commands() -> Found:
    """The program with every command below it."""
    return _read(cli, click.Context(cli, info_name="imagestore", **cli.context_settings), ())


def _read(command: click.Command, context: click.Context, path: tuple[str, ...]) -> Found:
    children = []
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            if not child.hidden:
                inner = click.Context(child, info_name=name, parent=context)
                children.append(_read(child, inner, (*path, name)))
    help_text = inspect.cleandoc(command.help or "").replace("\b\n", "")
    options = [param for param in command.get_params(context) if isinstance(param, click.Option)]
    records = [option.get_help_record(context) for option in options]
    return Found(
        path=path,
        summary=command.get_short_help_str(limit=200),
        usage=" ".join(command.collect_usage_pieces(context)),
        paragraphs=tuple(part for part in help_text.split("\n\n") if part),
        options=tuple(record for record in records if record is not None),
        children=tuple(children),
    )


def flat(command: Found) -> list[Found]:
    """The command and all below it."""
    return [command, *(each for child in command.children for each in flat(child))]
