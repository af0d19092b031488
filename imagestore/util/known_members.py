"""Tables of the members that a kind of object has, to name those that it hasn't and what was probably meant."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

#: Members by name: None for a leaf (or an object with free keys), a table for an object, a list of one for a list.
Table: TypeAlias = "dict[str, Table | list[Table] | None]"

_NEAR: Final = 0.75
_MOST_COMPARED: Final = 120


class Unknown(NamedTuple):
    """A member that its object's table hasn't.

    Attributes:
        path: with the member.
        name: of the member.
        meant: the known name that is like it; empty when none is.
    """

    path: str
    name: str
    meant: str


def leaves(names: str) -> Table:
    """Members without members of their own, from their names with blanks between them."""
    return dict.fromkeys(names.split())


def nearest(name: str, known: Iterable[str], *, likeness: float = _NEAR) -> str:
    """The known name that another one was probably meant to be; empty when none is like it.

    >>> nearest("hostPid", ["hostIPC", "hostPID"])
    'hostPID'
    """
    by_lower = {each.lower(): each for each in known}
    found = difflib.get_close_matches(name[:_MOST_COMPARED].lower(), by_lower, n=1, cutoff=likeness)
    return by_lower[found[0]] if found else ""


def unknown(value: Mapping[str, object], table: Table, path: str = "") -> Iterator[Unknown]:
    """Each member that the table hasn't, on every level, in the order of the document.

    Args:
        value: a decoded object.
        table: the members that it may have.
        path: of the object.

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
    """The end of a message; empty when nothing is like the unknown name."""
    return f"; did you mean {meant}?" if meant else ""
