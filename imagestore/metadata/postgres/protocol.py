"""The rules that keep content safe without one lock for all, by name; each can be switched off to see a proof fail.

Who needs content leases it, commits, and looks then with a lock on the row; who collects locks the rows first and asks
in a later statement, at READ COMMITTED, whether anything keeps them. So one of the two always sees the other. Nothing
but the proof's harness (``tests/crash/shared.py``) changes a rule.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Rules:
    """What the shared store relies on.

    Attributes:
        look_for_share: a look at content locks its row for the transaction, so it waits for a collection's decision.
        unique_keys: each upload has an object of its own; else the digest names it, and a sweep deletes what is new.
        read_committed: each statement of a sweep sees what was committed before it, not what was so at its beginning.
        lock_then_ask: a sweep asks what is kept in a statement after that which locked the rows.
    """

    look_for_share: bool = True
    unique_keys: bool = True
    read_committed: bool = True
    lock_then_ask: bool = True


#: In force in this process.
RULES = Rules()
