"""Leases in the database: what making, changing and releasing one says, and what it costs the journal."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from imagestore.digest import Digest
from imagestore.errors import AlreadyExistsError, LeaseNotFoundError
from imagestore.lease import LIFETIME_SECONDS
from imagestore.metadata.records import lease_key
from imagestore.metadata.sqlite import SqliteMetadataStore
from tests.unit.metadata.keeping import Clock

A, B = (Digest.of(name) for name in (b"a", b"b"))


def test_releasing_says_whether_the_lease_was_there(store: SqliteMetadataStore) -> None:
    assert not store.delete_lease("none")
    store.create_lease("l", lifetime_seconds=60)
    with pytest.raises(AlreadyExistsError):
        store.create_lease("l", lifetime_seconds=60)
    assert store.delete_lease("l")
    assert not store.delete_lease("l")


def test_a_lease_of_running_work_costs_no_line_of_the_journal(store: SqliteMetadataStore, tmp_path: Path) -> None:
    store.create_lease("lasting", lifetime_seconds=math.inf)
    before = (tmp_path / "records.jsonl").read_bytes()
    store.create_lease("work", lifetime_seconds=24 * 3600)
    store.lease_content("work", [A])
    store.unlease_content("work", [A])
    store.renew_lease("work", lifetime_seconds=24 * 3600)
    store.delete_lease("work")
    assert (tmp_path / "records.jsonl").read_bytes() == before


def test_a_lease_in_a_new_namespace_makes_the_namespace(store: SqliteMetadataStore) -> None:
    store.create_lease(lease_key("new", "l"), lifetime_seconds=60, namespace="new")
    assert "new" in store.namespaces()


def test_an_expired_lease_is_gone_for_an_owner_who_comes_back(store: SqliteMetadataStore, clock: Clock) -> None:
    store.create_lease("l", lifetime_seconds=60)
    store.create_lease("longer", lifetime_seconds=61)
    store.lease_content("l", [A])
    clock.now += 60
    assert not store.is_held(A)
    store.expire()
    assert [each.id for each in store.leases()] == ["longer"]
    with pytest.raises(LeaseNotFoundError):
        store.renew_lease("l", lifetime_seconds=60)
    with pytest.raises(LeaseNotFoundError):
        store.lease_content("l", [B])
    with pytest.raises(LeaseNotFoundError):
        store.unlease_content("l", [A])


def test_what_a_clock_that_ran_ahead_leased_for_a_day_ends_a_day_after_it_was_set_right(
    store: SqliteMetadataStore, clock: Clock
) -> None:
    years = 5 * 365 * 86_400.0
    clock.now += years
    store.create_lease("of work that was killed", lifetime_seconds=LIFETIME_SECONDS)
    store.create_lease("an operator's", lifetime_seconds=2 * years)
    clock.now -= years
    store.expire()
    assert len(list(store.leases())) == 2
    clock.now += LIFETIME_SECONDS + 3600
    store.expire()
    assert [each.id for each in store.leases()] == ["an operator's"]
