"""Checks tapes, and deletes bodies that no tape needs."""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from imagestore.errors import ConfigError, ContentNotFoundError, ImageStoreError
from imagestore.oci import Digest
from imagestore.testing.builders.bodies import Body, BytesBody, digest_of
from imagestore.testing.engine.messages import Ending, Fields, Request
from imagestore.testing.engine.urls import parse_path
from imagestore.testing.recording import secret_guard
from imagestore.testing.recording.exchange_redaction import (
    Answer,
    check_body,
    is_redirect,
    is_service,
    with_body,
)
from imagestore.testing.recording.redaction import Redactor, SeenSecrets
from imagestore.testing.recording.secret_guard import SecretLeakError, SecretSearch
from imagestore.testing.recording.upstream import UpstreamAddresses
from imagestore.testing.tapes.blob_folder import BlobFolder
from imagestore.testing.tapes.files import find_tapes, load_tape, save_text, tape_path
from imagestore.testing.tapes.tape import Tape, TapeExchange
from imagestore.testing.tapes.tape_text import format_tape

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


_MEMBER: Final = re.compile(rb"([a-z_]{1,20}) = ")
# Which values were secret is not known any more.
_NOTHING_KNOWN: Final = SecretSearch({})
# Of redirects in a row; no client follows more.
_MOST_HOPS: Final = 20
#: A member of an exchange: what it is called, its text, and what a recording does with it.
_Check = tuple[str, str, "Callable[[Redactor], object]"]


def verify_tape(path: str) -> list[str]:
    """Check a tape and all its bodies; gives the problems found, none when it is good.

    The text must be canonical. Nothing in it may be what a recording replaces, leaves out or refuses, but for what the
    tape names as plain. Bodies have the size and digest that the tape says, computed ones too. A recorded answer to a
    request by digest holds that content.

    Raises:
        ConfigError: the file can't be read.
        DocumentError: it is not a valid tape.
    """
    tape = load_tape(path)
    problems: list[str] = []
    with open(tape_path(path), "rb") as file:
        text = file.read()
    if format_tape(tape) != text:
        problems.append("the text is not in canonical form; rewrite it with 'imagestore tape format'")
    blobs = BlobFolder.of_tape(tape_path(path))
    problems += _secrets(tape, text, blobs)
    problems += _body_problems(tape, blobs)
    problems += _exchange_problems(tape)
    return problems


def _secrets(tape: Tape, text: bytes, blobs: BlobFolder) -> list[str]:
    computed = tape.synthetic_bodies()
    found = list(find_secrets(tape, lambda digest: computed.get(digest) or blobs.open(digest)))
    for line in format_tape(replace(tape, exchanges=())).splitlines():
        reason = _reason(line)
        if reason:
            # What stands in a line may be the secret, but for a member's name.
            name = _MEMBER.match(line)
            found.append(f"{name[1].decode() if name else 'a list'} holds {reason}; write something else")
    # What is left is not part of the tape.
    reason = "" if found else _reason(text)
    return [f"a comment holds {reason}; remove it"] if reason else found


def _reason(text: bytes) -> str:
    try:
        secret_guard.check_text(text, "the tape")
    except secret_guard.SecretLeakError as problem:
        return problem.reason
    return ""


def canonicalise(path: str) -> bool:
    """Put a tape's text into canonical form; gives whether that changed it. Comments are no part of a tape, and go.

    Raises:
        ConfigError: the file can't be read.
        DocumentError: it is not a valid tape.
        OSError: the file can't be written; it is as it was.
    """
    text = format_tape(load_tape(path))
    with open(tape_path(path), "rb") as file:
        is_changed = file.read() != text
    if is_changed:
        save_text(path, text)
    return is_changed


def _body_problems(tape: Tape, blobs: BlobFolder) -> Iterator[str]:
    for digest, content in tape.contents().items():
        try:
            blobs.verify(digest, content.size)
        except ImageStoreError as problem:
            yield str(problem)
        except OSError as problem:
            yield f"body {digest}: {blobs.path(digest)}: {problem.strerror}"
    for digest, computed in tape.synthetic_bodies().items():
        actual = digest_of(computed, digest.algorithm)
        if actual != digest:
            yield f"synthetic body {digest}: seed {computed.seed!r} gives {actual}"


def _exchange_problems(tape: Tape) -> Iterator[str]:
    for one in tape.exchanges:
        wanted = parse_path(one.path).digest
        is_whole = one.status == 200 and not one.range and one.ending is None and one.body is not None
        if wanted is None or not is_whole or one.body is None or wanted.algorithm != one.body.digest.algorithm:
            continue
        if one.body.digest != wanted:
            yield f"{one.method} {one.url}: the recorded answer is {one.body.digest}"


@dataclass(frozen=True, slots=True)
class CollectedBodies:
    """Bodies that no tape needs and their size together, and how many bodies stay."""

    removed: tuple[Digest, ...]
    bytes_freed: int
    kept: int


