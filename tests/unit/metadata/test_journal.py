"""The journal of records: whatever happened to it, the last word that was committed counts."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import math
import os
import sqlite3
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from imagestore.errors import StoreCorruptError, StoreFullError
from imagestore.metadata.records import ImageRecord
from imagestore.metadata.sqlite import journal_lines
from imagestore.metadata.sqlite.journal import RecordJournal
from imagestore.metadata.sqlite.store import SqliteMetadataStore
from tests.support.locks import is_locked
from tests.unit.metadata.keeping import STORE_ID, A, B, C, digest, record, restorable


def test_the_journal_has_the_last_word_about_each_record(tmp_path: Path, store: SqliteMetadataStore) -> None:
    first = store.images.put(record(), {})
    store.images.put(record("registry.example/b:1", B), {})
    store.images.remove([("registry.example/b:1", "runc")])
    (pinned,) = store.images.pin([(first.reference, first.handler)], is_pinned=True)
    assert restorable(store) == ([[pinned, first]], 0)
    assert (tmp_path / "records.jsonl").stat().st_mode & 0o777 == 0o600


def test_a_cut_off_or_hostile_line_spoils_only_itself(tmp_path: Path, store: SqliteMetadataStore) -> None:
    journal = tmp_path / "records.jsonl"
    kept = store.images.put(record(), {})
    size = journal.stat().st_size
    store.images.put(record("registry.example/b:1", B), {})
    os.truncate(journal, size + 40)
    with open(journal, "ab") as file:
        file.write(b'\n{"put": [1]}\n{"number": 1, "put": [1]}\n[]\n\xff\n{"remove": "x"}\n' + b"[" * 100_000)
    after = store.images.put(record("registry.example/c:1", C), {})
    assert restorable(store) == ([[kept], [after]], 7)


def test_a_long_journal_is_shortened(tmp_path: Path, store: SqliteMetadataStore) -> None:
    journal = tmp_path / "records.jsonl"
    kept = store.images.put(record(), {})
    for _ in range(3):
        store.images.put(replace(record("registry.example/b:1", B), warnings=("x" * 400_000,)), {})
    store.images.remove([("registry.example/b:1", "runc")])
    store.tidy()
    assert journal.stat().st_size < 2000
    assert restorable(store) == ([[kept]], 0)
    assert sorted(path.name for path in tmp_path.glob("records*")) == ["records.jsonl"]


def undone(store: SqliteMetadataStore, record: ImageRecord) -> None:
    """Put a record in a transaction that isn't committed; its line is in the journal."""
    with contextlib.suppress(ZeroDivisionError), store.exclusive():
        store.images.put(record, {})
        raise ZeroDivisionError


def test_a_shortened_journal_still_tells_what_was_never_committed(tmp_path: Path, store: SqliteMetadataStore) -> None:
    kept, journal = store.images.put(record(), {}), RecordJournal(tmp_path / "records.jsonl")
    undone(store, replace(record(root=B), warnings=("x" * 1_100_000,)))
    store.tidy()
    assert journal.size() < 2000
    found = journal.read()
    assert (found.candidates, found.replaced) == ([[kept]], frozenset())
    undone(store, record(root=B))
    found = journal.read()
    assert [[each.roots for each in some] for some in found.candidates] == [[(B,), (A,)]]
    assert found.replaced == {A}
    after = store.images.put(record("registry.example/c:1", C), {})
    assert restorable(store) == ([[kept], [after]], 0)


def test_what_was_never_committed_stays_so_when_the_journal_is_exchanged(
    tmp_path: Path, store: SqliteMetadataStore
) -> None:
    kept = store.images.put(record(), {})
    journal = RecordJournal(tmp_path / "records.jsonl")
    length = journal.size()
    with journal.prepared(1, STORE_ID, [kept], [], []) as prepared:
        assert prepared is not None
        undone(store, record(root=B))
        assert journal.exchange(prepared, length)
    found = journal.read()
    assert found.candidates[0][0].roots == (B,)
    assert found.replaced == {A}
    store.images.remove([("registry.example/none:1", "runc")])
    assert journal.read().replaced == {A}, "a transaction that changed nothing tells nothing"
    after = store.images.put(record("registry.example/c:1", C), {})
    assert restorable(store) == ([[kept], [after]], 0)


