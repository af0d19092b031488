"""A containerd-compatible image store and platform matcher: images by (reference, runtime handler).

    import imagestore

    config = imagestore.load_config("config.toml")
    with imagestore.open("/var/lib/imagestore", config=config) as store:
        image = store.pull("python:3", runtime_handler="runhcs-wcow-hypervisor")

Each public name is imported when it is first used (PEP 562), so that the command line can print its help without the
database. ``__init__.pyi`` lists the names; with ``EAGER_IMPORT=1`` in the environment all are imported at once.
"""

import logging

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

# A program that configures no logging hears nothing of ours on its standard error.
logging.getLogger(__name__).addHandler(logging.NullHandler())