def collect_bodies(folder: str, *, dry_run: bool = False) -> CollectedBodies:
    """Delete bodies that no tape needs; every tape that shares the folder's ``blobs`` counts, also in sibling folders.

    Raises:
        ConfigError: no tape, or no folder of bodies.
        DocumentError: a tape can't be read; nothing is deleted then.
    """
    blobs = BlobFolder.of_tape(os.path.join(folder, "any"))
    if not blobs.roots:
        raise ConfigError(f"folder {folder}: no folder 'blobs' in it or next to it")
    needed: set[Digest] = set()
    for place in dict.fromkeys((folder, *(os.path.dirname(root) for root in blobs.roots))):
        for path in find_tapes(place):
            needed |= set(load_tape(path).contents())
    surplus = [digest for digest in blobs.digests() if digest not in needed]
    freed = 0 if dry_run else blobs.remove_partial()
    for digest in surplus:
        freed += blobs.open(digest).size if dry_run else blobs.remove(digest)
    return CollectedBodies(tuple(surplus), freed, sum(1 for _ in blobs.digests()) - (len(surplus) if dry_run else 0))


def find_secrets(tape: Tape, open_body: Callable[[Digest], Body]) -> Iterator[str]:
    """What a recording would not have written, a line for each member: where it is, why, and what to do.

    A tape that was edited or merged by hand goes through the same functions as a fresh answer does. Placeholders pass;
    any other value that a recording would replace, leave out or refuse is reported. A body that isn't there or can't be
    read is passed over.
    """
    addresses = _addresses(tape)
    for number, one in enumerate(tape.exchanges):
        found: dict[str, tuple[str, str]] = {}
        body = "body" if one.body is not None else "text"
        checks: list[_Check] = [*_head_checks(one), (body, "", partial(_check_body, one, open_body))]
        for member, text, redact in checks:
            secrets = SeenSecrets(keeps_placeholders=True)
            fault = _fault(text, redact, Redactor(secrets, frozenset(tape.plain_names), addresses))
            if fault is not None:
                found[member] = fault
        if is_redirect(one.status, one.headers) and (one.body is not None or one.text):
            found[body] = "a note next to a redirect, which may repeat a signed address", "remove it"
        # A path that may be a secret is shown no more than any other.
        path = "" if "request's path" in found else one.path
        for member, (reason, hint) in found.items():
            yield f"exchange[{number}] ({one.method} {one.host}{path}): the {member} holds {reason}; {hint}"


def _addresses(tape: Tape) -> UpstreamAddresses:
    """Token services and places of content, as the recording saw them; a tape's order is not that of the requests."""
    out = UpstreamAddresses()
    for _ in range(_MOST_HOPS):
        before = len(out)
        for one in tape.exchanges:
            out.note(_request(one), Fields(one.headers))
        if len(out) == before:
            break
    return out


def _request(one: TapeExchange) -> Request:
    return Request(one.method, one.scheme, one.host, one.path)


def _head_checks(one: TapeExchange) -> Iterator[_Check]:
    yield "request's path", one.path, lambda _: None
    yield "request's query", one.query, lambda redactor: redactor.query(one.query)
    yield "authorization", one.authorization, lambda redactor: redactor.authorization(one.authorization)
    yield "form", one.form, lambda redactor: redactor.query(one.form)
    yield "range", one.range, lambda _: None
    yield "accept", one.accept, lambda _: None
    for name, value in one.headers:

        def _header(redactor: Redactor, name: str = name, value: str = value) -> None:
            if not redactor.headers(_request(one), ((name, value),)) and name.lower() not in redactor.plain_names:
                raise SecretLeakError("a header", "a value that a recording leaves out")

        yield f"header {name}", f"{name}: {value}", _header


def _check_body(one: TapeExchange, open_body: Callable[[Digest], Body], redactor: Redactor) -> None:
    text = (one.text or "").encode()
    with contextlib.suppress(ContentNotFoundError, OSError):
        found = open_body(one.body.digest) if one.body is not None else BytesBody(text)
        digest = one.body.digest if one.body is not None else Digest.of(text)
        answer = Answer(one.status, one.headers, found, digest, one.ending or Ending.COMPLETE, one.framing)
        recorded = with_body(replace(one, body=None, text=None), _request(one), answer, redactor)
        is_other = recorded.exchange.dropped is not None or recorded.exchange.text not in (None, one.text)
        if is_other and is_service(_request(one), redactor) and not redactor.secrets.kinds():
            raise SecretLeakError("a body", "more of a token service's answer than placeholders for its tokens")
        check_body(recorded, _NOTHING_KNOWN)
        secret_guard.check_text(text, "a body")


def _fault(text: str, redact: Callable[[Redactor], object], redactor: Redactor) -> tuple[str, str] | None:
    """What is wrong with one member, and the hint; None when it is good."""
    try:
        redact(redactor)
    except SecretLeakError as problem:
        return problem.reason, "remove it, or name it in the tape's 'plain' if it is harmless"
    if kinds := redactor.secrets.kinds():
        return "a value that is no placeholder", f"write tape-{kinds[0]}-<number> in its place"
    try:
        secret_guard.check_text(text.encode(), "a member")
    except SecretLeakError as problem:
        return problem.reason, "write a placeholder in its place"
    return None
