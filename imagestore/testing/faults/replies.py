"""Effects that replace an answer, or falsify its head: refusals, redirects, wrong headers, wrong ranges.

A redirect leads below ``/-/`` to an address that holds the old one, so that the engine knows without memory what to
serve there: ``/-/<hops left>/<host>/v2/...``. Content there needs no credential, as on a storage service; the ledger
shows all the same which credential was sent.
"""

from __future__ import annotations

import email.utils
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from imagestore.oci import Digest
from imagestore.testing.builders.bodies import BytesBody
from imagestore.testing.engine.auth import needed_actions, scope_text
from imagestore.testing.engine.messages import Ending, Fields, Reply, Request, error
from imagestore.testing.faults.rules import REDIRECT_TARGET, SUCCESSES, Effect, choice, number

if TYPE_CHECKING:
    from imagestore.testing.engine.messages import Responder

# A refusal may come instead of anything but the challenge for credentials, which is not the content's answer.
_ANY_ANSWER: Final = SUCCESSES | {302, 304, 307, 404, 416}
_PARTIAL: Final = frozenset({206})
_MOST_UPLOADED: Final = 1 << 40
_CODES: Final = {
    429: "TOOMANYREQUESTS",
    401: "UNAUTHORIZED",
    403: "DENIED",
    404: "MANIFEST_UNKNOWN",
    405: "UNSUPPORTED",
}


def _with_header(reply: Reply, name: str, value: str) -> Reply:
    return replace(reply, fields=reply.fields.put(name, value))


@dataclass(frozen=True, slots=True)
class Refuse(Effect):
    """An error status instead of the answer: 429, 503, 403, 405, 404, ...

    Attributes:
        code: of the error document; chosen by the status when empty.
        retry_after: text of the Retry-After header; ``"+5"`` is a date five seconds from now, ``"-5"`` one in the past,
            anything else is sent as it is (``"2"``, ``"soon"``); no header when empty.
        page: answers with this HTML text instead of an error document, as proxies do.
    """

    statuses = _ANY_ANSWER
    is_replacing = True
    status: int = number(503, 200, 599)
    code: str = ""
    retry_after: str = ""
    page: str = ""

    def _changed(self, request: Request, reply: Reply) -> Reply:
        code = self.code or _CODES.get(self.status, "UNAVAILABLE")
        fields = {"Retry-After": retry_after_text(self.retry_after)} if self.retry_after else {}
        refused = error(self.status, code, f"refused by the fault {self.name}", fields=fields, kind=reply.kind)
        if self.page:
            refused = _with_header(replace(refused, body=BytesBody(self.page.encode())), "Content-Type", "text/html")
        return replace(refused, delivery=reply.delivery)


def retry_after_text(text: str, *, now: float | None = None) -> str:
    """The header's value: ``+n`` and ``-n`` become an HTTP date this many seconds from now.

    >>> retry_after_text("+10", now=0.0)
    'Thu, 01 Jan 1970 00:00:10 GMT'
    """
    sign, digits = text[:1], text[1:]
    if sign not in ("+", "-") or not (digits.isascii() and digits.isdigit()):
        return text
    return email.utils.formatdate((time.time() if now is None else now) + int(text), usegmt=True)


@dataclass(frozen=True, slots=True)
class ExpireToken(Effect):
    """The token has expired: 401 ``invalid_token`` with a new challenge, although the token was just accepted."""

    is_replacing = True
    realm_host: str = ""

    def fits(self, request: Request, reply: Reply) -> bool:
        """Only answers that a bearer token opened."""
        return reply.status in _ANY_ANSWER and request.fields.get("Authorization").lower().startswith("bearer ")

    def _changed(self, request: Request, reply: Reply) -> Reply:
        value = f'{_challenge(f"https://{self.realm_host or request.host}", request)},error="invalid_token"'
        return error(401, "UNAUTHORIZED", "token expired", fields={"WWW-Authenticate": value}, kind=reply.kind)


