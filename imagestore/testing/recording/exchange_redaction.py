"""One exchange on its way into a tape: redaction at the moment of recording (nothing secret is kept for later).

A body of content (manifest, blob) goes to the folder of blobs; a small answer of any other kind is written into the
tape itself, where a reviewer sees it. Any other answer is classified first, without its content coding (RFC 9110
section 8.4); what is not changed by that is kept byte by byte.

A token service's JSON (anything that was named as a realm, that looks like a token answer, or that lies outside
``/v2/``) may have known members only, each with the kind of value it should have: an unknown one stops the recording.
A registry's own small answers (tags, errors, the catalogue) may have the members that registries send; below an error's
``detail`` any name is allowed that does not sound like a credential.
"""

from __future__ import annotations

import contextlib
import json
import re
import zlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from imagestore.oci import Digest
from imagestore.testing.builders.bodies import Body, BytesBody, read_all
from imagestore.testing.engine.messages import Ending, Fields, Framing, Request
from imagestore.testing.engine.urls import parse_path
from imagestore.testing.recording import secret_guard
from imagestore.testing.recording.secret_guard import SecretLeakError, SecretSearch, random_words, shown_name
from imagestore.testing.tapes.tape import TapeContent, TapeExchange

if TYPE_CHECKING:
    from imagestore.testing.recording.redaction import Redactor


# An answer up to this size that is no content is written into the tape.
_MAX_TEXT: Final = 64 << 10
_MAX_TEXT_SEARCH: Final = 4 << 20
# What is judged is never longer than this, in bytes.
_MAX_DECODED: Final = 8 << 20
_WINDOW_BITS: Final = {"gzip": 31, "x-gzip": 31, "deflate": 15}
# JSON members that make an answer a token answer, and those whose value is replaced, wherever they are.
_TOKEN_MEMBERS: Final = frozenset({"token", "access_token", "refresh_token", "id_token", "identitytoken"})
_SECRET_MEMBERS: Final = _TOKEN_MEMBERS | {"registrytoken", "password", "secret"}
# What text that is not JSON (a form, or JSON that broke off) has if it seems to hold a token.
_TOKEN_TEXT: Final = re.compile(rb'(?i)(?:access_|refresh_|id_|identity)?token\\?"?\s*[=:]')
_DATE: Final = re.compile(r"[0-9TZ:.+ -]{1,40}")
_NUMBER: Final = re.compile(r"[0-9]{1,12}")
_KIND: Final = re.compile(r"[A-Za-z]{1,20}")
_PLAIN_MEMBERS: Final = {
    "expires_in": _NUMBER,
    "not_before": _DATE,
    "expires": _DATE,
    "issued_at": _DATE,
    "token_type": _KIND,
    "scope": None,
    "service": None,
}
_ERROR_MEMBERS: Final = frozenset(
    {"errors", "error", "error_description", "error_uri", "code", "message", "detail", "details"}
)
_REGISTRY_MEMBERS: Final = _ERROR_MEMBERS | {
    *("name", "tags", "repositories", "schemaversion", "mediatype", "artifacttype", "manifests", "annotations"),
    *("digest", "size", "platform", "architecture", "os", "os.version", "os.features", "variant"),
    *("child", "manifest", "next", "last"),
}
# Below these members a registry's answer may have any other member.
_FREE_BELOW: Final = frozenset({"detail", "details", "annotations", "manifest", "platform"})
_SUSPICIOUS_NAME: Final = re.compile(r"(?i)key|secret|session|credential|auth|jwt|cookie|sig|pass|token|nonce")


@dataclass(frozen=True, slots=True)
class Answer:
    """What came from upstream, with logical addresses; the body is in memory if it may be secret."""

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
        exchange = replace(exchange, ending=answer.ending, stop_at=answer.body.size)
    return classify(exchange, request, answer, redactor)


def classify(exchange: TapeExchange, request: Request, answer: Answer, redactor: Redactor) -> RedactedExchange:
    """Decide what becomes of an answer's body: content, text as it is, or redacted; ``exchange`` is its redacted head.

    Raises:
        SecretLeakError: the answer can't be classified.
    """
    place = f"{request.method} {request.host}{request.path}"
    if not answer.body.size:
        return RedactedExchange(exchange, place)
    if is_redirect(answer.status, answer.headers):
        # The body repeats the address, which may be signed; no client reads it.
        fields = Fields(exchange.headers).without("Content-Encoding")
        return RedactedExchange(replace(exchange, headers=fields.items, ending=None, stop_at=None), place)
    if redactor.addresses.is_content(request, answer.status) and not _is_disguised(request, answer, place):
        content = TapeContent(answer.digest, answer.body.size)
        return RedactedExchange(replace(exchange, body=content), place, answer.body, is_content=True)
    is_strict = not request.path.startswith("/v2/") or redactor.addresses.is_realm(request)
    return _classified(exchange, place, answer, redactor, is_strict=is_strict)


