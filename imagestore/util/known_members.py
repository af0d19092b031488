"""Members of decoded objects: under any spelling, as Go finds them; unknown ones, and what was probably meant."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from imagestore.util.members import Members

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

#: Members by name: None for a leaf (or an object with free keys), a table for an object, a list of one for a list.
Table: TypeAlias = "dict[str, Table | list[Table] | None]"

_NEAR: Final = 0.75
_MOST_COMPARED: Final = 120


class Unknown(NamedTuple):
    """A member, at ``path``, that its object's table lacks; ``meant`` is the known name like it, or empty."""

    path: str
    name: str
    meant: str


def leaves(names: str) -> Table:
    """A table of members without members of their own, from their names with blanks between them."""
    return dict.fromkeys(names.split())


def nearest(name: str, known: Iterable[str], *, likeness: float = _NEAR) -> str:
    """The known name that was probably meant; empty if none is like it.

    >>> nearest("hostPid", ["hostIPC", "hostPID"])
    'hostPID'
    """
    by_lower = {each.lower(): each for each in known}
    found = difflib.get_close_matches(name[:_MOST_COMPARED].lower(), by_lower, n=1, cutoff=likeness)
    return by_lower[found[0]] if found else ""


def unknown(value: Mapping[str, object], table: Table, path: str = "") -> Iterator[Unknown]:
    """Each member of a decoded object that the table lacks, on every level, in the order of the document.

    >>> [*unknown({"a": {"hostPid": 1}}, {"a": {"hostPID": None}})]
    [Unknown(path='a.hostPid', name='hostPid', meant='hostPID')]
    """
    for name, inner in value.items():
        here = f"{path}.{name}" if path else name
        if name not in table:
            yield Unknown(here, name, nearest(name, table))
            continue
        known = table[name]
        if isinstance(known, dict) and isinstance(inner, dict):
            yield from unknown(inner, known, here)
        elif isinstance(known, list) and isinstance(inner, list):
            for number, each in enumerate(inner):
                if isinstance(each, dict):
                    yield from unknown(each, known[0], f"{here}[{number}]")


def did_you_mean(meant: str) -> str:
    """The end of a message about an unknown name."""
    return f"; did you mean {meant}?" if meant else ""


def spellings(value: Mapping[str, object], name: str) -> list[str]:
    """The names under which an object has a member, in order.

    >>> spellings({"Auths": {}, "x": 1, "auths": {}}, "auths")
    ['Auths', 'auths']
    """
    folded = name.casefold()
    return [key for key in value if key.casefold() == folded]


def member(value: Mapping[str, object], name: str) -> object:
    """A member under any spelling; None when it isn't there.

    >>> member({"Auths": {"a": 1}, "auths": {"b": 2}}, "auths")
    {'a': 1, 'b': 2}
    """
    found: object = None
    for key in spellings(value, name):
        one = value[key]
        if isinstance(found, dict) and isinstance(one, dict):
            found = {**found, **one}
        elif one is not None:
            found = one
    return found


def login_members(entry: object, path: str, error: Callable[[str, str], Exception]) -> Members:
    """The members of one login in Docker's configuration, under any spelling; see Members."""
    names = ("auth", "username", "password", "identitytoken", "registrytoken")
    found = Members(entry, path, error).values
    return Members({name: member(found, name) for name in names}, path, error)