@dataclass(frozen=True, slots=True)
class ForeignRealm(Effect):
    """The challenge names a token service on another host, which a careful client does not give its password to."""

    statuses = frozenset({401})
    realm_host: str = "collector.example"
    scheme: str = choice("https", "http")

    def _changed(self, request: Request, reply: Reply) -> Reply:
        return _with_header(reply, "WWW-Authenticate", _challenge(f"{self.scheme}://{self.realm_host}", request))


def _challenge(base: str, request: Request) -> str:
    scope = scope_text(needed_actions(request))
    return f'Bearer realm="{base}/token",service="{request.host}",scope="{scope}"'


@dataclass(frozen=True, slots=True)
class Redirect(Effect):
    """A redirect instead of the content.

    Attributes:
        form: ``same`` host, ``cross`` to another one, ``loop`` without end, or ``downgrade`` to plain http.
        to_host: where ``cross`` leads.
        hops: how many redirects in a row.
        status: 301, 302, 303, 307 or 308.
        is_relative: the Location has no host (same host only).
    """

    is_replacing = True
    form: str = choice("cross", "same", "loop", "downgrade")
    to_host: str = "storage.example"
    hops: int = number(1, 1, 999)
    status: int = number(307, 300, 308)
    is_relative: bool = False

    def fits(self, request: Request, reply: Reply) -> bool:
        """Content, at its own address."""
        return reply.status in self.statuses and not request.path.startswith("/-/")

    def _changed(self, request: Request, reply: Reply) -> Reply:
        host = self.to_host if self.form == "cross" else request.host
        scheme = "http" if self.form == "downgrade" else "https"
        left = "loop" if self.form == "loop" else str(self.hops - 1)
        place = f"/-/{left}/{request.host}{request.path}?signature=placeholder"
        location = place if self.is_relative else f"{scheme}://{host}{place}"
        return Reply(self.status, Fields.of({"Location": location}), kind=reply.kind, digest=reply.digest).deliver(
            head_delay_seconds=reply.delivery.head_delay_seconds
        )


def redirect_target(request: Request, inside: Responder) -> Reply | None:
    """What a redirect leads to: the next hop, the content, or None for any other address.

    ``inside`` answers without asking for credentials.
    """
    found = REDIRECT_TARGET.fullmatch(request.path)
    if found is None:
        return None
    left, host, path = found.groups()
    if left != "0":
        again = "loop" if left == "loop" else str(int(left) - 1)
        location = f"{request.scheme}://{request.host}/-/{again}/{host}{path}?signature=placeholder"
        return Reply(307, Fields.of({"Location": location}), kind="blob")
    return inside(replace(request, host=host, path=path, query="", fields=request.fields.without("Authorization")))


@dataclass(frozen=True, slots=True)
class WrongLength(Effect):
    """Content-Length is off by ``by`` bytes; the body is as it was."""

    by: int = 1

    def _changed(self, request: Request, reply: Reply) -> Reply:
        return _with_header(reply, "Content-Length", str(max(0, reply.length + self.by)))


@dataclass(frozen=True, slots=True)
class WrongDigest(Effect):
    """Docker-Content-Digest names other content."""

    statuses = SUCCESSES

    def _changed(self, request: Request, reply: Reply) -> Reply:
        return _with_header(reply, "Docker-Content-Digest", str(Digest.of(b"not the content")))


@dataclass(frozen=True, slots=True)
class SetHeader(Effect):
    """A header is replaced, or with an empty value left out.

    ``SetHeader("Content-Type", "text/plain")`` is the wrong type, ``SetHeader("Warning", "299 - \\x1b[2J")`` a control
    character.
    """

    statuses = frozenset(range(200, 600))
    header: str = "Content-Type"
    value: str = ""

    def _changed(self, request: Request, reply: Reply) -> Reply:
        if self.value:
            return _with_header(reply, self.header, self.value)
        return replace(reply, fields=reply.fields.without(self.header))


