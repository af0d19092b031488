"""Bringing one blob of the store into containerd's content, by the cheapest way that works.

Layers are linked into containerd's folder or written there as files of its own (content_folder), then committed without
a byte; else they are sent. What is committed without a byte is unverified: the diff id after Apply verifies it.
Documents (manifest, config) are always sent, read back and verified: a file that lay there without a record is taken
unread.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Final

import imagestore.publish.content_writes as content_writes
from imagestore.errors import ContentNotFoundError, IntegrityError, NotFoundError
from imagestore.oci import MAX_DOCUMENT_BYTES, MAX_LABEL_BYTES, Digest
from imagestore.publish.content_writes import Written
from imagestore.publish.model import ContentWay
from imagestore.util.failpoint import reach

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from imagestore.content import ContentStore
    from imagestore.oci import Descriptor, Reference
    from imagestore.publish.containerd import Containerd
    from imagestore.publish.content_folder import ContentFolder
    from imagestore.util.cancel import CancelToken

log = logging.getLogger(__name__)

SOURCE_LABEL: Final = "containerd.io/distribution.source."
#: How often containerd's collector may be faster than COMMIT.
_TRIES: Final = 5
#: More than layers are brought at a time, so that few wait for another's blob.
_LOCKS: Final = 64


class BlobBringer:
    """Brings blobs of one store into one containerd; thread-safe.

    Args:
        client: of containerd.
        content: the store's.
        folder: containerd's content folder; None where files placed there don't count.
        store_id: part of the names of writes.
        is_durable: layers stay in containerd, so their names must survive a loss of power before they are recorded.
        locks: of those who bring the same blob at the same time; shared by all bringers.
    """

    def __init__(
        self,
        client: Containerd,
        content: ContentStore,
        folder: ContentFolder | None,
        store_id: str,
        *,
        is_durable: bool = False,
        locks: Sequence[threading.Lock] = (),
    ) -> None:
        self._client = client
        self._content = content
        self._folder = folder
        self._store_id = store_id
        self._is_durable = is_durable
        self._locks = locks or new_locks()

    def bring_layer(
        self, layer: Descriptor, repositories: Collection[Reference], lease: str, cancel: CancelToken
    ) -> ContentWay:
        """Bring a layer under a lease; containerd has it afterwards, unverified if no byte was sent.

        Raises:
            ContentNotFoundError: the store doesn't have it.
            IntegrityError: the store's file has other bytes than its digest says.
            StoreFullError: containerd's disk is full.
        """
        with self._lock_of(layer.digest):
            if self._folder is not None:
                taken = self._take(layer, _source_labels(repositories, {}), lease, self._folder)
                if taken is not None:
                    if taken is ContentWay.PRESENT:
                        self._label(layer.digest, repositories, {}, lease)
                    return taken
            return self._send(layer, repositories, {}, lease, cancel)

    def bring_document(
        self,
        document: Descriptor,
        labels: Mapping[str, str],
        repositories: Collection[Reference],
        lease: str,
        cancel: CancelToken,
    ) -> ContentWay:
        """Bring a manifest or a config with its labels, and verify what containerd has of it.

        Raises:
            ContentNotFoundError, IntegrityError: as for bring_layer(), or containerd's copy is damaged and can't be
                replaced.
        """
        with self._lock_of(document.digest):
            brought = self._send(document, repositories, labels, lease, cancel)
            found = self._client.read_content(document.digest, MAX_DOCUMENT_BYTES)
            if Digest.of(found, document.digest.algorithm) != document.digest:
                self._replace(document.digest)
        return brought

    def heal(self, layer: Descriptor, cancel: CancelToken) -> bool:
        """Put the store's file, which was verified, in the place of containerd's if that one is damaged.

        Returns:
            Whether it was.

        Raises:
            IntegrityError: it is, and can't be replaced.
        """
        if self._folder is None or self._folder.is_same_file(self._content.path(layer.digest), layer.digest):
            return False
        try:
            if not self._folder.is_damaged(layer, cancel):
                return False
        except OSError as error:
            raise _damaged(layer.digest, error) from error
        self._replace(layer.digest)
        return True

    def relink(self, layer: Descriptor, verify: Callable[[Descriptor], None]) -> bool:
        """Link a layer that stays in containerd again, after a repair or an import gave the store another file.

        Args:
            layer: which.
            verify: raises IntegrityError where the store's file is damaged: containerd's may be the last good one.

        Returns:
            Whether it was another file.
        """
        if self._folder is None or self._folder.way is not ContentWay.LINKED:
            return False
        source = self._content.path(layer.digest)
        if self._folder.size(layer.digest) is None or self._folder.is_same_file(source, layer.digest):
            return False
        verify(layer)
        self._replace(layer.digest)
        return True

    def _replace(self, digest: Digest) -> None:
        """Put the store's file in the place of containerd's."""
        if self._folder is None:
            raise _damaged(digest)
        try:
            self._folder.replace(self._content.path(digest), digest)
        except OSError as error:
            raise _damaged(digest, error) from error

    def _take(
        self, layer: Descriptor, labels: Mapping[str, str], lease: str, folder: ContentFolder
    ) -> ContentWay | None:
        """Place the file and commit it without a byte; None if containerd wants to see the bytes."""
        source = self._content.path(layer.digest)
        for _ in range(_TRIES):
            try:
                is_new = folder.place(source, layer.digest)
                if not is_new and folder.size(layer.digest) not in (None, layer.size):
                    # Nobody's valid content; bytes sent would be thrown away, as long as the name is there.
                    folder.replace(source, layer.digest)
                if self._is_durable:
                    folder.sync(layer.digest.algorithm)
            except OSError as error:
                if not source.exists():
                    raise ContentNotFoundError(str(layer.digest)) from None
                # It worked when it was tried: perhaps the disk is full. Sending shows what containerd says of it.
                log.warning("layer can't be placed", extra={"blob": str(layer.digest), "error": str(error)})
                return None
            reach("publish-commit")
            ref = self._ref(layer.digest)
            written = content_writes.take(self._client, ref, layer.digest, layer.size, labels, lease)
            if written is Written.PRESENT:
                return ContentWay.PRESENT
            if written is Written.TAKEN:
                return folder.way if is_new else ContentWay.PRESENT
            if folder.size(layer.digest) is not None:
                return None
        return None

    def _send(
        self,
        blob: Descriptor,
        repositories: Collection[Reference],
        labels: Mapping[str, str],
        lease: str,
        cancel: CancelToken,
    ) -> ContentWay:
        made = {**labels, **_source_labels(repositories, {})}
        with self._content.open(blob.digest) as source:
            written = content_writes.send(
                self._client, self._ref(blob.digest), blob.digest, blob.size, made, lease, source, cancel
            )
        if written is Written.PRESENT:
            self._label(blob.digest, repositories, labels, lease)
        return ContentWay.SENT if written is Written.SENT else ContentWay.PRESENT

    def _label(
        self, digest: Digest, repositories: Collection[Reference], labels: Mapping[str, str], lease: str
    ) -> None:
        """Add labels to a blob that was there; sources are added to the lists that it has."""
        known = self._client.content_labels(digest)
        if known is None:
            raise NotFoundError(f"containerd had {digest} a moment ago, and has it no more")
        made = {**labels, **_source_labels(repositories, known)}
        changed = {key: value for key, value in made.items() if known.get(key) != value}
        if changed:
            self._client.label_content(digest, changed, lease)

    def _lock_of(self, digest: Digest) -> threading.Lock:
        return self._locks[hash(digest) % len(self._locks)]

    def _ref(self, digest: Digest) -> str:
        return f"imagestore-{self._store_id}-{digest}"


def new_locks() -> tuple[threading.Lock, ...]:
    """For all bringers into one containerd: a write is one client's at a time."""
    return tuple(threading.Lock() for _ in range(_LOCKS))


def _damaged(digest: Digest, error: OSError | None = None) -> IntegrityError:
    why = f", and can't be replaced: {error.strerror or error}" if error else ""
    return IntegrityError(f"containerd's copy of {digest} is damaged{why}", hint=f"ctr -n k8s.io content rm {digest}")


def _source_labels(repositories: Collection[Reference], known: Mapping[str, str]) -> dict[str, str]:
    """Which repositories of which host have a blob, added to the lists that are there, as containerd writes them.

    A list that would be too long for a label is left alone.
    """
    made: dict[str, str] = {}
    for reference in repositories:
        key = SOURCE_LABEL + reference.host
        listed = made.get(key, known.get(key, ""))
        value = ",".join(sorted({*filter(None, listed.split(",")), reference.path}))
        if len(key.encode()) + len(value.encode()) <= MAX_LABEL_BYTES:
            made[key] = value
    return made
