"""Writing to a repository: blobs, manifests and indexes (OCI distribution specification 1.1, "Push"), and deleting.

Only the first host that may be pushed to (``capabilities`` in ``hosts.toml``) is written to: a writer, unlike a reader,
must not go on at another host. Uploads of one client share its connections, logins, limits and retries with its pulls.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from imagestore.errors import (
    AccessDeniedError,
    DocumentError,
    IntegrityError,
    PreconditionError,
    ProtocolError,
    RegistryError,
)
from imagestore.events import Noticed
from imagestore.registry.deletion import delete
from imagestore.registry.endpoints import PUSH
from imagestore.registry.errors_body import failure
from imagestore.registry.manifests import accepted, announced_digest, ask_head, read_document, unheard
from imagestore.registry.presence import is_there
from imagestore.registry.referrer_list import ReferrerList
from imagestore.registry.session import Call, Content
from imagestore.registry.uploads import BlobUpload

if TYPE_CHECKING:
    from collections.abc import Sequence

    from imagestore.events import BlobUploaded
    from imagestore.oci.descriptor import Descriptor
    from imagestore.oci.digest import Digest
    from imagestore.oci.reference import Reference
    from imagestore.registry.deletion import Deletion
    from imagestore.registry.endpoints import Endpoint
    from imagestore.registry.limits import TransferSlots
    from imagestore.registry.session import Session
    from imagestore.registry.transport.messages import Response
    from imagestore.registry.uploads import Opener

_SUBJECT: Final = "OCI-Subject"


def writable(endpoints: Sequence[Endpoint], host: str) -> Endpoint:
    """The host that a registry's images are pushed to.

    Raises:
        PreconditionError: the configuration lets none of them be pushed to.
    """
    for endpoint in endpoints:
        if PUSH in endpoint.capabilities:
            return endpoint
    raise PreconditionError(
        f"{host}: none of its hosts may be pushed to",
        hint='add "push" to the capabilities of one of them in its hosts.toml; imagestore hosts shows them',
    )


class RepositoryWriter:
    """Writes to one repository; thread-safe."""

    def __init__(self, session: Session, reference: Reference, slots: TransferSlots) -> None:
        self._session = session
        self._reference = reference
        self._slots = slots

    @property
    def host(self) -> str:
        """The host that is written to, with its port when that isn't the scheme's default."""
        return self._session.endpoint.host

    def blob(self, descriptor: Descriptor, opener: Opener, *, mount_from: str = "") -> BlobUploaded:
        """Upload a blob, unless the repository has it.

        ``opener`` opens its bytes at an offset, or before it, and is called again for each try. ``mount_from`` is the
        path of a repository of this registry that has the blob, or empty.

        Raises:
            RegistryError: refused, unreachable, or no sensible protocol; of either side.
            IntegrityError: the source's bytes aren't the descriptor's, or the registry has others.
            OperationCancelledError: cancelled, or past the deadline.
        """
        slot = self._slots.take(self._session.endpoint.origin, cancel=self._session.cancel)
        try:
            done = BlobUpload(self._session, self._reference.path, descriptor, opener, mount_from).run()
        finally:
            slot.give_back()
        self._session.shared.observer(done)
        return done

    def has(self, descriptor: Descriptor) -> bool:
        """Whether a blob, a manifest or an index is in the repository.

        Raises:
            RegistryError: refused, unreachable, or no sensible protocol.
            OperationCancelledError: cancelled, or past the deadline.
        """
        return is_there(self._session, self._reference.path, descriptor)

    def digest(self, name: Reference) -> Digest | None:
        """What a tag or digest of the repository leads to, by a HEAD; None if it isn't there, or not said."""
        part = name.digest or name.tag
        call = Call("GET", self._reference.path, f"manifests/{part}", str(name), accept=accepted())
        return ask_head(self._session, call, name.digest, unheard)

    def manifest(self, descriptor: Descriptor, raw: bytes, *, tag: str = "", subject: Digest | None = None) -> None:
        """Write a manifest or an index (its bytes, and a tag or none); what it refers to must be there.

        If the registry refuses, and the tag leads to these very bytes already, nothing is to be changed: that is a
        success, and the observer is told. ``subject`` is the digest of its subject, if it has one; then see
        ``referrers()``.

        Raises:
            RegistryError: refused, unreachable, or no sensible protocol; or the registry keeps something else.
            OperationCancelledError: cancelled, or past the deadline.
        """
        is_listed = self._put(self._session, descriptor, raw, tag)
        if is_listed is None and subject is not None:
            # What an earlier push under the tag found out isn't known any more.
            is_listed = self._put(self._session, descriptor, raw, "")
        if subject is not None and not is_listed:
            self._list(subject, [(descriptor, raw)])

    def referrers(self, subject: Digest, referrers: Sequence[tuple[Descriptor, bytes]]) -> None:
        """Write manifests (their descriptors and bytes) that refer to a document of this digest.

        If the registry has no referrers API, they are added to the list under the document's fallback tag, which other
        clients may write at the same time: it is read again after some tenths of a second.

        Raises:
            RegistryError: refused, unreachable, or no sensible protocol; or others overwrite the list again and again.
            DocumentError: under the fallback tag is another document.
            OperationCancelledError: cancelled, or past the deadline.
        """
        unlisted = [each for each in referrers if not self._put(self._session, *each, "")]
        if unlisted:
            self._list(subject, unlisted)

    def delete(self, name: str | Digest, *, force: bool = False, dry_run: bool = False) -> Deletion:
        """Delete a tag, or an index or manifest by its digest with every tag that leads to it.

        By the distribution specification a tag's manifest stays. Blobs stay until the registry collects them. Before a
        manifest is deleted, the repository's tags (at most 1000) and indexes, and the manifest's referrers, are looked
        through; what only an untagged index needs isn't seen. A referrer that is deleted is taken off the list under
        the fallback tag, if it is there.

        Args:
            name: a tag, or a digest.
            force: delete a manifest also if an index or referrers need it, or if some tags can't be looked through.
            dry_run: only look.

        Raises:
            ReferenceNotFoundError: it isn't there.
            PreconditionError: something needs it, or that can't be found out; nothing was deleted.
            RegistryError: refused, not supported by the registry, unreachable, or no sensible protocol.
            OperationCancelledError: cancelled, or past the deadline.
        """
        return delete(self._session, self._reference, name, unlist=self._unlist, force=force, dry_run=dry_run)

    def _list(self, subject: Digest, referrers: Sequence[tuple[Descriptor, bytes]]) -> None:
        self._list_of(subject).add(referrers)

    def _unlist(self, subject: Digest, referrer: Digest) -> None:
        self._list_of(subject).remove(referrer)

    def _list_of(self, subject: Digest) -> ReferrerList:
        # Tried again by the list, which reads what is there before each try.
        once = replace(self._session, is_tried_once=True)
        return ReferrerList(self._session, self._reference, subject, partial(self._put, once))

    def _put(self, session: Session, descriptor: Descriptor, raw: bytes, tag: str) -> bool | None:
        """Write a document; returns whether the registry lists it for its subject, None if it was there already."""
        what = self._what(descriptor)

        def _judged(response: Response) -> tuple[bool, Digest | None]:
            with response:
                if not response.is_success:
                    raise failure(response, what=what)
                return _SUBJECT in response.headers, announced_digest(response.headers)

        content = Content(descriptor.media_type, len(raw), lambda: (raw,))
        call = Call("PUT", self._reference.path, f"manifests/{tag or descriptor.digest}", what, content=content)
        try:
            is_listed, claimed = session.call(call, _judged)
        except RegistryError as error:
            # A list of referrers is read again before each try.
            if tag and error.status and not session.is_tried_once and self._leads_to(descriptor, raw, tag):
                name = f"{self._reference.name}:{tag}"
                told = f"{name} leads to this {descriptor.kind.value} already, so nothing was to be changed ({error})"
                session.shared.observer(Noticed(told))
                return None
            if isinstance(error, AccessDeniedError):
                error.hint = error.hint or "the login may lack the right to push"
            raise
        is_other = claimed is not None and claimed.algorithm == descriptor.digest.algorithm
        # The header alone says nothing of what the registry has.
        if is_other and claimed != descriptor.digest and not self.has(descriptor):
            message = f"{what}: {self.host} took it, and doesn't have it under its digest"
            raise ProtocolError(message, host=self.host, hint="it may have kept it in another form; ask its operator")
        return is_listed

    def _leads_to(self, descriptor: Descriptor, raw: bytes, tag: str) -> bool:
        """Whether a tag leads to these bytes; False if that can't be found out."""
        what = f"{self._reference.name}:{tag}"
        call = Call("GET", self._reference.path, f"manifests/{tag}", what, accept=accepted(descriptor.media_type))
        try:
            found = self._session.call(call, lambda response: read_document(response, None, what, unheard))
        except (RegistryError, IntegrityError, DocumentError):
            return False
        return found[1] == raw

    def _what(self, descriptor: Descriptor) -> str:
        return f"{descriptor.kind.value} {descriptor.digest} of {self._reference.name}"
