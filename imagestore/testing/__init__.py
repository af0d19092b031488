"""The recorded registry: images in one line, tapes, replay, faults and a ledger, for test suites of container tools.

from imagestore.testing import RegistryServer, build_index, replay

with RegistryServer({"registry.example/base:1": build_index(["linux/amd64"])}) as server: ...
with replay("fixtures/tapes/token-auth") as playing: ...
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
