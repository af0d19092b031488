"""A client for any CRI endpoint, ours or a container runtime's: the ImageService port over gRPC."""

from imagestore.cri.client.service import CriImageService
from imagestore.cri.model import Condition, RuntimeStatus

__all__ = ["Condition", "CriImageService", "RuntimeStatus"]
