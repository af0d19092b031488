"""The journal's lines: how each is written (what all of them say together: ``journal_reading``).

A transaction that changes anything says first with which number the last one ended: ``{"begin": 7}``. Numbers come from
a counter in the database, so a transaction that died leaves its numbers to be given again; and whatever is above a
``begin`` with a higher number than it names was never committed. What was numbered below was. So only the lines after
the last ``begin`` are uncertain, unless one of them was written after its commit; the last line of a transaction that
put something and was synced is one.

What a lease lists is told as it changes, since it may be filled with thousands of contents, one by one; a line that
adds to it says again what the lease is, so that no earlier line is needed for that.
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

# In one line: readers bound what they take for a line.
_CONTENTS: Final = 10_000
#: What is only written once its transaction was committed.
_AFTER_COMMIT: Final = ("remove", "release", "unleased")


def whole(
    number: int,
    records: Iterable[ImageRecord],
    labels_of: Iterable[tuple[Digest, Mapping[str, str]]],
    leases: Iterable[tuple[Lease, Collection[Digest]]],
) -> Iterator[str]:
    """The lines of a new journal; what they say, and what they leave out, was committed up to this number."""
    yield begin(number)
    for record in records:
        yield put(number, record)
    for digest, each in labels_of:
        yield labels(number, digest, each)
    for leased, content in leases:
        yield from whole_lease(number, leased, content)


def begin(number: int) -> str:
    """The line before those of a transaction: with which number the last one ended."""
    return json.dumps({"begin": number})


def committed(number: int) -> str:
    """A change was committed, and so was all of its transaction; after the commit.

    No begin, which drops what is above it: another process's lines may be there by now.
    """
    return json.dumps({"number": number, "committed": True})


def committed_number(line: bytes) -> int:
    """The number that a line says was committed; 0 where it says nothing of the kind, or can't be read.

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
    """A record that is there."""
    return json.dumps(
        {"number": number, "put": [*rows.image_values(record), json.dumps([str(digest) for digest in record.roots])]}
    )


def remove(number: int, key: tuple[str, str]) -> str:
    """A record that is gone; after the commit."""
    # There may be many thousand, and texts alone take a tenth of the time that all of it takes.
    reference, handler = map(json.dumps, key)
    return f'{{"number": {number}, "remove": [{reference}, {handler}]}}'


def remove_all(number: int) -> str:
    """Every record is gone; only announced, since the lines of what was removed follow."""
    return json.dumps({"number": number, "remove": None})


def announced(number: int, line: str) -> str:
    """Before a commit, the line that follows it: it counts once a later line says that this change was committed.

    If the process dies between its commit and the line, what it removed doesn't come back by a rebuild.
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
    """What one line each may say of many contents."""
    listed = list(content)
    return (listed[start : start + _CONTENTS] for start in range(0, len(listed), _CONTENTS))


def lease(number: int, lease: Lease, content: Collection[Digest]) -> str:
    """A lease and what it lists."""
    return json.dumps({"number": number, "lease": _lease_values(lease, content)})


def leased(number: int, lease: Lease, content: Collection[Digest]) -> str:
    """A lease and what it lists besides what it listed before."""
    return json.dumps({"number": number, "leased": _lease_values(lease, content)})


def _lease_values(lease: Lease, content: Collection[Digest]) -> list[object]:
    end = None if lease.expires_at == gc_labels.NEVER else lease.expires_at
    listed = [str(digest) for digest in content]
    return [lease.id, lease.created_at, end, lease.is_flat, dict(lease.labels), listed, lease.namespace]


def unleased(number: int, lease_id: str, content: Collection[Digest]) -> str:
    """What a lease lists no more; after the commit."""
    return json.dumps({"number": number, "unleased": [lease_id, [str(digest) for digest in content]]})


def release(number: int, lease_id: str) -> str:
    """A lease that is gone; after the commit."""
    return json.dumps({"number": number, "release": lease_id})
