"""One SQL text for both databases: ``:name`` parameters, and a few words that each database spells its own way.

=====================  ================================================================================================
``:now``               seconds since 1970: by the store's clock in SQLite, by the server's in PostgreSQL
``EACH(:texts) t``     a list of texts as a table of ``value`` and ``key`` (its place, from 0)
``PAIRS(:keys) p``     a list of pairs of texts as a table of ``one``, ``two`` and ``key``
``LIST(column)``       the values of a group as a JSON list
``AT(column, 1)``      a member of a JSON list, as text
``HAS(column, 'x')``   whether a JSON object has a member
``FOR ... SHARE``      row locks; SQLite has one writer at a time and needs none
``scope``              the first column of a shared store's tables; see below
=====================  ================================================================================================

A shared store has several scopes, so there ``scope`` stands first in each key, list of columns and condition. An
embedded store is one scope, and its tables lack the column: SQLite's spelling leaves it out.
"""

from __future__ import annotations

import functools
import json
import re
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

_PARAMETER: Final = re.compile(r"(?<!:):([a-z_]+)")
_EACH: Final = re.compile(r"EACH\(:([a-z_]+)\) ([a-z]+)")
_PAIRS: Final = re.compile(r"PAIRS\(:([a-z_]+)\) ([a-z]+)")
_LIST: Final = re.compile(r"LIST\(([a-z_.]+)\)")
_AT: Final = re.compile(r"AT\(([a-z_.]+), ([0-9])\)")
_HAS: Final = re.compile(r"HAS\(([a-z_.]+), '([^']+)'\)")
_LOCK: Final = re.compile(r" FOR (?:KEY SHARE|SHARE|UPDATE)(?: OF [a-z]+)?(?: SKIP LOCKED)?")
_SAME_SCOPE: Final = r"(?:[a-z_]+\.)?scope = (?::scope|[a-z_]+\.scope)"
_SCOPE: Final = re.compile(rf"{_SAME_SCOPE} AND |(?P<alone>{_SAME_SCOPE})|:scope, |(?:[a-z_]+\.)?\bscope, ")


@functools.lru_cache(maxsize=512)
def sqlite(text: str) -> str:
    """A statement as SQLite takes it.

    >>> sqlite("SELECT scope, id FROM lease WHERE scope = :scope AND id = :id FOR KEY SHARE")
    'SELECT id FROM lease WHERE id = :id'
    """
    text = _SCOPE.sub(lambda found: "TRUE" if found["alone"] else "", text)
    if "scope" in text:
        raise ValueError(f"the scope must stand first in each list and condition: {text}")
    text = _LOCK.sub("", text)
    text = _EACH.sub(r"json_each(:\1) \2", text)
    parts = (
        r"(SELECT key, json_extract(value, '$[0]') AS one, json_extract(value, '$[1]') AS two FROM json_each(:\1)) \2"
    )
    text = _PAIRS.sub(parts, text)
    text = _LIST.sub(r"json_group_array(\1)", text)
    text = _AT.sub(r"json_extract(\1, '$[\2]')", text)
    return _HAS.sub(r"""(json_type(\1, '$."\2"') IS NOT NULL)""", text)


@functools.lru_cache(maxsize=512)
def postgres(text: str, now: str) -> str:
    """A statement as psycopg takes it; ``now`` is the expression for the server's time.

    >>> postgres("SELECT id FROM lease WHERE expires_at > :now AND id LIKE 'a%' AND scope = :scope", "now()")
    "SELECT id FROM lease WHERE expires_at > now() AND id LIKE 'a%%' AND scope = %(scope)s"
    """
    items = r"json_array_elements{0}(:\1::json) WITH ORDINALITY AS items(value, key)"
    text = text.replace("%", "%%")
    text = _EACH.sub(rf"(SELECT key - 1 AS key, value FROM {items.format('_text')}) \2", text)
    text = _PAIRS.sub(
        rf"(SELECT key - 1 AS key, value ->> 0 AS one, value ->> 1 AS two FROM {items.format('')}) \2", text
    )
    text = _LIST.sub(r"coalesce(json_agg(\1), '[]'::json)::text", text)
    text = _AT.sub(r"(\1::json ->> \2)", text)
    text = _HAS.sub(r"\1::jsonb ? '\2'", text)
    return _PARAMETER.sub(lambda found: now if found[1] == "now" else f"%({found[1]})s", text)


class Cursor(Protocol):
    """The result of a statement, as the database's package has it."""

    @property
    def rowcount(self) -> int:
        """How many rows it changed."""

    def fetchall(self) -> list[Any]:
        """The rows of a query."""


class Statements(ABC):
    """Runs statements on a connection; lists among their values are given to the database as JSON."""

    @abstractmethod
    def execute(self, text: str, **values: object) -> Cursor:
        """Run a statement; its result may be fetched after the end of a pipeline."""

    @abstractmethod
    def each(self, text: str, **values: object) -> Iterator[tuple[Any, ...]]:
        """The rows of a query that may have very many; they aren't all in memory at a time."""

    @abstractmethod
    def pipeline(self) -> AbstractContextManager[object]:
        """Statements in it are sent without waiting for results, where that saves time."""

    def rows(self, text: str, **values: object) -> list[tuple[Any, ...]]:
        """The rows of a query."""
        return self.execute(text, **values).fetchall()

    def texts(self, text: str, **values: object) -> list[str]:
        """The only column of a query's rows."""
        return [each for (each,) in self.rows(text, **values)]

    def row(self, text: str, **values: object) -> tuple[Any, ...] | None:
        """The first row of a query."""
        return next(iter(self.rows(text, **values)), None)

    def run(self, text: str, **values: object) -> int:
        """Run a statement; returns how many rows it changed."""
        return self.execute(text, **values).rowcount

    def is_so(self, condition: str, **values: object) -> bool:
        """Whether a condition holds."""
        row = self.row(f"SELECT {condition}", **values)
        return row is not None and bool(row[0])


def lists_as_json(values: dict[str, object]) -> None:
    """Change values of a statement, so that EACH and PAIRS can read them."""
    for name, value in values.items():
        if isinstance(value, list):
            values[name] = json.dumps(value)
