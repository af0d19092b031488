"""Man pages, one for the program and one for each command; hatch_build.py puts them into the wheel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from docs._tools.commands import Found, all_commands, flat
from imagestore.cli.exit_codes import MEANINGS

if TYPE_CHECKING:
    from collections.abc import Iterator


def man_pages() -> dict[str, str]:
    """File name to text."""
    program = all_commands()
    return {f"{_title(each)}.1": "\n".join(_page(each, program)) + "\n" for each in flat(program)}


def _title(command: Found) -> str:
    return command.name.replace(" ", "-")


def _page(command: Found, program: Found) -> Iterator[str]:
    yield f'.TH "{_title(command).upper()}" "1" "" "imagestore" "imagestore manual"'
    yield from (".SH NAME", f"{_text(_title(command))} \\- {_text(command.summary.rstrip('.'))}")
    yield from (".SH SYNOPSIS", f".B {_text(command.name)}", _text(command.usage))
    yield ".SH DESCRIPTION"
    for paragraph in command.paragraphs:
        yield from (".PP", *map(_text, paragraph.splitlines()))
    if command.options:
        yield ".SH OPTIONS"
        for names, text in command.options:
            yield from (".TP", f"\\fB{_text(names)}\\fR", _text(" ".join(text.split())))
    if command.children:
        yield ".SH COMMANDS"
        for child in command.children:
            yield from (".TP", f"\\fB{_text(child.name)}\\fR", _text(child.summary))
    if command is program:
        yield ".SH EXIT STATUS"
        for status, meaning in MEANINGS.items():
            yield from (".TP", f"\\fB{status.value}\\fR", _text(meaning))
    yield ".SH SEE ALSO"
    others = [program, *program.children] if command is program else [program]
    yield ",\n".join(f"\\fB{_text(_title(each))}\\fR(1)" for each in others)


def _text(text: str) -> str:
    """A line of text; what roff would take for its own is escaped."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq")
    return f"\\&{escaped}" if escaped.startswith(".") else escaped
