"""The pages of the command line reference, one for each command."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from docs._tools.commands import Found, all_commands, flat
from imagestore.cli.exit_codes import MEANINGS

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Characters that Markdown would take for its own.
_SPECIAL: Final = re.compile(r"([\\*_\[\]`#])")


def cli_pages() -> dict[str, str]:
    """Path below ``docs/`` to text."""
    program = all_commands()
    # Not the index page of a folder: the menu would take it for that of the whole reference.
    pages = {"reference/command-line.md": "\n".join(_index(program))}
    for command in program.children:
        parts = ["\n".join(_section(each, 1 if each is command else 2)) for each in flat(command)]
        pages[f"reference/cli/{command.path[0]}.md"] = "\n".join(parts)
    return pages


def exit_status_table() -> str:
    """The table of exit statuses."""
    rows = [f"| {status.value} | {meaning} |" for status, meaning in MEANINGS.items()]
    return "\n".join(["| exit status | meaning |", "|---|---|", *rows])


def _index(program: Found) -> Iterator[str]:
    yield from ("# Command line", "", "Made from the commands themselves. `--help` prints the same text.", "")
    yield from ("| command | what it does |", "|---|---|")
    for command in program.children:
        yield f"| [`{command.name}`](cli/{command.path[0]}.md) | {_escaped(command.summary)} |"
    yield from ("", "## Global options", "", "They stand before the command.", "")
    yield from _options(program)
    yield from ("", "Exit statuses are on [their own page](exit-statuses.md).", "")


def _section(command: Found, level: int) -> Iterator[str]:
    yield from (f"{'#' * level} {command.name}", "", "```", f"{command.name} {command.usage}", "```", "")
    for paragraph in command.paragraphs:
        yield from (_escaped(paragraph), "")
    if command.options:
        yield from _options(command)
        yield ""


def _options(command: Found) -> Iterator[str]:
    yield from ("| option | meaning |", "|---|---|")
    for names, text in command.options:
        meaning = _escaped(" ".join(text.split()))
        yield "| `{}` | {} |".format(names.replace("|", "\\|"), meaning.replace("|", "\\|"))


def _escaped(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", text).replace("<", "&lt;")
