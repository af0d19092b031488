"""Many names removed together are removed as one after the other."""

from __future__ import annotations

import contextlib
import errno
import shutil
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagestore import Descriptor, Digest, Platform
from imagestore.errors import InvalidInputError, StoreCorruptError, StoreError
from imagestore.metadata import ImageRecord
from imagestore.metadata.sqlite import database
from imagestore.metadata.sqlite.store import SqliteMetadataStore
from imagestore.oci.media_types import OCI_MANIFEST
from imagestore.store import record_lookup
from imagestore.store.garbage import BatchTimer
from imagestore.store.maintenance.removal import Remover
from imagestore.store.record_lookup import RemovalRule
from tests.support.patience import until

HANDLERS = ("runc", "kata")
IDS = [Digest("sha256", f"{start}{number}" * 16) for start in ("abc", "abd") for number in range(2)]
#: A name that is an id's beginning as well, to see which of the two it means.
REPOSITORIES = ("one", "two", "three", "abc0")
FULL = [f"docker.io/library/{each}:latest" for each in REPOSITORIES]
NAMES = [
    *REPOSITORIES,
    *FULL,
    *map(str, IDS),
    "abc",
    "abd1abd1",
    "nothing",
    "NOT A NAME",
    f"one@{Digest.of(b'manifest 0')}",
]
images = st.dictionaries(
    st.tuples(st.sampled_from(REPOSITORIES), st.sampled_from(HANDLERS)), st.integers(0, len(IDS) - 1), max_size=8
)
asked = st.one_of(
    st.lists(st.sampled_from(NAMES), min_size=1, max_size=6), st.lists(st.sampled_from(FULL), min_size=2, max_size=4)
)


def record(repository: str, handler: str, number: int) -> ImageRecord:
    target = Descriptor(OCI_MANIFEST, Digest.of(f"manifest {number}".encode()), 1)
    return ImageRecord(
        reference=f"docker.io/library/{repository}:latest",
        handler=handler,
        target=target,
        manifest=target,
        image_id=IDS[number],
        platform=Platform("linux", "amd64"),
        wanted="linux/amd64",
        roots=(target.digest,),
        content_size=1,
    )


def one_after_the_other(
    metadata: SqliteMetadataStore, names: list[str], rule: RemovalRule
) -> tuple[dict[str, tuple[tuple[str, str], ...]], set[str]]:
    removed, roots = {}, set()
    for name in dict.fromkeys(names):
        going = record_lookup.to_remove(metadata, name, rule)
        gone = metadata.images.remove([(each.reference, each.handler) for each in going])
        removed[name] = tuple((each.reference, each.handler) for each in gone)
        roots |= {str(root) for each in gone for root in each.roots}
    return removed, roots


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[SqliteMetadataStore]]:
    paths = [tmp_path_factory.mktemp(name) / "metadata.db" for name in ("together", "one by one")]
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(contextlib.closing(SqliteMetadataStore(path))) for path in paths]


@given(images, asked, st.sampled_from([None, "kata", "all"]), st.booleans())
def test_many_together_go_as_one_after_the_other(
    stores: list[SqliteMetadataStore],
    known: dict[tuple[str, str], int],
    names: list[str],
    whose: str | None,
    all_names: bool,
) -> None:
    together, single = stores
    for store in stores:
        store.images.remove([(each.reference, each.handler) for each in store.images.find()])
        store.images.put_many([(record(*key, number), {}) for key, number in known.items()])
    handler, is_for_all = (None, True) if whose == "all" else (whose, False)
    rule = RemovalRule(handler, "runc", is_for_all=is_for_all, all_names=all_names)
    expected = found = None
    with contextlib.suppress(InvalidInputError):
        expected = one_after_the_other(single, names, rule)
    with contextlib.suppress(InvalidInputError):
        found = Remover(together, rule).remove(names)
    assert found == expected
    if expected is not None:
        assert [_key(each) for each in together.images.find()] == [_key(each) for each in single.images.find()]
    assert roots_of_nothing(together) == []


