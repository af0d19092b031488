"""Scopes: what a token allows (distribution's token specification, "Token Scope Documentation").

``type[(class)]:name:action[,action…]``. The name may hold a ``host:port``, so the text is cut at its first and its last
colon. Text of any other shape is a service's own scope (Amazon's public gallery: ``aws``) and is kept as it is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from imagestore.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Self

MAX_SCOPES: Final = 64
REPOSITORY: Final = "repository"

# RFC 6749 section 3.3: printable ASCII without the quotation mark and the backslash.
_LEGAL: Final = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]+")
_TYPE: Final = re.compile(r"([a-z0-9]+)(?:\(([a-z0-9]+)\))?")


@dataclass(frozen=True, slots=True, order=True)
class Scope:
    """Actions on one resource, sorted, each once. A scope of another shape has only a type, which is its whole text.

    >>> str(Scope.parse("repository:registry.example:5000/a/b:push,pull,pull"))
    'repository:registry.example:5000/a/b:pull,push'
    """

    type: str
    resource_class: str = ""
    name: str = ""
    actions: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read one scope.

        Raises:
            InvalidInputError: it is empty or has characters no scope may have.
        """
        if not _LEGAL.fullmatch(text):
            raise InvalidInputError("scope: expected printable ASCII without spaces, quotes and backslashes")
        head, colon, rest = text.partition(":")
        name, last, actions = rest.rpartition(":")
        kind = _TYPE.fullmatch(head)
        if not (colon and last and name and kind):
            return cls(text)
        words = tuple(sorted({action for action in actions.split(",") if action}))
        return cls(kind.group(1), kind.group(2) or "", name, words)

    @classmethod
    def pull(cls, repository: str) -> Self:
        """What reading one repository needs."""
        return cls(REPOSITORY, "", repository, ("pull",))

    def __str__(self) -> str:
        if not self.name:
            return self.type
        kind = f"{self.type}({self.resource_class})" if self.resource_class else self.type
        return f"{kind}:{self.name}:{','.join(self.actions)}"


def parse_scopes(text: str) -> tuple[Scope, ...]:
    """Read a list separated by spaces, as the ``scope`` parameter of a challenge has it; merged and sorted.

    Raises:
        InvalidInputError: a scope is illegal, or there are more than ``MAX_SCOPES``.
    """
    words = [word for word in text.split(" ") if word]
    if len(words) > MAX_SCOPES:
        raise InvalidInputError(f"scope list: expected at most {MAX_SCOPES} scopes, {len(words)} came")
    return merge_scopes(Scope.parse(word) for word in words)


def merge_scopes(scopes: Iterable[Scope]) -> tuple[Scope, ...]:
    """One scope per resource with the union of the actions, sorted.

    >>> [str(scope) for scope in merge_scopes([Scope.parse("repository:a:push"), Scope.pull("a")])]
    ['repository:a:pull,push']
    """
    actions: dict[tuple[str, str, str], set[str]] = {}
    for scope in scopes:
        actions.setdefault((scope.type, scope.resource_class, scope.name), set()).update(scope.actions)
    return tuple(sorted(Scope(*resource, tuple(sorted(words))) for resource, words in actions.items()))


def wanted_scopes(repository: str, challenged: tuple[Scope, ...]) -> tuple[Scope, ...]:
    """The scopes to request from a token service, to read ``repository`` after a challenge.

    A challenge that names a repository decides alone: behind a mirror the repository may have another name, and some
    services refuse a list with an unknown scope. Without a repository (``/v2/``) only the challenge counts.
    """
    if not repository or any(scope.type == REPOSITORY and scope.name for scope in challenged):
        return challenged
    return merge_scopes((*challenged, Scope.pull(repository)))
