"""The proof without which nothing is served: a repository's own registry has the blob.

Anyone can push a document that names content of others, and the mirror may have that content from another repository:
on its disk, in the bucket, at another replica. So content counts for a repository once its registry has served it, or
answered HEAD for it. The catalogue remembers that for as long as documents of the repository name the content.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from imagestore.errors import RateLimitedError, RegistryError, RegistryUnavailableError

if TYPE_CHECKING:
    from imagestore.mirror.catalogue import Catalogue
    from imagestore.mirror.retention import Retention
    from imagestore.mirror.upstreams import Repository
    from imagestore.oci import Descriptor, Digest
    from imagestore.registry import RegistryClient
    from imagestore.store import ImageStore
    from imagestore.util.cancel import CancelToken


class Confirmations:
    """Asks registries, and notes their answers; its calls block. Thread-safe."""

    def __init__(self, catalogue: Catalogue, retention: Retention) -> None:
        self._catalogue = catalogue
        self._retention = retention

    def ensure(
        self, store: ImageStore, repository: Repository, digest: Digest, *, owner: str, cancel: CancelToken
    ) -> None:
        """Return if a repository's registry is known to have a blob; else ask, and note that it has.

        Args:
            store: has the lease.
            repository: that the blob is wanted of.
            digest: of the blob.
            owner: the replica to ask first, to which the same rule applies; empty for none.
            cancel: ends it.

        Raises:
            ReferenceNotFoundError: the registry doesn't have it.
            RegistryError, IntegrityError, OperationCancelledError: the registry can't be asked, or its answer is wrong.
            StoreError: it can't be noted.
        """
        upstream, reference = repository.upstream, repository.reference(str(digest))
        known = self._catalogue.known(upstream.name, repository.name, digest)
        if known is not None and known.is_confirmed:
            return

        def _find(client: RegistryClient, token: CancelToken) -> Descriptor:
            try:
                return client.find_blob(reference, digest, cancel=token)
            except RegistryError as error:
                is_unreachable = isinstance(error, RegistryUnavailableError) and not error.status
                if known is None or is_unreachable or isinstance(error, RateLimitedError):
                    raise
            # Some registries answer HEAD wrongly or without a size, and GET well.
            with client.blob(reference, known.descriptor, cancel=token):
                return known.descriptor

        found, _ = repository.table.ask(upstream, owner, _find, cancel=cancel)
        self._catalogue.confirm(upstream.name, repository.name, found, now=time.time())
        self._retention.hold(store, upstream.name, [digest])
        # Another replica may have evicted what names it before it was leased.
        self._retention.release_unwanted(store, upstream.name, [digest])
