"""Documents: JSON that points on (index, manifest) or describes an image (config).

Raw bytes are the truth: a digest is over what was received, so a document keeps its bytes and the typed view stands
next to them. Nothing here touches disk or network.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
