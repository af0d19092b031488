"""Opens one transfer of a blob from one of three sources: a host, the descriptor itself, or a foreign layer's URLs.

Range support is optional for a registry, so judge() gives every answer to a Range request a defined meaning (RFC 9110
section 14, distribution specification "Pulling blobs").

Old Windows base layers are foreign: no registry has them, and their descriptor lists URLs. The image's author wrote
those (CVE-2020-15157), so they are followed only to hosts that the operator allows, over https, to public addresses,
without credentials, configured headers or client certificates.
"""

from __future__ import annotations

import enum
import io
import logging
import re
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

import httpx

from imagestore.errors import ProtocolError, RegistryError, SizeMismatchError
from imagestore.oci import digest as digests
from imagestore.oci import media_types
from imagestore.oci.media_types import Kind
from imagestore.registry.blobs import Body
from imagestore.registry.content_coding import GunzippedBody, coding, coding_as_hint, coding_hint, is_gzip
from imagestore.registry.endpoints import Endpoint
from imagestore.registry.errors_body import failure
from imagestore.registry.transport import urls
from imagestore.registry.transport.messages import parse_length

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from imagestore.oci.descriptor import Descriptor
    from imagestore.registry.limits import Slot, TransferSlots
    from imagestore.registry.session import Call, Session
    from imagestore.registry.transport.messages import Response


_log = logging.getLogger(__name__)

_CONTENT_RANGE: Final = re.compile(r"bytes +([0-9]{1,19})-([0-9]{1,19})/([0-9]{1,19}|\*)", re.IGNORECASE)
_CROWDED: Final = frozenset({429, 503})
# Status codes that the Range field alone may cause; others concern a login, the blob or limits.
_OF_REQUESTS: Final = frozenset({400, 403, 405, 406, 409, 411, 412, 413, 415, 422})


@dataclass(frozen=True, slots=True)
class ContentRange:
    """First and last byte (inclusive) of a partial answer, and the whole size; None when the server doesn't say."""

    first: int
    last: int
    total: int | None


def parse_content_range(text: str) -> ContentRange | None:
    """Read a Content-Range field; None when it is missing or makes no sense.

    >>> parse_content_range("bytes 5-9/10")
    ContentRange(first=5, last=9, total=10)
    """
    found = _CONTENT_RANGE.fullmatch(text.strip())
    if found is None:
        return None
    first, last = int(found[1]), int(found[2])
    total = None if found[3] == "*" else int(found[3])
    if last < first or (total is not None and last >= total):
        return None
    return ContentRange(first, last, total)


class Verdict(enum.Enum):
    """What to do with an answer to a blob request."""

    WHOLE = "the body is the blob from its first byte"
    PART = "the body goes on where we stopped"
    RESTART = "ask again without Range"
    WRONG_SIZE = "this host has another size than the descriptor says"
    REFUSED = "an error"


def range_field(start: int, end: int, size: int) -> str:
    """Value of the Range field for bytes from ``start`` up to before ``end``; empty when that is the whole blob.

    >>> range_field(5, 10, 10), range_field(5, 8, 10), range_field(0, 10, 10)
    ('bytes=5-', 'bytes=5-7', '')
    """
    if end >= size:
        return f"bytes={start}-" if start else ""
    return f"bytes={start}-{end - 1}"


def judge(status: int, headers: httpx.Headers, *, offset: int, size: int, has_range: bool) -> Verdict:
    """Decide about an answer."""
    if status == 200:
        length = parse_length(headers.get("Content-Length", ""))
        return Verdict.WHOLE if length in (None, size) else Verdict.WRONG_SIZE
    if not has_range:
        return Verdict.REFUSED
    if status == 206:
        if media_types.bare(headers.get("Content-Type", "")) == "multipart/byteranges":
            return Verdict.RESTART
        part = parse_content_range(headers.get("Content-Range", ""))
        if part is None or part.first != offset or part.last >= size or part.total not in (None, size):
            return Verdict.RESTART
        length = parse_length(headers.get("Content-Length", ""))
        return Verdict.PART if length in (None, part.last + 1 - part.first) else Verdict.RESTART
    # 304 and 412 answer conditions that we don't send; 416: our offset isn't the server's; 501: it has no ranges.
    return Verdict.RESTART if status in {304, 412, 416, 501} else Verdict.REFUSED


def inline_body(descriptor: Descriptor, data: bytes, offset: int, what: str) -> Body:
    """A transfer of content that the descriptor itself carries.

    Raises:
        SizeMismatchError, DigestMismatchError: the data doesn't match the descriptor.
    """
    digests.verify(data, descriptor.digest, descriptor.size, what=f"inline data of {what}")
    return Body(io.BytesIO(data[offset:]), offset, descriptor.size, "the descriptor")


