"""Variants of the shared store's protocol that are wrong: each leaves one rule out, and the harness has to notice.

The product has no switches. A variant changes the statements that carry the rule on their way to the database.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any, Final

import psycopg

#: The statement of a sweep that asks which contents nothing keeps, and what it asks about.
ASKING: Final = "WITH RECURSIVE asked"
_ASKED: Final = "SELECT value FROM json_array_elements_text(%(texts)s::json)"
#: Of a sweep's statement that locks rows.
_LOCKING: Final = " ORDER BY digest FOR UPDATE SKIP LOCKED"


def _without_share(query: str) -> str:
    """A look at content locks no row."""
    return query.replace(" FOR SHARE", "")


def _repeatable_read(query: str) -> str:
    """A statement of a sweep sees what was committed before its transaction."""
    return query.replace("READ COMMITTED", "REPEATABLE READ")


def _in_one_statement(query: str) -> str:
    """A sweep asks what is kept in the statement that locks the rows, and not again."""
    from imagestore.metadata import sql
    from imagestore.metadata.postgres.database import NOW
    from imagestore.metadata.postgres.graph import UNHELD

    if query.startswith(ASKING):
        return _ASKED
    asked = f" AND digest IN ({sql.postgres(UNHELD, NOW)})"
    return query.replace(_LOCKING, f"{asked}{_LOCKING}") if "FROM content" in query else query


def _without_doom(query: str) -> str:
    """An object that lost is not to be deleted, since its key is that of the one that won."""
    return "SELECT %s" if query.startswith("INSERT INTO doomed VALUES (%s)") else query


#: What happens to each statement, by the variant's name.
VARIANTS: Final[dict[str, Callable[[str], str]]] = {
    "look-without-share": _without_share,
    "key-is-the-digest": _without_doom,
    "repeatable-read": _repeatable_read,
    "one-statement": _in_one_statement,
}


def leave_out(variant: str, patch: Callable[[object, str, object], object]) -> None:
    """Leave a rule out in this process.

    Args:
        variant: its name; an empty text leaves none out.
        patch: sets an attribute of an object, as ``MonkeyPatch.setattr`` does.
    """
    if not variant:
        return
    change = VARIANTS[variant]
    execute: Callable[..., Any] = psycopg.Cursor.execute

    def executing(cursor: Any, query: str, *arguments: Any, **options: Any) -> Any:
        return execute(cursor, change(query), *arguments, **options)

    patch(psycopg.Cursor, "execute", executing)
    if variant == "key-is-the-digest":
        patch(secrets, "token_hex", lambda count: "0" * 2 * count)
