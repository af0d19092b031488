"""Reads and checks answers that are an index, a manifest or a config.

The bytes decide; a header is only a hint. If the content type names another kind of document than the descriptor, or
than the document's own media type, that is an error: a document that is an index to one reader and a manifest to
another is an attack (CVE-2021-41190), and other clients trust the header.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeAlias

from imagestore.errors import (
    AccessDeniedError,
    DigestMismatchError,
    DocumentError,
    InvalidDigestError,
    OperationCancelledError,
    ProtocolError,
    ReferenceNotFoundError,
    RegistryError,
    RegistryUnavailableError,
    SizeMismatchError,
)
from imagestore.oci import digest as digests
from imagestore.oci import media_types
from imagestore.oci.decode import MAX_INDEX_BYTES, decode, in_turn, limit_of
from imagestore.oci.descriptor import Descriptor
from imagestore.oci.digest import VERIFIABLE, Digest, Verifier
from imagestore.oci.media_types import Kind
from imagestore.oci.other_documents import contradiction
from imagestore.registry.content_coding import coding, coding_as_hint, decoded, is_gzip, read_decoded
from imagestore.registry.errors_body import failure

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import httpx

    from imagestore.registry.session import Call, Session
    from imagestore.registry.transport.messages import Response


_log = logging.getLogger(__name__)

#: Gets the headers of an answer.
Answered: TypeAlias = "Callable[[Mapping[str, str]], None]"

_DOCUMENTS: Final = frozenset({Kind.INDEX, Kind.MANIFEST})
# What servers send for files of unknown type: web servers, object stores, and guesses by the "extension" of a tag like
# 1.2, which is a manual page's. Each also with "x-" before a part; "unknown" anywhere counts too.
_GENERIC: Final = frozenset(
    {
        "application/binary",
        "application/data",
        "application/download",
        "application/force-download",
        "application/json",
        "application/octet-stream",
        "application/octetstream",
        "application/octlet-stream",
        "application/troff-man",
        "application/www-form-urlencoded",
        "binary/octet-stream",
        "httpd/unix-directory",
        "text/json",
        "text/plain",
        "text/troff",
    }
)

_MISLABELLED_HINT: Final = (
    "readers disagree on what it is then; push it again with the type that it has, or tell the registry's operator"
)
_PAGES: Final = frozenset({"text/html", "application/xhtml+xml"})
_PAGE_HINT: Final = (
    "that is the type of a web page: perhaps no registry answers, or a proxy in between wants a login first"
)


def unheard(_headers: Mapping[str, str]) -> None:
    """Ignore the headers of an answer."""


def is_document(descriptor: Descriptor) -> bool:
    """Whether content is served by the manifests endpoint; everything else is a blob."""
    return descriptor.kind in _DOCUMENTS


def accepted(first: str = "") -> tuple[str, ...]:
    """Media types to ask for, the expected one in front."""
    return tuple(dict.fromkeys((*((first,) if first else ()), *media_types.MANIFEST_ACCEPT)))


def stated_type(headers: httpx.Headers) -> str:
    """The media type that a server names; empty if it is a generic one.

    Schema 1's types count as generic: they are not asked for, and some registries send other documents under them.
    """
    named = media_types.bare(headers.get("Content-Type", ""))
    plain = "/".join(part.removeprefix("x-") for part in named.split("/"))
    says_nothing = plain in _GENERIC or "unknown" in named or "/" not in named or "*" in named
    return "" if says_nothing or media_types.kind(named) is Kind.SCHEMA1 else named


def descriptor_of(body: bytes, headers: httpx.Headers, *, wanted: Digest | None, what: str) -> Descriptor:
    """The descriptor of a document; its digest is computed, by the algorithm that the server names if that is right.

    Raises:
        ProtocolError: neither an index nor a manifest.
        DocumentError: one is under the other's type, or no type is named, and the bytes are no JSON object.
        DigestMismatchError: other bytes than asked for.
    """
    digest = Digest.of(body, wanted.algorithm if wanted is not None else "sha256")
    claimed = announced_digest(headers)
    if wanted is None and claimed is not None and claimed.is_verifiable and claimed.algorithm != digest.algorithm:
        # The descriptor is then the same as after a HEAD.
        digest = claimed if Digest.of(body, claimed.algorithm) == claimed else digest
    if wanted is not None and digest != wanted:
        if media_types.kind(headers.get("Content-Type", "")) is Kind.SCHEMA1:
            # Its digest is that of a part, without the signatures.
            _refuse_schema1(_type_inside(body, what), what)
        raise DigestMismatchError(what, expected=str(wanted), actual=str(digest))
    stated = stated_type(headers)
    media_type = stated or in_turn(body, lambda: _type_inside(body, what))
    _refuse_schema1(media_type, what)
    if media_types.kind(media_type) not in _DOCUMENTS:
        shown = repr(media_type[:100] or "none")
        found = f"the server sent content type {shown}" if stated else f"found media type {shown}"
        raise ProtocolError(f"{what}: expected an index or a manifest, {found}", hint=_hint(stated))
    found = _contradiction(body, stated, what) if stated else ""
    if found:
        raise DocumentError(what, [f"the server sent content type {stated!r}, but {found}"], hint=_MISLABELLED_HINT)
    return Descriptor(media_type, digest, len(body))


def check_type(descriptor: Descriptor, headers: httpx.Headers, what: str) -> None:
    """The server's type must be the descriptor's, unless it is a generic one."""
    came = stated_type(headers)
    expected = media_types.bare(descriptor.media_type)
    if came and came != expected:
        message = f"{what}: expected media type {expected}, the server sent content type {came[:100]!r}"
        raise ProtocolError(message, hint=_hint(came))


def check_size(descriptor: Descriptor, what: str) -> None:
    """Refuse a document that is longer than one of its kind may be."""
    limit, size = limit_of(descriptor.kind), descriptor.size
    if size > limit:
        raise ProtocolError(f"{what}: expected at most {limit} bytes, the {descriptor.kind.value} has {size}")


def check_digest(digest: Digest, what: str) -> None:
    """Refuse, before a request is sent, a digest that can't be verified."""
    if not digest.is_verifiable:
        known = ", ".join(VERIFIABLE)
        raise InvalidDigestError(f"{what}: digest algorithm {digest.algorithm!r} can't be verified; known: {known}")


