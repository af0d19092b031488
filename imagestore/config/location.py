"""Where in a configuration something stands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


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


#: Where a value comes from that no file sets.
BUILT_IN: Final = Location("built-in default", 0)
