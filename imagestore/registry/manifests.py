"""What an answer of the manifests endpoint says: pure judgement of headers and bytes.

A HEAD is believed only when it is complete: digest, length and a media type that names an index or a manifest.
Everything else is decided by the bytes. What names another type than the descriptor is an error and no choice: a
document that is an index to one reader and a manifest to another is an attack (CVE-2021-41190).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from imagestore import media_types
from imagestore.descriptor import Descriptor
from imagestore.digest import VERIFIABLE, Digest
from imagestore.documents.decode import MAX_DOCUMENT_BYTES, decode
from imagestore.errors import DigestMismatchError, InvalidDigestError, ProtocolError
from imagestore.media_types import Kind
from imagestore.registry.ranges import parse_length

if TYPE_CHECKING:
    from imagestore.registry.exchange import Headers

_DOCUMENTS: Final = frozenset({Kind.INDEX, Kind.MANIFEST})
# What servers send when they don't know or don't care.
_GENERIC: Final = frozenset({"application/json", "application/octet-stream", "text/plain", "text/json"})

_PAGE_HINT: Final = "a page for browsers came: no registry answers there, or something in between wants a login first"


def is_document(descriptor: Descriptor) -> bool:
    """Whether content is served by the manifests endpoint; everything else is a blob."""
    return descriptor.kind in _DOCUMENTS


def accepted(first: str = "") -> tuple[str, ...]:
    """Media types to ask for, the expected one in front."""
    return tuple(dict.fromkeys((*((first,) if first else ()), *media_types.MANIFEST_ACCEPT)))


def stated_type(headers: Headers) -> str:
    """The media type that a server names; empty when its word says nothing about a document."""
    named = media_types.bare(headers.get("Content-Type"))
    return "" if named in _GENERIC else named


def from_head(headers: Headers, *, wanted: Digest | None, what: str) -> Descriptor | None:
    """The descriptor a HEAD gives; None when it doesn't say enough.

    Args:
        headers: of a 200.
        wanted: the digest that was asked for; None when a tag was.
        what: names the thing in errors.

    Raises:
        ProtocolError: a schema 1 manifest, or one that is too long.
        DigestMismatchError: the server claims another digest than the one asked for.
    """
    media_type = media_types.bare(headers.get("Content-Type"))
    _refuse_schema1(media_type, what)
    claimed = announced_digest(headers)
    if wanted is not None and claimed is not None and claimed.algorithm == wanted.algorithm and claimed != wanted:
        raise DigestMismatchError(what, expected=str(wanted), actual=str(claimed))
    digest = wanted or claimed
    size = parse_length(headers.get("Content-Length"))
    is_usable = digest is not None and digest.is_verifiable and size
    if not is_usable or media_types.kind(media_type) not in _DOCUMENTS:
        return None
    assert digest is not None
    assert size is not None
    check_size(size, what)
    return Descriptor(media_type, digest, size)


def from_body(body: bytes, headers: Headers, *, wanted: Digest | None, what: str) -> Descriptor:
    """The descriptor of bytes that came; the digest is computed, by the algorithm that the server names if it is right.

    Raises:
        ProtocolError: neither an index nor a manifest.
        DocumentError: the media type doesn't tell, and the bytes are no JSON object.
        DigestMismatchError: other bytes than asked for.
    """
    digest = Digest.of(body, wanted.algorithm if wanted is not None else "sha256")
    claimed = announced_digest(headers)
    if wanted is None and claimed is not None and claimed.is_verifiable and claimed.algorithm != digest.algorithm:
        # As a HEAD would have said.
        digest = claimed if Digest.of(body, claimed.algorithm) == claimed else digest
    if wanted is not None and digest != wanted:
        raise DigestMismatchError(what, expected=str(wanted), actual=str(digest))
    media_type = stated_type(headers) or _type_inside(body, what)
    _refuse_schema1(media_type, what)
    if media_types.kind(media_type) not in _DOCUMENTS:
        found = media_type[:100] or "none"
        hint = _PAGE_HINT if media_type == "text/html" else ""
        raise ProtocolError(f"{what}: expected an index or a manifest, found media type {found!r}", hint=hint)
    return Descriptor(media_type, digest, len(body))


def check_type(descriptor: Descriptor, headers: Headers, what: str) -> None:
    """The server's type must be the descriptor's, unless it is a generic one.

    Raises:
        ProtocolError: another type.
    """
    came = stated_type(headers)
    expected = media_types.bare(descriptor.media_type)
    if came and came != expected:
        hint = _PAGE_HINT if came == "text/html" else ""
        raise ProtocolError(f"{what}: expected media type {expected}, the server sent {came[:100]}", hint=hint)


def check_size(size: int, what: str) -> None:
    """No document is longer than 4 MiB; registries and pullers agree on that.

    Raises:
        ProtocolError: longer.
    """
    if size > MAX_DOCUMENT_BYTES:
        raise ProtocolError(f"{what}: expected at most {MAX_DOCUMENT_BYTES} bytes, the document has {size}")


def check_digest(digest: Digest, what: str) -> None:
    """What can't be verified needn't be asked for.

    Raises:
        InvalidDigestError: its algorithm isn't known here.
    """
    if not digest.is_verifiable:
        known = ", ".join(VERIFIABLE)
        raise InvalidDigestError(f"{what}: digest algorithm {digest.algorithm!r} can't be verified; known: {known}")


def announced_digest(headers: Headers) -> Digest | None:
    """What the server says that a document's digest is; None when it says nothing that can be read."""
    try:
        return Digest.parse(headers.get("Docker-Content-Digest").strip())
    except InvalidDigestError:
        return None


def _refuse_schema1(media_type: str, what: str) -> None:
    if media_types.kind(media_type) is Kind.SCHEMA1:
        raise ProtocolError(
            f"{what}: is a schema 1 manifest, a format given up in 2017",
            hint="push the image again with a current tool",
        )


def _type_inside(body: bytes, what: str) -> str:
    document = decode(body, what)
    named = document.get("mediaType")
    if named and isinstance(named, str):
        return media_types.bare(named)
    if document.get("schemaVersion") == 1 or "fsLayers" in document:
        return media_types.DOCKER_SCHEMA1
    return (
        media_types.OCI_INDEX if "manifests" in document else media_types.OCI_MANIFEST if "config" in document else ""
    )
