"""A containerd-compatible image store and platform matcher: images by (reference, runtime handler).

    import imagestore

    config = imagestore.load_config("config.toml")
    with imagestore.open("/var/lib/imagestore", config=config) as store:
        image = store.pull("python:3", runtime_handler="runhcs-wcow-hypervisor")

Each public name is imported when it is first used (PEP 562), so that the command line can print its help without the
database. With ``EAGER_IMPORT=1`` in the environment all are imported at once.
"""

from __future__ import annotations

import importlib
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

from imagestore._version import __version__
from imagestore.util.public_names import deferred

if TYPE_CHECKING:
    from imagestore import aio as aio
    from imagestore import errors as errors
    from imagestore import platforms as platforms
    from imagestore.config import Config as Config
    from imagestore.config.model import BucketSettings as BucketSettings
    from imagestore.content.api import ContentStore as ContentStore
    from imagestore.content.bucket_store import BucketContentStore as BucketContentStore
    from imagestore.metadata.api import MetadataStore as MetadataStore
    from imagestore.oci.descriptor import Descriptor as Descriptor
    from imagestore.oci.digest import Digest as Digest
    from imagestore.oci.reference import Reference as Reference
    from imagestore.oci.selection import Selection as Selection
    from imagestore.platforms import Platform as Platform
    from imagestore.registry.client_factory import Transport
    from imagestore.registry.credentials.model import Credential as Credential
    from imagestore.registry.credentials.model import CredentialLookup as CredentialLookup
    from imagestore.registry.credentials.model import GivenCredentials as GivenCredentials
    from imagestore.registry.events import BlobAdvanced as BlobAdvanced
    from imagestore.registry.events import BlobAwaited as BlobAwaited
    from imagestore.registry.events import BlobDone as BlobDone
    from imagestore.registry.events import BlobStarted as BlobStarted
    from imagestore.registry.events import BlobUploaded as BlobUploaded
    from imagestore.registry.events import BlobUploading as BlobUploading
    from imagestore.registry.events import BlobVerifying as BlobVerifying
    from imagestore.registry.events import Event as Event
    from imagestore.registry.events import LayerUnpacked as LayerUnpacked
    from imagestore.registry.events import LayerUnpacking as LayerUnpacking
    from imagestore.registry.events import Noticed as Noticed
    from imagestore.registry.events import Observer as Observer
    from imagestore.registry.events import PartAdvanced as PartAdvanced
    from imagestore.registry.events import Resolved as Resolved
    from imagestore.registry.events import Selected as Selected
    from imagestore.registry.events import SourceSwitched as SourceSwitched
    from imagestore.registry.events import Waiting as Waiting
    from imagestore.registry.policy import TransferPolicy as TransferPolicy
    from imagestore.store.archive.exporting import ExportOptions as ExportOptions
    from imagestore.store.archive.importing import ImportOptions as ImportOptions
    from imagestore.store.copy.options import CopyOptions as CopyOptions
    from imagestore.store.copy.options import CopyReport as CopyReport
    from imagestore.store.image import Image as Image
    from imagestore.store.image_store import ImageStore as ImageStore
    from imagestore.store.maintenance.eviction import EvictionPolicy as EvictionPolicy
    from imagestore.store.pull.plan import PullPlan as PullPlan
    from imagestore.store.unpack.bundle import BundleOptions as BundleOptions
    from imagestore.store.unpack.limits import UnpackLimits as UnpackLimits
    from imagestore.util.cancel import CancelToken as CancelToken
    from imagestore.util.secret import Secret as Secret

__all__ = [
    "BlobAdvanced",
    "BlobAwaited",
    "BlobDone",
    "BlobStarted",
    "BlobUploaded",
    "BlobUploading",
    "BlobVerifying",
    "BucketContentStore",
    "BucketSettings",
    "BundleOptions",
    "CancelToken",
    "Config",
    "ContentStore",
    "CopyOptions",
    "CopyReport",
    "Credential",
    "CredentialLookup",
    "Descriptor",
    "Digest",
    "Event",
    "EvictionPolicy",
    "ExportOptions",
    "GivenCredentials",
    "Image",
    "ImageStore",
    "ImportOptions",
    "LayerUnpacked",
    "LayerUnpacking",
    "MetadataStore",
    "Noticed",
    "Observer",
    "PartAdvanced",
    "Platform",
    "PullPlan",
    "Reference",
    "Resolved",
    "Secret",
    "Selected",
    "Selection",
    "SourceSwitched",
    "TransferPolicy",
    "UnpackLimits",
    "Waiting",
    "__version__",
    "aio",
    "errors",
    "load_config",
    "open",
    "platforms",
]

_HOMES = {
    "aio": "imagestore.aio",
    "errors": "imagestore.errors",
    "platforms": "imagestore.platforms",
    "BlobAdvanced": "imagestore.registry.events",
    "BlobAwaited": "imagestore.registry.events",
    "BlobDone": "imagestore.registry.events",
    "BlobStarted": "imagestore.registry.events",
    "BlobUploaded": "imagestore.registry.events",
    "BlobUploading": "imagestore.registry.events",
    "BlobVerifying": "imagestore.registry.events",
    "BucketContentStore": "imagestore.content.bucket_store",
    "BucketSettings": "imagestore.config.model",
    "BundleOptions": "imagestore.store.unpack.bundle",
    "CancelToken": "imagestore.util.cancel",
    "Config": "imagestore.config",
    "ContentStore": "imagestore.content.api",
    "CopyOptions": "imagestore.store.copy.options",
    "CopyReport": "imagestore.store.copy.options",
    "Credential": "imagestore.registry.credentials.model",
    "CredentialLookup": "imagestore.registry.credentials.model",
    "Descriptor": "imagestore.oci.descriptor",
    "Digest": "imagestore.oci.digest",
    "Event": "imagestore.registry.events",
    "EvictionPolicy": "imagestore.store.maintenance.eviction",
    "ExportOptions": "imagestore.store.archive.exporting",
    "GivenCredentials": "imagestore.registry.credentials.model",
    "Image": "imagestore.store.image",
    "ImageStore": "imagestore.store.image_store",
    "ImportOptions": "imagestore.store.archive.importing",
    "LayerUnpacked": "imagestore.registry.events",
    "LayerUnpacking": "imagestore.registry.events",
    "MetadataStore": "imagestore.metadata.api",
    "Noticed": "imagestore.registry.events",
    "Observer": "imagestore.registry.events",
    "PartAdvanced": "imagestore.registry.events",
    "Platform": "imagestore.platforms",
    "PullPlan": "imagestore.store.pull.plan",
    "Reference": "imagestore.oci.reference",
    "Resolved": "imagestore.registry.events",
    "Secret": "imagestore.util.secret",
    "Selected": "imagestore.registry.events",
    "Selection": "imagestore.oci.selection",
    "SourceSwitched": "imagestore.registry.events",
    "TransferPolicy": "imagestore.registry.policy",
    "UnpackLimits": "imagestore.store.unpack.limits",
    "Waiting": "imagestore.registry.events",
}


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


# A program that configures no logging hears nothing of ours on its standard error.
logging.getLogger(__name__).addHandler(logging.NullHandler())

if not TYPE_CHECKING:  # to a type checker it would make any misspelled name one of type Any
    __getattr__, _ = deferred(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted(__all__)


if os.environ.get("EAGER_IMPORT"):
    for _name in __all__:
        globals()[_name] = getattr(importlib.import_module(__name__), _name)
