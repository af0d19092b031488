"""The node side: what a kubelet, an edge node or another agent does with images, over any image service.

:class:`ImageManager` makes sure that an image is there and that a pod may use it (EnsureImageExists);
:class:`ImageCollector` removes images by age and space, keyed by (image, runtime handler). Both work over an
:class:`ImageService`: :class:`EmbeddedImageService` (a store), :class:`DockerImageService`, or
:class:`imagestore.cri.client.CriImageService`. :mod:`imagestore.node.pod_resources` says what a pod's requests and
limits become.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from imagestore.util.public_names import deferred

if TYPE_CHECKING:
    from imagestore.node import pod_resources
    from imagestore.node.credentials import ChainedKeyring, NodeKeyring, PullSecret
    from imagestore.node.docker.service import DockerImageService
    from imagestore.node.embedded import EmbeddedImageService
    from imagestore.node.eviction import CollectionPolicy, CollectionReport
    from imagestore.node.image_gc import CollectionLoop, ImageCollector
    from imagestore.node.image_manager import EnsureRequest, ImageManager
    from imagestore.node.image_service import ImageService
    from imagestore.node.kubelet_config import KubeletImageSettings
    from imagestore.node.kubelet_messages import EnsureResult, NodeEvent, ObjectReference
    from imagestore.node.metrics import NodeMetrics
    from imagestore.node.pod_resources import PodPlan, Target
    from imagestore.node.pull_backoff import BackOff
    from imagestore.node.pull_record_manager import PullManager
    from imagestore.node.puller import Puller, PullSlots, TokenBucket
    from imagestore.node.runtime_class import RuntimeClass

__all__ = [
    "BackOff",
    "ChainedKeyring",
    "CollectionLoop",
    "CollectionPolicy",
    "CollectionReport",
    "DockerImageService",
    "EmbeddedImageService",
    "EnsureRequest",
    "EnsureResult",
    "ImageCollector",
    "ImageManager",
    "ImageService",
    "KubeletImageSettings",
    "NodeEvent",
    "NodeKeyring",
    "NodeMetrics",
    "ObjectReference",
    "PodPlan",
    "PullManager",
    "PullSecret",
    "PullSlots",
    "Puller",
    "RuntimeClass",
    "Target",
    "TokenBucket",
    "pod_resources",
]

_HOMES = {
    "BackOff": "imagestore.node.pull_backoff",
    "ChainedKeyring": "imagestore.node.credentials",
    "CollectionLoop": "imagestore.node.image_gc",
    "CollectionPolicy": "imagestore.node.eviction",
    "CollectionReport": "imagestore.node.eviction",
    "DockerImageService": "imagestore.node.docker.service",
    "EmbeddedImageService": "imagestore.node.embedded",
    "EnsureRequest": "imagestore.node.image_manager",
    "EnsureResult": "imagestore.node.kubelet_messages",
    "ImageCollector": "imagestore.node.image_gc",
    "ImageManager": "imagestore.node.image_manager",
    "ImageService": "imagestore.node.image_service",
    "KubeletImageSettings": "imagestore.node.kubelet_config",
    "NodeEvent": "imagestore.node.kubelet_messages",
    "NodeKeyring": "imagestore.node.credentials",
    "NodeMetrics": "imagestore.node.metrics",
    "ObjectReference": "imagestore.node.kubelet_messages",
    "PodPlan": "imagestore.node.pod_resources",
    "PullManager": "imagestore.node.pull_record_manager",
    "PullSecret": "imagestore.node.credentials",
    "PullSlots": "imagestore.node.puller",
    "Puller": "imagestore.node.puller",
    "RuntimeClass": "imagestore.node.runtime_class",
    "Target": "imagestore.node.pod_resources",
    "TokenBucket": "imagestore.node.puller",
    "pod_resources": "imagestore.node.pod_resources",
}

if not TYPE_CHECKING:  # to a type checker it would make any misspelled name one of type Any
    __getattr__, __dir__ = deferred(__name__, _HOMES)
