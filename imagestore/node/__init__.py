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
    from imagestore.node import pod_resources as pod_resources
    from imagestore.node.credentials import ChainedKeyring as ChainedKeyring
    from imagestore.node.credentials import NodeKeyring as NodeKeyring
    from imagestore.node.credentials import PullSecret as PullSecret
    from imagestore.node.docker.service import DockerImageService as DockerImageService
    from imagestore.node.embedded import EmbeddedImageService as EmbeddedImageService
    from imagestore.node.eviction import CollectionPolicy as CollectionPolicy
    from imagestore.node.eviction import CollectionReport as CollectionReport
    from imagestore.node.image_gc import CollectionLoop as CollectionLoop
    from imagestore.node.image_gc import ImageCollector as ImageCollector
    from imagestore.node.image_manager import EnsureRequest as EnsureRequest
    from imagestore.node.image_manager import ImageManager as ImageManager
    from imagestore.node.image_service import ImageService as ImageService
    from imagestore.node.kubelet_config import KubeletImageSettings as KubeletImageSettings
    from imagestore.node.kubelet_messages import EnsureResult as EnsureResult
    from imagestore.node.kubelet_messages import NodeEvent as NodeEvent
    from imagestore.node.kubelet_messages import ObjectReference as ObjectReference
    from imagestore.node.metrics import NodeMetrics as NodeMetrics
    from imagestore.node.pod_resources import PodPlan as PodPlan
    from imagestore.node.pod_resources import Target as Target
    from imagestore.node.pull_backoff import BackOff as BackOff
    from imagestore.node.pull_record_manager import PullManager as PullManager
    from imagestore.node.puller import Puller as Puller
    from imagestore.node.puller import PullSlots as PullSlots
    from imagestore.node.puller import TokenBucket as TokenBucket
    from imagestore.node.runtime_class import RuntimeClass as RuntimeClass

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
