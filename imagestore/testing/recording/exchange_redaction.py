"""One exchange on its way into a tape: redaction at the moment of recording (nothing secret is kept for later).

What becomes of an answer's body:

- content (a manifest, a blob) goes to the folder of blobs, byte by byte;
- a list (tags, referrers, repositories) is kept as it is, in the tape where it is short;
- of a token service's answer nothing is kept: one is made that has placeholders for its tokens;
- of any other, only the size is kept.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from imagestore.testing.builders.bodies import Body, read_all
from imagestore.testing.engine.messages import Ending, Fields, Framing, Request
from imagestore.testing.engine.urls import parse_path
from imagestore.testing.recording import secret_guard
from imagestore.testing.recording.secret_guard import SecretLeakError, SecretSearch, shown_name
from imagestore.testing.tapes.tape import TapeContent, TapeExchange

if TYPE_CHECKING:
    from imagestore.oci import Digest
    from imagestore.testing.recording.redaction import Redactor


# A list up to this size is written into the tape.
_MAX_TEXT: Final = 64 << 10
#: A document up to this size is searched for what looks like a secret, and a token service's answer is read.
_MAX_DOCUMENT: Final = 4 << 20
_LISTS: Final = frozenset({"tags", "referrers", "catalog"})
_TOKEN_MEMBERS: Final = frozenset({"token", "access_token", "refresh_token", "id_token", "identitytoken"})
_LIFETIME: Final = "expires_in"
_LONGEST_SECONDS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Answer:
    """What came from upstream, with logical addresses."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: Body
    digest: Digest
    ending: Ending = Ending.COMPLETE
    framing: Framing = "length"


@dataclass(frozen=True, slots=True)
class RedactedExchange:
    """A redacted exchange, its placeholders without numbers, and the body for the folder of blobs, if there is one.

    Attributes:
        place: for messages.
        is_document: the body is a manifest or a list, and no blob.
    """

    exchange: TapeExchange
    place: str
    body: Body | None = None
    is_document: bool = False


def redact_exchange(request: Request, answer: Answer, redactor: Redactor) -> RedactedExchange:
    """Redact an exchange, its addresses logical already."""
    redactor.learn(request)
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
        accept=", ".join(request.fields.get_all("Accept")) if parse_path(request.path).kind == "manifest" else "",
        form=redactor.query(request.body.decode("utf-8", "replace")) if is_form else "",
        framing=answer.framing,
    )
    if answer.ending is not Ending.COMPLETE:
        exchange = replace(exchange, ending=answer.ending, stop_at=answer.body.size)
    return with_body(exchange, request, answer, redactor)


def with_body(exchange: TapeExchange, request: Request, answer: Answer, redactor: Redactor) -> RedactedExchange:
    """Decide what becomes of an answer's body; ``exchange`` is its redacted head."""
    place, size = f"{request.method} {request.host}{request.path}", answer.body.size
    kind = parse_path(request.path).kind
    if not size:
        return RedactedExchange(exchange, place)
    if redactor.addresses.is_content(request, answer.status):
        kept = replace(exchange, body=TapeContent(answer.digest, size))
        return RedactedExchange(kept, place, answer.body, is_document=kind == "manifest")
    is_coded = bool(Fields(answer.headers).get("Content-Encoding"))  # and so it can't be searched
    if kind in _LISTS and answer.status == 200 and not is_coded and not redactor.addresses.is_realm(request):
        if size <= _MAX_TEXT:
            with contextlib.suppress(UnicodeDecodeError):
                text = read_all(answer.body, _MAX_TEXT).decode()
                return RedactedExchange(replace(exchange, text=text), place)
        kept = replace(exchange, body=TapeContent(answer.digest, size))
        return RedactedExchange(kept, place, answer.body, is_document=True)
    # The coding is that of what isn't written.
    exchange = replace(exchange, headers=Fields(exchange.headers).without("Content-Encoding").items)
    made = made_answer(read_all(answer.body, size), redactor) if size <= _MAX_DOCUMENT else ""
    if made:
        return RedactedExchange(replace(exchange, text=made, ending=None, stop_at=None), place)
    return RedactedExchange(replace(exchange, dropped=size), place)


def is_service(request: Request, redactor: Redactor) -> bool:
    """Whether this asks a token service, or what may be one."""
    return not request.path.startswith("/v2/") or redactor.addresses.is_realm(request)


def made_answer(data: bytes, redactor: Redactor) -> str:
    """What stands for a token service's answer: placeholders for tokens, and their lifetime; empty for others."""
    try:
        # Pairs, since a member that is repeated is a secret each time.
        members = json.loads(data, object_pairs_hook=tuple)
    except (ValueError, RecursionError):
        return ""
    made: dict[str, object] = {}
    for key, value in members if isinstance(members, tuple) else ():
        name = key.lower()
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if name in _TOKEN_MEMBERS and value and (is_number or isinstance(value, str)):
            made[name] = redactor.secrets.placeholder("token", str(value), f"member {shown_name(key)}")
        elif name == _LIFETIME and is_number and 0 <= value < _LONGEST_SECONDS:
            made[name] = int(value)
    return json.dumps(made) if made.keys() - {_LIFETIME} else ""


def is_redirect(status: int, headers: tuple[tuple[str, str], ...]) -> bool:
    """Whether an answer only says where to ask."""
    return 300 <= status < 400 and bool(Fields(headers).get("Location"))


def check_body(redacted: RedactedExchange, search: SecretSearch) -> None:
    """Search the body of an exchange for known values, and a document for what looks like a secret too.

    Raises:
        SecretLeakError: something was found.
    """
    if redacted.body is None:
        return
    place = f"the body of {redacted.place}"
    if known := search.find_in_body(redacted.body):
        raise SecretLeakError(place, known)
    if redacted.is_document and redacted.body.size <= _MAX_DOCUMENT:
        secret_guard.check_text(b"".join(redacted.body.chunks()), place, search)
