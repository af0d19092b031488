"""Lists of tags and of what refers to a document: an upstream's own, remembered for its freshness."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from imagestore.errors import ImageStoreError, ReferenceNotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from imagestore.mirror.catalogue import Catalogue
    from imagestore.mirror.sharing import SharedWork
    from imagestore.mirror.upstreams import Repository, Upstreams
    from imagestore.oci.digest import Digest
    from imagestore.registry import Referrers, RegistryClient
    from imagestore.store.image_store import ImageStore
    from imagestore.store.workers import StoreWorkers
    from imagestore.util.cancel import CancelToken

T = TypeVar("T")

_MOST_LISTS: Final = 1_000


@dataclass(frozen=True, slots=True)
class _Listed:
    listed_at: float
    value: Any


class ListSource:
    """Asks for lists; its methods are the event loop's.

    Args:
        workers: lends the store.
        shared: asks once, however many want the same.
        catalogue: the tags that are here.
    """

    def __init__(self, workers: StoreWorkers, shared: SharedWork, catalogue: Catalogue) -> None:
        self._workers = workers
        self._shared = shared
        self._catalogue = catalogue
        self._lists: dict[tuple[str, ...], _Listed] = {}

    def forget(self) -> None:
        """There is another table: ask again."""
        self._lists.clear()

    async def tags(self, upstreams: Upstreams, repository: Repository) -> tuple[str, ...]:
        """The tags of a repository: its upstream's, or those that are here where it can't be asked.

        Raises:
            ImageStoreError: it can't be asked, and none are here.
        """
        reference, is_offline = repository.reference("latest"), upstreams.settings.is_offline

        def ask(client: RegistryClient, token: CancelToken) -> tuple[str, ...]:
            return client.tags(reference, cancel=token)

        try:
            upstreams.refuse_offline(repository.name)
            return await self._listed(upstreams, ("tags", repository.name), repository, ask)
        except ImageStoreError as error:
            asked = self._workers.quick(lambda _: self._catalogue.tags(repository.name))
            here = await self._shared.in_time(asked, repository.name)
            is_no = isinstance(error, ReferenceNotFoundError) and not is_offline
            if not here or is_no or not (repository.upstream.serves_stale or is_offline):
                raise
            return here

    async def referrers(
        self, upstreams: Upstreams, repository: Repository, digest: Digest, artifact_type: str
    ) -> Referrers:
        """What refers to a document.

        Raises:
            ImageStoreError: its upstream can't be asked.
        """
        reference = repository.reference(str(digest))

        def ask(client: RegistryClient, token: CancelToken) -> Referrers:
            return client.referrers(reference, digest, artifact_type=artifact_type, cancel=token)

        upstreams.refuse_offline(str(reference))
        return await self._listed(upstreams, ("referrers", str(reference), artifact_type), repository, ask)

    async def _listed(
        self,
        upstreams: Upstreams,
        key: tuple[str, ...],
        repository: Repository,
        ask: Callable[[RegistryClient, CancelToken], T],
    ) -> T:
        """A list, asked for again when it isn't fresh."""
        upstream = repository.upstream
        listed = self._lists.get(key)
        if listed is not None and asyncio.get_running_loop().time() - listed.listed_at < upstream.fresh_seconds:
            value: T = listed.value
            return value

        def asked(_: ImageStore, token: CancelToken) -> T:
            answer, _is_owners = upstreams.ask(upstream, "", ask, cancel=token)
            return answer

        value = await self._shared.once(key, upstream, asked)
        if len(self._lists) >= _MOST_LISTS:
            self._lists.clear()
        self._lists[key] = _Listed(asyncio.get_running_loop().time(), value)
        return value
