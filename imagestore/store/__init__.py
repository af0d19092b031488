"""The store: images by (reference, runtime handler), and everything that is done with them.

``image_store`` has ImageStore, the one object that embedders hold (``imagestore.ImageStore``). Its collaborators share
``parts``: ``images_by_name`` finds, tags and removes images, ``pull/`` fetches them, ``archive/`` imports, exports and
copies them, ``maintenance/`` checks and repairs the store. ``garbage`` collects what nothing keeps.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
