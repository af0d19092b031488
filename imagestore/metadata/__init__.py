"""Metadata: image records, leases and edges. ``api`` is the port, ``sqlite`` and ``postgres`` are its adapters."""

import lazy_loader

from imagestore.util.extras import hinting

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__getattr__ = hinting(__getattr__)