@dataclass(frozen=True, slots=True)
class SetStatus(Effect):
    """Another status, with the same headers and body: what the request asked for was done all the same."""

    statuses = SUCCESSES
    status: int = number(201, 200, 599)

    def _changed(self, request: Request, reply: Reply) -> Reply:
        return replace(reply, status=self.status)


@dataclass(frozen=True, slots=True)
class CutUpload(Effect):
    """The connection breaks after ``at`` bytes of an upload came; the registry keeps these, for the client to resume.

    With ``is_silent`` a part is answered as if all of it had come, but its Range shows that bytes are missing.
    """

    statuses = frozenset({201, 202})
    at: int = number(0, 0, _MOST_UPLOADED)
    is_silent: bool = False

    def fits(self, request: Request, reply: Reply) -> bool:
        """Uploads of more bytes; silently only parts, since the end of an upload has no Range."""
        statuses = frozenset({202}) if self.is_silent else self.statuses
        return reply.kind == "upload" and reply.status in statuses and len(request.body) > self.at

    def _changed(self, request: Request, reply: Reply) -> Reply:
        cut = replace(reply, arrived=self.at, pushed=None)
        if not self.is_silent:
            return cut.deliver(stop_at=-1, ending=Ending.RESET)
        last = int(reply.fields.get("Range").partition("-")[2]) - len(request.body) + self.at
        return _with_header(cut, "Range", f"0-{max(0, last)}")


@dataclass(frozen=True, slots=True)
class LinkLoop(Effect):
    """A page whose Link leads to itself, or to another host when one is named."""

    to_host: str = ""

    def _changed(self, request: Request, reply: Reply) -> Reply:
        place = f"https://{self.to_host}" if self.to_host else ""
        query = f"?{request.query}" if request.query else ""
        return _with_header(reply, "Link", f'<{place}{request.path}{query}>; rel="next"')


@dataclass(frozen=True, slots=True)
class IgnoreRange(Effect):
    """The Range is ignored: 200 with the whole body."""

    statuses = _PARTIAL

    def _changed(self, request: Request, reply: Reply) -> Reply:
        return replace(reply, status=200, start=0, stop=None, fields=reply.fields.without("Content-Range"))


@dataclass(frozen=True, slots=True)
class WrongRange(Effect):
    """A 206 with another part than was asked for.

    Attributes:
        by: the part starts (and the header says so) this many bytes later; negative is earlier.
        total_by: the total in Content-Range is off by this many bytes.
        is_honest: False keeps the header right and only the bytes shifted.
    """

    statuses = _PARTIAL
    by: int = 0
    total_by: int = 0
    is_honest: bool = True

    def _changed(self, request: Request, reply: Reply) -> Reply:
        size = reply.body.size
        start = max(0, min(size - 1, reply.start + self.by))
        stop = max(start + 1, min(size, start + reply.length))
        said = start if self.is_honest else reply.start
        text = f"bytes {said}-{said + stop - start - 1}/{size + self.total_by}"
        return _with_header(replace(reply, start=start, stop=stop), "Content-Range", text)


@dataclass(frozen=True, slots=True)
class ShortRange(Effect):
    """A 206 that honestly holds at most ``most`` bytes of what was asked for; legal."""

    statuses = _PARTIAL
    most: int = 1

    def _changed(self, request: Request, reply: Reply) -> Reply:
        stop = reply.start + max(1, min(self.most, reply.length))
        return _with_header(
            replace(reply, stop=stop), "Content-Range", f"bytes {reply.start}-{stop - 1}/{reply.body.size}"
        )


@dataclass(frozen=True, slots=True)
class RefuseRange(Effect):
    """416 although the range is in the blob, or another status, as from a host that can't send ranges at all."""

    is_replacing = True
    statuses = _PARTIAL
    status: int = number(416, 400, 599)

    def _changed(self, request: Request, reply: Reply) -> Reply:
        fields = {"Content-Range": f"bytes */{reply.body.size}"}
        refusal = error(self.status, "RANGE_INVALID", "no such range", fields=fields, kind=reply.kind)
        return replace(refusal, digest=reply.digest)
