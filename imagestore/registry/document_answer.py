"""The answer to a request for an index, a manifest or a config: read, and judged by ``manifests``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from imagestore import digest as digests
from imagestore.digest import Digest, Verifier
from imagestore.documents.decode import MAX_DOCUMENT_BYTES
from imagestore.errors import DigestMismatchError, SizeMismatchError
from imagestore.registry import manifests
from imagestore.registry.coding import coding, is_gzip, naming_coding, plain
from imagestore.registry.errors_body import failure
from imagestore.registry.ranges import parse_length

if TYPE_CHECKING:
    from imagestore.descriptor import Descriptor
    from imagestore.registry.exchange import Response


def from_head(response: Response, wanted: Digest | None, what: str) -> Descriptor | None:
    """The descriptor that the answer to a HEAD gives; None when it doesn't say enough. See ``manifests.from_head``."""
    with response:
        # The length of what was coded isn't the document's.
        says_enough = response.status == 200 and not coding(response)
        return manifests.from_head(response.headers, wanted=wanted, what=what) if says_enough else None


def from_get(response: Response, wanted: Digest | None, what: str) -> tuple[Descriptor, bytes, bool]:
    """Descriptor and bytes, and whether the registry says that they are these; without that they may be cut short.

    Raises:
        RegistryError: another status than 200; see ``manifests.from_body`` for the others.
    """
    with response, naming_coding(response):
        if response.status != 200:
            raise failure(response, what=what)
        # No index or manifest begins as gzip does.
        body = plain(response, response.read(MAX_DOCUMENT_BYTES), MAX_DOCUMENT_BYTES)
        target = manifests.from_body(body, response.headers, wanted=wanted, what=what)
        claimed = manifests.announced_digest(response.headers)
        if claimed != target.digest and claimed is not None and coding(response):
            # A wrong claim alone is no fault: some registries make them. But these bytes were changed on their way.
            raise DigestMismatchError(what, expected=str(claimed), actual=str(target.digest))
        return target, body, claimed == target.digest


def verified(response: Response, descriptor: Descriptor, what: str) -> bytes:
    """Read exactly what the descriptor says.

    Raises:
        RegistryError: another status than 200, or another media type.
        SizeMismatchError, DigestMismatchError: other bytes.
    """
    with response, naming_coding(response):
        if response.status != 200:
            raise failure(response, what=what)
        if manifests.is_document(descriptor):
            manifests.check_type(descriptor, response.headers, what)
        if is_gzip(response):
            return _either(response, descriptor, what)
        announced = parse_length(response.headers.get("Content-Length"))
        if announced not in (None, descriptor.size):
            raise SizeMismatchError(what, expected=descriptor.size, actual=announced or 0)
        verifier = Verifier(descriptor.digest, descriptor.size, what=what)
        body = bytearray()
        for piece in response.chunks():
            verifier.update(piece)
            body += piece
        verifier.finish()
    return bytes(body)


def _either(response: Response, descriptor: Descriptor, what: str) -> bytes:
    """What came if that is the document (it is stored compressed), else what is inside."""
    body = response.read(MAX_DOCUMENT_BYTES)
    if len(body) != descriptor.size or Digest.of(body, descriptor.digest.algorithm) != descriptor.digest:
        body = plain(response, body, descriptor.size)
        digests.verify(body, descriptor.digest, descriptor.size, what=what)
    return body
