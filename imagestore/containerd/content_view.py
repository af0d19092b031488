"""Who sees which content: a namespace, the store's own namespace, or a containerd that keeps its content here.

    any namespace   what its clients wrote or shared there: a record, and the file
    HOME (k8s.io)   all files but those that only others know
    a proxy         all files; looking at one claims it, since containerd will count on it from then on

A blob is one file and a record for each owner (containerd, core/metadata). An unfinished write is, on disk,
``<namespace>/1/<ref>`` as in containerd; a proxy's has the proxy's name before that, a pull's own has neither.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from imagestore.errors import ContentNotFoundError, IntegrityError, PreconditionError
from imagestore.metadata.records import HOME, ContentRecord, lease_key, proxy_owner
from imagestore.store import garbage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from imagestore.content.api import IngestStatus
    from imagestore.oci.digest import Digest
    from imagestore.store.image_store import ImageStore

#: A client's ingest on disk; what doesn't look like it is a pull's.
_OWNED_REF: Final = re.compile(r"(?:proxy:[^/]+|[A-Za-z0-9._-]+/[0-9]+)/.*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ContentView:
    """A namespace that isn't the store's own.

    Attributes:
        owner: of its content records.
    """

    owner: str

    @property
    def is_proxy(self) -> bool:
        """Whether it is the flat content of another containerd, which has its own namespaces, leases and collector."""
        return False

    def ref_on_disk(self, ref: str) -> str:
        """The name on disk of the owner's ingest."""
        return f"{self.owner}/1/{ref}"

    def ref_of(self, on_disk: str) -> str | None:
        """The owner's name of an ingest on disk; None when it isn't the owner's."""
        prefix = self.ref_on_disk("")
        return on_disk.removeprefix(prefix) if on_disk.startswith(prefix) else None

    def lease_key(self, name: str) -> str:
        """The id of the owner's lease in the database; empty without a lease, or where leases count for nothing."""
        return lease_key(self.owner, name) if name else ""

    def find(self, store: ImageStore, digest: Digest) -> ContentRecord | None:
        """A blob that the owner sees, or None."""
        record = store.metadata.namespaces.content_record(self.owner, digest)
        return record if record is not None and store.content.exists(digest) else None

    def get(self, store: ImageStore, digest: Digest) -> ContentRecord:
        """A blob that the owner sees.

        Raises:
            ContentNotFoundError: it doesn't.
        """
        found = self.find(store, digest)
        if found is None:
            raise ContentNotFoundError(f"content {digest} is not in {self.owner}")
        return found

    def all(self, store: ImageStore) -> list[ContentRecord]:
        """Every blob that the owner sees, ordered by digest."""
        records = store.metadata.namespaces.content_records(self.owner)
        return [record for record in records if _is_there(store, record.digest)]

    def set_labels(self, store: ImageStore, digest: Digest, labels: Mapping[str, str]) -> None:
        """Replace the owner's labels of a blob.

        Raises:
            InvalidInputError: one is too long.
        """
        store.metadata.namespaces.label_record(self.owner, digest, labels)

    def forget(self, store: ImageStore, digest: Digest) -> bool:
        """Let the owner forget a blob, whose file goes with a collection; say whether that has something to do."""
        if self.find(store, digest) is None:
            return False
        return store.metadata.namespaces.forget_record(self.owner, digest)

    def status(self, store: ImageStore, ref: str) -> IngestStatus | None:
        """One unfinished write under the owner's name for it, or None."""
        found = store.content.status(self.ref_on_disk(ref))
        return replace(found, ref=ref) if found is not None else None

    def statuses(self, store: ImageStore) -> list[IngestStatus]:
        """Unfinished writes of the owner, ordered by name."""
        found = [(self.ref_of(status.ref), status) for status in store.content.statuses()]
        own = [replace(status, ref=ref) for ref, status in found if ref is not None]
        return sorted(own, key=lambda status: status.ref)


