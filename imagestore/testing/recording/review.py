"""Judges the exchanges of a tape by the rules that redact a recording: what those would change may be a secret.

A tape that was edited or merged by hand goes through the same functions as a fresh answer does. Placeholders pass;
any other value that a recording would replace, leave out or refuse is told, with the exchange and the member it is in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from imagestore.errors import ContentNotFoundError
from imagestore.oci.digest import Digest
from imagestore.testing.engine.exchange import Ending, Fields, Request
from imagestore.testing.engine.queries import is_placeholder
from imagestore.testing.engine.targets import read_target
from imagestore.testing.images.bodies import BytesBody
from imagestore.testing.recording import redaction, secret_guard
from imagestore.testing.recording.addresses import Addresses
from imagestore.testing.recording.exchange_redaction import Answer, check_body, classify, is_redirect
from imagestore.testing.recording.search import Search
from imagestore.testing.recording.secret_guard import SecretLeakError
from imagestore.testing.recording.secrets import Vault

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from imagestore.testing.images.bodies import Body
    from imagestore.testing.tapes.tape import Tape, TapeExchange

# Which values were secret is not known any more.
_NOTHING_KNOWN: Final = Search({})
# Of redirects in a row; no client follows more.
_MOST_HOPS: Final = 20


class _Witness(Vault):
    """A vault that lets placeholders pass, and tells of which kind everything else was."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds: list[str] = []

    def mark(self, kind: str, value: str, source: str = "") -> str:
        if not value or is_placeholder(value):
            return value
        self.kinds.append(kind)
        return super().mark(kind, value, source)


def find_secrets(tape: Tape, open_body: Callable[[Digest], Body]) -> Iterator[str]:
    """What a recording would not have written, a line for each member: where it is, why, and what to do.

    Args:
        tape: to be judged; its ``plain_names`` are what a recording was told to be harmless.
        open_body: finds a body by digest; one that isn't there (ContentNotFoundError) or can't be read is passed over.
    """
    addresses = _addresses(tape)
    plain = frozenset(tape.plain_names)
    for number, one in enumerate(tape.exchanges):
        request = Request(one.method, one.scheme, one.host, one.path)
        found = dict(_in_head(one, request, plain))
        found |= _in_body(one, request, addresses, open_body, plain)
        # A path that may be a secret is shown no more than any other.
        path = "" if "request's path" in found else one.path
        for member, (reason, hint) in found.items():
            yield f"exchange[{number}] ({one.method} {one.host}{path}): the {member} holds {reason}; {hint}"


def _addresses(tape: Tape) -> Addresses:
    """Token services and places of content, as the recording saw them; a tape's order is not that of the requests."""
    out = Addresses()
    for _ in range(_MOST_HOPS):
        before = len(out)
        for one in tape.exchanges:
            out.note(Request(one.method, one.scheme, one.host, one.path), Fields(one.headers))
        if len(out) == before:
            break
    return out


def _in_head(one: TapeExchange, request: Request, plain: frozenset[str]) -> Iterator[tuple[str, tuple[str, str]]]:
    def path(_: Vault) -> None:
        if read_target(one.path).kind == "other":
            redaction.check_address(one.path, "the path", plain)

    yield from _judged("request's path", one.path, path)
    yield from _judged("request's query", one.query, lambda vault: redaction.redact_query(one.query, vault, plain))
    yield from _judged(
        "authorization", one.authorization, lambda vault: redaction.redact_authorization(one.authorization, vault)
    )
    yield from _judged("form", one.form, lambda vault: redaction.redact_query(one.form, vault, plain))
    for member in ("range", "accept"):
        yield from _judged(member, getattr(one, member), lambda _: None)
    for name, value in one.headers:

        def header(vault: Vault, name: str = name, value: str = value) -> None:
            is_kept = redaction.redact_headers(request, ((name, value),), vault, plain)
            if not is_kept and name.lower() not in plain:
                raise SecretLeakError("a header", "a value that a recording leaves out")

        yield from _judged(f"header {name}", f"{name}: {value}", header)


def _in_body(
    one: TapeExchange,
    request: Request,
    addresses: Addresses,
    open_body: Callable[[Digest], Body],
    plain: frozenset[str],
) -> Iterator[tuple[str, tuple[str, str]]]:
    member = "body" if one.body is not None else "text"
    if is_redirect(one.status, one.headers) and (one.body is not None or one.text):
        yield member, ("a note beside a redirect, which may repeat a signed address", "remove it")
        return
    try:
        body = open_body(one.body.digest) if one.body is not None else BytesBody((one.text or "").encode())
    except ContentNotFoundError:
        return
    digest = one.body.digest if one.body is not None else Digest.of((one.text or "").encode())
    answer = Answer(one.status, one.headers, body, digest, one.ending or Ending.COMPLETE, one.framing)

    def classified(vault: Vault) -> None:
        take = classify(one, request, answer, vault, addresses, plain_names=plain)
        check_body(take, _NOTHING_KNOWN)

    try:
        yield from _judged(member, "", classified)
    except OSError:
        return


def _judged(member: str, text: str, redact: Callable[[Vault], object]) -> Iterator[tuple[str, tuple[str, str]]]:
    """What is wrong with one member, and the hint; nothing when it is good."""
    witness = _Witness()
    try:
        redact(witness)
    except SecretLeakError as problem:
        yield member, (problem.reason, "remove it, or name it in the tape's 'plain' if it is harmless")
        return
    if witness.kinds:
        yield member, ("a value that is no placeholder", f"write tape-{witness.kinds[0]}-<number> in its place")
        return
    try:
        secret_guard.check_text(text.encode(), member)
    except SecretLeakError as problem:
        yield member, (problem.reason, "write a placeholder in its place")