def test_a_journal_that_is_full_uses_no_number_up(store: SqliteMetadataStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever goes on in the same transaction still says first where the last one ended."""
    store.images.put(record(), {})
    undone(store, record(root=B))
    real, full = os.write, [True]

    def write(descriptor: int, data: bytes) -> int:
        if full:
            full.clear()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(descriptor, data)

    monkeypatch.setattr(os, "write", write)
    with store.exclusive():
        with pytest.raises(StoreFullError):
            store.images.put(record("registry.example/b:1", B), {})
        store.images.put(record("registry.example/c:1", C), {})
    assert [each[0].roots for each in restorable(store)[0]] == [(A,), (C,)]


def test_what_is_journaled_while_a_new_journal_is_written_stays(tmp_path: Path, store: SqliteMetadataStore) -> None:
    """Both before and after the exchange there is an entry for each record, and for each removal."""
    kept = store.images.put(record(), {})
    gone = store.images.put(record("registry.example/b:1", B), {})
    journal = RecordJournal(tmp_path / "records.jsonl")
    length = journal.size()
    with journal.prepared(2, STORE_ID, [kept, gone], [], []) as prepared:
        assert prepared is not None
        with journal.prepared(2, STORE_ID, [kept, gone], [], []) as second:
            assert second is None, "another process is at it"
        late = store.images.put(record("registry.example/c:1", C), {})
        store.images.remove([(gone.reference, gone.handler)])
        assert journal.exchange(prepared, length)
        assert not journal.exchange(prepared, journal.size() + 1), "it isn't the journal that was read any more"
    assert restorable(store) == ([[kept], [late]], 0)
    assert sorted(path.name for path in tmp_path.glob("records*")) == ["records.jsonl"]


def test_a_new_journal_is_whole_when_it_gets_its_name(tmp_path: Path, store: SqliteMetadataStore) -> None:
    """Who dies right then must leave one that knows the last changes."""
    kept = store.images.put(record(), {})
    journal = RecordJournal(tmp_path / "records.jsonl")
    length = journal.size()
    with journal.prepared(1, STORE_ID, [kept], [], []) as prepared:
        assert prepared is not None
        late = store.images.put(record("registry.example/c:1", C), {})
        assert journal.exchange(prepared, length)
        assert restorable(store) == ([[kept], [late]], 0)


def test_a_new_journal_is_synced_with_all_its_lines(
    tmp_path: Path, store: SqliteMetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes the place of a whole one; a power cut must not leave an empty one there."""
    fsync, sizes = os.fsync, []

    def noted(descriptor: int) -> None:
        sizes.append(os.fstat(descriptor).st_size)
        fsync(descriptor)

    store.images.put(record(), {})
    (tmp_path / "records.jsonl").unlink()
    monkeypatch.setattr(os, "fsync", noted)
    store.tidy()
    assert sizes == [(tmp_path / "records.jsonl").stat().st_size]


def test_a_journal_without_changes_still_tells_the_last_number(tmp_path: Path) -> None:
    """Changes that a rebuilt database numbered below it would count as committed before they are."""
    journal = RecordJournal(tmp_path / "records.jsonl")
    journal.append([journal_lines.begin(7)])
    assert journal.read().last_number == 7


def test_what_a_dead_process_left_of_a_new_journal_is_not_in_the_next(
    tmp_path: Path, store: SqliteMetadataStore
) -> None:
    kept = store.images.put(record(), {})
    journal = RecordJournal(tmp_path / "records.jsonl")
    left = journal_lines.put(1, record("registry.example/left:1", B))
    (tmp_path / "records.jsonl.tmp").write_text(f"\n{left}" * 9)
    with journal.prepared(1, STORE_ID, [kept], [], []) as prepared:
        assert prepared is not None
        assert journal.exchange(prepared, journal.size())
    assert restorable(store) == ([[kept]], 0)


def test_a_new_journal_that_was_exchanged_before_it_was_locked_is_the_journal_and_not_written(
    tmp_path: Path, store: SqliteMetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = store.images.put(record(), {})
    journal, flock = RecordJournal(tmp_path / "records.jsonl"), fcntl.flock

    def other_was_faster(file: int, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", flock)
        temporary = tmp_path / "records.jsonl.tmp"
        temporary.write_bytes(journal.path.read_bytes())
        temporary.replace(journal.path)
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", other_was_faster)
    with journal.prepared(1, STORE_ID, [], [], []) as prepared:
        assert prepared is None
    assert restorable(store) == ([[kept]], 0)


def test_a_damaged_record_keeps_a_new_journal_from_being_written(tmp_path: Path, store: SqliteMetadataStore) -> None:
    """It would forget that record, which a rebuild may still bring back."""
    kept = store.images.put(replace(record(), warnings=("x" * 1_100_000,)), {})
    with contextlib.closing(sqlite3.connect(tmp_path / "metadata.db", isolation_level=None)) as database:
        database.execute("UPDATE image SET target = '[]'")
    with pytest.raises(StoreCorruptError, match="a record can't be read"):
        store.tidy()
    assert restorable(store) == ([[kept]], 0)


def test_a_journal_is_not_exchanged_under_somebody_who_appends(tmp_path: Path, store: SqliteMetadataStore) -> None:
    kept = store.images.put(record(), {})
    journal = RecordJournal(tmp_path / "records.jsonl")
    with open(journal.path, "ab") as appending, journal.prepared(5, STORE_ID, [], [], []) as prepared:
        fcntl.flock(appending, fcntl.LOCK_SH)
        assert prepared is not None
        assert not journal.exchange(prepared, journal.size())
    assert restorable(store) == ([[kept]], 0)


def test_who_changes_something_while_a_journal_is_exchanged_writes_it_into_the_new_one(
    tmp_path: Path, store: SqliteMetadataStore
) -> None:
    """The old one's file is gone a moment later, and a rebuild would not know the change."""
    kept = store.images.put(record(), {})
    journal = RecordJournal(tmp_path / "records.jsonl")
    with open(journal.path, "rb") as current:
        fcntl.flock(current, fcntl.LOCK_EX)
        (tmp_path / "new").write_bytes(current.read())
        writer = threading.Thread(target=store.images.put, args=(record("registry.example/b:1", B), {}))
        writer.start()
        writer.join(0.1)
        assert writer.is_alive()
        os.replace(tmp_path / "new", journal.path)
    writer.join()
    assert restorable(store) == ([[kept], [store.images.get("registry.example/b:1", "runc")]], 0)


def test_nobody_changes_records_while_the_journal_is_exchanged(
    tmp_path: Path, store: SqliteMetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line could go into the old one, after the new one was given all others."""
    exchange, locked = RecordJournal.exchange, []

    def noted(self: RecordJournal, *arguments: object) -> bool:
        locked.append(is_locked(tmp_path / "metadata.db"))
        return exchange(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(RecordJournal, "exchange", noted)
    store.images.put(record(), {})
    (tmp_path / "records.jsonl").unlink()
    store.tidy()
    assert locked == [True]


def test_a_removal_noted_late_cuts_only_what_was_before_it(tmp_path: Path, store: SqliteMetadataStore) -> None:
    """Another process may put the record again between a removal's commit and its line."""
    store.images.put(record(), {})
    journal = RecordJournal(tmp_path / "records.jsonl")
    again = store.images.put(record(root=B), {})
    journal.append([journal_lines.remove(1, (again.reference, again.handler))])
    assert restorable(store) == ([[again]], 0)
    journal.append([journal_lines.remove(2, (again.reference, again.handler))])
    assert restorable(store) == ([], 0)


def test_a_removal_that_was_rolled_back_is_not_in_the_journal(store: SqliteMetadataStore) -> None:
    kept = store.images.put(record(), {})

    def fail_inside() -> None:
        with store.exclusive():
            store.images.remove([(kept.reference, kept.handler)])
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        fail_inside()
    store.images.put(record("registry.example/b:1", B), {})
    assert [each[0].reference for each in restorable(store)[0]] == ["registry.example/a:1", "registry.example/b:1"]


def test_a_database_that_is_gone_is_not_replaced_by_an_empty_one(tmp_path: Path, store: SqliteMetadataStore) -> None:
    store.images.put(record(), {})
    store.close()
    for path in tmp_path.glob("metadata.db*"):
        path.unlink()
    with pytest.raises(StoreCorruptError, match="the database is gone") as caught:
        SqliteMetadataStore(tmp_path / "metadata.db")
    assert "check --rebuild" in caught.value.hint
    (tmp_path / "records.jsonl").unlink()
    with contextlib.closing(SqliteMetadataStore(tmp_path / "metadata.db")) as anew:
        assert anew.images.find() == []


def test_a_label_taken_away_without_a_commit_is_still_in_the_journal(store: SqliteMetadataStore) -> None:
    held = digest("held")
    store.graph.label_content(held, {"containerd.io/gc.root": "a", "note": "1"})
    with contextlib.suppress(ZeroDivisionError), store.exclusive():
        store.graph.label_content(held, {"note": "2"})
        raise ZeroDivisionError
    assert store.journaled().labels == {held: {"containerd.io/gc.root": "a", "note": "2"}}
    store.graph.label_content(held, {"note": "3"})
    assert store.journaled().labels == {held: {"note": "3"}}
    store.graph.label_content(held, {})
    assert store.journaled().labels == {}


def test_content_taken_off_a_lasting_lease_without_a_commit_is_still_in_the_journal(store: SqliteMetadataStore) -> None:
    lease = store.leases.create("lasting", lifetime_seconds=math.inf, namespace="k8s.io")
    store.leases.add_content("lasting", [digest("a"), digest("b")])
    with contextlib.suppress(ZeroDivisionError), store.exclusive():
        store.leases.remove_content("lasting", [digest("a")])
        raise ZeroDivisionError
    assert store.journaled().leases == [(lease, tuple(sorted([digest("a"), digest("b")])))]
    store.leases.remove_content("lasting", [digest("a")])
    found = store.journaled()
    assert (found.leases, found.replaced) == ([(lease, (digest("b"),))], frozenset())
    store.leases.create("of a pull", lifetime_seconds=24 * 3600.0)
    store.leases.add_content("of a pull", [digest("a")])
    store.leases.delete("lasting")
    assert store.journaled().leases == []
