"""A tape: what a recorded registry serves (docs/reference/tape-format.md).

A *repository* is served by the registry's rules (any method, any Range, any order); an *exchange* is one recorded
answer to one request. Bodies are elsewhere: in a folder of blobs named by digest, shared by all tapes, or computed from
a seed. The classes here say what each table of the text holds; ``tape_text`` reads and writes it.
"""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Literal

from imagestore.errors import InvalidReferenceError
from imagestore.oci import Digest, Reference
from imagestore.testing.builders.bodies import SyntheticBody, SyntheticForm
from imagestore.testing.engine.messages import Ending, Framing
from imagestore.testing.engine.urls import parse_path
from imagestore.testing.faults.rules import FaultRule

#: How a tape's file name ends.
SUFFIX: Final = ".tape.toml"
_NUMBER: Final = re.compile(r"(tape-[a-z]+-)([0-9]{1,9})")
_STEPS: Final = {"ping": 0, "token": 1, "tags": 2, "manifest": 3, "blob": 4}
_REQUEST: Final = re.compile(r"([A-Z]{1,20}) (https?)://([a-z0-9._:\[\]-]{1,260})(/[!-~]*)")
# A computed body costs nothing to name and much to read; no layer is larger.
_MAX_BODY_BYTES: Final = 1 << 40


def _member(default: Any = None, **metadata: object) -> Any:
    """A member with bounds (``least``, ``most``), another ``key``, or that is written though it is its default."""
    return field(default=default, metadata=metadata)


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
    size: int = field(metadata={"most": _MAX_BODY_BYTES})
    seed: str
    form: SyntheticForm = field(default="raw", metadata={"is_written": True})


@dataclass(frozen=True, slots=True)
class TapeHost:
    """How a logical host behaves.

    Attributes:
        name: logical host.
        realm_host: where tokens are given; the host itself when empty.
        service: named in the challenge; the host when empty.
        users: names; the password of user ``x`` is always ``tape-password-x``, so a tape holds no secret.
        allow_anonymous: whether everyone gets a token to pull.
        lifetime_seconds: of tokens.
    """

    name: str
    auth: Literal["none", "basic", "token"] = _member("none", is_written=True)
    realm_host: str = ""
    service: str = ""
    users: tuple[str, ...] = ()
    allow_anonymous: bool = _member(True, key="anonymous", is_written=True)
    lifetime_seconds: int = _member(300, is_written=True)

    @property
    def unwritten(self) -> tuple[str, ...]:
        """Members without a meaning for this host."""
        return () if self.auth == "token" else ("allow_anonymous", "lifetime_seconds")


@dataclass(frozen=True, slots=True)
class TapeRepository:
    """One repository served by the registry's rules."""

    JOINED: ClassVar = ("name", ("host", "path"))

    host: str
    path: str
    tags: Mapping[str, Digest] = field(default_factory=dict, hash=False)
    manifests: tuple[TapeContent, ...] = _member((), is_written=True)
    blobs: tuple[TapeContent, ...] = _member((), is_written=True)

    @property
    def joined(self) -> str:
        """Its full name."""
        return f"{self.host}/{self.path}"

    @staticmethod
    def split(name: str) -> tuple[str, ...]:
        """Host and path; ValueError for another name than the full one."""
        try:
            reference = Reference.parse(name)
        except InvalidReferenceError as problem:
            raise ValueError(str(problem)) from problem
        if reference.name != name:
            raise ValueError(f"expected the full form {reference.name!r}, found {name!r}")
        return reference.host, reference.path

    def faults(self) -> Iterator[tuple[str, str]]:
        """Members, and what is wrong with each."""
        for at, one in enumerate(self.manifests):
            if not one.media_type:
                yield f"manifests[{at}].media_type", "expected a media type, found nothing"
        known = {one.digest for one in self.manifests}
        for tag, digest in self.tags.items():
            if digest not in known:
                yield f"tags.{tag}", f"{digest} is not among the repository's manifests"


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
        dropped: size of an answer that was not recorded; as many spaces are sent.
        stop_at, ending: the recorded answer broke off after this many bytes, and how.
        framing: how the answer's end was marked; see Delivery.
        times: how often the same answer came in a row.
    """

    JOINED: ClassVar = ("request", ("method", "scheme", "host", "path", "query"))
    #: What belongs to the request is written before what was answered.
    FIRST: ClassVar = ("authorization", "range", "accept", "form")

    method: str
    scheme: str
    host: str
    path: str
    query: str
    status: int = field(metadata={"least": 100, "most": 599})
    headers: tuple[tuple[str, str], ...] = ()
    authorization: str = ""
    range: str = ""
    accept: str = ""
    form: str = ""
    body: TapeContent | None = None
    text: str | None = None
    dropped: int | None = _member(most=_MAX_BODY_BYTES)
    stop_at: int | None = None
    ending: Ending | None = None
    framing: Framing = "length"
    times: int = _member(1, least=1)

    @property
    def kind(self) -> str:
        """What was asked for; see urls.KINDS."""
        return "token" if self.path.endswith("/token") else parse_path(self.path).kind

    @property
    def url(self) -> str:
        """The request's address with logical host."""
        return f"{self.scheme}://{self.host}{self.path}" + (f"?{self.query}" if self.query else "")

    @property
    def joined(self) -> str:
        """The request's line."""
        return f"{self.method} {self.url}"

    @staticmethod
    def split(line: str) -> tuple[str, ...]:
        """The parts of a request's line; ValueError for another text."""
        found = _REQUEST.fullmatch(line)
        if found is None:
            raise ValueError(f"expected METHOD https://host/path, found {line[:200]!r}")
        path, _, query = found[4].partition("?")
        return found[1], found[2], found[3], path, query

    def faults(self) -> Iterator[tuple[str, str]]:
        """Members, and what is wrong with each."""
        if [self.body, self.text, self.dropped].count(None) < 2:
            yield "body", "an exchange has one of body, text and dropped"
        try:
            urllib.parse.urlsplit(self.url)
        except ValueError as problem:  # brackets that aren't those of an address
            yield "request", f"{self.host!r} is no host: {problem}"

    @property
    def order(self) -> tuple[object, ...]:
        """Where it stands: what a pull asks first comes first, then by address and the rest of the request.

        Answers to one request have equal keys, and keep the order in which they were recorded.
        """
        texts = [self.host, self.path, self.query, self.method]
        texts += [self.authorization, self.range, self.accept, self.form]
        bare = tuple(_NUMBER.sub(r"\1", text) for text in texts)
        # Numbers count as numbers, and only between requests that are otherwise the same.
        numbers = tuple(int(number) for text in texts for _, number in _NUMBER.findall(text))
        return (_STEPS.get(self.kind, len(_STEPS)), *bare, numbers)


@dataclass(frozen=True, slots=True)
class Tape:
    """Everything a tape's text says.

    Attributes:
        storage_host: blobs of repositories are redirected to this host when not empty.
        hosts: behaviour per logical host; hosts that only serve need no entry.
        plain_names: headers and parameters that the exchanges may hold as they are.
    """

    about: str = ""
    storage_host: str = ""
    plain_names: tuple[str, ...] = _member((), key="plain")
    hosts: tuple[TapeHost, ...] = _member((), key="host")
    synthetic: tuple[TapeSynthetic, ...] = ()
    repositories: tuple[TapeRepository, ...] = _member((), key="repository")
    faults: tuple[FaultRule, ...] = _member((), key="fault")
    exchanges: tuple[TapeExchange, ...] = _member((), key="exchange")

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
