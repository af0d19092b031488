"""Whether the database file is damaged.

``integrity_check`` compares every index with its table, which ``quick_check`` doesn't: a row that an index lacks isn't
found by its key. SQLite accepts any bytes as text, and checks references only while rows change, so this checks both.
"""

from __future__ import annotations

import collections
import sqlite3
from typing import TYPE_CHECKING, Final

from imagestore.metadata.sqlite.failures import NO_TEXT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

#: Columns with a JSON object; those of images are parsed by the check of the store.
_OBJECTS: Final = frozenset({"labels", "annotations"})
#: Lines of SQLite's check: one is enough to act, some help to understand.
_MOST_LINES: Final = 20


def damage(db: sqlite3.Connection) -> tuple[str, ...]:
    """What is wrong, a line each."""
    found = [str(line) for (line,) in db.execute(f"PRAGMA integrity_check({_MOST_LINES})") if line != "ok"]
    if not found:
        orphans = collections.Counter((table, parent) for table, _, parent, _ in db.execute("PRAGMA foreign_key_check"))
        found = [f"table {table}: {count} rows refer to no {parent}" for (table, parent), count in orphans.items()]
    return tuple(found or _texts(db))


def damaged_tables(db: sqlite3.Connection, tables: Iterable[str]) -> list[str]:
    """What SQLite finds wrong with some tables and their indexes, a line each."""
    lines = (line for table in tables for (line,) in db.execute(f"PRAGMA integrity_check({table})"))
    return [str(line) for line in lines if line != "ok"][:_MOST_LINES]


def _texts(db: sqlite3.Connection) -> Iterator[str]:
    """A line for each table with texts that aren't UTF-8 or not the JSON they should be."""
    for (table,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name").fetchall():
        rows = db.execute(f"SELECT * FROM {table}")
        columns = [each[0] for each in rows.description]
        try:
            collections.deque(rows, maxlen=0)
        except sqlite3.OperationalError as error:
            if not str(error).startswith(NO_TEXT):
                raise
            yield f"table {table}: {error}"
            continue
        for column in sorted(_OBJECTS.intersection(columns)):
            kind = f"CASE WHEN json_valid({column}) THEN json_type({column}) END"
            count = db.execute(f"SELECT count(*) FROM {table} WHERE {kind} IS NOT 'object'").fetchone()[0]
            if count:
                yield f"table {table}: {column} of {count} rows: expected a JSON object"
