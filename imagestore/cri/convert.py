"""Entries of a list as CRI's messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from imagestore.cri._proto import api_pb2

if TYPE_CHECKING:
    from imagestore.image_service import ServedImage


def image_message(entry: ServedImage) -> api_pb2.Image:
    """``runtime.v1.Image``."""
    message = api_pb2.Image(
        id=entry.id,
        repo_tags=entry.repo_tags,
        repo_digests=entry.repo_digests,
        size=entry.size,
        spec=api_pb2.ImageSpec(image=entry.spec.image, runtime_handler=entry.spec.runtime_handler),
        pinned=entry.is_pinned,
        username=entry.username,
    )
    if entry.uid is not None:
        message.uid.value = entry.uid
    return message
