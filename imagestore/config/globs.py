"""Path patterns in Go's dialect (path/filepath.Glob and Match), which containerd's ``imports`` use.

Not the shell's: ``*`` finds hidden files too, ``[^a]`` negates, a backslash quotes the next character, and there is no
``**``. Results are in byte order of their names.
"""

from __future__ import annotations

import os
import re
from typing import Final

_MAGIC: Final = re.compile(r"[*?\[\\]")


def expand(pattern: str) -> list[str]:
    """Find the paths that a pattern stands for. Folders that can't be read are skipped, as in Go.

    Raises:
        ValueError: the pattern is malformed.
    """
    if not _MAGIC.search(pattern):
        return [pattern] if os.path.lexists(pattern) else []
    head, tail = os.path.split(pattern)
    component = compile_component(tail)
    found: list[str] = []
    for folder in expand(head) if _MAGIC.search(head) else [head]:
        try:
            names = os.listdir(folder or ".")
        except (OSError, ValueError):
            continue
        hits = sorted(filter(component.fullmatch, names), key=os.fsencode)
        found.extend(os.path.join(folder, name) for name in hits)
    return found


def compile_component(pattern: str) -> re.Pattern[str]:
    """Translate one path component; use ``fullmatch``.

    Raises:
        ValueError: an unclosed or empty ``[...]``, or a backslash at the end.

    >>> bool(compile_component("*.t[o-p]ml").fullmatch(".a.toml")), bool(compile_component("[^a]*").fullmatch("abc"))
    (True, False)
    """
    chunks, position = [""], 0
    while position < len(pattern):
        mark = pattern[position]
        if mark == "*":
            chunks.append("")
            position += 1
        elif mark == "?":
            chunks[-1] += "."
            position += 1
        elif mark == "[":
            text, position = _character_class(pattern, position + 1)
            chunks[-1] += text
        else:
            character, position = _character(pattern, position)
            chunks[-1] += re.escape(character)
    first, *rest = chunks
    if rest:
        *middle, last = rest
        # Atomic, since only the last star ever has to take more: so many stars take no exponential time.
        first += "".join(f"(?>.*?{chunk})" for chunk in middle if chunk) + f".*{last}"
    return re.compile(first, re.DOTALL)


def _character(pattern: str, position: int) -> tuple[str, int]:
    if pattern[position] == "\\":
        position += 1
        if position == len(pattern):
            raise ValueError("it ends in a backslash")
    return pattern[position], position + 1


def _character_class(pattern: str, position: int) -> tuple[str, int]:
    is_negated = pattern.startswith("^", position)
    position += is_negated
    start, ranges = position, ""
    while position == start or not pattern.startswith("]", position):
        low, position = _class_character(pattern, position)
        high = low
        if pattern.startswith("-", position):
            high, position = _class_character(pattern, position + 1)
        if low <= high:  # else it is empty
            ranges += f"{re.escape(low)}-{re.escape(high)}"
    if not ranges:
        return ("." if is_negated else "(?!)"), position + 1
    return f"[{'^' if is_negated else ''}{ranges}]", position + 1


def _class_character(pattern: str, position: int) -> tuple[str, int]:
    if position >= len(pattern):
        raise ValueError("a [ is not closed")
    if pattern[position] in "-]":
        raise ValueError(f"{pattern[position]!r} can't stand at position {position}")
    return _character(pattern, position)
