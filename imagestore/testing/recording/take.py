"""One exchange on its way into a tape: redaction at the moment of recording (nothing secret is kept for later).

A body of content (manifest, blob) goes to the folder of blobs; a small answer of any other kind is written into the
tape itself, where a reviewer sees it. A token service's answer must be JSON whose members are all known.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import IO, TYPE_CHECKING, Final

from imagestore.testing.engine.exchange import Ending, Request
from imagestore.testing.engine.targets import read_target
from imagestore.testing.images.bodies import PIECE_BYTES, read_all
from imagestore.testing.recording import secrets
from imagestore.testing.recording.guard import SecretLeakError, check_path
from imagestore.testing.tapes.tape import TapeContent, TapeExchange

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from imagestore.digest import Digest
    from imagestore.testing.engine.exchange import Framing
    from imagestore.testing.recording.secrets import Vault

#: An answer up to this size that is no content is written into the tape.
MAX_TEXT: Final = 64 << 10
_CONTENT_KINDS: Final = frozenset({"manifest", "blob"})


@dataclass(frozen=True, slots=True)
class SpoolBody:
    """A body in a spool: memory, or a temporary file that has no name."""

    file: IO[bytes]
    size: int

    def chunks(self, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """The bytes; see Body. One reader at a time."""
        self.file.seek(start)
        left = (self.size if stop is None else min(stop, self.size)) - start
        while left > 0 and (piece := self.file.read(min(left, PIECE_BYTES))):
            left -= len(piece)
            yield piece


@dataclass(frozen=True, slots=True)
class Answer:
    """What came from upstream.

    Attributes:
        status, headers: as received, addresses already logical.
        spool: holds the body; in memory if it may be secret.
        digest: of these bytes.
        ending: COMPLETE, or how the body broke off.
        framing: how its end was marked.
    """

    status: int
    headers: tuple[tuple[str, str], ...]
    spool: SpoolBody
    digest: Digest
    ending: Ending = Ending.COMPLETE
    framing: Framing = "length"


@dataclass(frozen=True, slots=True)
class Take:
    """A redacted exchange, and the file with its body if that goes to the folder of blobs."""

    exchange: TapeExchange
    place: str
    spool: SpoolBody | None = None


def make_take(request: Request, answer: Answer, vault: Vault, *, plain_names: frozenset[str] = frozenset()) -> Take:
    """Redact an exchange.

    Args:
        request: as the client sent it, with logical host.
        answer: as upstream gave it.
        vault: gets every secret.
        plain_names: further JSON members that may be written as they are.

    Raises:
        SecretLeakError: a token service's answer can't be classified, or a path looks like a secret.
    """
    target = read_target(request.path)
    is_registry = request.path.startswith("/v2/")
    place = f"{request.method} {request.host}{request.path}"
    if not is_registry:
        check_path(request.path, f"the request to {request.host}")
    is_form = request.fields.get("Content-Type").startswith("application/x-www-form-urlencoded")
    form = secrets.redact_query(request.body.decode("utf-8", "replace"), vault) if is_form else ""
    exchange = TapeExchange(
        request.method,
        request.scheme,
        request.host,
        request.path,
        secrets.redact_query(request.query, vault),
        answer.status,
        headers=_headers(request, answer, vault),
        authorization=secrets.redact_authorization(request.fields.get("Authorization"), vault),
        range=request.fields.get("Range"),
        accept=", ".join(request.fields.get_all("Accept")) if target.kind == "manifest" else "",
        form=form,
        framing=answer.framing,
    )
    if answer.ending is not Ending.COMPLETE:
        exchange = replace(exchange, ending=answer.ending, stop_at=answer.spool.size)
    if not answer.spool.size:
        return Take(exchange, place)
    if is_content(request, answer.status, answer.headers) or answer.spool.size > MAX_TEXT:
        return Take(replace(exchange, body=TapeContent(answer.digest, answer.spool.size)), place, answer.spool)
    text = _text(answer, vault, place, is_strict=not is_registry and answer.status == 200, plain_names=plain_names)
    return Take(replace(exchange, text=text), place)


def is_content(request: Request, status: int, headers: Sequence[tuple[str, str]]) -> bool:
    """Whether an answer is a manifest, a blob, or a storage host's copy of one: it may go to disk as it is."""
    if status not in (200, 206):
        return False
    if request.path.startswith("/v2/"):
        return read_target(request.path).kind in _CONTENT_KINDS
    # A storage host has paths of its own, and what it sends is no JSON, which a token service's answer is.
    kinds = [value.lower() for name, value in headers if name.lower() == "content-type"]
    return bool(kinds) and not any("json" in kind or "text" in kind for kind in kinds)


def _headers(request: Request, answer: Answer, vault: Vault) -> tuple[tuple[str, str], ...]:
    out: list[tuple[str, str]] = []
    for name, value in answer.headers:
        lower = name.lower()
        if lower == "set-cookie":
            cookie, _, _ = value.partition(";")
            out.append((name, f"{cookie.partition('=')[0]}={vault.mark('cookie', cookie.partition('=')[2])}"))
        elif lower in secrets.SECRET_HEADERS:
            out.append((name, vault.mark("private", value)))
        elif lower == "location":
            if not value.startswith("/v2/"):
                check_path(value, f"the redirect from {request.host}")
            out.append((name, secrets.redact_address(value, vault)))
        elif lower in secrets.PLAIN_HEADERS or (lower == "content-length" and request.method == "HEAD"):
            out.append((name, value))
    return tuple(out)


def _text(answer: Answer, vault: Vault, place: str, *, is_strict: bool, plain_names: frozenset[str]) -> str:
    data = read_all(answer.spool, MAX_TEXT)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        # Not text; shown with escapes rather than kept as a body that nobody looks at.
        text = data.decode("latin-1")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        if is_strict:
            raise SecretLeakError(place, "an answer of a token service that is no JSON") from None
        return text

    def refuse(path: str) -> None:
        if path.rpartition(".")[2] not in plain_names:
            raise SecretLeakError(place, f"an unclassified member {path.lstrip('.')!r} in a token service's answer")

    redacted = secrets.redact_json(value, vault, refuse if is_strict else None)
    return text if redacted == value else json.dumps(redacted)
