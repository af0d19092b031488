"""What a verbose status tells beside the image: containerd's ``info`` and our own ``imagestore``, both JSON objects.

``info`` has the members that containerd's CRI plugin gives: ``chainID`` (image-spec, config.md, "Layer ChainID") and
``imageSpec``, the image config as it stands. ``imagestore`` tells what only this store knows: handler, platforms,
manifest, warnings.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from imagestore import platforms
from imagestore.errors import ContentNotFoundError, DocumentError, IntegrityError
from imagestore.oci.digest import Digest
from imagestore.store.image import Image

if TYPE_CHECKING:
    from collections.abc import Sequence

    from imagestore.metadata.records import ImageRecord
    from imagestore.store.image_store import ImageStore


def chain_id(diff_ids: Sequence[Digest]) -> str:
    """Identity of the layers applied on top of each other; empty without layers.

    >>> from imagestore.oci.digest import Digest
    >>> chain_id([Digest.of(b"base")]) == str(Digest.of(b"base"))
    True
    """
    chain = ""
    for diff_id in map(str, diff_ids):
        chain = str(Digest.of(f"{chain} {diff_id}".encode())) if chain else diff_id
    return chain


def info(record: ImageRecord, store: ImageStore) -> dict[str, str]:
    """Texts by key.

    Args:
        record: the record that was asked for.
        store: has its content.

    Returns:
        Both keys; ``info`` is missing for an artifact, and where the store was damaged, which ``damage`` then tells.
    """
    own: dict[str, object] = {
        "reference": record.reference,
        "runtimeHandler": record.handler,
        "platform": platforms.format_all(record.platform),
        "wantedPlatform": record.wanted,
        "target": record.target.members(),
        "manifest": record.manifest.members(),
        "warnings": list(record.warnings),
        "createdAt": record.created_at,
        "updatedAt": record.updated_at,
    }
    image = Image(record, store.content)
    try:
        own["layers"] = [layer.members() for layer in image.layers]
        config = image.config
    except DocumentError:
        return {"imagestore": json.dumps(own)}  # an artifact: its config describes no image
    except (ContentNotFoundError, IntegrityError) as error:
        return {"imagestore": json.dumps({**own, "damage": str(error)})}
    shown = {"chainID": chain_id(config.diff_ids), "imageSpec": json.loads(config.raw)}
    return {"imagestore": json.dumps(own), "info": json.dumps(shown)}
