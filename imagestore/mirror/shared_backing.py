"""What replicas of a mirror keep their state in, for a store that machines share: its database and its bucket.

A replica's disk has only copies of blobs, which it sends, unless it redirects clients to the bucket.
"""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Final

from imagestore.content import SharedContentStore
from imagestore.errors import ConfigError, ContentNotFoundError, PreconditionError, StoreError
from imagestore.metadata import PostgresMetadataStore
from imagestore.mirror.backing import Backing
from imagestore.mirror.catalogue import Catalogue
from imagestore.mirror.catalogue_sql import TABLES, VERSION
from imagestore.mirror.local_copies import LocalCopies
from imagestore.mirror.seen_objects import SeenObjects
from imagestore.mirror.settings import MIRROR_PLUGIN

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterator

    from imagestore.content import ContentStore
    from imagestore.mirror.counters import MirrorCounters
    from imagestore.oci import Descriptor
    from imagestore.store import ImageStore, StoreWorkers

log = logging.getLogger(__name__)

#: The folder of copies in the machine's folder.
COPIES: Final = "mirror"
_SIGNED_SECONDS: Final = 900.0


def open_shared_backing(
    store: ImageStore, workers: StoreWorkers, _counters: MirrorCounters, loop: asyncio.AbstractEventLoop
) -> Backing:
    """Open the state of a mirror of a store that machines share.

    Args:
        store: the one that is served.
        workers: lends it, and those that replace it.
        _counters: unused, since bytes from the store's own bucket aren't counted.
        loop: the clients'.

    Raises:
        ConfigError: the mirror's table names another bucket.
        StoreBusyError: another replica on this machine uses the folder of copies.
        StoreError: the rows can't be opened, or the folder can't be made.
    """
    metadata, content = store.metadata, store.content
    if not isinstance(metadata, PostgresMetadataStore) or not isinstance(content, SharedContentStore):
        raise ConfigError(f"{store.name}: a mirror needs a shared store's own records and content")
    settings = store.config.plugin(MIRROR_PLUGIN)
    if settings.bucket is not None and settings.bucket.url.rstrip("/") != content.name:
        raise ConfigError(
            f"mirror: its table names the bucket {settings.bucket.url}, and the store's content is in {content.name}",
            hint="name the store's own there, or none",
        )
    locate = SharedRedirects(workers).location if settings.bucket is not None and settings.bucket.redirects else None

    @contextlib.contextmanager
    def _lent() -> Iterator[ContentStore]:
        with workers.lend() as current:
            yield current.content

    with contextlib.ExitStack() as opened:
        statements = metadata.statements("mirror", version=VERSION, tables=TABLES)
        catalogue = Catalogue(statements, statements.changes)
        opened.callback(catalogue.close)
        stored = LocalCopies(store.root / COPIES, settings.local_quota_bytes, _lent, loop, locate=locate)
        opened.callback(stored.close)
        return Backing(catalogue, stored, None, is_alone=False, close=opened.pop_all().close)


class SharedRedirects:
    """Redirects clients to the store's own bucket; thread-safe."""

    def __init__(self, workers: StoreWorkers) -> None:
        self._workers = workers
        self._seen = SeenObjects()

    def location(self, blob: Descriptor) -> str:
        """A signed URL of a blob; empty if its object isn't there, or the bucket can't be asked."""
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
            log.warning("clients aren't redirected to the bucket: %s", error)
            return ""

    def _is_there(self, content: SharedContentStore, blob: Descriptor) -> bool:
        if self._seen.has(blob):
            return True
        if not content.has_object(blob.digest):
            return False
        self._seen.note(blob)
        return True