class HomeContentView(ContentView):
    """The store's own namespace."""

    __slots__ = ()

    def ref_of(self, on_disk: str) -> str | None:
        """Pulls' own ingests are shown too, as they are called on disk."""
        ours = ContentView.ref_of(self, on_disk)
        return on_disk if ours is None and not _OWNED_REF.fullmatch(on_disk) else ours

    def status(self, store: ImageStore, ref: str) -> IngestStatus | None:
        """One unfinished write; a pull's if there is no client's."""
        return ContentView.status(self, store, ref) or (
            None if _OWNED_REF.fullmatch(ref) else store.content.status(ref)
        )

    def find(self, store: ImageStore, digest: Digest) -> ContentRecord | None:
        """A blob that isn't only another namespace's."""
        try:
            info = store.content.info(digest)
        except ContentNotFoundError:
            return None
        if not store.metadata.namespaces.is_home(digest):
            return None
        return self._record(store, digest, info.size, info.modified_at)

    def all(self, store: ImageStore) -> list[ContentRecord]:
        """Every blob that isn't only another namespace's."""
        foreign = store.metadata.namespaces.foreign_content()
        found = sorted(store.content.walk(), key=lambda info: info.digest)
        return [
            self._record(store, info.digest, info.size, info.modified_at)
            for info in found
            if info.digest not in foreign
        ]

    def set_labels(self, store: ImageStore, digest: Digest, labels: Mapping[str, str]) -> None:
        """Replace the labels that the store itself goes by."""
        store.metadata.graph.label_content(digest, labels)

    def forget(self, store: ImageStore, digest: Digest) -> bool:
        """Unlike containerd's, an image's content can't be taken from under it."""
        if self.find(store, digest) is None:
            return False
        with store.metadata.exclusive():
            store.metadata.namespaces.forget_record(self.owner, digest)
            store.metadata.graph.label_content(digest, {})
            if store.metadata.graph.is_kept_at_home(digest):
                raise PreconditionError(
                    f"content {digest} is held by an image or a lease", hint="remove that; 'imagestore why' names it"
                )
        garbage.sweep(store.metadata, store.content, [str(digest)]).check()
        return True

    @staticmethod
    def _record(store: ImageStore, digest: Digest, size: int, modified_at: float) -> ContentRecord:
        labels = store.metadata.graph.content_labels(digest)
        return ContentRecord(digest, size, labels, modified_at, modified_at)


class ProxyContentView(ContentView):
    """What one containerd keeps here as its content store."""

    __slots__ = ()

    @property
    def is_proxy(self) -> bool:
        """It is."""
        return True

    def ref_on_disk(self, ref: str) -> str:
        """With the proxy's name before what containerd calls it."""
        return f"{self.owner}/{ref}"

    def lease_key(self, name: str) -> str:
        """Never a lease: those that callers name are kept by the containerd in front."""
        return ""

    def find(self, store: ImageStore, digest: Digest) -> ContentRecord | None:
        """A blob of the store, claimed: found here, containerd doesn't fetch it, and never says that it uses it."""
        record = store.metadata.namespaces.content_record(self.owner, digest)
        try:
            size = store.content.info(digest).size
        except ContentNotFoundError:
            return None
        if record is not None:
            return record
        store.metadata.namespaces.record_content(self.owner, digest, size)
        if not store.content.exists(digest):  # collected between the look and the claim
            store.metadata.namespaces.forget_record(self.owner, digest)
            return None
        return store.metadata.namespaces.content_record(self.owner, digest)

    def forget(self, store: ImageStore, digest: Digest) -> bool:
        """Its collector says that the blob goes: at once, unless something else holds it."""
        if not store.metadata.namespaces.forget_record(self.owner, digest):
            return False
        garbage.sweep(store.metadata, store.content, [str(digest)]).check()
        return True


def _is_there(store: ImageStore, digest: Digest) -> bool:
    """Of a list, one file that the disk can't even look at hides no other; reading it is an error."""
    try:
        return store.content.exists(digest)
    except IntegrityError:
        return True


def content_view_of(namespace: str) -> ContentView:
    """The view of a namespace."""
    return HomeContentView(namespace) if namespace == HOME else ContentView(namespace)


def proxy_content_view(name: str) -> ContentView:
    """The view of a containerd that keeps its content here.

    Raises:
        InvalidInputError: not a name.
    """
    return ProxyContentView(proxy_owner(name))
