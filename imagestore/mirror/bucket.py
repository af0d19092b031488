"""A bucket behind a mirror's disk: all replicas find there what one of them fetched, also with an empty disk.

A blob is uploaded after it was fetched from upstream and verified, and the bucket is asked before upstream is. If the
configuration says so, clients are redirected to it by a signed URL. Objects that the bucket's lifecycle rules deleted
are uploaded again.
"""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from imagestore.content import Bucket
from imagestore.errors import (
    ConfigError,
    ContentNotFoundError,
    ImageStoreError,
    PreconditionError,
    ReferenceNotFoundError,
    RegistryUnavailableError,
    StoreError,
)
from imagestore.mirror.seen_objects import SeenObjects
from imagestore.util.cancel import CancelGroup

if TYPE_CHECKING:
    from collections.abc import Collection

    from imagestore.config import BucketSettings
    from imagestore.content import BucketReader
    from imagestore.mirror.counters import MirrorCounters
    from imagestore.oci import Descriptor, Digest, Reference
    from imagestore.store import StoreWorkers
    from imagestore.util.cancel import CancelToken

log = logging.getLogger(__name__)

_THREADS: Final = 4
#: Waiting uploads; one more is dropped, and made when the blob is fetched again.
_MOST_WAITING: Final = 1_000
_SIGNED_SECONDS: Final = 900.0
_PATIENCE_SECONDS: Final = 10.0


class MirrorBucket:
    """The bucket of a mirror; thread-safe. Close it.

    Raises:
        ConfigError: the settings can't be used, there is no such bucket, it refuses the credentials, or is a store's.
    """

    def __init__(self, settings: BucketSettings, workers: StoreWorkers, counters: MirrorCounters) -> None:
        self.redirects = settings.redirects
        self._bucket = Bucket(settings)
        try:
            self._bucket.check()
            if self._bucket.owner():
                # A store deletes objects that its own records don't name.
                raise ConfigError(f"{settings.url}: is a store's content", hint="give this mirror a prefix of its own")
        except StoreError as error:
            # Until it is back, upstreams are asked.
            log.warning("the bucket can't be asked: %s", error)
        self._workers = workers
        self._counters = counters
        self._publishers = ThreadPoolExecutor(_THREADS, "publish")
        self._operations = CancelGroup()
        self._lock = threading.Lock()
        self._uploads: set[Digest] = set()
        self._seen = SeenObjects()

    def blob(
        self,
        reference: Reference,
        descriptor: Descriptor,
        *,
        offset: int = 0,
        avoid: Collection[str] = (),
        cancel: CancelToken,
    ) -> BucketReader:
        """A blob's bytes, as ``transfer.BlobClient`` gives them.

        Raises:
            RegistryError: it isn't there, or the bucket can't be asked.
            IntegrityError: the object has another size.
        """
        try:
            found = self._bucket.open(descriptor.digest, descriptor.size, offset=offset, cancel=cancel)
        except ContentNotFoundError as error:
            self._seen.forget(descriptor)
            raise ReferenceNotFoundError(str(error)) from error
        except (StoreError, PreconditionError) as error:
            raise RegistryUnavailableError(str(error)) from error
        self._seen.note(descriptor)
        return found

    def location(self, upstream: str, descriptor: Descriptor) -> str:
        """A signed URL of a blob; empty if the bucket doesn't have it, or can't be asked.

        If the bucket doesn't have it and the store does, it is uploaded.
        """
        try:
            if not self._seen.has(descriptor) and not self._is_there(descriptor):
                self.publish(upstream, descriptor)
                return ""
            return self._bucket.signed(descriptor.digest, _SIGNED_SECONDS)
        except (StoreError, PreconditionError) as error:
            log.warning("clients aren't redirected to the bucket: %s", error)
            return ""

    def _is_there(self, descriptor: Descriptor) -> bool:
        """Ask the bucket, and remember what it says."""
        is_there = self._bucket.size(descriptor.digest) == descriptor.size
        (self._seen.note if is_there else self._seen.forget)(descriptor)
        return is_there

    def publish(self, upstream: str, descriptor: Descriptor) -> None:
        """Upload a blob of the store in the background, unless the bucket has it."""
        digest = descriptor.digest
        with self._lock:
            if self._seen.has(descriptor) or digest in self._uploads or len(self._uploads) >= _MOST_WAITING:
                return
            self._uploads.add(digest)
        try:
            self._publishers.submit(self._publish, upstream, descriptor)
        except RuntimeError:  # the mirror stops
            self._published(digest)

    def close(self) -> None:
        """End uploads; those that didn't finish are made when the blob is fetched again."""
        self._operations.end("the mirror stops", patience_seconds=_PATIENCE_SECONDS)
        self._publishers.shutdown(cancel_futures=True)

    def _publish(self, upstream: str, descriptor: Descriptor) -> None:
        digest, size = descriptor.digest, descriptor.size
        try:
            with self._workers.lend() as store, self._operations.joined(None) as cancel:
                # It may have been evicted since; then the next fetch uploads it.
                if store.content.exists(digest) and not self._is_there(descriptor):
                    with store.content.open(digest) as file:
                        self._bucket.put(digest, size, file, cancel=cancel)
                    self._counters.count("bucket_written_bytes", upstream, size)
                    self._seen.note(descriptor)
        except ImageStoreError as error:
            log.warning("a blob can't be uploaded to the bucket: %s", error, extra={"digest": str(digest)})
        except Exception:
            log.exception("a blob can't be uploaded to the bucket", extra={"digest": str(digest)})
        finally:
            self._published(digest)

    def _published(self, digest: Digest) -> None:
        with self._lock:
            self._uploads.discard(digest)
