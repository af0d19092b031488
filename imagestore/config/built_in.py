"""What a configuration leaves to containerd's built-in handlers.

containerd 2 decodes a file into its default configuration: a table has what it doesn't write from the built-in handler
of its name, and options come one by one. containerd 1 replaces all built-in handlers by a table of runtimes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from imagestore.config.defaults import built_in_tables
from imagestore.config.location import BUILT_IN
from imagestore.config.tree import Entry, build

if TYPE_CHECKING:
    from collections.abc import Collection

    from imagestore.config.tree import Table
    from imagestore.platforms.spec import Platform


def with_built_in(runtimes: Table, host: Platform, names: Collection[str]) -> Table:
    """Handlers' tables of a configuration, completed from the built-in handlers, member by member.

    Args:
        runtimes: the tables as written.
        host: the node's platform.
        names: built-in handlers that are there without a table, too.
    """
    known = {name: build(table, lambda _: BUILT_IN) for name, table in built_in_tables(host).items()}
    completed = {name: _completed(entry, known.get(name, {})) for name, entry in runtimes.items()}
    added = {name: Entry(table, BUILT_IN) for name, table in known.items() if name in names and name not in completed}
    return completed | added


def is_of_runtimes(entry: Entry) -> bool:
    """Whether a handler's table stands in a table of runtimes; else it is built in, or older than such tables."""
    return [part.lower() for part in entry.path[-2:-1]] == ["runtimes"]


def _completed(entry: Entry, known: Table) -> Entry:
    """A handler's table with what it leaves to the built-in one; of another shim only the name is the same."""
    if not known or not isinstance(entry.value, dict):
        return entry
    table, kind = dict(entry.value), entry.value.get("runtime_type")
    if kind is None or not kind.value:
        table["runtime_type"] = known["runtime_type"]
    elif kind.value != known["runtime_type"].value:
        return entry
    for name, usual in known.items():
        written = table.setdefault(name, usual)
        if written is not usual and isinstance(written.value, dict) and isinstance(usual.value, dict):
            table[name] = replace(written, value={**usual.value, **written.value})
    return replace(entry, value=table)
