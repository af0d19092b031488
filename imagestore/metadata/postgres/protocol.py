"""The rules that keep content safe without one lock for all; a test can switch each off to see content lost.

A client that needs content leases it, commits, and then looks for it with a lock on the row. A sweep locks the rows
first and asks in a later statement, at READ COMMITTED, whether anything keeps them. So one of the two always sees the
other. Only ``tests/crash/shared.py`` changes a rule.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Rules:
    """What the shared store relies on.

    Attributes:
        look_for_share: a look at content locks its row for the transaction, so it waits for a collection's decision.
        unique_keys: each upload has an object of its own; else the digest names it, and a sweep deletes a new upload.
        read_committed: each statement of a sweep sees what was committed before it, not before the transaction.
        lock_then_ask: a sweep asks what is kept in a later statement than the one that locked the rows.
    """

    look_for_share: bool = True
    unique_keys: bool = True
    read_committed: bool = True
    lock_then_ask: bool = True


#: In force in this process.
RULES = Rules()
