"""The store: images by (reference, runtime handler), and everything that is done with them.

``image_store`` has ImageStore, the one object that embedders hold (``imagestore.ImageStore``), with the code of its
methods. They start work in other modules, which shares ``parts``: ``pull/`` fetches images, ``archive/`` imports and
exports them, ``copy/`` copies and ``unpack/`` unpacks them, ``maintenance/`` removes images, checks and repairs the
store. ``garbage`` collects what nothing keeps.

A store is for POSIX systems: its locks are those of fcntl(2). Where there are none, importing this package raises
UnsupportedError.
"""

import sys

import lazy_loader

from imagestore.errors import UnsupportedError

try:
    import fcntl  # noqa: F401 - its modules use it
except ModuleNotFoundError:
    raise UnsupportedError(
        f"a store needs a POSIX system: this Python, for {sys.platform}, has no module fcntl",
        hint="use Linux or macOS; imagestore's platforms, oci, config, registry and resources work here",
    ) from None

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
