"""Variants of the shared store's protocol that are wrong: each leaves one rule out, and the harness has to notice."""

from __future__ import annotations

import secrets
from typing import Final
from unittest import mock

#: What is switched off, by the variant's name.
VARIANTS: Final = {
    "look-without-share": "look_for_share",
    "key-is-the-digest": "unique_keys",
    "repeatable-read": "read_committed",
    "one-statement": "lock_then_ask",
}


def leave_out(variant: str) -> None:
    """Leave a rule out in this process; an empty text leaves none out."""
    if variant:
        from imagestore.metadata.postgres.protocol import RULES

        setattr(RULES, VARIANTS[variant], False)
        if not RULES.unique_keys:
            mock.patch.object(secrets, "token_hex", lambda count: "0" * 2 * count).start()
