"""The node side: what a kubelet, an edge node or another agent does with images, over any image service.

:class:`ImageManager` makes sure that an image is there and that a pod may use it (EnsureImageExists);
:class:`ImageCollector` removes images by age and space, keyed by (image, runtime handler). Both work over an
:class:`ImageService`: :class:`EmbeddedImageService` (a store), :class:`DockerImageService`, or
:class:`imagestore.cri.CriImageService`. What a pod's requests and limits become says :mod:`imagestore.resources`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
