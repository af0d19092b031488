"""A mirror for a cluster: the distribution specification's read API over the store, with pull-through.

One listener serves a closed table of upstreams. What isn't here is fetched once, however many clients ask for it, and
they read along while it comes.
"""

import lazy_loader

from imagestore.util.extras import hinting

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__getattr__ = hinting(__getattr__)
