"""Paths below a root."""

from __future__ import annotations

from typing import Final

#: Names from the root down.
Parts = tuple[str, ...]
#: PATH_MAX of Linux without its end: no program can name what is deeper.
MOST_PATH_BYTES: Final = 4095


def parts_of(name: str) -> Parts:
    """The names of a path below a root; ``..`` leads to the root at most.

    >>> parts_of("./a//b/../c"), parts_of("/../../etc")
    (('a', 'c'), ('etc',))
    """
    parts: list[str] = []
    for part in name.split("/"):
        if part == "..":
            del parts[-1:]
        elif part not in ("", "."):
            parts.append(part)
    return tuple(parts)


def joined(parts: Parts) -> str:
    """The path of some names, without a slash in front; empty for the root."""
    return "/".join(parts)


def byte_length(path: str) -> int:
    """How many bytes a path has on disk.

    >>> byte_length("ü"), byte_length("\\udcff")
    (2, 1)
    """
    return len(path.encode("utf-8", "surrogateescape"))
