"""Replay: a tape in, a transport or a server out.

    with replay("fixtures/tapes/python-kep4216") as playing:
        client = httpx.Client(transport=playing.transport)
        ...
        with playing.serve() as server:
            run("skopeo", "inspect", f"docker://{server.reference('docker.io/library/python:3')}")

Leaving the block of a *strict* replay fails if a request had no answer, or a recorded answer or a fault was never used.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, Self

from imagestore.errors import ConfigError, IntegrityError
from imagestore.testing.engine.auth import BasicAuth, TokenAuth
from imagestore.testing.engine.distribution import DistributionApi, Library, StoredDocument
from imagestore.testing.engine.ledger import Ledger
from imagestore.testing.registry import RecordedRegistry, assemble
from imagestore.testing.tapes.blob_folder import BlobFolder
from imagestore.testing.tapes.exchanges import ExchangeResponder
from imagestore.testing.tapes.files import load_tape, tape_path
from imagestore.testing.tapes.tape import Tape, TapeContent, TapeHost

if TYPE_CHECKING:
    from collections.abc import Sequence

    from imagestore.oci import Digest
    from imagestore.testing.builders.bodies import Body
    from imagestore.testing.engine.engine import Engine, FaultInjector
    from imagestore.testing.faults.rules import FaultRule


# How many lines of one sort a mismatch shows; a large tape played by the wrong client would fill screens.
_SHOWN: Final = 20


class ReplayMismatchError(AssertionError):
    """A strict replay ended with requests that had no answer, or with answers that were never requested."""


class Replay(RecordedRegistry):
    """A tape being played; make it with replay()."""

    def __init__(
        self,
        tape: Tape,
        blobs: BlobFolder,
        *,
        faults: Sequence[FaultRule | FaultInjector] = (),
        strict: bool = False,
    ) -> None:
        self.tape = tape
        self.ledger = Ledger()
        self._is_strict = strict
        self._blobs = blobs
        self._computed = tape.synthetic_bodies()
        for needed in tape.contents().values():
            self._check(needed)
        exchanges = self._exchanges = ExchangeResponder(tape.exchanges, self._open)
        content = DistributionApi(self._library(), storage_host=tape.storage_host).respond
        self._engine, self._plan = assemble(
            content,
            auths={host.name: auth for host in tape.hosts if (auth := _auth(host)) is not None},
            faults=[*tape.faults, *faults],
            ledger=self.ledger,
            recorded=[exchanges.respond],
            open_content=lambda request: exchanges.respond_open(request) or content(request),
            explain=exchanges.explain,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        __tracebackhide__ = True  # pytest then shows the test's own line
        if kind is None and self._is_strict:
            self.check()

    @property
    def engine(self) -> Engine:
        """What answers."""
        return self._engine

    @property
    def hosts(self) -> tuple[str, ...]:
        """Logical hosts of the tape."""
        return self.tape.logical_hosts

    def check(self) -> None:
        """Judge the replay.

        Raises:
            ReplayMismatchError: unexpected requests, unused exchanges or unused faults; the first of each are shown.
        """
        __tracebackhide__ = True
        unused = self._exchanges.unused()
        recorded = [f"recorded, but never asked for: {one.method} {one.url} -> {one.status}" for one in unused]
        faults = [f"fault that never happened: {rule.to_table()}" for rule in self._plan.unused()]
        lines = [
            *first_lines(self.ledger.unexpected, "unexpected requests"),
            *first_lines(recorded, "that were recorded, but never asked for"),
            *first_lines(faults, "faults that never happened"),
        ]
        if lines:
            raise ReplayMismatchError("\n".join(lines))

    def _check(self, content: TapeContent) -> None:
        """Refuse a body that is missing or has another size before a client asks; `tape verify` reads the bytes too."""
        body = self._blobs.open(content.digest)
        if body.size != content.size:
            raise IntegrityError(
                f"body {content.digest}: the tape says {content.size} bytes, {body.path} has {body.size}",
                hint="restore the file; if git changed its line ends, say '-text' for the folder in .gitattributes",
            )

    def _library(self) -> Library:
        library = Library()
        for one in self.tape.repositories:
            repository = library.open(one.host, one.path)
            repository.tags.update(one.tags)
            for content in one.manifests:
                repository.documents[content.digest] = StoredDocument(content.media_type, self._open(content.digest))
            for content in one.blobs:
                repository.blobs[content.digest] = self._open(content.digest)
        return library

    def _open(self, digest: Digest) -> Body:
        return self._computed.get(digest) or self._blobs.open(digest)


def replay(
    tape: str | os.PathLike[str] | Tape,
    *,
    blobs: str | os.PathLike[str] | None = None,
    faults: Sequence[FaultRule | FaultInjector] = (),
    strict: bool = False,
) -> Replay:
    """Play a tape.

    Args:
        tape: a file (its ending may be left out), or a tape in memory.
        blobs: folder of bodies; see BlobFolder.of_tape() for the default.
        faults: added to those of the tape.
        strict: leaving the block fails on unexpected requests and unused answers.

    Raises:
        ConfigError: the file can't be read, or a tape in memory came without ``blobs``.
        DocumentError: it is not a valid tape.
        ContentNotFoundError: a body is missing.
        IntegrityError: a body has another size than the tape says; digests are not computed here.
    """
    if isinstance(tape, Tape):
        if blobs is None and tape.contents():
            raise ConfigError("replay of a tape in memory: expected the folder of its bodies", hint="pass blobs=...")
        return Replay(tape, BlobFolder(os.fspath(blobs or "")), faults=faults, strict=strict)
    folder = BlobFolder(os.fspath(blobs)) if blobs is not None else BlobFolder.of_tape(tape_path(tape))
    return Replay(load_tape(tape), folder, faults=faults, strict=strict)


def first_lines(lines: Sequence[str], rest: str) -> list[str]:
    """The first of many lines, and how many more there are.

    >>> first_lines(["line"] * 22, "of this sort")[-2:]
    ['line', '... and 2 more of this sort']
    """
    more = [f"... and {len(lines) - _SHOWN} more {rest}"] if len(lines) > _SHOWN else []
    return [*lines[:_SHOWN], *more]


def _auth(host: TapeHost) -> BasicAuth | TokenAuth | None:
    users = {user: f"tape-password-{user}" for user in host.users}
    if host.auth == "basic":
        return BasicAuth(users)
    if host.auth != "token":
        return None
    return TokenAuth(
        users,
        realm_host=host.realm_host,
        service=host.service,
        lifetime_seconds=host.lifetime_seconds,
        allow_anonymous=host.allow_anonymous,
    )
