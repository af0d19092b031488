"""Image collection of a node, keyed by (image, runtime handler): the kubelet's rules over any image service."""

from __future__ import annotations

from typing import TYPE_CHECKING

from imagestore import late

if TYPE_CHECKING:
    from imagestore.node.gc.collector import CollectionReport, ImageCollector
    from imagestore.node.gc.disk import DiskUsage
    from imagestore.node.gc.policy import CollectionPolicy

__all__ = ["CollectionPolicy", "CollectionReport", "DiskUsage", "ImageCollector"]

# Whoever asks for the policy alone needs no collector.
_HOMES = {
    "CollectionPolicy": "policy",
    "CollectionReport": "collector",
    "DiskUsage": "disk",
    "ImageCollector": "collector",
}


if not TYPE_CHECKING:  # to a type checker it would make any misspelled name one of type Any
    __getattr__ = late.names(__name__, _HOMES)


def __dir__() -> list[str]:
    return __all__
