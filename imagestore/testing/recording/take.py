"""One exchange on its way into a tape: redaction at the moment of recording (nothing secret is kept for later).

A body of content (manifest, blob) goes to the folder of blobs; a small answer of any other kind is written into the
tape itself, where a reviewer sees it. A token service's answer must be JSON whose members are all known.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from imagestore.digest import Digest, new_hash
from imagestore.testing.exchange import Ending, Request
from imagestore.testing.recording import secrets
from imagestore.testing.recording.guard import SecretLeakError, check_path
from imagestore.testing.tape import TapeContent, TapeExchange
from imagestore.testing.targets import read_target

if TYPE_CHECKING:
    from imagestore.testing.exchange import Framing
    from imagestore.testing.recording.secrets import Vault

#: An answer up to this size that is no content is written into the tape.
MAX_TEXT: Final = 64 << 10
_CONTENT_KINDS: Final = frozenset({"manifest", "blob"})


@dataclass(frozen=True, slots=True)
class Answer:
    """What came from upstream.

    Attributes:
        status, headers: as received, addresses already logical.
        spool: file that holds the body.
        size: bytes of the body that came.
        digest: of these bytes.
        ending: COMPLETE, or how the body broke off.
        framing: how its end was marked.
    """

    status: int
    headers: tuple[tuple[str, str], ...]
    spool: str
    size: int
    digest: Digest
    ending: Ending = Ending.COMPLETE
    framing: Framing = "length"


@dataclass(frozen=True, slots=True)
class Take:
    """A redacted exchange, and the file with its body if that goes to the folder of blobs."""

    exchange: TapeExchange
    spool: str = ""
    place: str = field(default="", compare=False)


def hash_file(path: str) -> Digest:
    """Digest of a file."""
    digester = new_hash("sha256")
    with open(path, "rb") as file:
        while piece := file.read(1 << 20):
            digester.update(piece)
    return Digest("sha256", digester.hexdigest())


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
        exchange = replace(exchange, ending=answer.ending, stop_at=answer.size)
    if not answer.size:
        return Take(exchange, place=place)
    is_content = target.kind in _CONTENT_KINDS and answer.status in (200, 206)
    # A storage host's answer is content too: it has no /v2/ path and is no JSON.
    is_content = is_content or (not is_registry and answer.status in (200, 206) and not _is_json(answer))
    if is_content or answer.size > MAX_TEXT:
        return Take(replace(exchange, body=TapeContent(answer.digest, answer.size)), answer.spool, place)
    text = _text(answer, vault, place, is_strict=not is_registry and answer.status == 200, plain_names=plain_names)
    return Take(replace(exchange, text=text), place=place)


def _is_json(answer: Answer) -> bool:
    kinds = [value for name, value in answer.headers if name.lower() == "content-type"]
    return any("json" in kind for kind in kinds)


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
    with open(answer.spool, "rb") as file:
        data = file.read(MAX_TEXT)
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


def forget(take: Take) -> None:
    """Delete a take's spool file."""
    if take.spool:
        os.unlink(take.spool)
