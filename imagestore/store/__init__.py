"""The store: images by (reference, runtime handler), and everything that is done with them.

``image_store`` has ImageStore, the one object embedders hold (``imagestore.ImageStore``); ``pull`` fetches images from
registries, ``archive`` imports and exports them, ``maintenance`` looks after what is there, ``garbage`` collects what
nothing keeps.
"""
