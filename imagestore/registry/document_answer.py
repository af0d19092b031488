"""The answer to a request for an index, a manifest or a config: read, and judged by ``manifests``."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from imagestore.errors import (
    DigestMismatchError,
    OperationCancelledError,
    ReferenceNotFoundError,
    RegistryError,
    RegistryUnavailableError,
    SizeMismatchError,
)
from imagestore.oci import digest as digests
from imagestore.oci.decode import MAX_DOCUMENT_BYTES
from imagestore.oci.digest import Digest, Verifier
from imagestore.registry import manifests
from imagestore.registry.content_coding import coding, is_gzip, naming_coding, plain
from imagestore.registry.errors_body import failure
from imagestore.registry.ranges import parse_length

if TYPE_CHECKING:
    from imagestore.oci.descriptor import Descriptor
    from imagestore.registry.session import Call, Session
    from imagestore.registry.transport.messages import Response

_log = logging.getLogger(__name__)


def announced(session: Session, call: Call, wanted: Digest | None) -> Digest | None:
    """The digest that a HEAD names; None where it fails in any way, or doesn't say.

    Some registries answer HEAD late, wrongly or not at all, so it is sent once and awaited for a few seconds.

    Args:
        session: the host.
        call: the GET for the same.
        wanted: the digest that is asked for; None when a tag is.

    Raises:
        OperationCancelledError: the operation was cancelled, or is past its deadline.
    """
    with session.cancel.child(deadline_seconds=session.shared.policy.head_seconds) as token:
        once = replace(session, cancel=token, attempts=1)
        try:
            return once.call(replace(call, method="HEAD"), lambda response: _from_head(response, wanted))
        except (RegistryError, OperationCancelledError) as error:
            session.cancel.check()
            _log.debug("%s: HEAD failed, asking with GET: %s", session.endpoint.host, error)
            return None


def _from_head(response: Response, wanted: Digest | None) -> Digest | None:
    with response:
        if response.status != 200:
            return None
        claimed = manifests.announced_digest(response.headers)
    if wanted is None or (claimed is not None and claimed.algorithm == wanted.algorithm):
        return claimed
    return wanted


def from_get(response: Response, wanted: Digest | None, what: str) -> tuple[Descriptor, bytes, Digest | None]:
    """Descriptor, bytes, and the digest that a header names.

    Raises:
        RegistryError: another status than 200; see ``manifests.from_body`` for the others.
    """
    with response, naming_coding(response):
        if response.status != 200:
            raise failure(response, what=what)
        # No index or manifest begins as gzip does.
        body = plain(response, response.read(MAX_DOCUMENT_BYTES), MAX_DOCUMENT_BYTES)
        if _is_cut_off(response, body):
            raise RegistryUnavailableError(f"{what}: the connection broke within the document, after {len(body)} bytes")
        target = manifests.from_body(body, response.headers, wanted=wanted, what=what)
        claimed = manifests.announced_digest(response.headers)
        if claimed != target.digest and claimed is not None and coding(response):
            # A wrong claim alone is no fault: some registries make them. But these bytes were changed on their way.
            raise DigestMismatchError(what, expected=str(claimed), actual=str(target.digest))
        return target, body, claimed


def confirm(session: Session, call: Call, target: Descriptor, claimed: Digest) -> None:
    """Ask by digest for what came by tag under another digest's name: a wrong header, or damage?

    Args:
        session: the host.
        call: the GET by tag.
        target: what came.
        claimed: the digest that the header named.

    Raises:
        DigestMismatchError: the registry doesn't have these bytes.
        RegistryError, IntegrityError: the host doesn't serve them properly.
    """
    by_digest = replace(call, path=f"manifests/{target.digest}")
    try:
        session.call(by_digest, lambda response: verified(response, target, call.what))
    except ReferenceNotFoundError as error:
        raise DigestMismatchError(call.what, expected=str(claimed), actual=str(target.digest)) from error


def _is_cut_off(response: Response, body: bytes) -> bool:
    """Whether JSON ends early, where the end of the connection is that of the body (RFC 9112 section 6.3)."""
    has_length = response.headers.get("Content-Length", "") or response.headers.get("Transfer-Encoding", "")
    return not has_length and body.startswith(b"{") and not body.rstrip().endswith(b"}")


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
        announced = parse_length(response.headers.get("Content-Length", ""))
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
