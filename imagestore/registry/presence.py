"""Whether a repository has a blob, a manifest or an index.

HEAD asks. Some registries answer it wrongly, late or not at all; then a GET is sent, whose answer counts.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from imagestore.errors import OperationCancelledError, RegistryError
from imagestore.registry.errors_body import failure
from imagestore.registry.manifests import accepted, is_document
from imagestore.registry.session import Call

if TYPE_CHECKING:
    from imagestore.oci.descriptor import Descriptor
    from imagestore.registry.session import Session
    from imagestore.registry.transport.messages import Response


def is_there(session: Session, repository: str, descriptor: Descriptor) -> bool:
    """Whether a repository has a blob, a manifest or an index.

    Raises:
        RegistryError: refused, unreachable, or no sensible protocol.
        OperationCancelledError: cancelled, or past the deadline.
    """
    what, is_manifest = named(descriptor, repository), is_document(descriptor)
    folder, accept = ("manifests", accepted(descriptor.media_type)) if is_manifest else ("blobs", ())
    call = Call("GET", repository, f"{folder}/{descriptor.digest}", what, accept=accept)

    def _judged(response: Response) -> bool:
        with response:
            if response.status == 404:
                return False
            if not response.is_success:
                raise failure(response, what=what)
            return response.length in (None, descriptor.size)

    found = _by_head(session, call, descriptor)
    return session.call(call, _judged) if found is None else found


def _by_head(session: Session, call: Call, descriptor: Descriptor) -> bool | None:
    """What a HEAD says; None if it fails, or gives no length, or zero for what isn't empty."""

    def _judged(response: Response) -> bool | None:
        with response:
            if response.status == 404:
                return False
            if not response.is_success or (response.length == 0 and descriptor.size):
                return None
            return response.length in (None, descriptor.size)

    with session.cancel.child(deadline_seconds=session.shared.policy.head_seconds) as token:
        try:
            return replace(session, cancel=token, is_tried_once=True).call(replace(call, method="HEAD"), _judged)
        except (RegistryError, OperationCancelledError):
            session.cancel.check()
            return None


def named(descriptor: Descriptor, repository: str) -> str:
    """Content in a repository, for messages."""
    return f"{descriptor.kind.value} {descriptor.digest} of {repository}"
