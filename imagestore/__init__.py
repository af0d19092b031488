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
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from imagestore._version import __version__

if TYPE_CHECKING:
    from imagestore import errors as errors
    from imagestore import platforms as platforms
    from imagestore.config import Config as Config
    from imagestore.oci.digest import Digest as Digest
    from imagestore.oci.reference import Reference as Reference
    from imagestore.store.image import Image as Image
    from imagestore.store.image_store import ImageStore as ImageStore
    from imagestore.util.cancel import CancelToken as CancelToken

__all__ = [
    "CancelToken",
    "Config",
    "Digest",
    "Image",
    "ImageStore",
    "Reference",
    "__version__",
    "errors",
    "load_config",
    "open",
    "platforms",
]

_HOMES = {
    "CancelToken": "imagestore.util.cancel",
    "Config": "imagestore.config",
    "Digest": "imagestore.oci.digest",
    "Image": "imagestore.store.image",
    "ImageStore": "imagestore.store.image_store",
    "Reference": "imagestore.oci.reference",
}
_MODULES = frozenset({"errors", "platforms"})


def open(  # noqa: A001 - reads as imagestore.open(...)
    root: str | os.PathLike[str], *, config: Config | None = None
) -> ImageStore:
    """Open the store in a folder, making it when missing; use it as a context manager, or close it.

    Args:
        root: the folder.
        config: runtime handlers and their platforms; without one there is a single, default handler.

    Raises:
        InvalidInputError: an empty text for the folder.
        StoreError: the folder can't be used (StoreReadOnlyError, StoreFullError, StoreCorruptError, if that is why).
    """
    from imagestore.store.image_store import ImageStore

    return ImageStore(root, config=config)


def load_config(path: str | os.PathLike[str]) -> Config:
    """Read a containerd-style configuration file.

    Raises:
        ConfigError: names file, line and key.
    """
    from imagestore import config

    return config.load(Path(path))


if not TYPE_CHECKING:  # to a type checker it would make any misspelled name one of type Any

    def __getattr__(name: str) -> Any:
        if name in _HOMES:
            return getattr(importlib.import_module(_HOMES[name]), name)
        if name in _MODULES:
            return importlib.import_module(f"imagestore.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)


if os.environ.get("EAGER_IMPORT"):
    for _name in __all__:
        globals()[_name] = getattr(importlib.import_module(__name__), _name)
