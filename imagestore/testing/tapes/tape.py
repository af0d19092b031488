"""A tape: what a recorded registry serves, as values and as canonical text (docs/reference/tape-format.md).

A *repository* is served by the registry's rules (any method, any Range, any order); an *exchange* is one recorded
answer to one request. Bodies are elsewhere: in a folder of blobs named by digest, shared by all tapes, or computed from
a seed.

The text has one order and one spelling, so the same content is always the same bytes. Strings are basic TOML strings
with every control character escaped, which keeps odd header bytes visible in a diff.
"""

from __future__ import annotations

import io
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from imagestore.testing.builders.bodies import SyntheticBody, SyntheticForm
from imagestore.testing.engine.urls import parse_path

if TYPE_CHECKING:
    from collections.abc import Mapping

    from imagestore.oci import Digest
    from imagestore.testing.engine.messages import Ending, Framing
    from imagestore.testing.faults.rules import FaultRule

FORMAT: Final = "imagestore-tape"
VERSION: Final = 1
#: How a tape's file name ends.
SUFFIX: Final = ".tape.toml"
_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")
_ESCAPES: Final = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_NUMBER: Final = re.compile(r"(tape-[a-z]+-)([0-9]{1,9})")
_STEPS: Final = {"ping": 0, "token": 1, "tags": 2, "manifest": 3, "blob": 4}


@dataclass(frozen=True, slots=True, order=True)
class TapeContent:
    """A body that the tape needs: digest, size in bytes, and the media type if it is a document."""

    digest: Digest
    size: int
    media_type: str = ""


@dataclass(frozen=True, slots=True)
class TapeSynthetic:
    """A body computed from a seed (imagestore.testing.builders.bodies)."""

    digest: Digest
    size: int
    seed: str
    form: SyntheticForm = "raw"


@dataclass(frozen=True, slots=True)
class TapeHost:
    """How a logical host behaves.

    Attributes:
        name: logical host.
        auth: ``none``, ``basic`` or ``token``.
        realm_host: where tokens are given; the host itself when empty.
        service: named in the challenge; the host when empty.
        users: names; the password of user ``x`` is always ``tape-password-x``, so a tape holds no secret.
        is_anonymous_allowed: whether everyone gets a token to pull.
        lifetime_seconds: of tokens.
    """

    name: str
    auth: str = "none"
    realm_host: str = ""
    service: str = ""
    users: tuple[str, ...] = ()
    is_anonymous_allowed: bool = True
    lifetime_seconds: int = 300


@dataclass(frozen=True, slots=True)
class TapeRepository:
    """One repository served by the registry's rules."""

    host: str
    path: str
    tags: Mapping[str, Digest] = field(default_factory=dict, hash=False)
    manifests: tuple[TapeContent, ...] = ()
    blobs: tuple[TapeContent, ...] = ()


@dataclass(frozen=True, slots=True)
class TapeExchange:
    """One recorded answer.

    Attributes:
        query: of the request; secrets in it are placeholders.
        authorization: ``""``, ``Basic`` or ``Bearer``, with a placeholder.
        range: the Range header, or empty.
        accept: the Accept header on manifests, or empty for any.
        form: the request's form (token requests), secrets replaced; empty for other bodies.
        headers: of the answer, sorted by name.
        body: digest of the answer's body, or None.
        text: a small answer written into the tape instead.
        stop_at, ending: the recorded answer broke off after this many bytes, and how.
        framing: how the answer's end was marked; see Delivery.
        times: how often the same answer came in a row.
    """

    method: str
    scheme: str
    host: str
    path: str
    query: str
    status: int
    headers: tuple[tuple[str, str], ...] = ()
    authorization: str = ""
    range: str = ""
    accept: str = ""
    form: str = ""
    body: TapeContent | None = None
    text: str | None = None
    stop_at: int | None = None
    ending: Ending | None = None
    framing: Framing = "length"
    times: int = 1

    @property
    def kind(self) -> str:
        """What was asked for; see urls.KINDS."""
        return "token" if self.path.endswith("/token") else parse_path(self.path).kind

    @property
    def url(self) -> str:
        """The request's address with logical host."""
        return f"{self.scheme}://{self.host}{self.path}" + (f"?{self.query}" if self.query else "")


@dataclass(frozen=True, slots=True)
class Tape:
    """Everything a tape's text says.

    Attributes:
        storage_host: blobs of repositories are redirected to this host when not empty.
        hosts: behaviour per logical host; hosts that only serve need no entry.
        plain_names: what the exchanges may hold as it is: JSON members, headers, parameters, parts of paths.
    """

    about: str = ""
    storage_host: str = ""
    hosts: tuple[TapeHost, ...] = ()
    repositories: tuple[TapeRepository, ...] = ()
    exchanges: tuple[TapeExchange, ...] = ()
    synthetic: tuple[TapeSynthetic, ...] = ()
    faults: tuple[FaultRule, ...] = ()
    plain_names: tuple[str, ...] = ()

    @property
    def logical_hosts(self) -> tuple[str, ...]:
        """Every logical host that answers, repositories' hosts first."""
        names = [one.host for one in self.repositories] + [one.name for one in self.hosts]
        names += [one.realm_host for one in self.hosts if one.realm_host] + [one.host for one in self.exchanges]
        names += [self.storage_host] if self.storage_host else []
        return tuple(dict.fromkeys(names))

    def synthetic_bodies(self) -> dict[Digest, SyntheticBody]:
        """Every body that is computed."""
        return {one.digest: SyntheticBody(one.seed, one.size, one.form) for one in self.synthetic}

    def contents(self) -> dict[Digest, TapeContent]:
        """Every body that must be in the folder of blobs (synthetic ones are not)."""
        computed = {one.digest for one in self.synthetic}
        found: dict[Digest, TapeContent] = {}
        for repository in self.repositories:
            found |= {one.digest: one for one in (*repository.manifests, *repository.blobs)}
        found |= {one.body.digest: one.body for one in self.exchanges if one.body is not None}
        return {digest: one for digest, one in sorted(found.items()) if digest not in computed}