def roots_of_nothing(metadata: SqliteMetadataStore) -> list[object]:
    """What no record holds, and no other test would see: a collection keeps it for ever."""
    with metadata.database.reading() as db:
        query = "SELECT * FROM image_root WHERE (reference, handler) NOT IN (SELECT reference, handler FROM image)"
        return db.execute(query).fetchall()


def _key(image: ImageRecord) -> tuple[str, str]:
    return image.reference, image.handler


ONE = record("one", "runc", 0)
MANY = [f"docker.io/library/many{number:03}:latest" for number in range(130)]


@pytest.mark.parametrize(("is_over", "transactions"), [(False, 1), (True, 3)])
def test_many_names_go_in_few_transactions_between_which_others_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_over: bool, transactions: int
) -> None:
    monkeypatch.setattr(BatchTimer, "is_over", lambda _self: is_over)
    steps: list[str] = []
    with contextlib.closing(SqliteMetadataStore(tmp_path / "metadata.db")) as metadata:
        metadata.images.put_many(
            [(replace(ONE, reference=name, image_id=Digest.of(name.encode())), {}) for name in MANY]
        )
        exclusive, give_way = metadata.exclusive, metadata.give_way

        def noted_exclusive() -> AbstractContextManager[object]:
            steps.append("transaction")
            return exclusive()

        def noted_give_way() -> None:
            steps.append("others")
            give_way()

        monkeypatch.setattr(metadata, "exclusive", noted_exclusive)
        monkeypatch.setattr(metadata, "give_way", noted_give_way)
        removed, _ = Remover(metadata, RemovalRule(None, "runc")).remove(["none", *MANY])
        assert (metadata.images.find(), len(removed)) == ([], 1 + len(MANY))
    assert steps == ["others", "transaction"] * transactions


@pytest.fixture
def full(tmp_path: Path) -> Iterator[SqliteMetadataStore]:
    """A store with a record for each of MANY."""
    with contextlib.closing(SqliteMetadataStore(tmp_path / "metadata.db")) as metadata:
        metadata.images.put_many(
            [(replace(ONE, reference=name, image_id=Digest.of(name.encode())), {}) for name in MANY]
        )
        yield metadata


def remover_of(metadata: SqliteMetadataStore) -> Remover:
    return Remover(metadata, RemovalRule(None, "runc"))


def test_all_records_go(full: SqliteMetadataStore) -> None:
    absent = "docker.io/library/absent:latest"
    removed, roots = remover_of(full).remove([*reversed(MANY), absent])
    assert removed == {**{name: ((name, "runc"),) for name in MANY}, absent: ()}
    assert list(removed) == [*reversed(MANY), absent]
    assert roots == {str(root) for root in ONE.roots}
    assert full.images.find() == []
    assert roots_of_nothing(full) == []


def test_records_and_what_they_hold_go_together_afterwards_too(full: SqliteMetadataStore) -> None:
    remover_of(full).remove(MANY)
    full.images.put_many([(record(name, "runc", number), {}) for number, name in enumerate(REPOSITORIES)])
    remover_of(full).remove([FULL[0]])
    assert roots_of_nothing(full) == []
    assert len(full.images.find()) == len(REPOSITORIES) - 1


def test_a_damaged_record_keeps_no_others_from_going(full: SqliteMetadataStore) -> None:
    with full.database.writing() as db:
        db.execute("UPDATE image_root SET digest = 'nonsense' WHERE reference = ?", (MANY[-1],))
    removed, _ = remover_of(full).remove(MANY[:-1])
    assert len(removed) == len(MANY) - 1
    assert [reference for reference, _, _ in full.images.find_ids(MANY)] == MANY[-1:]


def test_a_closed_store_is_not_emptied(full: SqliteMetadataStore, tmp_path: Path) -> None:
    remover = remover_of(full)
    full.close()
    with pytest.raises(StoreError, match="closed"):
        remover.remove(MANY)
    with contextlib.closing(SqliteMetadataStore(tmp_path / "metadata.db")) as again:
        assert len(again.images.find()) == len(MANY)


