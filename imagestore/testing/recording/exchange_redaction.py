"""One exchange on its way into a tape: redaction at the moment of recording (nothing secret is kept for later).

A body of content (manifest, blob) goes to the folder of blobs; a small answer of any other kind is written into the
tape itself, where a reviewer sees it. Any other answer is classified first, without its content coding (RFC 9110
section 8.4); what is not changed by that is kept byte by byte.
"""

from __future__ import annotations

import contextlib
import json
import zlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from imagestore.oci.digest import Digest
from imagestore.testing.builders.bodies import BytesBody, read_all
from imagestore.testing.engine.messages import Ending, Fields, Request
from imagestore.testing.engine.urls import parse_path
from imagestore.testing.recording import json_redaction, secret_guard
from imagestore.testing.recording.json_redaction import JsonRedactor
from imagestore.testing.recording.secret_guard import SecretLeakError, random_words
from imagestore.testing.tapes.tape import TapeContent, TapeExchange

if TYPE_CHECKING:
    from imagestore.testing.builders.bodies import Body
    from imagestore.testing.engine.messages import Framing
    from imagestore.testing.recording.redaction import Redactor
    from imagestore.testing.recording.secret_guard import SecretSearch


#: An answer up to this size that is no content is written into the tape.
MAX_TEXT: Final = 64 << 10
_MAX_TEXT_SEARCH: Final = 4 << 20
#: What is judged is never longer than this, in bytes.
MAX_DECODED: Final = 8 << 20
_WINDOW_BITS: Final = {"gzip": 31, "x-gzip": 31, "deflate": 15}


@dataclass(frozen=True, slots=True)
class Answer:
    """What came from upstream, with logical addresses; ``spool`` holds the body, in memory if it may be secret."""

    status: int
    headers: tuple[tuple[str, str], ...]
    spool: Body
    digest: Digest
    ending: Ending = Ending.COMPLETE
    framing: Framing = "length"


@dataclass(frozen=True, slots=True)
class RedactedExchange:
    """A redacted exchange, its placeholders without numbers, and the body for the folder of blobs, if there is one.

    Attributes:
        place: for messages.
        decoded: the body without content coding, to be searched too.
        is_content: the body is a manifest or blob, which may be large.
    """

    exchange: TapeExchange
    place: str
    body: Body | None = None
    decoded: bytes = b""
    is_content: bool = False


def redact_exchange(request: Request, answer: Answer, redactor: Redactor) -> RedactedExchange:
    """Redact an exchange, its addresses logical already.

    Raises:
        SecretLeakError: an answer can't be classified, or a path looks like a secret.
    """
    redactor.learn(request)
    kind = parse_path(request.path).kind
    if kind == "other":
        redactor.check_address(request.path, f"the request to {request.host}")
    is_form = request.fields.get("Content-Type").lower().startswith("application/x-www-form-urlencoded")
    exchange = TapeExchange(
        request.method,
        request.scheme,
        request.host,
        request.path,
        redactor.query(request.query),
        answer.status,
        headers=redactor.headers(request, answer.headers),
        authorization=redactor.authorization(request.fields.get("Authorization")),
        range=request.fields.get("Range"),
        # Several lines of one field are one list (RFC 9110 section 5.3).
        accept=", ".join(request.fields.get_all("Accept")) if kind == "manifest" else "",
        form=redactor.query(request.body.decode("utf-8", "replace")) if is_form else "",
        framing=answer.framing,
    )
    if answer.ending is not Ending.COMPLETE:
        exchange = replace(exchange, ending=answer.ending, stop_at=answer.spool.size)
    return classify(exchange, request, answer, redactor)


def classify(exchange: TapeExchange, request: Request, answer: Answer, redactor: Redactor) -> RedactedExchange:
    """Decide what becomes of an answer's body: content, text as it is, or redacted; ``exchange`` is its redacted head.

    Raises:
        SecretLeakError: the answer can't be classified.
    """
    place = f"{request.method} {request.host}{request.path}"
    if not answer.spool.size:
        return RedactedExchange(exchange, place)
    if is_redirect(answer.status, answer.headers):
        # The body repeats the address, which may be signed; no client reads it.
        fields = Fields(exchange.headers).without("Content-Encoding")
        return RedactedExchange(replace(exchange, headers=fields.items, ending=None, stop_at=None), place)
    if redactor.addresses.is_content(request, answer.status) and not _is_disguised(request, answer, place):
        content = TapeContent(answer.digest, answer.spool.size)
        return RedactedExchange(replace(exchange, body=content), place, answer.spool, is_content=True)
    is_strict = not request.path.startswith("/v2/") or redactor.addresses.is_realm(request)
    return _classified(exchange, place, answer, redactor, is_strict=is_strict)


