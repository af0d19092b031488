"""The two ways in: a configuration is read, a store is opened."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os

    from imagestore.config.model import BucketSettings, Config
    from imagestore.content.api import ContentStore
    from imagestore.events import Observer
    from imagestore.metadata.api import MetadataStore
    from imagestore.registry.client_factory import Transport
    from imagestore.registry.credentials.model import CredentialLookup
    from imagestore.store.image_store import ImageStore


def open(  # noqa: A001 - reads as imagestore.open(...)
    root: str | os.PathLike[str],
    *,
    config: Config | None = None,
    credentials: CredentialLookup | None = None,
    transport: Transport | None = None,
    observer: Observer | None = None,
    content: ContentStore | BucketSettings | str | None = None,
    metadata: MetadataStore | None = None,
    scope: str = "",
) -> ImageStore:
    """Open a store, making it when missing; use it as a context manager, or close it.

    Args:
        root: its folder; or ``postgresql://USER@HOST/DATABASE``, for a store that machines share.
        config: runtime handlers and their platforms; without one there is a single, default handler.
        credentials: where logins are looked up; by default the places that Docker's and the containers tools use.
        transport: answers requests to registries instead of the network, as ``httpx.MockTransport`` does.
        observer: receives the events of all work that has no observer of its own.
        content: where blobs are, instead of the folder's files; the caller closes it. Of a shared store a bucket,
            ``s3://BUCKET/PREFIX`` or its settings.
        metadata: where records are, instead of the folder's database; the caller closes it.
        scope: of a shared store, whose images and leases are meant; by default ``"default"``.

    Raises:
        InvalidInputError: an empty text for the folder (the current one is ``"."``); a shared store without a bucket.
        ConfigError, PreconditionError: a shared store's database or bucket isn't there, or refuses the credentials.
        StoreError: the folder can't be used (StoreReadOnlyError, StoreFullError, StoreCorruptError, if that is why).
    """
    from imagestore.store.image_store import ImageStore

    return ImageStore(
        root,
        config=config,
        credentials=credentials,
        transport=transport,
        observer=observer,
        content=content,
        metadata=metadata,
        scope=scope,
    )


def load_config(path: str | os.PathLike[str]) -> Config:
    """Read a containerd-style configuration file.

    Raises:
        ConfigError: names file, line and key.
    """
    from imagestore import config

    return config.load(Path(path))
