"""The lease of one image that is being published: containerd keeps what the work brought until its records are made.

Its id is fixed by the store and the image, so that a repeated publish, in this process or a later one, goes on with
what an earlier one left. containerd's leases can't be extended (the service has no Update): one that is half run down
is replaced by another, which first takes over what it holds.
"""

from __future__ import annotations

import datetime
import hashlib
import logging
from typing import TYPE_CHECKING, Final

from imagestore.util.failpoint import reach

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from imagestore.publish.containerd import Containerd

log = logging.getLogger(__name__)

#: As containerd's own client gives its temporary leases.
LIFETIME_SECONDS: Final = 24 * 3600.0
_HASH_CHARACTERS: Final = 32
_PREFIX: Final = "imagestore"


def begin_of_ids(store_id: str) -> str:
    """What the ids of all leases of a store begin with."""
    return f"{_PREFIX}-{store_id}-"


def lease_id(store_id: str, image_id: str) -> str:
    """The id of an image's lease; a replacement's has ``-`` and a number behind it."""
    return begin_of_ids(store_id) + hashlib.sha256(image_id.encode()).hexdigest()[:_HASH_CHARACTERS]


def acquire(client: Containerd, store_id: str, image_id: str, clock: Callable[[], float]) -> str:
    """Make the lease of an image, or take over what earlier publishes left; returns its id.

    Raises:
        NotFoundError: one ended while it was taken over.
    """
    wanted = lease_id(store_id, image_id)
    left = {each: ends for each, ends in client.leases().items() if _number(each, wanted) is not None}
    ordered = sorted(left, key=lambda each: _number(each, wanted) or 0)
    if len(ordered) == 1 and _seconds(left[ordered[0]]) - clock() > LIFETIME_SECONDS / 2:
        return ordered[0]
    lease = f"{wanted}-{(_number(ordered[-1], wanted) or 1) + 1}" if ordered else wanted
    client.create_lease(lease, clock() + LIFETIME_SECONDS)
    reach("publish-lease")
    for each in ordered:
        for kind, name in client.lease_resources(each):
            client.add_resource(lease, kind, name)
    for each in ordered:
        # Not synced: nothing is to be collected now.
        client.delete_lease(each, is_synced=False)
    if ordered:
        log.info("lease replaced", extra={"lease": lease, "replaced": ordered})
    return lease


def end_left(client: Containerd, store_id: str, images_at_work: Callable[[], Collection[str]]) -> list[str]:
    """End the leases of this store that no running work has, as after a kill; returns their ids.

    Only the store's one publisher may call this.

    Args:
        client: of containerd.
        store_id: whose.
        images_at_work: ids of the images that are worked on; asked after the leases, since work is noted before its
            lease is made.
    """
    found = [each for each in client.leases() if each.startswith(begin_of_ids(store_id))]
    held = [lease_id(store_id, image_id) for image_id in images_at_work()]
    ended = [each for each in found if not any(_number(each, own) is not None for own in held)]
    for number, each in enumerate(ended, 1):
        client.delete_lease(each, is_synced=number == len(ended))
    return ended


def _number(lease: str, wanted: str) -> int | None:
    """1 for an image's own lease, the number of a replacement, None for others."""
    if lease == wanted:
        return 1
    rest = lease.removeprefix(f"{wanted}-")
    return int(rest) if rest != lease and rest.isascii() and rest.isdecimal() else None


def _seconds(text: str) -> float:
    """A lease's end in seconds since 1970; 0 if it can't be read."""
    try:
        return datetime.datetime.fromisoformat(text).timestamp()
    except ValueError:
        return 0.0
