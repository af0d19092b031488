"""Images that containerd's containers and sandboxes use are noted in the store as used.

Eviction and image collection spare what was used lately, so the note holds for hours while containerd is away.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from imagestore.publish.containerd import image_of_container

if TYPE_CHECKING:
    from imagestore.publish.containerd import Containerd
    from imagestore.store import ImageStore


def containers_by_image(client: Containerd) -> dict[str, list[str]]:
    """The ids of the containers of each image id; two calls."""
    names = client.cri_names()
    found: dict[str, list[str]] = defaultdict(list)
    for container in client.containers():
        image_id = image_of_container(container, names)
        if image_id:
            found[image_id].append(container.id)
    return dict(found)


def note_images_in_use(client: Containerd, store: ImageStore) -> None:
    """Note the images of all containers and sandboxes as in use, under every handler."""
    used = [(image_id, "") for image_id in containers_by_image(client)]
    store.note_in_use(used, holder=client.address.removeprefix("unix://"))
