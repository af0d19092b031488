"""What replicas of a mirror stand on where machines share the store: rows in its database, blobs in its bucket.

A replica keeps nothing that counts: what it sends are copies on its disk, or clients are sent to the bucket.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from imagestore.content.shared_store import SharedContentStore
from imagestore.errors import ConfigError, ContentNotFoundError, PreconditionError, StoreError
from imagestore.metadata.postgres import PostgresMetadataStore
from imagestore.mirror.backing import Backing
from imagestore.mirror.catalogue import Catalogue
from imagestore.mirror.local_copies import LocalCopies
from imagestore.mirror.remembered_rows import RememberedRows
from imagestore.mirror.sql_statements import TABLES, VERSION

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterator

    from imagestore.content.api import ContentStore
    from imagestore.mirror.numbers import MirrorNumbers
    from imagestore.oci.descriptor import Descriptor
    from imagestore.store.image_store import ImageStore
    from imagestore.store.workers import StoreWorkers

log = logging.getLogger(__name__)

#: Where a machine's folder has the copies.
COPIES: Final = "mirror"
_SIGNED_SECONDS: Final = 900.0
#: For so long an object that was seen is taken to be there.
_SEEN_SECONDS: Final = 60.0
_MOST_SEEN: Final = 10_000


def open_shared_backing(
    store: ImageStore, workers: StoreWorkers, _numbers: MirrorNumbers, loop: asyncio.AbstractEventLoop
) -> Backing:
    """For a store that machines share.

    Args:
        store: the one that is served.
        workers: lends it, and those that replace it.
        _numbers: what comes from the store's own bucket isn't counted.
        loop: the clients'.

    Raises:
        ConfigError: the table of the mirror names another bucket.
        StoreBusyError: another replica on this machine has the folder of copies.
        StoreError: the rows can't be opened, or the folder not be made.
    """
    metadata, content = store.metadata, store.content
    if not isinstance(metadata, PostgresMetadataStore) or not isinstance(content, SharedContentStore):
        raise ConfigError(f"{store.name}: a mirror needs a shared store's own records and content")
    settings = store.config.settings.mirror
    if settings.bucket is not None and settings.bucket.url.rstrip("/") != content.name:
        raise ConfigError(
            f"mirror: its table names the bucket {settings.bucket.url}, and the store's content is in {content.name}",
            hint="name the store's own there, or none",
        )
    locate = SeenObjects(workers).location if settings.bucket is not None and settings.bucket.redirects else None

    @contextmanager
    def lent() -> Iterator[ContentStore]:
        with workers.lend() as current:
            yield current.content

    stored = LocalCopies(store.root / COPIES, settings.local_quota_bytes, lent, loop, locate=locate)
    try:
        statements = metadata.statements("mirror", version=VERSION, tables=TABLES)
        rows = RememberedRows(statements, statements.changes)
        try:
            # What a killed process had reserved is over some minutes later.
            catalogue = Catalogue(rows, owner=f"{settings.replica or 'replica'} {secrets.token_hex(8)}")
        except BaseException:
            rows.close()
            raise
    except BaseException:
        stored.close()
        raise

    def close() -> None:
        stored.close()
        catalogue.close()

    return Backing(catalogue, stored, None, is_alone=False, close=close)


class SeenObjects:
    """Sends clients to the bucket for what was seen there; thread-safe.

    Args:
        workers: lends the store.
    """

    def __init__(self, workers: StoreWorkers) -> None:
        self._workers = workers
        self._lock = threading.Lock()
        self._seen: dict[str, float] = {}

    def location(self, blob: Descriptor) -> str:
        """A signed URL of a blob; empty where its object isn't there, or the bucket can't be asked."""
        try:
            with self._workers.lend() as store:
                content = store.content
                if not isinstance(content, SharedContentStore):
                    return ""
                found = content.find(blob.digest)
                if found is None or found.size != blob.size or not self._is_there(content, blob):
                    return ""
                return content.signed(blob.digest, _SIGNED_SECONDS)
        except ContentNotFoundError:
            return ""
        except (StoreError, PreconditionError) as error:
            log.warning("clients aren't sent to the bucket: %s", error)
            return ""

    def _is_there(self, content: SharedContentStore, blob: Descriptor) -> bool:
        text, now = str(blob.digest), time.monotonic()
        with self._lock:
            if now < self._seen.get(text, 0.0):
                return True
        if not content.has_object(blob.digest):
            return False
        with self._lock:
            if len(self._seen) >= _MOST_SEEN:
                self._seen.clear()
            self._seen[text] = now + _SEEN_SECONDS
        return True
