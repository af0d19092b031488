"""Content: bytes by digest. ``api`` is the port, ``local`` the store on disk in containerd's layout."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