def announced_digest(headers: httpx.Headers) -> Digest | None:
    """The digest that a header names; None if there is none that can be read."""
    try:
        return Digest.parse(headers.get("Docker-Content-Digest", "").strip())
    except InvalidDigestError:
        return None


def _hint(content_type: str) -> str:
    return _PAGE_HINT if content_type in _PAGES else ""


def _refuse_schema1(media_type: str, what: str) -> None:
    if media_types.kind(media_type) is Kind.SCHEMA1:
        raise ProtocolError(
            f"{what}: is a schema 1 manifest, a format given up in 2017",
            hint="push the image again with a current tool",
        )


def _contradiction(body: bytes, stated: str, what: str) -> str:
    try:
        return in_turn(body, lambda: contradiction(decode(body, what, limit_bytes=MAX_INDEX_BYTES), stated))
    except DocumentError:  # reported when the document is parsed
        return ""


def _type_inside(body: bytes, what: str) -> str:
    document = decode(body, what, limit_bytes=MAX_INDEX_BYTES)
    named = document.get("mediaType")
    if named and isinstance(named, str):
        return media_types.bare(named)
    if document.get("schemaVersion") == 1 or "fsLayers" in document:
        return media_types.DOCKER_SCHEMA1
    return (
        media_types.OCI_INDEX if "manifests" in document else media_types.OCI_MANIFEST if "config" in document else ""
    )


def ask_head(session: Session, call: Call, wanted: Digest | None, answered: Answered) -> Digest | None:
    """The digest that a HEAD names; None if it fails or names none. ``answered`` gets the headers of its answer.

    Some registries answer HEAD late, wrongly or not at all, so it is sent once, with a deadline of a few seconds.
    """
    with session.cancel.child(deadline_seconds=session.shared.policy.head_seconds) as token:
        once = replace(session, cancel=token, is_tried_once=True)
        try:
            return once.call(replace(call, method="HEAD"), lambda response: _from_head(response, wanted, answered))
        except (RegistryError, OperationCancelledError) as error:
            session.cancel.check()
            _log.debug("%s: HEAD failed, asking with GET: %s", session.endpoint.host, error)
            return None


def _from_head(response: Response, wanted: Digest | None, answered: Answered) -> Digest | None:
    with response:
        if response.status != 200:
            return None
        answered(response.headers)
        claimed = announced_digest(response.headers)
    if wanted is None or (claimed is not None and claimed.algorithm == wanted.algorithm):
        return claimed
    return wanted


