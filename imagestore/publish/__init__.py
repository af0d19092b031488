"""Publishing into containerd: a store's images become runnable there.

containerd starts containers from images of its own only. A :class:`Publisher` makes the store's images such: content,
unpacked layers and image records, over containerd's API, for any platform. It converges: whatever containerd has,
:meth:`Publisher.reconcile` brings it nearer to what the store has.

For runtimes without containerd :class:`FolderSnapshots` unpacks layers into a plain folder; both are a
:class:`SnapshotTarget`.
"""

import lazy_loader

from imagestore.util.extras import hinting

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__getattr__ = hinting(__getattr__)
