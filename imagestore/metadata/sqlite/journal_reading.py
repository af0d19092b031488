"""Reads a journal: the state that its lines lead to (``journal_lines`` has the format of a line)."""

from __future__ import annotations

import json
import operator
import re
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from imagestore.metadata import rows
from imagestore.metadata.records import ImageRecord, Lease
from imagestore.oci import gc_labels
from imagestore.oci.digest import Digest
from imagestore.oci.gc_labels import ContentTerms

_STORE_ID: Final = re.compile("[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class Journaled:
    """The state that a journal leads to, including its last transaction.

    Attributes:
        candidates: for each key, the possible records, newest first.
        labels: the last known labels by content.
        leases: the last known form of each lease that was not released, with the content that it lists.
        unreadable: how many lines can't be read.
        last_number: the highest number of a change.
        replaced: content that was kept before the last transaction and isn't by it, where nothing tells whether that
            one was committed.
        committed: the highest number of a change that was certainly committed.
        store_id: the store's; empty if no line has it.
    """

    candidates: list[list[ImageRecord]]
    labels: dict[Digest, dict[str, str]]
    leases: list[tuple[Lease, tuple[Digest, ...]]]
    unreadable: int
    last_number: int
    replaced: frozenset[Digest] = frozenset()
    committed: int = 0
    store_id: str = ""


@dataclass(frozen=True, slots=True)
class _Removed:
    """A record was removed; without a key: all records."""

    key: tuple[str, str] | None


@dataclass(frozen=True, slots=True)
class _Labelled:
    digest: Digest
    labels: dict[str, str]


@dataclass(frozen=True, slots=True)
class _LeaseChange:
    """A change of a lease. One that is whole says all of it, and without a lease that it was released."""

    lease_id: str
    lease: Lease | None = None
    added: tuple[Digest, ...] = ()
    removed: tuple[Digest, ...] = ()
    is_whole: bool = False


#: None: the line only says that its change was committed.
_Value: TypeAlias = ImageRecord | _Removed | _Labelled | _LeaseChange | None
_LeaseState: TypeAlias = tuple[Lease, tuple[Digest, ...]]


@dataclass(frozen=True, slots=True)
class _Line:
    """A change.

    Attributes:
        is_committed: the line was written after the commit.
        is_announced: the line was written before the commit, and counts only if a later one confirms it.
    """

    number: int
    value: _Value
    is_committed: bool
    is_announced: bool = False


class Reading:
    """Collects lines in the order of the file, then gives the state that they lead to."""

    def __init__(self) -> None:
        self._known = _Known()
        # Lines after the last begin; before the first begin, the lines with the highest number so far.
        self._waiting: list[_Line] = []
        self._begin: int | None = None
        self._last_number = 0
        self._committed = 0
        self._unreadable = 0
        self._store_id = ""

    def add(self, line: bytes) -> None:
        """Add one line; a line that can't be read is counted and skipped."""
        try:
            entry = _decoded(line)
            if "begin" in entry:
                self._settle(_number(entry["begin"]))
                if _STORE_ID.fullmatch(entry.get("store", "")):
                    self._store_id = entry["store"]
            else:
                self._add(_parsed(entry))
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
            self._unreadable += 1

    def settle(self, committed: int) -> None:
        """After the last line: take from the database the number of the last committed change."""
        self._settle(committed)

    def _settle(self, begin: int) -> None:
        for line in self._waiting:
            if line.number <= begin:
                self._known.add(line)
        self._waiting, self._begin = [], begin
        self._last_number = max(begin, self._last_number)
        self._committed = max(begin, self._committed)

    def _add(self, line: _Line) -> None:
        highest, self._last_number = self._last_number, max(line.number, self._last_number)
        if line.is_committed:
            self._committed = max(line.number, self._committed)
        if self._begin is None:
            # Older versions wrote no begin: a line counts as committed once a line with a higher number follows.
            if line.number > highest:
                for each in self._waiting:
                    self._known.add(each)
                self._waiting = []
            is_settled = line.number < highest
        else:
            is_settled = line.number <= self._begin
        if is_settled:
            self._known.add(line)
        else:
            self._waiting.append(line)

    def result(self) -> Journaled:
        """The state; call this after the last line."""
        is_committed = self._begin is not None and any(line.is_committed for line in self._waiting)
        uncertain = []
        for line in self._waiting:
            if is_committed or line.is_committed:
                self._known.add(line)
            elif not line.is_announced:  # a record too many is better than one too few
                uncertain.append(line)
        changed = list({_subject(line.value): line for line in uncertain}.values())
        before = [self._known.state(line) for line in changed]
        for line in uncertain:
            self._known.add(line)
        after = [self._known.state(line) for line in changed]
        lost = (_lost(old, new) for old, new in zip(before, after, strict=True))
        return Journaled(
            self._known.candidates(),
            self._known.labels(),
            self._known.leases(),
            self._unreadable,
            self._last_number,
            frozenset().union(*lost),
            self._committed,
            self._store_id,
        )


class _Known:
    """Changes by their subject; of two lines with the same number, the later one is newer."""

    def __init__(self) -> None:
        self._records: dict[tuple[str, str], list[tuple[int, ImageRecord]]] = {}
        self._removed: dict[tuple[str, str], int] = {}
        self._labels: dict[Digest, tuple[int, _Labelled]] = {}
        self._leases: dict[str, list[tuple[int, _LeaseChange]]] = {}

    def add(self, line: _Line) -> None:
        """Apply one change. A known change of the same subject that has a higher number stays in force."""
        number, value = line.number, line.value
        if isinstance(value, ImageRecord):
            self._records.setdefault((value.reference, value.handler), []).append((number, value))
        elif isinstance(value, _Removed):
            for key in self._records if value.key is None else [value.key]:
                self._removed[key] = max(number, self._removed.get(key, 0))
        elif isinstance(value, _Labelled):
            known = self._labels.get(value.digest)
            if known is None or number >= known[0]:
                self._labels[value.digest] = number, value
        elif value is not None:
            changes = self._leases.setdefault(value.lease_id, [])
            if value.is_whole and all(number >= other for other, _ in changes):
                changes.clear()
            changes.append((number, value))

    def _lease(self, lease_id: str) -> _LeaseState | None:
        """A lease after all its lines were applied in the order of their numbers; None if it was released."""
        lease: Lease | None = None
        listed: set[Digest] = set()
        for _, value in sorted(self._leases.get(lease_id, ()), key=operator.itemgetter(0)):
            if value.is_whole:
                listed.clear()
            if value.is_whole or value.lease is not None:
                lease = value.lease
            listed.difference_update(value.removed)
            listed.update(value.added)
        return None if lease is None else (lease, tuple(sorted(listed)))

    def state(self, line: _Line) -> ImageRecord | _Labelled | _LeaseState | None:
        """The current state of the subject of a line; None if it is removed or unknown."""
        value = line.value
        if isinstance(value, ImageRecord):
            return next(iter(self._newest_first((value.reference, value.handler))), None)
        if isinstance(value, _Labelled):
            return self._labels.get(value.digest, (0, None))[1]
        return self._lease(value.lease_id) if isinstance(value, _LeaseChange) else None

    def _newest_first(self, key: tuple[str, str]) -> list[ImageRecord]:
        entries = sorted(self._records.get(key, ()), key=lambda entry: entry[0])
        return [record for number, record in entries if number > self._removed.get(key, -1)][::-1]

    def candidates(self) -> list[list[ImageRecord]]:
        """For each (reference, handler), sorted: the records written since its last removal, newest first."""
        return [found for key in sorted(self._records) if (found := self._newest_first(key))]

    def labels(self) -> dict[Digest, dict[str, str]]:
        """Labels by digest, sorted; content without labels is left out."""
        return {digest: known.labels for digest, (_, known) in sorted(self._labels.items()) if known.labels}

    def leases(self) -> list[_LeaseState]:
        """Leases that were not released, sorted by id, each with the content it lists."""
        known = (self._lease(lease_id) for lease_id in sorted(self._leases))
        return [each for each in known if each is not None]


def _subject(value: _Value) -> object:
    """The key of the thing that a line changes; several lines may have the same one."""
    if isinstance(value, ImageRecord):
        return value.reference, value.handler
    if isinstance(value, _Labelled):
        return value.digest
    return value.lease_id if isinstance(value, _LeaseChange) else value


def _lost(
    old: ImageRecord | _Labelled | _LeaseState | None, new: ImageRecord | _Labelled | _LeaseState | None
) -> frozenset[Digest]:
    """Content that the old state keeps and the new one does not."""
    kept = _kept(new)
    if isinstance(old, tuple) and isinstance(new, tuple):
        before, after = old[0], new[0]
        is_weaker = after.is_flat > before.is_flat or after.expires_at < before.expires_at
        kept = frozenset() if is_weaker else kept
    return _kept(old) - kept


def _kept(state: ImageRecord | _Labelled | _LeaseState | None) -> frozenset[Digest]:
    if isinstance(state, ImageRecord):
        return frozenset(state.held)
    if isinstance(state, _Labelled):
        terms = ContentTerms.of(state.labels)
        return frozenset([*terms.references, *([state.digest] if terms.is_root else [])])
    return frozenset() if state is None else frozenset(state[1])


def _decoded(line: bytes) -> Any:
    # From bytes it would take UTF-16, and halves of characters.
    entry = json.loads(line.decode())
    if b"\\u" in line:
        # Half a character, which JSON can write and the database can't.
        json.dumps(entry, ensure_ascii=False).encode()
    return entry


def _number(value: Any) -> int:
    number = int(value)
    if not 0 <= number < 2**62:
        raise ValueError(number)
    return number


def _parsed(entry: Any) -> _Line:
    number, is_committed = _number(entry["number"]), entry.get("committed") is True
    if "put" in entry:
        return _Line(number, rows.checked_image(rows.image_record(entry["put"])), is_committed)
    if "announced" in entry:
        return _Line(number, _parsed(entry["announced"]).value, is_committed=False, is_announced=True)
    if "remove" in entry:
        if entry["remove"] is None:
            return _Line(number, _Removed(None), is_committed=True)
        reference, handler = entry["remove"]
        return _Line(number, _Removed((str(reference), str(handler))), is_committed=True)
    if "labels" in entry:
        text, labels = entry["labels"]
        return _Line(number, _Labelled(Digest.parse(text), gc_labels.checked(dict(labels))), is_committed)
    if is_committed and len(entry) == 2:
        return _Line(number, None, is_committed)
    if "release" in entry:
        return _Line(number, _LeaseChange(str(entry["release"]), is_whole=True), is_committed=True)
    if "unleased" in entry:
        lease_id, content = entry["unleased"]
        removed = tuple(map(Digest.parse, content))
        return _Line(number, _LeaseChange(str(lease_id), removed=removed), is_committed=True)
    is_addition = "leased" in entry
    lease_id, created_at, expires_at, is_flat, labels, content, namespace = entry["leased" if is_addition else "lease"]
    if not lease_id:
        raise ValueError(lease_id)
    end = gc_labels.NEVER if expires_at is None else float(expires_at)
    checked = gc_labels.checked(dict(labels))
    lease = Lease(str(lease_id), float(created_at), end, bool(is_flat), checked, str(namespace))
    added = tuple(map(Digest.parse, content))
    return _Line(number, _LeaseChange(lease.id, lease, added, is_whole=not is_addition), is_committed)
