"""A tape: what a recorded registry serves, as values. docs/reference/tape-format.md describes the text form.

Two kinds of content stand side by side. A *repository* is served by the registry's rules (any method, any Range, any
order); an *exchange* is one recorded answer to one request. Bodies are elsewhere: in a folder of blobs named by
digest, shared by all tapes, or computed from a seed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from imagestore.testing.builders.bodies import SyntheticBody, SyntheticForm

if TYPE_CHECKING:
    from collections.abc import Mapping

    from imagestore.oci.digest import Digest
    from imagestore.testing.engine.messages import Ending, Framing
    from imagestore.testing.faults.rules import FaultRule

FORMAT: Final = "imagestore-tape"
VERSION: Final = 1
#: How a tape's file name ends.
SUFFIX: Final = ".tape.toml"


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
        method, scheme, host, path, query: the request; secrets in the query are placeholders.
        authorization: ``""``, ``Basic`` or ``Bearer``, with a placeholder.
        range: the Range header, or empty.
        accept: the Accept header on manifests, or empty for any.
        form: the request's form (token requests), secrets replaced; empty for other bodies.
        status: of the answer.
        headers: name and value, sorted by name.
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
    def url(self) -> str:
        """The request's address with logical host."""
        return f"{self.scheme}://{self.host}{self.path}" + (f"?{self.query}" if self.query else "")


@dataclass(frozen=True, slots=True)
class Tape:
    """Everything a tape's text says.

    Attributes:
        about: for people.
        storage_host: blobs of repositories are redirected to this host when not empty.
        hosts: behaviour per logical host; hosts that only serve need no entry.
        repositories, exchanges, synthetic, faults: see the module text.
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
