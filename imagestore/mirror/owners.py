"""Which replica fetches what from upstream: each thing has one owner, and the others ask it first.

The owner is the highest of hashes of (replica, thing), known as rendezvous hashing: all replicas with the same list
agree without a word, and where a replica leaves the list only what it owned moves. A dead owner costs a second transfer
from upstream, and no failure.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Sent by a replica that asks another one, which then asks upstream and no third one.
REPLICA_HEADER: Final = "Imagestore-Replica"
#: Sent with every request of a mirror, with a value of its own: one that comes back would go round for ever.
INSTANCE_HEADER: Final = "Imagestore-Mirror"


def owner_of(thing: str, replicas: Sequence[str]) -> str:
    """The replica that owns a thing; empty where there are no replicas.

    >>> owner_of("sha256:00", ["http://a:5000", "http://b:5000"]) == owner_of("sha256:00", ["http://b:5000", "http://a:5000"])
    True
    """
    return max(replicas, key=lambda replica: hashlib.sha256(f"{replica}\n{thing}".encode()).digest(), default="")
