"""What messages and dumps show of a file's values: those of known keys, without the logins of addresses; no others.

Nothing is guessed. A text under a key that isn't known here may be a secret, whatever its name.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import imagestore.util.members as members
from imagestore.config.known import normal_member
from imagestore.util.logins import without_login
from imagestore.util.secret import REDACTED

if TYPE_CHECKING:
    from imagestore.config.known import Shape
    from imagestore.config.tree import Plain

_QUOTED: Final = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""", re.DOTALL)


def kind_of(value: object) -> str:
    """The kind of a value in words, for messages that must not repeat it."""
    return "a table" if isinstance(value, dict) else members.kind_of(value)


def quoted_without_logins(message: str) -> str:
    """A parser's message without logins in the names that it quotes.

    >>> quoted_without_logins("Cannot declare ('a', 'user:word@m.example') twice")
    "Cannot declare ('a', '***@m.example') twice"
    """
    return _QUOTED.sub(lambda found: f"{found[0][0]}{without_login(found[0][1:-1])}{found[0][0]}", message)


def known_values(value: Plain, shape: Shape) -> Plain:
    """A value as a dump shows it.

    Args:
        value: of a key that is known.
        shape: what is known of it, if it is a table.
    """
    if isinstance(value, dict):
        return _renamed({name: _member(name, inner, shape) for name, inner in value.items()})
    if isinstance(value, list):
        return [hidden(inner) if isinstance(inner, dict) else known_values(inner, shape) for inner in value]
    if shape.is_login or any(inner.is_login for inner in shape.inside.values()):
        return hidden(value)  # a login that was written in place of its table
    return without_login(value) if isinstance(value, str) else value


def _member(name: str, value: Plain, shape: Shape) -> Plain:
    inside = shape.inside.get(name, shape.each)
    # normal_member, since a member of guest_platform that is given in two spellings keeps both.
    is_shown = name.lower() == "username" if shape.is_login else normal_member(name) in shape.names
    if inside is None and (not is_shown or isinstance(value, dict)):
        return hidden(value)
    return known_values(value, shape.at(name))


def hidden(value: Plain) -> Plain:
    """The form of a value, with all texts and numbers redacted."""
    if isinstance(value, dict):
        return _renamed({name: hidden(inner) for name, inner in value.items()})
    if isinstance(value, list):
        return [hidden(inner) for inner in value]
    return value if value == "" or isinstance(value, bool) else REDACTED


def _renamed(table: dict[str, Plain]) -> dict[str, Plain]:
    """The table without logins in its keys; keys that become equal are numbered."""
    found: dict[str, Plain] = {}
    for name, value in table.items():
        shown = plain = without_login(name)
        while shown in found:
            shown = f"{plain} ({len(found) + 1})"
        found[shown] = value
    return found