def open_blob(
    session: Session, call: Call, descriptor: Descriptor, offset: int, slots: TransferSlots, *, is_exact: bool = False
) -> Body:
    """Open a blob at an offset, or at 0 if the host doesn't resume; holds one of the host's slots until closed.

    The call has the Range field for the offset. With ``is_exact`` the range is one of several, requested after the host
    has shown that it serves ranges; an answer with the whole blob is useless then.

    Raises:
        RegistryError: refused, or no sensible answer.
        SizeMismatchError: the host announces another size.
    """
    origin = session.endpoint.origin
    while True:
        slot = slots.take(origin, cancel=session.cancel)
        try:
            body = _open(session, call, descriptor, offset, slot, is_exact=is_exact)
        except BaseException as error:
            slot.give_back()
            # Retries may end before another transfer of ours does; the refusal is final only if no other one is served.
            if not (session.is_last and _is_crowded(error) and slot.wait_for_another(cancel=session.cancel)):
                raise
            _log.debug("%s: refuses one more transfer in parallel with others: %s", session.endpoint.host, error)
        else:
            slot.note_served()
            return body


def _is_crowded(error: BaseException) -> bool:
    """Whether a host may limit connections: it refuses without a Retry-After time, or doesn't answer."""
    if not isinstance(error, RegistryError) or getattr(error, "retry_after", None) is not None:
        return False
    return error.status in _CROWDED or (not error.status and isinstance(error.__cause__, httpx.TimeoutException))


def _is_of_blob(response: Response, descriptor: Descriptor) -> bool:
    """Whether a part with a Content-Encoding is a part of the stored blob itself, not of an encoded form."""
    part = parse_content_range(response.headers.get("Content-Range", ""))
    return part is not None and part.total == descriptor.size and response.length is not None


def _judged(call: Call, descriptor: Descriptor, offset: int, response: Response) -> tuple[Verdict, Response]:
    """Inside session.call(), which hides the secrets that were sent from the error."""
    has_range = bool(call.range_header)
    verdict = judge(response.status, response.headers, offset=offset, size=descriptor.size, has_range=has_range)
    if verdict is Verdict.PART and coding(response) and not _is_of_blob(response, descriptor):
        verdict = Verdict.RESTART
    if verdict is Verdict.REFUSED:
        raise failure(response, what=call.what)
    return verdict, response


def _open(
    session: Session,
    call: Call,
    descriptor: Descriptor,
    offset: int,
    slot: Slot,
    *,
    is_exact: bool,
) -> Body:
    whole = replace(call, range_header="")
    try:
        verdict, response = session.call(call, partial(_judged, call, descriptor, offset), slot)
    except RegistryError as error:
        # Some hosts always fail at ranges, and then an interrupted blob could never be fetched.
        is_of_range = error.status == 500 or (error.status in _OF_REQUESTS and not is_exact)
        if not call.range_header or not is_of_range:
            raise
        # A call that failed after its last retry has released the slot.
        slot.take_again(cancel=session.cancel)
        verdict, response = session.call(whole, partial(_judged, whole, descriptor, 0), slot)
    if verdict is Verdict.RESTART:
        response.close()
        verdict, response = session.call(whole, partial(_judged, whole, descriptor, 0), slot)
    host = session.endpoint.host
    # Another length may also mean other content: if there is a next host, use that.
    is_coded = verdict is Verdict.WRONG_SIZE and session.is_last
    if is_gzip(response) and (is_coded or (verdict is Verdict.WHOLE and response.length is None)):
        unpacked = GunzippedBody(response, descriptor, is_coded=is_coded)
        return Body(unpacked, 0, descriptor.size, host, slot, coding_hint(response))
    hint = coding_hint(response)
    if verdict is Verdict.WHOLE:
        return Body(response, 0, descriptor.size, host, slot, hint)
    if verdict is Verdict.PART:
        part = parse_content_range(response.headers.get("Content-Range", ""))
        end = part.last + 1 if part is not None else descriptor.size
        return Body(response, offset, end, host, slot, hint)
    with response, coding_as_hint(response):
        raise SizeMismatchError(f"{call.what} at {host}", expected=descriptor.size, actual=response.length or 0)


def allowed_sources(descriptor: Descriptor, allowed_hosts: AbstractSet[str]) -> tuple[Endpoint, ...]:
    """The URLs of a foreign layer that may be asked, in the descriptor's order; each is its endpoint's ``base``."""
    if descriptor.kind is not Kind.FOREIGN_LAYER:
        return ()
    found: dict[Endpoint, None] = {}
    for url in descriptor.urls:
        try:
            origin = urls.origin_of(url)
        except ProtocolError:
            continue
        if origin.scheme == "https" and urls.host_port(origin) in allowed_hosts:
            found[Endpoint(url, origin, urls.host_port(origin), is_upstream=True, source="layer address")] = None
    return tuple(found)
