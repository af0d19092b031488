"""The last look before a record is written: what it needs is here, and will still be after a loss of power."""

from __future__ import annotations

from typing import TYPE_CHECKING

from imagestore.errors import StoreBusyError

if TYPE_CHECKING:
    from collections.abc import Collection

    from imagestore.content.local import LocalContentStore
    from imagestore.oci.descriptor import Descriptor


def settle(content: LocalContentStore, descriptors: Collection[Descriptor]) -> None:
    """Make names durable that another process gave, and perhaps died over; before the database is held.

    Raises:
        StoreError: the disk refuses.
    """
    content.make_durable({descriptor.digest.algorithm for descriptor in descriptors})


def confirm(content: LocalContentStore, descriptors: Collection[Descriptor], *, what: str) -> None:
    """While the database is held: everything is here.

    Only a lease that ended early makes that untrue, or a repair that found damage the pull took for good.

    Args:
        content: the blobs.
        descriptors: what the record needs.
        what: names the record in errors.

    Raises:
        StoreBusyError: something was collected meanwhile.
    """
    gone = [descriptor.digest for descriptor in descriptors if not content.exists(descriptor.digest)]
    if gone:
        raise StoreBusyError(
            f"{what}: {gone[0]} was removed before the record was written: as damaged, or since the lease of this work "
            "ended early",
            hint="try again; leases end early where the clock is set forward, or the machine sleeps for a day",
        )
