"""Image collection of a node, keyed by (image, runtime handler): the kubelet's rules over any image service."""

from __future__ import annotations

from imagestore.node.image_gc.collector import CollectionReport, ImageCollector
from imagestore.node.image_gc.disk import DiskUsage
from imagestore.node.image_gc.policy import CollectionPolicy

__all__ = ["CollectionPolicy", "CollectionReport", "DiskUsage", "ImageCollector"]
