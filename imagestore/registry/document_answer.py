"""The answer to a request for an index, a manifest or a config: read, and judged by ``manifests``."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from imagestore.digest import Verifier
from imagestore.documents.decode import MAX_DOCUMENT_BYTES
from imagestore.errors import DigestMismatchError, IntegrityError, SizeMismatchError
from imagestore.registry import manifests
from imagestore.registry.errors_body import escape, failure
from imagestore.registry.ranges import parse_length

if TYPE_CHECKING:
    from collections.abc import Iterator

    from imagestore.descriptor import Descriptor
    from imagestore.digest import Digest
    from imagestore.registry.exchange import Response


def from_head(response: Response, wanted: Digest | None, what: str) -> Descriptor | None:
    """The descriptor that the answer to a HEAD gives; None when it doesn't say enough. See ``manifests.from_head``."""
    with response:
        return manifests.from_head(response.headers, wanted=wanted, what=what) if response.status == 200 else None


def from_get(response: Response, wanted: Digest | None, what: str) -> tuple[Descriptor, bytes, bool]:
    """Descriptor and bytes, and whether the registry says that they are these; without that they may be cut short.

    Raises:
        RegistryError: another status than 200; see ``manifests.from_body`` for the others.
    """
    with response, naming_coding(response):
        if response.status != 200:
            raise failure(response, what=what)
        body = response.read(MAX_DOCUMENT_BYTES)
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


@contextmanager
def naming_coding(response: Response) -> Iterator[None]:
    """Say of bytes that differ that somebody on the way coded them, where the answer says so.

    Content that is stored coded may be marked so too: only bytes that differ tell.
    """
    try:
        yield
    except IntegrityError as error:
        if coding(response):
            marked = f"the answer is marked Content-Encoding: {coding(response)}"
            error.hint = f"{marked}: what stands before the registry must leave content as it is stored"
        raise


def coding(response: Response) -> str:
    """The content coding that an answer names; empty for none."""
    named = response.headers.get("Content-Encoding").strip().lower()
    return "" if named == "identity" else escape(named[:100])
