"""Which content an owner sees: a namespace, the store's own namespace, or a containerd that keeps its content here.

    any namespace   what its clients wrote or shared there: files for which it has a content record
    HOME (k8s.io)   all files except those that have records in other namespaces only
    a proxy         all files; looking at one records it, because containerd relies on it from then on

A blob is one file with a record for each owner (containerd, core/metadata). On disk, an unfinished write is called
``<namespace>/1/<ref>`` as in containerd, with the proxy's name before it for a proxy. A pull's own has neither.
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

#: Name on disk of a client's ingest; others are pulls' ingests.
_OWNED_REF: Final = re.compile(r"(?:proxy:[^/]+|[A-Za-z0-9._-]+/[0-9]+)/.*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ContentView:
    """A namespace that isn't the store's own; ``owner`` is that of its content records."""

    owner: str

    @property
    def is_proxy(self) -> bool:
        """Whether this is the content of a containerd that has its own namespaces, leases and collector."""
        return False

    def ref_on_disk(self, ref: str) -> str:
        """The name on disk of the owner's ingest."""
        return f"{self.owner}/1/{ref}"

    def ref_of(self, on_disk: str) -> str | None:
        """The owner's name of an ingest on disk; None if it is another owner's."""
        prefix = self.ref_on_disk("")
        return on_disk.removeprefix(prefix) if on_disk.startswith(prefix) else None

    def lease_key(self, name: str) -> str:
        """The id of the owner's lease in the database; empty without a lease, and for a proxy."""
        return lease_key(self.owner, name) if name else ""

    def find(self, store: ImageStore, digest: Digest) -> ContentRecord | None:
        """A blob that the owner sees, or None."""
        record = store.metadata.namespaces.content_record(self.owner, digest)
        return record if record is not None and store.content.exists(digest) else None

    def get(self, store: ImageStore, digest: Digest) -> ContentRecord:
        """A blob that the owner sees; ContentNotFoundError if it doesn't."""
        found = self.find(store, digest)
        if found is None:
            raise ContentNotFoundError(f"content {digest} is not in {self.owner}")
        return found

    def all(self, store: ImageStore) -> list[ContentRecord]:
        """Every blob that the owner sees, ordered by digest."""
        records = store.metadata.namespaces.content_records(self.owner)
        return [record for record in records if _is_there(store, record.digest)]

    def set_labels(self, store: ImageStore, digest: Digest, labels: Mapping[str, str]) -> None:
        """Replace the owner's labels of a blob; InvalidInputError if one is too long."""
        store.metadata.namespaces.label_record(self.owner, digest, labels)

    def forget(self, store: ImageStore, digest: Digest) -> bool:
        """Delete the owner's record of a blob, whose file the next collection deletes; return whether there was one."""
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
        """Pulls' ingests are listed too, under their names on disk."""
        ours = ContentView.ref_of(self, on_disk)
        return on_disk if ours is None and not _OWNED_REF.fullmatch(on_disk) else ours

    def status(self, store: ImageStore, ref: str) -> IngestStatus | None:
        """One unfinished write of a client, or else of a pull."""
        return ContentView.status(self, store, ref) or (
            None if _OWNED_REF.fullmatch(ref) else store.content.status(ref)
        )

    def find(self, store: ImageStore, digest: Digest) -> ContentRecord | None:
        """A blob that hasn't records in other namespaces only."""
        try:
            info = store.content.info(digest)
        except ContentNotFoundError:
            return None
        if not store.metadata.namespaces.is_home(digest):
            return None
        return self._record(store, digest, info.size, info.modified_at)

    def all(self, store: ImageStore) -> list[ContentRecord]:
        """Every blob that hasn't records in other namespaces only."""
        foreign = store.metadata.namespaces.foreign_content()
        found = sorted(store.content.walk(), key=lambda info: info.digest)
        return [
            self._record(store, info.digest, info.size, info.modified_at)
            for info in found
            if info.digest not in foreign
        ]

    def set_labels(self, store: ImageStore, digest: Digest, labels: Mapping[str, str]) -> None:
        """Replace the labels that the store itself uses."""
        store.metadata.graph.label_content(digest, labels)

    def forget(self, store: ImageStore, digest: Digest) -> bool:
        """Delete the content at once. Unlike in containerd, content of an image can't be deleted."""
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
    """The content of one containerd that uses this store as its content store."""

    __slots__ = ()

    @property
    def is_proxy(self) -> bool:
        """True."""
        return True

    def ref_on_disk(self, ref: str) -> str:
        """The proxy's name before containerd's ref."""
        return f"{self.owner}/{ref}"

    def lease_key(self, name: str) -> str:
        """Empty: the containerd in front has the leases."""
        return ""

    def find(self, store: ImageStore, digest: Digest) -> ContentRecord | None:
        """A blob of the store, recorded now: containerd relies on content that it finds, without a further call."""
        record = store.metadata.namespaces.content_record(self.owner, digest)
        try:
            size = store.content.info(digest).size
        except ContentNotFoundError:
            return None
        if record is not None:
            return record
        store.metadata.namespaces.record_content(self.owner, digest, size)
        if not store.content.exists(digest):  # collected before it was recorded
            store.metadata.namespaces.forget_record(self.owner, digest)
            return None
        return store.metadata.namespaces.content_record(self.owner, digest)

    def forget(self, store: ImageStore, digest: Digest) -> bool:
        """Delete the blob at once, unless something else holds it: containerd's collector has decided."""
        if not store.metadata.namespaces.forget_record(self.owner, digest):
            return False
        garbage.sweep(store.metadata, store.content, [str(digest)]).check()
        return True


def _is_there(store: ImageStore, digest: Digest) -> bool:
    """Whether a file exists; an unreadable one counts too, so that a list doesn't fail because of it."""
    try:
        return store.content.exists(digest)
    except IntegrityError:
        return True


def content_view_of(namespace: str) -> ContentView:
    """The view of a namespace."""
    return HomeContentView(namespace) if namespace == HOME else ContentView(namespace)


def proxy_content_view(name: str) -> ContentView:
    """The view of a containerd that keeps its content here; InvalidInputError if its name is invalid."""
    return ProxyContentView(proxy_owner(name))
