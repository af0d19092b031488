"""Ranges of semantic versions, as skopeo's library (Masterminds/semver 3) reads them in ``images-by-semver``.

``,`` and blanks mean and, ``||`` means or. Parts of a version that lack, or are ``x``, ``X`` or ``*``, stand for any.
A version before a release fits only the alternatives that name such a version themselves.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

#: Three numbers, whether it is a release, and the parts of what stands before one; compared as semver.org says.
Key: TypeAlias = "tuple[int, int, int, bool, tuple[tuple[bool, int, str], ...]]"

_EARLY: Final = r"-(?P<early>[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)"
_BUILD: Final = r"\+[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*"
_VERSION: Final = re.compile(rf"v?(?P<numbers>\d{{1,18}}(?:\.\d{{1,18}}){{0,2}})(?:{_EARLY})?(?:{_BUILD})?")
_PART: Final = r"(?:\d{1,18}|[xX*])"
_CONSTRAINT: Final = re.compile(
    rf"(?P<operator>=>|=<|>=|<=|!=|~>|[=<>~^])?\s*v?(?P<numbers>{_PART}(?:\.{_PART}){{0,2}})(?:{_EARLY})?(?:{_BUILD})?"
)
_HYPHEN: Final = re.compile(r"(\S+)\s+-\s+(\S+)")
_SPELLED: Final = {"=>": ">=", "=<": "<=", "~>": "~", None: "="}


def version_range(text: str) -> Callable[[str], bool]:
    """Whether a tag is a version in a range; tags that are no versions aren't.

    Raises:
        ValueError: the range can't be read.

    >>> fits = version_range(">= 1.2, < 2 || ~3.1")
    >>> [tag for tag in ("1.2", "v1.10.0", "2.0.0", "3.1.7", "latest", "1.5.0-rc1") if fits(tag)]
    ['1.2', 'v1.10.0', '3.1.7']
    """
    alternatives = [_alternative(part) for part in text.split("||")]

    def _fits(tag: str) -> bool:
        found = _VERSION.fullmatch(tag)
        if found is None:
            return False
        numbers = [int(part) for part in found["numbers"].split(".")]
        key = _key([*numbers, 0, 0][:3], found["early"])
        return any(
            (found["early"] is None or takes_early) and all(fits(key) for fits in constraints)
            for takes_early, constraints in alternatives
        )

    return _fits


def _alternative(text: str) -> tuple[bool, list[Callable[[Key], bool]]]:
    """Whether it names a version before a release, and its constraints."""
    left = _HYPHEN.sub(r">=\1 <=\2", text).replace(",", " ").strip()
    takes_early, constraints = False, []
    while left:
        found = _CONSTRAINT.match(left)
        if found is None or left[found.end() : found.end() + 1].strip():
            raise ValueError(f"{left[:40]!r} is no range of versions")
        takes_early |= found["early"] is not None
        constraints.append(_constraint(_SPELLED.get(found["operator"], found["operator"]), found))
        left = left[found.end() :].lstrip()
    if not constraints:
        raise ValueError("an empty range")
    return takes_early, constraints


def _constraint(operator: str | None, found: re.Match[str]) -> Callable[[Key], bool]:
    given: list[int] = []
    for part in found["numbers"].split("."):
        if not part.isdigit():
            break
        given.append(int(part))
    if not given:
        fits_any = operator not in {"!=", "<", ">"}
        return lambda _: fits_any
    low = _key([*given, 0, 0][:3], found["early"])
    # The first release above all that the given parts stand for.
    above = low if len(given) == 3 else _next(given, len(given))
    if operator == "^":
        lead = next((number for number, part in enumerate(given) if part), len(given) - 1)
        return lambda key: low <= key < _next(given, lead + 1)
    if operator == "~":
        return lambda key: low <= key < _next(given, min(len(given), 2))
    if operator in {"=", "!="}:
        is_wanted = operator == "="
        return lambda key: (key == low if len(given) == 3 else low <= key < above) is is_wanted
    if operator == ">":
        return lambda key: key > low if len(given) == 3 else key >= above
    if operator == "<=":
        return lambda key: key <= low if len(given) == 3 else key < above
    return (lambda key: key >= low) if operator == ">=" else (lambda key: key < low)


def _next(given: list[int], length: int) -> Key:
    """The release that follows all with the first ``length`` parts."""
    parts = [*given[: length - 1], given[length - 1] + 1]
    return _key([*parts, 0, 0][:3], None)


def _key(numbers: list[int], early: str | None) -> Key:
    parts = (
        ()
        if early is None
        else tuple((not part.isdigit(), int(part) if part.isdigit() else 0, part) for part in early.split("."))
    )
    return numbers[0], numbers[1], numbers[2], early is None, parts