def format_tape(tape: Tape) -> bytes:
    """The text of a tape, in the one canonical order (docs/reference/tape-format.md)."""
    out = io.StringIO()
    top = {
        "format": FORMAT,
        "version": VERSION,
        "about": tape.about or None,
        "storage_host": tape.storage_host or None,
        "plain": sorted(set(tape.plain_names)) or None,
    }
    _members(out, top)
    for host in sorted(tape.hosts, key=lambda one: one.name):
        _table(out, "host", _host(host))
    for made in sorted(tape.synthetic, key=lambda one: one.digest):
        members = {"digest": str(made.digest), "size": made.size, "seed": made.seed, "form": made.form}
        _table(out, "synthetic", members)
    for repository in sorted(tape.repositories, key=lambda one: (one.host, one.path)):
        _table(out, "repository", _repository(repository))
        if repository.tags:
            out.write("[repository.tags]\n")
            _members(out, {_key(tag): str(digest) for tag, digest in sorted(repository.tags.items())})
    for rule in tape.faults:
        _table(out, "fault", rule.to_table())
    for exchange in sorted(tape.exchanges, key=exchange_key):
        _table(out, "exchange", _exchange(exchange))
    return out.getvalue().encode()


def exchange_key(one: TapeExchange) -> tuple[object, ...]:
    """Where an exchange stands: what a pull asks first comes first, then by address and the rest of the request.

    Answers to one request have equal keys, and keep the order in which they were recorded.
    """
    request = (one.host, one.path, one.query, one.method, one.authorization, one.range, one.accept, one.form)
    bare = tuple(_NUMBER.sub(r"\1", text) for text in request)
    # Numbers count as numbers, and only between requests that are otherwise the same.
    numbers = tuple(int(number) for text in request for _, number in _NUMBER.findall(text))
    return (_STEPS.get(one.kind, len(_STEPS)), *bare, numbers)


def quote(text: str) -> str:
    """A TOML basic string."""
    return '"' + "".join(_escape(character) for character in text) + '"'


def _escape(character: str) -> str:
    known = _ESCAPES.get(character)
    if known is not None:
        return known
    code = ord(character)
    # C0, DEL, C1 and the separators that a terminal or an editor would act on.
    if code < 0x20 or 0x7F <= code < 0xA0 or code in (0x2028, 0x2029, 0xFEFF) or 0x202A <= code <= 0x202E:
        return f"\\u{code:04x}"
    return character


def _table(out: io.StringIO, name: str, members: Mapping[str, object]) -> None:
    out.write(f"\n[[{name}]]\n")
    _members(out, members)


def _members(out: io.StringIO, members: Mapping[str, object]) -> None:
    """Write members; those that are None are left out."""
    for key, value in members.items():
        if value is not None:
            out.write(f"{key} = {_value(value)}\n")


def _value(value: object) -> str:
    if isinstance(value, str):
        return quote(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, TapeContent):
        media_type = f", media_type = {quote(value.media_type)}" if value.media_type else ""
        return f"{{ digest = {quote(str(value.digest))}, size = {value.size}{media_type} }}"
    if isinstance(value, list):
        return "[\n" + "".join(f"    {_value(one)},\n" for one in value) + "]" if value else "[]"
    return str(value)


def _key(text: str) -> str:
    return text if _BARE.fullmatch(text) else quote(text)


def _host(host: TapeHost) -> dict[str, object]:
    gives_tokens = host.auth == "token"
    return {
        "name": host.name,
        "auth": host.auth,
        "realm_host": host.realm_host or None,
        "service": host.service or None,
        "users": sorted(host.users) or None,
        "anonymous": host.is_anonymous_allowed if gives_tokens else None,
        "lifetime_seconds": host.lifetime_seconds if gives_tokens else None,
    }


def _repository(repository: TapeRepository) -> dict[str, object]:
    return {
        "name": f"{repository.host}/{repository.path}",
        "manifests": sorted(repository.manifests),
        "blobs": sorted(repository.blobs),
    }


def _exchange(one: TapeExchange) -> dict[str, object]:
    headers = sorted(one.headers, key=lambda header: header[0].lower())
    return {
        "request": f"{one.method} {one.url}",
        "authorization": one.authorization or None,
        "range": one.range or None,
        "accept": one.accept or None,
        "form": one.form or None,
        "status": one.status,
        "headers": [f"{name}: {value}" for name, value in headers] or None,
        "body": one.body,
        "text": one.text,
        "stop_at": one.stop_at,
        "ending": one.ending.value if one.ending is not None else None,
        "framing": one.framing if one.framing != "length" else None,
        "times": one.times if one.times != 1 else None,
    }
