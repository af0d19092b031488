"""Leases: of running work when the database refuses, and what lasting ones cost."""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from imagestore import Digest
from imagestore.content.local import LocalContentStore
from imagestore.errors import ImageStoreError, StoreFullError, StoreReadOnlyError
from imagestore.metadata.leases import Leases
from imagestore.metadata.sqlite import location
from imagestore.metadata.sqlite.store import SqliteMetadataStore
from imagestore.store import leases


class FullLeases(Leases):
    """As on a disk that became full while the work ran; ``ballast`` says whether some space is kept back."""

    ballast = False

    def delete(self, lease_id: str, *, is_of_work: bool = False) -> bool:
        """Work that ends does without that space if it can."""
        if is_of_work or not self.ballast:
            raise StoreFullError(f"lease {lease_id}: no space")
        return super().delete(lease_id)


@pytest.fixture
def plain_store(tmp_path: Path) -> Iterator[SqliteMetadataStore]:
    with contextlib.closing(SqliteMetadataStore(tmp_path / "metadata.db")) as store:
        yield store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteMetadataStore]:
    with contextlib.closing(SqliteMetadataStore(tmp_path / "metadata.db")) as store:
        store.leases = FullLeases(store.tables)
        yield store


def test_work_that_succeeded_does_not_fail_for_its_lease(
    store: SqliteMetadataStore, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), leases.held(store, purpose="pull") as held:
        pass
    assert [each.id for each in store.leases.find()] == [held.id]
    assert "a lease can't be released" in caplog.text


def test_a_lease_goes_with_what_is_kept_back_before_it_keeps_content_for_a_day(
    store: SqliteMetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store.leases, "ballast", True)
    with leases.held(store, purpose="pull"):
        pass
    assert store.leases.find() == []


def test_work_that_failed_says_why_and_not_that_its_lease_stays(store: SqliteMetadataStore) -> None:
    with pytest.raises(ImageStoreError, match="the reason"), leases.held(store, purpose="pull"):
        raise ImageStoreError("the reason")


def test_a_process_without_threads_holds_a_lease_for_its_lifetime(
    store: SqliteMetadataStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with leases.held(store, purpose="pull") as held, leases.renewed(held):
        assert [each.id for each in store.leases.find()] == [held.id]
    assert "a lease can't be renewed: can't start new thread" in caplog.text


def test_what_a_lasting_lease_lists_already_is_no_change(store: SqliteMetadataStore) -> None:
    store.leases.create("lasting", lifetime_seconds=math.inf)
    listed = [Digest.of(bytes([number])) for number in range(9)]
    store.leases.add_content("lasting", listed)
    before = store.generation()
    store.leases.add_content("lasting", listed[3:])
    assert store.generation() == before


def test_a_lease_is_renewed_for_a_day_once_an_hour_however_often_its_work_asks(
    store: SqliteMetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, renewed = SimpleNamespace(now=0.0), []
    monkeypatch.setattr(leases, "time", SimpleNamespace(monotonic=lambda: clock.now))

    def note(_: str, *, lifetime_seconds: float) -> None:
        renewed.append((clock.now, lifetime_seconds))

    monkeypatch.setattr(store.leases, "renew", note)
    with leases.held(store, purpose="pull") as held:
        for clock.now in (0.0, 3599.0, 3600.0, 3601.0, 7199.0, 7200.0):
            held.renew()
    assert renewed == [(3600.0, 86400.0), (7200.0, 86400.0)]


def test_no_thread_renews_a_lease_any_more_when_its_block_has_ended(store: SqliteMetadataStore) -> None:
    with leases.held(store, purpose="pull") as held, leases.renewed(held):
        assert any(thread.name == "imagestore-renew" for thread in threading.enumerate())
    assert not any(thread.name == "imagestore-renew" for thread in threading.enumerate())


def test_an_interrupt_while_the_thread_that_renews_starts_is_raised_and_ends_it(
    store: SqliteMetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def interrupt(thread: threading.Thread) -> None:
        start(thread)
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupt)
    with pytest.raises(KeyboardInterrupt), leases.held(store, purpose="pull") as held, leases.renewed(held):
        pass
    assert not any(thread.name == "imagestore-renew" for thread in threading.enumerate())


@pytest.mark.parametrize("change", [1, 2])
def test_a_lease_whose_making_or_release_is_interrupted_is_deleted(tmp_path: Path, change: int) -> None:
    class Interrupted(SqliteMetadataStore):
        changes = 0

        @contextlib.contextmanager
        def transient(self) -> Iterator[object]:
            self.changes += 1
            if self.changes == change == 2:
                raise KeyboardInterrupt
            with super().transient() as db:
                yield db
            if self.changes == change:
                raise KeyboardInterrupt

    with contextlib.closing(Interrupted(tmp_path / "metadata.db")) as store:
        with pytest.raises(KeyboardInterrupt), leases.held(store, purpose="pull"):
            pass
        assert store.leases.find() == []


def test_a_reader_holds_a_lease_unless_nothing_can_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "metadata.db"
    with (
        contextlib.closing(SqliteMetadataStore(path)) as store,
        leases.held_to_read(store, purpose="export") as held,
    ):
        held.hold([Digest.of(b"one")])
        assert [each.id for each in store.leases.find()] == [held.id]
    monkeypatch.setattr(location, "is_read_only", lambda _: True)
    with (
        contextlib.closing(SqliteMetadataStore(path)) as store,
        leases.held_to_read(store, purpose="export") as held,
    ):
        held.hold([Digest.of(b"one")])
        held.renew()
        assert store.leases.find() == []


@pytest.mark.parametrize("number", [errno.EROFS, None])
def test_a_reader_needs_no_lease_when_the_disk_has_become_read_only(
    store: SqliteMetadataStore, monkeypatch: pytest.MonkeyPatch, number: int | None
) -> None:
    """Where only this process may not write, others may collect."""

    def refuse(*_: object, **__: object) -> None:
        raise StoreReadOnlyError("attempt to write a readonly database")

    monkeypatch.setattr(store.leases, "begin", refuse)
    monkeypatch.setattr(location, "refusal", lambda _: number)
    raises = pytest.raises(StoreReadOnlyError) if number is None else contextlib.nullcontext()
    with raises, leases.held_to_read(store, purpose="export") as held:
        held.hold([Digest.of(b"one")])
        held.renew()
    assert store.leases.find() == []


def test_a_lease_ends_with_its_records_or_with_its_block(plain_store: SqliteMetadataStore) -> None:
    store = plain_store
    key = ("registry.example/app:1", "runc")
    with leases.held(store, purpose="pull") as held:
        with pytest.raises(ImageStoreError, match="the reason"), held.recording([key]):
            raise ImageStoreError("the reason")
        assert [each.id for each in store.leases.find()] == [held.id]
        with held.recording([key]):
            pass
        assert store.leases.find() == []
    with pytest.raises(ImageStoreError, match="the reason"), leases.held(store, purpose="pull") as held:  # noqa: SIM117
        with held.recording([key]):
            raise ImageStoreError("the reason")
    assert store.leases.find() == []


def test_a_lease_whose_content_cannot_be_looked_for_is_deleted(
    plain_store: SqliteMetadataStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = plain_store

    def fail(_: object) -> dict[Digest, int]:
        raise ImageStoreError("the reason")

    content = LocalContentStore(tmp_path / "content", tmp_path / "locks")
    monkeypatch.setattr(content, "sizes", fail)
    with pytest.raises(ImageStoreError, match="the reason"), leases.held(store, purpose="pull", content=content):
        pass
    assert store.leases.find() == []
