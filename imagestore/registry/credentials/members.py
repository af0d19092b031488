"""Members of JSON objects that tools written in Go write and read.

Rule (Go, encoding/json, Unmarshal): a member's name is compared without case. Where several spellings are there, a
later value replaces an earlier one, objects are merged, and null changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


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
