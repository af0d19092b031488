"""The format of the journal's lines (``journal_reading`` reads them).

The first line of a transaction has the number with which the last one ended, and the store's id: ``{"begin": 7,
"store": "…"}``. Numbers come from a counter in the database, so the numbers of a transaction that died are used again.
Lines above a ``begin`` with a higher number than it names were never committed; those with a lower number were. So only
the lines after the last ``begin`` are uncertain, unless one of them was written after its commit, as the last line of a
synced transaction is.

Content that is added to a lease has lines of its own, since a lease may get thousands of contents, one by one. Such a
line repeats the lease, so that no earlier line is needed.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from imagestore.metadata import rows
from imagestore.oci import gc_labels

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from imagestore.metadata.records import ImageRecord, Lease
    from imagestore.oci.digest import Digest

# Contents in one line: readers bound its length.
_CONTENTS: Final = 10_000
#: Lines that are only written after the commit.
_AFTER_COMMIT: Final = ("remove", "release", "unleased")


def whole(
    number: int,
    store_id: str,
    records: Iterable[ImageRecord],
    labels_of: Iterable[tuple[Digest, Mapping[str, str]]],
    leases: Iterable[tuple[Lease, Collection[Digest]]],
) -> Iterator[str]:
    """The lines of a new journal that has all changes up to this number."""
    yield begin(number, store_id)
    for record in records:
        yield put(number, record)
    for digest, each in labels_of:
        yield labels(number, digest, each)
    for leased, content in leases:
        yield from whole_lease(number, leased, content)


def begin(number: int, store_id: str = "") -> str:
    """The first line of a transaction: the number with which the last one ended.

    Args:
        number: that number.
        store_id: which a rebuild gives the store again; empty as in lines of older versions.
    """
    return json.dumps({"begin": number, "store": store_id} if store_id else {"begin": number})


def committed(number: int) -> str:
    """A change was committed, with all of its transaction; written after the commit.

    A ``begin`` would drop lines above it, which another process may have written in the meantime.
    """
    return json.dumps({"number": number, "committed": True})


def committed_number(line: bytes) -> int:
    """The number that a line says was committed; 0 for other lines, and those that can't be read.

    >>> committed_number(b'{"begin": 7}'), committed_number(b'{"number": 8, "release": "a"}'), committed_number(b"{")
    (7, 8, 0)
    """
    try:
        entry = json.loads(line.decode())
        if "begin" in entry:
            return int(entry["begin"])
        is_committed = entry.get("committed") is True or any(name in entry for name in _AFTER_COMMIT)
        return int(entry["number"]) if is_committed else 0
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return 0


def put(number: int, record: ImageRecord) -> str:
    """A record was put."""
    return json.dumps(
        {"number": number, "put": [*rows.image_values(record), json.dumps([str(digest) for digest in record.roots])]}
    )


def remove(number: int, key: tuple[str, str]) -> str:
    """A record was removed; written after the commit."""
    # Formatted by hand, for removals of many thousands.
    reference, handler = map(json.dumps, key)
    return f'{{"number": {number}, "remove": [{reference}, {handler}]}}'


def announced(number: int, line: str) -> str:
    """A line that will follow the commit, written before it. It counts once a later line confirms the change.

    So what was removed isn't restored if the process dies between its commit and the line.
    """
    return f'{{"number": {number}, "announced": {line}}}'


def labels(number: int, digest: Digest, labels: Mapping[str, str], *, is_committed: bool = False) -> str:
    """The labels of content."""
    entry = {"number": number, "labels": [str(digest), dict(labels)]}
    return json.dumps({**entry, "committed": True} if is_committed else entry)


def whole_lease(number: int, lasting: Lease, content: Collection[Digest]) -> Iterator[str]:
    """A lease and what it lists, in as many lines as that needs."""
    first, *others = [*parts(content)] or [[]]
    yield lease(number, lasting, first)
    for part in others:
        yield leased(number, lasting, part)


def parts(content: Collection[Digest]) -> Iterator[list[Digest]]:
    """Contents in parts for one line each."""
    listed = list(content)
    return (listed[start : start + _CONTENTS] for start in range(0, len(listed), _CONTENTS))


def lease(number: int, lease: Lease, content: Collection[Digest]) -> str:
    """A lease and what it lists."""
    return json.dumps({"number": number, "lease": _lease_values(lease, content)})


def leased(number: int, lease: Lease, content: Collection[Digest]) -> str:
    """A lease and the content that was added to it."""
    return json.dumps({"number": number, "leased": _lease_values(lease, content)})


def _lease_values(lease: Lease, content: Collection[Digest]) -> list[object]:
    end = None if lease.expires_at == gc_labels.NEVER else lease.expires_at
    listed = [str(digest) for digest in content]
    return [lease.id, lease.created_at, end, lease.is_flat, dict(lease.labels), listed, lease.namespace]


def unleased(number: int, lease_id: str, content: Collection[Digest]) -> str:
    """Content was removed from a lease; written after the commit."""
    return json.dumps({"number": number, "unleased": [lease_id, [str(digest) for digest in content]]})


def release(number: int, lease_id: str) -> str:
    """A lease was released; written after the commit."""
    return json.dumps({"number": number, "release": lease_id})