def is_redirect(status: int, headers: tuple[tuple[str, str], ...]) -> bool:
    """Whether an answer only says where to ask."""
    return 300 <= status < 400 and bool(Fields(headers).get("Location"))


def check_body(redacted: RedactedExchange, search: SecretSearch) -> None:
    """Search the body of an exchange for known values, and documents for what looks like a secret too.

    Raises:
        SecretLeakError: something was found.
    """
    place = f"the body of {redacted.place}"
    if redacted.decoded:
        secret_guard.check_text(redacted.decoded, place, search)
    if redacted.body is None:
        return
    if known := search.find_in_body(redacted.body):
        raise SecretLeakError(place, known)
    is_document = not redacted.is_content or parse_path(redacted.exchange.path).kind == "manifest"
    if redacted.body.size <= _MAX_TEXT_SEARCH and is_document:
        secret_guard.check_text(b"".join(redacted.body.chunks()), place, search)


def _is_disguised(request: Request, answer: Answer, place: str) -> bool:
    """Whether the answer at a content's address is really a token answer; never if it has the requested digest."""
    wanted = parse_path(request.path).digest
    if answer.body.size > _MAX_DECODED or wanted == answer.digest:
        return False
    data = _without_coding(read_all(answer.body, _MAX_DECODED), Fields(answer.headers).get("Content-Encoding"))
    if data is None:
        return False
    try:
        _, value = _read_json(data, place)
    except SecretLeakError:
        # Content may be JSON that repeats a member; a token answer may not.
        return _TOKEN_TEXT.search(data[:_MAX_TEXT]) is not None
    return _is_token_answer(value)


def _classified(
    exchange: TapeExchange, place: str, answer: Answer, redactor: Redactor, *, is_strict: bool
) -> RedactedExchange:
    """An answer that is no content: redacted, or kept byte by byte when nothing in it is secret."""
    if answer.body.size > _MAX_DECODED:
        raise SecretLeakError(place, f"{answer.body.size} bytes that are no content, too many to classify")
    data = read_all(answer.body, _MAX_DECODED)
    plain = _without_coding(data, Fields(answer.headers).get("Content-Encoding"))
    if plain is None:
        raise SecretLeakError(place, "an answer in a content coding that can't be undone")
    is_json, value = _read_json(plain, place)
    if not is_json:
        _check_other(plain, answer.status, place, is_strict=is_strict)
        return _kept(exchange, place, answer, data, plain)
    is_strict = is_strict or _is_token_answer(value)
    redacted = _JsonRedactor(redactor, place, is_strict=is_strict).value(value)
    if redacted == value:
        return _kept(exchange, place, answer, data, plain)
    # Rewritten, so neither the coding nor the place where it broke off is true any more.
    fields = Fields(exchange.headers).without("Content-Encoding")
    return RedactedExchange(replace(exchange, headers=fields.items, text=json.dumps(redacted)), place)


def _check_other(plain: bytes, status: int, place: str, *, is_strict: bool) -> None:
    """Text and bytes that are no JSON: a token service only has error pages of this kind."""
    if _TOKEN_TEXT.search(plain):
        raise SecretLeakError(place, "an answer that is no JSON and seems to have a token in it")
    if is_strict and status < 400:
        raise SecretLeakError(place, "an answer of a token service that is no JSON")
    if is_strict and any(random_words(plain.decode("utf-8", "replace"))):
        raise SecretLeakError(place, "an error page of a token service with an unclassified random value")


def _kept(exchange: TapeExchange, place: str, answer: Answer, data: bytes, plain: bytes) -> RedactedExchange:
    """Exactly these bytes: in the tape when they are short text, else as a body."""
    if len(data) <= _MAX_TEXT and data == plain:
        with contextlib.suppress(UnicodeDecodeError):
            return RedactedExchange(replace(exchange, text=data.decode()), place, decoded=plain)
    digest = answer.digest if answer.body.size == len(data) else Digest.of(data)
    content = TapeContent(digest, len(data))
    return RedactedExchange(replace(exchange, body=content), place, BytesBody(data), decoded=plain)


