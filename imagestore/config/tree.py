"""A configuration as a tree whose every key knows the file and line that set it.

Migration moves keys and imports overwrite them; the location stays with the value, so that a message about the merged
result points at the line to change.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@dataclass(frozen=True, slots=True)
class Location:
    """A place in a configuration file.

    Attributes:
        file: path as it was opened, or a name for text that came from elsewhere.
        line: 1-based; 0 for the file as a whole; None when the key's line can't be told.

    >>> str(Location("config.toml", 7)), str(Location("config.toml", 0)), str(Location("config.toml", None))
    ('config.toml:7', 'config.toml', 'config.toml (line unknown)')
    """

    file: str
    line: int | None

    def __str__(self) -> str:
        if self.line is None:
            return f"{self.file} (line unknown)"
        return f"{self.file}:{self.line}" if self.line else self.file


#: The location of a value that no file sets.
BUILT_IN: Final = Location("built-in default", 0)


Scalar: TypeAlias = "str | int | float | bool | datetime.datetime | datetime.date | datetime.time"
#: A value without locations: what TOML can say.
Plain: TypeAlias = "Scalar | list[Plain] | dict[str, Plain]"
#: A table whose keys know their lines. Lists stay plain: nothing migrates or merges inside one.
Table: TypeAlias = "dict[str, Entry]"
Path: TypeAlias = "tuple[str, ...]"


@dataclass(frozen=True, slots=True)
class Entry:
    """A key's value and where it was set.

    Attributes:
        value: scalar, list, or a table of entries.
        location: of the key, or of the table's header.
        spelling: the key as written, where that differs from its known name; else empty.
        path: the whole key as it stands in its file, in whatever version that is; empty for what no file holds.
    """

    value: Scalar | list[Plain] | Table
    location: Location
    spelling: str = ""
    path: Path = field(default=(), compare=False)


def build(document: Mapping[str, Plain], locate: Callable[[Path], Location], path: Path = ()) -> Table:
    """Turn a parsed document, whose own key path is ``path``, into a tree; ``locate`` gives a key path's location."""
    table: Table = {}
    for name, value in document.items():
        here = (*path, name)
        inner = build(value, locate, here) if isinstance(value, dict) else value
        table[name] = Entry(inner, locate(here), path=here)
    return table


def plain(table: Table) -> dict[str, Plain]:
    """The tree without its locations."""
    return {name: plain_value(entry) for name, entry in table.items()}


def plain_value(entry: Entry) -> Plain:
    """A value without its locations."""
    return plain(entry.value) if isinstance(entry.value, dict) else entry.value


def child(table: Table, name: str) -> Table:
    """The table under a name; empty if there is none, or another value."""
    entry = table.get(name)
    return entry.value if entry is not None and isinstance(entry.value, dict) else {}


def is_zero(value: Scalar | list[Plain] | Table) -> bool:
    """Whether Go would call it a zero value: false, 0, an empty text, list or table."""
    return not value and not isinstance(value, datetime.time)
