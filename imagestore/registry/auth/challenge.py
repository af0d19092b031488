"""Parses ``WWW-Authenticate`` (RFC 9110 section 11.6.1; Bearer's parameters: RFC 6750) and the scopes in it.

The field is a comma list of challenges, and a challenge holds a comma list of parameters, so a comma alone separates
neither. Each list element is one of: nothing; ``name = value`` (belongs to the challenge before it); ``scheme``;
``scheme`` with a token68 or with its first parameter. An element is a parameter exactly when its first token is
followed by ``=``.

Registries deviate from the grammar; unambiguous deviations are accepted, as by skopeo:

- ``scope`` several times: all are requested. Another parameter twice: the last value, but a realm with two values is
  refused, since a login is sent there.
- Values that need quotes and have none, or have single ones; no comma, or a semicolon, between parameters.
- A Bearer challenge with a syntax error: the parameters before the error count.

Scopes are what a token allows (distribution's token specification, "Token Scope Documentation"):
``type[(class)]:name:action[,action…]``. The name may hold a ``host:port``, so the text is cut at its first and its last
colon. Text of any other shape is a service's own scope (Amazon's public gallery: ``aws``) and is kept as it is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from imagestore.errors import InvalidInputError, ProtocolError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Self

#: All ``WWW-Authenticate`` fields of one answer together; real ones stay below 1 KiB.
MAX_LENGTH: Final = 8192
MAX_CHALLENGES: Final = 16
MAX_PARAMETERS: Final = 32
_BASIC: Final = re.compile(r"[ \t,]*basic[ \t]", re.IGNORECASE)
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_SPACE: Final = re.compile(r"[ \t]*")
_EMPTY_ELEMENTS: Final = re.compile(r"[ \t,]*")
_EQUALS: Final = re.compile(r"[ \t]*=[ \t]*")
# A token68 ends its list element; without the look-ahead "realm=x" would begin with the token68 "realm=".
_TOKEN68: Final = re.compile(r"([A-Za-z0-9._~+/-]+=*)[ \t]*(?=,|\Z)")
_QUOTED: Final = re.compile(r'"((?:[^"\\\x00-\x08\x0a-\x1f\x7f]|\\[^\x00-\x08\x0a-\x1f\x7f])*)"')
_ESCAPE: Final = re.compile(r"\\(.)")
# Unquoted values: some registries write URLs and scopes without the required quotes.
_UNQUOTED: Final = re.compile(r'[^\s",;\x00-\x1f\x7f-\xff]+')
_NEXT_PARAMETER: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+[ \t]*=")
# An action that may follow a comma in an unquoted scope.
_ACTIONS: Final = frozenset({"pull", "push", "delete", "*"})
MAX_SCOPES: Final = 64
REPOSITORY: Final = "repository"

# RFC 6749 section 3.3: printable ASCII without the quotation mark and the backslash.
_LEGAL_SCOPE: Final = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]+")
_RESOURCE_TYPE: Final = re.compile(r"([a-z0-9]+)(?:\(([a-z0-9]+)\))?")


@dataclass(frozen=True, slots=True)
class Challenge:
    """One authentication scheme that a server offers.

    Attributes:
        scheme: lower case, for example ``bearer``.
        params: names in lower case with their unquoted values, in order; a name occurs once.
        token68: the opaque argument some schemes have instead of parameters.

    >>> parse_challenges(['Bearer realm="https://auth.example/t",scope="repository:a:pull,push"'])[0].get("scope")
    'repository:a:pull,push'
    """

    scheme: str
    params: tuple[tuple[str, str], ...] = ()
    token68: str = ""

    def get(self, name: str) -> str:
        """Value of a parameter (name in lower case), or an empty text."""
        return next((value for key, value in self.params if key == name), "")


def parse_challenges(values: Iterable[str]) -> tuple[Challenge, ...]:
    """Read every ``WWW-Authenticate`` field of one answer, in order.

    Unknown schemes are returned as well; the caller chooses. A field that can't be read doesn't affect the others.
    Basic needs none of its parameters, and nginx doesn't escape quotes inside a realm: so an unreadable Basic challenge
    counts if there is no other.

    Raises:
        ProtocolError: the fields exceed the limits of this module; or one can't be read, and neither it nor another has
            a challenge that can be answered.
    """
    fields = list(values)
    length = sum(map(len, fields))
    if length > MAX_LENGTH:
        raise ProtocolError(f"WWW-Authenticate: expected at most {MAX_LENGTH} characters, {length} came")
    found: list[Challenge] = []
    fault: ProtocolError | None = None
    for field in fields:
        parser = _Parser(field)
        try:
            found.extend(parser.parse())
        except ProtocolError as error:
            fault = fault or error
            found.extend(parser.answerable_before_fault())
        if len(found) > MAX_CHALLENGES:
            raise ProtocolError(f"WWW-Authenticate: expected at most {MAX_CHALLENGES} challenges, more came")
    if fault is not None and not any(map(_is_answerable, found)):
        if not any(_BASIC.match(field) for field in fields):
            raise fault
        found.append(Challenge("basic"))
    return tuple(found)


def _is_answerable(challenge: Challenge) -> bool:
    return challenge.scheme == "basic" or (challenge.scheme == "bearer" and bool(challenge.get("realm")))


class _Parser:
    """A cursor over one field; every step advances or raises."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.scheme = ""
        self.params: dict[str, str] = {}
        self.token68 = ""
        # The last parameter is an unquoted scope; its next action may follow.
        self.has_open_scope = False
        self.done: list[Challenge] = []

    def parse(self) -> list[Challenge]:
        """All challenges of the field, in order.

        Raises:
            ProtocolError: the field breaks the grammar in a way that is not tolerated; see answerable_before_fault().
        """
        self._skip(_EMPTY_ELEMENTS)
        while self.at < len(self.text):
            self._element()
            self._separator()
        self._finish()
        return self.done

    def answerable_before_fault(self) -> list[Challenge]:
        """The Bearer challenges that were read before a fault, if they can be answered."""
        last = Challenge(self.scheme, tuple(self.params.items()))
        return [
            challenge for challenge in (*self.done, last) if challenge.scheme == "bearer" and _is_answerable(challenge)
        ]

    def _separator(self) -> None:
        self._skip(_SPACE)
        here = self.text[self.at : self.at + 1]
        is_parameter_next = self.params and _NEXT_PARAMETER.match(self.text, self.at)
        if here == ";" and self.params:
            self.at += 1
        elif here not in {"", ","} and not is_parameter_next:
            raise self._fault("a comma")
        self._skip(_EMPTY_ELEMENTS)

    def _element(self) -> None:
        name = self._token("a scheme or a parameter name")
        equals = _EQUALS.match(self.text, self.at)
        if equals:
            self.at = equals.end()
            self._parameter(name)
            return
        if name in _ACTIONS and self.has_open_scope:
            self.params["scope"] += f",{name}"
            return
        self._finish()
        self.scheme = name.lower()
        spaces = self._skip(_SPACE)
        if self.at == len(self.text) or self.text[self.at] == ",":
            return
        if not spaces:
            raise self._fault("a space after the scheme")
        opaque = _TOKEN68.match(self.text, self.at)
        if opaque:
            self.token68 = opaque.group(1)
            self.at = opaque.end()
            return
        first = self._token("a parameter name")
        equals = _EQUALS.match(self.text, self.at)
        if not equals:
            raise self._fault("'=' after a parameter name")
        self.at = equals.end()
        self._parameter(first)

    def _parameter(self, name: str) -> None:
        key = name.lower()
        if not self.scheme or self.token68:
            raise self._fault(f"a scheme before parameter {key[:40]!r}")
        if len(self.params) == MAX_PARAMETERS and key not in self.params:
            raise self._fault(f"at most {MAX_PARAMETERS} parameters")
        before = self.params.get(key)
        self.has_open_scope = key == "scope" and self.text[self.at : self.at + 1] != '"'
        value = self._value()
        if key == "scope" and before:
            value = f"{before} {value}"
        elif key == "realm" and before not in {None, value}:
            # The login is sent to the realm, and it isn't clear which of the two is meant.
            del self.params[key]
            raise self._fault("parameter 'realm' only once")
        self.params[key] = value

    def _value(self) -> str:
        if self.text[self.at : self.at + 1] != '"':
            found = _UNQUOTED.match(self.text, self.at)
            if not found:
                raise self._fault("a value")
            self.at = found.end()
            value = found.group()
            return value[1:-1] if value[0] == value[-1] == "'" and len(value) > 2 else value
        quoted = _QUOTED.match(self.text, self.at)
        if not quoted:
            raise self._fault("a closed quoted value without control characters")
        self.at = quoted.end()
        return _ESCAPE.sub(r"\1", quoted.group(1))

    def _token(self, what: str) -> str:
        found = _TOKEN.match(self.text, self.at)
        if not found:
            raise self._fault(what)
        self.at = found.end()
        return found.group()

    def _skip(self, pattern: re.Pattern[str]) -> bool:
        found = pattern.match(self.text, self.at)
        moved = found is not None and found.end() > self.at
        self.at = found.end() if found else self.at
        return moved

    def _finish(self) -> None:
        if self.scheme:
            self.done.append(Challenge(self.scheme, tuple(self.params.items()), self.token68))
        if len(self.done) > MAX_CHALLENGES:
            raise self._fault(f"at most {MAX_CHALLENGES} challenges")
        self.scheme, self.params, self.token68 = "", {}, ""
        self.has_open_scope = False

    def _fault(self, expected: str) -> ProtocolError:
        return ProtocolError(f"WWW-Authenticate: at position {self.at}: expected {expected}")


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
        if not _LEGAL_SCOPE.fullmatch(text):
            raise InvalidInputError("scope: expected printable ASCII without spaces, quotes and backslashes")
        head, colon, rest = text.partition(":")
        name, last, actions = rest.rpartition(":")
        kind = _RESOURCE_TYPE.fullmatch(head)
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