def _without_coding(data: bytes, coding: str) -> bytes | None:
    """The bytes without their content coding; None when it is unknown, broken, or more than _MAX_DECODED come out."""
    names = [name.strip().lower() for name in coding.split(",")]
    for name in reversed(names):
        if name in ("identity", ""):
            continue
        bits = _WINDOW_BITS.get(name)
        if bits is None:
            return None
        unpacker = zlib.decompressobj(bits)
        try:
            data = unpacker.decompress(data, _MAX_DECODED)
        except zlib.error:
            return None
        if unpacker.unconsumed_tail or unpacker.unused_data:
            # More would come, or something hides behind the end.
            return None
    return data if len(data) <= _MAX_DECODED else None


def _read_json(data: bytes, place: str) -> tuple[bool, object]:
    """Whether bytes are JSON, and the value.

    Raises:
        SecretLeakError: a member is repeated, so that redacting one would leave the other.
    """

    def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
        out = dict(pairs)
        if len(out) != len(pairs):
            raise SecretLeakError(place, "JSON with a repeated member")
        return out

    try:
        return True, json.loads(data, object_pairs_hook=_object)
    except (ValueError, RecursionError):
        return False, None


def _is_token_answer(value: object) -> bool:
    """Whether a JSON value has what a token service gives out."""
    return isinstance(value, dict) and any(key.lower() in _TOKEN_MEMBERS for key in value)


@dataclass(frozen=True, slots=True)
class _JsonRedactor:
    """Redacts one JSON answer, and refuses what can't be classified; ``is_strict`` for a token service's answer."""

    redactor: Redactor
    place: str
    is_strict: bool

    def value(self, value: object, path: str = "", *, is_free: bool = False) -> object:
        """The redacted form of a value; ``path`` names its place in errors."""
        if isinstance(value, dict):
            return {
                key: self._member(key, one, f"{path}.{shown_name(key)}", is_free=is_free) for key, one in value.items()
            }
        if isinstance(value, list):
            return [self.value(one, f"{path}[{number}]", is_free=is_free) for number, one in enumerate(value)]
        if not path and self.is_strict and value is not None:
            raise self._refusal("its top level")
        return value

    def _member(self, key: str, value: object, path: str, *, is_free: bool) -> object:
        name = key.lower()
        if name in self.redactor.plain_names or key in self.redactor.plain_names:
            return value
        if name in _SECRET_MEMBERS:
            return self._secret(name, value, path)
        if self.is_strict:
            return self._strict(name, value, path)
        if name not in _REGISTRY_MEMBERS and (not is_free or _SUSPICIOUS_NAME.search(name)):
            raise self._refusal(path)
        return self.value(value, path, is_free=is_free or name in _FREE_BELOW)

    def _secret(self, name: str, value: object, path: str) -> object:
        if value is None or isinstance(value, bool) or value == "":
            return value
        if not isinstance(value, (str, int, float)):
            raise self._refusal(path)
        kind = "token" if "token" in name else "password"
        return self.redactor.secrets.placeholder(kind, str(value), f"member {path.lstrip('.')}")

    def _strict(self, name: str, value: object, path: str) -> object:
        if name in _PLAIN_MEMBERS:
            form = _PLAIN_MEMBERS[name]
            values = value if isinstance(value, list) else [value]
            if all(one is None or _is_plain(one, form) for one in values):
                return value
            raise self._refusal(path)
        is_known = name in _ERROR_MEMBERS or ".detail" in path
        is_random = isinstance(value, str) and any(random_words(value))
        if not is_known or is_random or _SUSPICIOUS_NAME.search(name):
            raise self._refusal(path)
        return self.value(value, path)

    def _refusal(self, path: str) -> SecretLeakError:
        answer = "a token service's answer" if self.is_strict else "a registry's answer"
        return SecretLeakError(self.place, f"an unclassified member {path.lstrip('.')!r} in {answer}")


def _is_plain(value: object, form: re.Pattern[str] | None) -> bool:
    if isinstance(value, (int, float)):
        return form is not None and form is not _KIND
    if not isinstance(value, str):
        return False
    return form.fullmatch(value) is not None if form is not None else not any(random_words(value))
