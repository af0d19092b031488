"""Leases in the database: what making, changing and releasing one says, and what counts as a change."""

from __future__ import annotations

import math

import pytest

from imagestore import Digest
from imagestore.errors import LeaseNotFoundError
from imagestore.metadata.records import lease_key
from imagestore.metadata.sqlite.store import SqliteMetadataStore
from tests.unit.metadata.keeping import Clock

A, B = (Digest.of(name) for name in (b"a", b"b"))


def test_a_lease_of_running_work_is_no_change(store: SqliteMetadataStore) -> None:
    store.leases.create("lasting", lifetime_seconds=math.inf)
    before = store.generation()
    store.leases.create("work", lifetime_seconds=24 * 3600)
    store.leases.add_content("work", [A])
    store.leases.remove_content("work", [A])
    store.leases.renew("work", lifetime_seconds=24 * 3600)
    store.leases.delete("work")
    assert store.generation() == before


def test_a_lasting_lease_that_is_shortened_is_a_change(store: SqliteMetadataStore) -> None:
    store.leases.create("l", lifetime_seconds=math.inf)
    for seconds in (60.0, math.inf):
        before = store.generation()
        store.leases.renew("l", lifetime_seconds=seconds)
        assert store.generation() != before


def test_a_lease_in_a_new_namespace_makes_the_namespace(store: SqliteMetadataStore) -> None:
    store.leases.create(lease_key("new", "l"), lifetime_seconds=60, namespace="new")
    assert "new" in store.namespaces.find()


def test_an_expired_lease_is_gone_for_an_owner_who_comes_back(store: SqliteMetadataStore, clock: Clock) -> None:
    store.leases.create("l", lifetime_seconds=60)
    store.leases.create("longer", lifetime_seconds=61)
    store.leases.add_content("l", [A])
    clock.now += 60
    assert not store.graph.is_held(A)
    store.expire()
    assert [each.id for each in store.leases.find()] == ["longer"]
    with pytest.raises(LeaseNotFoundError):
        store.leases.renew("l", lifetime_seconds=60)
    with pytest.raises(LeaseNotFoundError):
        store.leases.add_content("l", [B])
    with pytest.raises(LeaseNotFoundError):
        store.leases.remove_content("l", [A])