def is_redirect(status: int, headers: tuple[tuple[str, str], ...]) -> bool:
    """Whether an answer only says where to ask."""
    return 300 <= status < 400 and bool(Fields(headers).get("Location"))


def check_body(take: RedactedExchange, search: SecretSearch) -> None:
    """Search the body of an exchange for known values, and documents for what looks like a secret too.

    Raises:
        SecretLeakError: something was found.
    """
    place = f"the body of {take.place}"
    if take.decoded:
        secret_guard.check_text(take.decoded, place, search)
    if take.body is None:
        return
    secret_guard.check_body(take.body, place, search)
    is_document = not take.is_content or parse_path(take.exchange.path).kind == "manifest"
    if take.body.size <= _MAX_TEXT_SEARCH and is_document:
        secret_guard.check_text(b"".join(take.body.chunks()), place, search)


def _is_disguised(request: Request, answer: Answer, place: str) -> bool:
    """Whether what lies at a content's address is really a token answer; bytes that are what was asked for are not."""
    wanted = parse_path(request.path).digest
    if answer.spool.size > MAX_DECODED or wanted == answer.digest:
        return False
    data = decode_content(read_all(answer.spool, MAX_DECODED), Fields(answer.headers).get("Content-Encoding"))
    if data is None:
        return False
    try:
        _, value = json_redaction.decode(data, place)
    except SecretLeakError:
        # Content may be JSON that repeats a member; a token answer may not.
        return json_redaction.looks_like_token_text(data[:MAX_TEXT])
    return json_redaction.is_token_answer(value)


def _classified(
    exchange: TapeExchange, place: str, answer: Answer, redactor: Redactor, *, is_strict: bool
) -> RedactedExchange:
    """An answer that is no content: redacted, or kept byte by byte when nothing in it is secret."""
    if answer.spool.size > MAX_DECODED:
        raise SecretLeakError(place, f"{answer.spool.size} bytes that are no content, too many to classify")
    data = read_all(answer.spool, MAX_DECODED)
    plain = decode_content(data, Fields(answer.headers).get("Content-Encoding"))
    if plain is None:
        raise SecretLeakError(place, "an answer in a content coding that can't be undone")
    is_json, value = json_redaction.decode(plain, place)
    if not is_json:
        _check_other(plain, answer.status, place, is_strict=is_strict)
        return _kept(exchange, place, answer, data, plain)
    is_strict = is_strict or json_redaction.is_token_answer(value)
    redacted = JsonRedactor(redactor, place, is_strict=is_strict).redact(value)
    if redacted == value:
        return _kept(exchange, place, answer, data, plain)
    # Rewritten, so neither the coding nor the place where it broke off is true any more.
    fields = Fields(exchange.headers).without("Content-Encoding")
    return RedactedExchange(replace(exchange, headers=fields.items, text=json.dumps(redacted)), place)


def _check_other(plain: bytes, status: int, place: str, *, is_strict: bool) -> None:
    """Text and bytes that are no JSON: a token service only has error pages of this kind."""
    if json_redaction.looks_like_token_text(plain):
        raise SecretLeakError(place, "an answer that is no JSON and seems to have a token in it")
    if is_strict and status < 400:
        raise SecretLeakError(place, "an answer of a token service that is no JSON")
    if is_strict and any(random_words(plain.decode("utf-8", "replace"))):
        raise SecretLeakError(place, "an error page of a token service with an unclassified random value")


def _kept(exchange: TapeExchange, place: str, answer: Answer, data: bytes, plain: bytes) -> RedactedExchange:
    """Exactly these bytes: in the tape when they are short text, else as a body."""
    if len(data) <= MAX_TEXT and data == plain:
        with contextlib.suppress(UnicodeDecodeError):
            return RedactedExchange(replace(exchange, text=data.decode()), place, decoded=plain)
    digest = answer.digest if answer.spool.size == len(data) else Digest.of(data)
    content = TapeContent(digest, len(data))
    return RedactedExchange(replace(exchange, body=content), place, BytesBody(data), decoded=plain)


def decode_content(data: bytes, coding: str) -> bytes | None:
    """The bytes without their coding; None when it is unknown, broken, or more than MAX_DECODED come out.

    >>> decode_content(b"as it is", "identity")
    b'as it is'
    """
    names = [name.strip().lower() for name in coding.split(",") if name.strip()]
    for name in reversed(names):
        if name == "identity":
            continue
        bits = _WINDOW_BITS.get(name)
        if bits is None:
            return None
        unpacker = zlib.decompressobj(bits)
        try:
            data = unpacker.decompress(data, MAX_DECODED)
        except zlib.error:
            return None
        if unpacker.unconsumed_tail or unpacker.unused_data:
            # More would come, or something hides behind the end.
            return None
    return data if len(data) <= MAX_DECODED else None
