"""Lists of tags and of referrers: an upstream's own, remembered for its ``tag_freshness``."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Final, TypeVar, cast

from imagestore.errors import ImageStoreError, ReferenceNotFoundError
from imagestore.mirror.freshness import FRESH, Freshness

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from imagestore.mirror.catalogue import Catalogue
    from imagestore.mirror.sharing import SharedWork
    from imagestore.mirror.upstreams import Repository
    from imagestore.oci import Digest
    from imagestore.registry import Referrers, RegistryClient
    from imagestore.store import ImageStore
    from imagestore.util.cancel import CancelToken

T = TypeVar("T")

_MOST_LISTS: Final = 1_000


class ListSource:
    """Asks for lists; its methods are the event loop's."""

    def __init__(self, shared: SharedWork, catalogue: Catalogue) -> None:
        self._shared = shared
        self._catalogue = catalogue
        #: Lists with the time at which each was asked for.
        self._lists: dict[tuple[str, ...], tuple[float, Any]] = {}

    def forget(self) -> None:
        """Ask for all lists again, since the table changed."""
        self._lists.clear()

    async def tags(self, repository: Repository) -> tuple[tuple[str, ...], Freshness]:
        """The tags of a repository: its upstream's, or those in the catalogue, stale, if the upstream can't be asked.

        Raises:
            ImageStoreError: the upstream can't be asked, and the catalogue has none.
        """
        reference, is_offline = repository.reference("latest"), repository.table.settings.offline

        def _ask(client: RegistryClient, token: CancelToken) -> tuple[str, ...]:
            return client.tags(reference, cancel=token)

        try:
            repository.table.refuse_offline(repository.name)
            return await self._listed(("tags", repository.name), repository, _ask)
        except ImageStoreError as error:
            here = await self._shared.quick(lambda _: self._catalogue.tags(repository.name), repository.name)
            is_no = isinstance(error, ReferenceNotFoundError) and not is_offline
            if not here or is_no or not (repository.upstream.serve_stale or is_offline):
                raise
            return here, Freshness(is_stale=not is_offline)

    async def referrers(
        self, repository: Repository, digest: Digest, artifact_type: str
    ) -> tuple[Referrers, Freshness]:
        """The referrers of a document.

        Raises:
            ImageStoreError: its upstream can't be asked.
        """
        reference = repository.reference(str(digest))

        def _ask(client: RegistryClient, token: CancelToken) -> Referrers:
            return client.referrers(reference, digest, artifact_type=artifact_type, cancel=token)

        repository.table.refuse_offline(str(reference))
        return await self._listed(("referrers", str(reference), artifact_type), repository, _ask)

    async def _listed(
        self,
        key: tuple[str, ...],
        repository: Repository,
        ask: Callable[[RegistryClient, CancelToken], T],
    ) -> tuple[T, Freshness]:
        """A list, asked for again when it isn't fresh."""
        upstream, clock = repository.upstream, asyncio.get_running_loop().time
        listed_at, value = self._lists.get(key, (-math.inf, None))
        if clock() - listed_at < upstream.fresh_seconds:
            return cast("T", value), Freshness(clock() - listed_at)

        def _asked(_: ImageStore, token: CancelToken) -> T:
            answer, _is_owners = repository.table.ask(upstream, "", ask, cancel=token)
            return answer

        found = await self._shared.once(key, upstream, _asked)
        if len(self._lists) >= _MOST_LISTS:
            self._lists.clear()
        self._lists[key] = (clock(), found)
        return found, FRESH
