"""Configuration: containerd's file read into runtime handlers with their platforms.

``load`` reads a file with its imports, ``loads`` a text, ``default`` is for nodes without a file; each returns a frozen
``Config``. ``check`` reports all faults of a file and doesn't raise for them. A name is imported when it is first used,
since a store without a configuration needs neither readers nor checks.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