def test_names_of_nobody_change_nothing_in_an_empty_store(tmp_path: Path) -> None:
    with contextlib.closing(SqliteMetadataStore(tmp_path / "metadata.db")) as metadata:
        metadata.images.put(ONE, {})
        metadata.images.remove([(ONE.reference, "runc")])
        before = metadata.generation()
        assert remover_of(metadata).remove(MANY[:2]) == (dict.fromkeys(MANY[:2], ()), set())
        assert metadata.generation() == before


def test_a_database_that_was_replaced_is_not_emptied(full: SqliteMetadataStore, tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as holder, ThreadPoolExecutor(1) as pool:
        holder.execute("BEGIN IMMEDIATE")
        removal = pool.submit(remover_of(full).remove, MANY)
        until((tmp_path / "waiting").exists, "the removal waits")
        shutil.copy(path, tmp_path / "new.db")
        (tmp_path / "new.db").replace(path)
        holder.execute("ROLLBACK")
        with pytest.raises(StoreError, match="was replaced"):
            removal.result(60)
    with contextlib.closing(SqliteMetadataStore(path)) as again:
        assert len(again.images.find()) == len(MANY)


def test_a_removal_inside_a_transaction_is_undone_with_it(full: SqliteMetadataStore) -> None:
    class UndoneError(Exception):
        pass

    with contextlib.suppress(UndoneError), full.exclusive():
        remover_of(full).remove(MANY)
        assert full.images.find() == []
        raise UndoneError
    assert len(full.images.find()) == len(MANY)


def test_a_removal_that_cannot_be_committed_leaves_all_as_it_was(
    full: SqliteMetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(point: str) -> None:
        if point == "database-commit":
            raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(database, "reach", die)
        with pytest.raises(StoreError, match="Input/output error"):
            remover_of(full).remove(MANY)
    assert len(full.images.find()) == len(MANY)
    full.images.put(record("late", "runc", 0), {})
    remover_of(full).remove([*MANY, FULL[0]])
    assert [each.reference for each in full.images.find()] == ["docker.io/library/late:latest"]


def test_names_far_behind_a_refused_one_are_not_looked_at(tmp_path: Path) -> None:
    with contextlib.closing(SqliteMetadataStore(tmp_path / "metadata.db")) as metadata:
        metadata.images.put_many([(record(name, "runc", number), {}) for number, name in enumerate(REPOSITORIES)])
        remover = Remover(metadata, RemovalRule(None, "runc"))
        unknown = [f"docker.io/library/unknown{number}:latest" for number in range(70)]
        with pytest.raises(InvalidInputError, match="empty name"):
            remover.remove(["one", "", *unknown, "two"])
        left = [each.reference for each in metadata.images.find()]
    assert "docker.io/library/two:latest" in left
    assert "docker.io/library/one:latest" not in left


def test_a_record_that_cannot_be_read_is_not_removed_as_if_it_could(tmp_path: Path) -> None:
    metadata = SqliteMetadataStore(tmp_path / "metadata.db")
    metadata.images.put(record("one", "runc", 0), {})
    with contextlib.closing(sqlite3.connect(tmp_path / "metadata.db")) as db, db:
        db.execute("UPDATE image_root SET digest = 'nonsense'")
    key = "docker.io/library/one:latest", "runc"
    for remove in (metadata.images.drop, metadata.images.remove):
        with pytest.raises(StoreCorruptError):
            remove([key])
    assert metadata.images.find_ids([key[0]])
    metadata.close()


@pytest.mark.parametrize("all_names", [False, True])
def test_all_names_of_one_image_go(full: SqliteMetadataStore, all_names: bool) -> None:
    """All are one image under many names."""
    full.images.put_many([(replace(ONE, reference=name), {}) for name in MANY])
    removed, _ = Remover(full, RemovalRule(None, "runc", all_names=all_names)).remove(MANY)
    assert full.images.find() == []
    assert [len(removed[name]) for name in MANY[:2]] == ([len(MANY), 0] if all_names else [1, 1])
