"""Publishing into containerd: a store's images become runnable there.

containerd starts containers from images of its own only. A :class:`Publisher` makes the store's images such: content,
unpacked layers and image records, over containerd's API, for any platform. It converges: whatever containerd has,
:meth:`Publisher.reconcile` brings it nearer to what the store has.

For runtimes without containerd :class:`FolderSnapshots` unpacks layers into a plain folder; both are a
:class:`SnapshotTarget`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from imagestore.util.public_names import deferred

if TYPE_CHECKING:
    from imagestore.publish.aio import AsyncPublisher as AsyncPublisher
    from imagestore.publish.aio import open_publisher as open_publisher
    from imagestore.publish.folder_snapshots import FolderSnapshots as FolderSnapshots
    from imagestore.publish.model import ContentWay as ContentWay
    from imagestore.publish.model import ImageState as ImageState
    from imagestore.publish.model import ImageStatus as ImageStatus
    from imagestore.publish.model import PublishError as PublishError
    from imagestore.publish.model import PublisherStatus as PublisherStatus
    from imagestore.publish.model import ReconcileReport as ReconcileReport
    from imagestore.publish.owner_lock import PublisherRunningError as PublisherRunningError
    from imagestore.publish.publisher import Publisher as Publisher
    from imagestore.publish.snapshots import SnapshotLayer as SnapshotLayer
    from imagestore.publish.snapshots import SnapshotTarget as SnapshotTarget

__all__ = [
    "AsyncPublisher",
    "ContentWay",
    "FolderSnapshots",
    "ImageState",
    "ImageStatus",
    "PublishError",
    "Publisher",
    "PublisherRunningError",
    "PublisherStatus",
    "ReconcileReport",
    "SnapshotLayer",
    "SnapshotTarget",
    "open_publisher",
]

_HOMES = {
    "AsyncPublisher": "imagestore.publish.aio",
    "ContentWay": "imagestore.publish.model",
    "FolderSnapshots": "imagestore.publish.folder_snapshots",
    "ImageState": "imagestore.publish.model",
    "ImageStatus": "imagestore.publish.model",
    "Publisher": "imagestore.publish.publisher",
    "PublishError": "imagestore.publish.model",
    "PublisherRunningError": "imagestore.publish.owner_lock",
    "PublisherStatus": "imagestore.publish.model",
    "ReconcileReport": "imagestore.publish.model",
    "SnapshotLayer": "imagestore.publish.snapshots",
    "SnapshotTarget": "imagestore.publish.snapshots",
    "open_publisher": "imagestore.publish.aio",
}

if not TYPE_CHECKING:  # to a type checker it would make any misspelled name one of type Any
    __getattr__, __dir__ = deferred(__name__, _HOMES)
