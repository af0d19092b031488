"""A bucket behind a mirror's disk: what one replica has fetched, all of them find there, also with an empty disk.

A blob goes there after it was fetched from upstream and verified. It is asked for before upstream is. Where the
configuration says so, clients are sent there by a signed URL, and the mirror's own network carries no blob at all.
"""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from imagestore.content.bucket import Bucket
from imagestore.errors import (
    ConfigError,
    ContentNotFoundError,
    ImageStoreError,
    PreconditionError,
    ReferenceNotFoundError,
    RegistryUnavailableError,
    StoreError,
)
from imagestore.util.cancel import CancelGroup

if TYPE_CHECKING:
    from collections.abc import Collection

    from imagestore.config.model import BucketSettings
    from imagestore.content.bucket import BucketReader
    from imagestore.mirror.numbers import MirrorNumbers
    from imagestore.oci.descriptor import Descriptor
    from imagestore.oci.reference import Reference
    from imagestore.store.workers import StoreWorkers
    from imagestore.util.cancel import CancelToken

log = logging.getLogger(__name__)

_THREADS: Final = 4
#: Uploads that wait; more are given up, and made when the blob is fetched again.
_MOST_WAITING: Final = 1_000
_MOST_KNOWN: Final = 100_000
#: A client begins its request at once, and may pause.
_SIGNED_SECONDS: Final = 900.0
_PATIENCE_SECONDS: Final = 10.0


class SecondTier:
    """The bucket of a mirror; thread-safe. Close it.

    Args:
        settings: of the bucket.
        workers: lends the store.
        numbers: hears of bytes.

    Raises:
        ConfigError: the settings can't be used, there is no such bucket, it refuses the credentials, or is a store's.
    """

    def __init__(self, settings: BucketSettings, workers: StoreWorkers, numbers: MirrorNumbers) -> None:
        self.redirects = settings.redirects
        self._bucket = Bucket(settings)
        try:
            self._bucket.check()
            if self._bucket.owner():
                # It collects what its own records don't name.
                raise ConfigError(f"{settings.url}: is a store's content", hint="give this mirror a prefix of its own")
        except StoreError as error:
            # It may come back; until then upstreams are asked.
            log.warning("the bucket can't be asked: %s", error)
        self._workers = workers
        self._numbers = numbers
        self._publishers = ThreadPoolExecutor(_THREADS, "publish")
        self._operations = CancelGroup()
        self._lock = threading.Lock()
        self._waiting = 0
        self._known: set[Descriptor] = set()

    def blob(
        self,
        reference: Reference,
        descriptor: Descriptor,
        *,
        offset: int = 0,
        avoid: Collection[str] = (),
        cancel: CancelToken,
    ) -> BucketReader:
        """A blob's bytes, as a registry's client gives them.

        Raises:
            RegistryError: it isn't there, or the bucket can't be asked.
            IntegrityError: something of another size is there.
        """
        try:
            found = self._bucket.open(descriptor.digest, descriptor.size, offset=offset, cancel=cancel)
        except ContentNotFoundError as error:
            raise ReferenceNotFoundError(str(error)) from error
        except (StoreError, PreconditionError) as error:
            raise RegistryUnavailableError(str(error)) from error
        self._note(descriptor)
        return found

    def location(self, descriptor: Descriptor) -> str:
        """A URL at which a blob is; empty where it isn't there, or clients aren't sent there."""
        if not self.redirects:
            return ""
        try:
            if descriptor not in self._known and self._bucket.size(descriptor.digest) != descriptor.size:
                return ""
            self._note(descriptor)
            return self._bucket.signed(descriptor.digest, _SIGNED_SECONDS)
        except (StoreError, PreconditionError) as error:
            log.warning("clients aren't sent to the bucket: %s", error)
            return ""

    def publish(self, upstream: str, descriptor: Descriptor) -> None:
        """Bring a blob of the store there, some time soon."""
        with self._lock:
            if descriptor in self._known or self._waiting >= _MOST_WAITING:
                return
            self._waiting += 1
        try:
            self._publishers.submit(self._publish, upstream, descriptor)
        except RuntimeError:  # the mirror stops
            self._published()

    def close(self) -> None:
        """End uploads; what isn't there yet is brought when it is fetched again."""
        self._operations.end("the mirror stops", patience_seconds=_PATIENCE_SECONDS)
        self._publishers.shutdown(cancel_futures=True)

    def _publish(self, upstream: str, descriptor: Descriptor) -> None:
        digest, size = descriptor.digest, descriptor.size
        try:
            with self._workers.lend() as store, self._operations.joined(None) as cancel:
                if self._bucket.size(digest) != size:
                    with store.content.open(digest) as file:
                        self._bucket.put(digest, size, file, cancel=cancel)
                    self._numbers.count_published(upstream, size)
            self._note(descriptor)
        except ImageStoreError as error:
            log.warning("a blob isn't in the bucket: %s", error, extra={"digest": str(digest)})
        except Exception:
            log.exception("a blob isn't in the bucket", extra={"digest": str(digest)})
        finally:
            self._published()

    def _published(self) -> None:
        with self._lock:
            self._waiting -= 1

    def _note(self, descriptor: Descriptor) -> None:
        with self._lock:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known.add(descriptor)
