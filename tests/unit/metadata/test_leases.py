"""Leases in the database: what making, changing and releasing one says, and what it costs the journal."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from imagestore import Digest
from imagestore.errors import AlreadyExistsError, LeaseNotFoundError
from imagestore.metadata.records import lease_key
from imagestore.metadata.sqlite.store import SqliteMetadataStore
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