def described_blob(session: Session, call: Call, digest: Digest) -> Descriptor:
    """The descriptor of a blob, from the answer to HEAD, or to GET where that one fails or doesn't say the size.

    Raises:
        RegistryError: it isn't there, can't be asked for, or has no size.
    """

    def _judged(response: Response) -> int:
        with response:
            if response.status != 200:
                raise failure(response, what=call.what)
            # Some servers don't know the length of a body that they don't send.
            if response.length is None or (response.length == 0 and digest != Digest.of(b"", digest.algorithm)):
                raise ProtocolError(f"{call.what}: {response.host} doesn't say its size", host=response.host)
            return response.length

    try:
        size = session.call(replace(call, method="HEAD"), _judged)
    except (ProtocolError, AccessDeniedError):
        size = session.call(call, _judged)
    return Descriptor(media_types.OCTETS, digest, size)


def read_document(
    response: Response, wanted: Digest | None, what: str, answered: Answered
) -> tuple[Descriptor, bytes, Digest | None]:
    """Descriptor, bytes, and the digest that a header names. ``answered`` gets the headers.

    Raises:
        RegistryError: another status than 200; see ``descriptor_of`` for the others.
    """
    with response, coding_as_hint(response):
        if response.status != 200:
            raise failure(response, what=what)
        answered(response.headers)
        kind = media_types.kind(stated_type(response.headers))
        # No index or manifest begins as gzip does.
        body = read_decoded(response, limit_of(kind if kind in _DOCUMENTS else Kind.INDEX))
        if _is_cut_off(response, body):
            raise RegistryUnavailableError(f"{what}: the connection broke within the document, after {len(body)} bytes")
        target = descriptor_of(body, response.headers, wanted=wanted, what=what)
        check_size(target, what)
        claimed = announced_digest(response.headers)
        if claimed != target.digest and claimed is not None and coding(response):
            # A wrong header alone is no error: some registries send them. But these bytes were coded in transit.
            raise DigestMismatchError(what, expected=str(claimed), actual=str(target.digest))
        return target, body, claimed


def confirm_by_digest(session: Session, call: Call, target: Descriptor, claimed: Digest) -> None:
    """A tag's document isn't the one that the header names: fetch it by its own digest, to see which of them is wrong.

    Raises:
        DigestMismatchError: the registry doesn't have these bytes.
        RegistryError, IntegrityError: the host doesn't serve them properly.
    """
    by_digest = replace(call, path=f"manifests/{target.digest}")
    try:
        session.call(by_digest, lambda response: read_verified(response, target, call.what))
    except ReferenceNotFoundError as error:
        raise DigestMismatchError(call.what, expected=str(claimed), actual=str(target.digest)) from error


def _is_cut_off(response: Response, body: bytes) -> bool:
    """Whether JSON ends early, if only the connection's end marks that of the body (RFC 9112 section 6.3)."""
    has_length = response.headers.get("Content-Length", "") or response.headers.get("Transfer-Encoding", "")
    return not has_length and body.startswith(b"{") and not body.rstrip().endswith(b"}")


def read_verified(response: Response, descriptor: Descriptor, what: str) -> bytes:
    """Read exactly what the descriptor says.

    Raises:
        RegistryError: another status than 200, or another media type.
        SizeMismatchError, DigestMismatchError: other bytes.
    """
    with response, coding_as_hint(response):
        if response.status != 200:
            raise failure(response, what=what)
        if is_document(descriptor):
            check_type(descriptor, response.headers, what)
        if is_gzip(response):
            return _read_gzip(response, descriptor, what)
        if response.length not in (None, descriptor.size):
            raise SizeMismatchError(what, expected=descriptor.size, actual=response.length or 0)
        verifier = Verifier(descriptor.digest, descriptor.size, what=what)
        body = bytearray()
        for piece in response.chunks():
            verifier.update(piece)
            body += piece
        verifier.finish()
    return bytes(body)


def _read_gzip(response: Response, descriptor: Descriptor, what: str) -> bytes:
    """The body as it came if it is the document (stored compressed), else decompressed."""
    body = response.read(limit_of(descriptor.kind))
    if len(body) != descriptor.size or Digest.of(body, descriptor.digest.algorithm) != descriptor.digest:
        body = decoded(response, body, descriptor.size)
        digests.verify(body, descriptor.digest, descriptor.size, what=what)
    return body
