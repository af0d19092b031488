"""Databases of every older schema open, keep what they have, and come out like new ones."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import sqlite3
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from imagestore import Digest, Platform
from imagestore.errors import (
    AlreadyExistsError,
    InvalidInputError,
    PreconditionError,
    StoreCorruptError,
    StoreError,
    StoreReadOnlyError,
)
from imagestore.metadata.sqlite import backup, location, schema
from imagestore.metadata.sqlite.changes import ChangeLog
from imagestore.metadata.sqlite.copies import DatabaseCopies
from imagestore.metadata.sqlite.location import NETWORK, file_system
from imagestore.metadata.sqlite.store import SqliteMetadataStore
from tests.support.syncs import noted_syncs
from tests.unit.metadata.keeping import without_log

CONFIG, MANIFEST, LAYER, NAMED = (str(Digest.of(name)) for name in (b"config", b"manifest", b"layer", b"named"))


def version_1(path: Path) -> None:
    """A database as the first schema wrote it, with one record, one edge and one lease."""
    db = sqlite3.connect(path, isolation_level=None)
    for statement in schema.STEPS[0]:
        db.execute(statement)
    target = json.dumps(["application/vnd.oci.image.manifest.v1+json", MANIFEST, 10])
    platform = json.dumps(["linux", "amd64", "", "", []])
    row = ("registry.example/a:1", "runc", target, target, CONFIG, platform, "linux/amd64", 3, "{}", "[]", 1.0, 2.0, 1)
    db.execute(f"INSERT INTO image VALUES ({', '.join('?' * len(row))})", row)
    db.execute("INSERT INTO image_root VALUES ('registry.example/a:1', 'runc', 0, ?)", (MANIFEST,))
    db.execute("INSERT INTO edge VALUES (?, ?)", (MANIFEST, LAYER))
    db.execute("INSERT INTO lease VALUES ('l', 1.0, 9e9)")
    db.execute("INSERT INTO lease_content VALUES ('l', ?)", (LAYER,))
    db.execute(f"PRAGMA application_id = {schema.APPLICATION_ID}")
    db.execute("PRAGMA user_version = 1")
    db.close()


def version_2(path: Path) -> None:
    """A database as the second schema wrote it: pins, times of use, labels, a lease with its content."""
    version_1(path)
    db = sqlite3.connect(path, isolation_level=None)
    for statement in schema.STEPS[1]:
        db.execute(statement)
    db.execute("UPDATE image SET pinned = 1, used_at = 3.0")
    db.execute("INSERT INTO content_label VALUES (?, 'containerd.io/gc.root', 'yes')", (CONFIG,))
    db.execute("INSERT INTO content_root VALUES (?)", (CONFIG,))
    db.execute("PRAGMA user_version = 2")
    db.close()


def version_3(path: Path) -> None:
    """A database as the third schema wrote it: images of ours and of clients with labels that name content."""
    version_2(path)
    db = sqlite3.connect(path, isolation_level=None)
    for statement in schema.STEPS[2]:
        db.execute(statement)
    reference = "containerd.io/gc.ref.content"
    given = {
        f"{reference}.b": LAYER,
        f"{reference}/c": CONFIG,
        f"{reference}s": MANIFEST,
        f"{reference}.d": "no digest",
    }
    db.execute("UPDATE image SET labels = ?", (json.dumps(given),))
    row = ("k8s.io", "mine", "m", MANIFEST, 1, "{}", json.dumps({reference: NAMED}), 1.0, 2.0, 9e9)
    db.execute(f"INSERT INTO named_image VALUES ({', '.join('?' * len(row))})", row)
    db.execute("INSERT INTO named_image_root VALUES ('k8s.io', 'mine', ?)", (MANIFEST,))
    db.execute("DELETE FROM lease")
    db.execute("DELETE FROM content_root")
    db.execute("PRAGMA user_version = 3")
    db.close()


def version_4(path: Path) -> None:
    """A database as the fourth schema wrote it: what labels name is held, and a lease lasts."""
    version_3(path)
    db = sqlite3.connect(path, isolation_level=None)
    for statement in schema.STEPS[3]:
        db.execute(statement)
    db.execute("INSERT INTO lease (id, created_at, expires_at) VALUES ('l', 1.0, 9e9)")
    db.execute("PRAGMA user_version = 4")
    db.close()


def version_5(path: Path) -> None:
    """A database as the fifth schema wrote it: a lease names an image, and the store has no id."""
    version_4(path)
    db = sqlite3.connect(path, isolation_level=None)
    for statement in schema.STEPS[4]:
        db.execute(statement)
    db.execute("INSERT INTO lease_image VALUES ('l', 'registry.example/a:1', 'runc')")
    db.execute("PRAGMA user_version = 5")
    db.close()


def version_6(path: Path) -> None:
    """A database as the sixth schema wrote it: it has an id, and a journal of its records next to it."""
    version_5(path)
    db = sqlite3.connect(path, isolation_level=None)
    for statement in schema.STEPS[5]:
        db.execute(statement)
    db.execute("UPDATE counter SET value = 7 WHERE name = 'generation'")
    db.execute("PRAGMA user_version = 6")
    (store_id,) = db.execute("SELECT id FROM store").fetchone()
    db.close()
    lines = [{"begin": 6, "store": store_id}, {"number": 7, "put": []}, {"number": 7, "committed": True}]
    (path.with_name("records.jsonl")).write_text("".join(f"\n{json.dumps(line)}" for line in lines))


def tables(path: Path) -> set[tuple[str, str]]:
    """Columns of every table, and the indexes."""
    db = sqlite3.connect(path)
    names = db.execute("SELECT type, name FROM sqlite_schema WHERE sql IS NOT NULL").fetchall()
    shape = {(kind, name) for kind, name in names if kind == "index"}
    for kind, name in names:
        if kind == "table":
            columns = db.execute("SELECT name, type, pk FROM pragma_table_info(?) ORDER BY name", (name,)).fetchall()
            shape |= {(name, str(column)) for column in columns}
    db.close()
    return shape


def test_version_1_keeps_its_records_edges_and_leases(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    version_1(path)
    with contextlib.closing(SqliteMetadataStore(path)) as store:
        (record,) = store.images.find()
        assert (record.reference, record.handler, str(record.image_id)) == ("registry.example/a:1", "runc", CONFIG)
        assert (record.created_at, record.updated_at, record.is_pinned, record.used_at) == (1.0, 2.0, False, 0.0)
        assert record.platform == Platform("linux", "amd64")
        assert store.graph.garbage([MANIFEST, LAYER, CONFIG]) == [CONFIG]
        (lease,) = store.leases.find()
        assert (lease.id, lease.is_flat, dict(lease.labels)) == ("l", False, {})


def test_version_2_keeps_what_it_has_and_its_leases_are_the_stores_own(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    version_2(path)
    with contextlib.closing(SqliteMetadataStore(path)) as store:
        (record,) = store.images.find()
        assert (record.is_pinned, record.used_at) == (True, 3.0)
        assert store.graph.garbage([MANIFEST, LAYER, CONFIG]) == []
        assert [(lease.id, lease.namespace, lease.name) for lease in store.leases.find()] == [("l", "k8s.io", "l")]
        assert store.namespaces.find() == {"k8s.io": {}}
        assert store.namespaces.is_home(Digest.parse(CONFIG))


def test_a_lease_of_version_4_takes_names_of_images(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    version_4(path)
    with contextlib.closing(SqliteMetadataStore(path)) as store:
        assert (store.leases.content("l"), store.leases.images("l")) == ((Digest.parse(LAYER),), ())
        store.leases.add_image("l", "registry.example/a:1", "runc")
        assert store.leases.images("l") == ("registry.example/a:1",)


def test_a_store_of_version_5_gets_an_id_that_stays(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    version_5(path)
    with contextlib.closing(SqliteMetadataStore(path)) as store:
        assert store.leases.leased_records() >= {"registry.example/a:1@runc"}
        made = store.store_id
    with contextlib.closing(SqliteMetadataStore(path)) as store:
        assert store.store_id == made


def test_version_6_gets_a_copy_before_and_its_journal_goes_aside(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    version_6(path)
    journal = (tmp_path / "records.jsonl").read_bytes()
    with contextlib.closing(SqliteMetadataStore(path)) as store:
        (record,) = store.images.find()
        store.images.put(replace(record, reference="registry.example/new:1"), {})
        assert store.damage() == ()
    assert not (tmp_path / "records.jsonl").exists()
    assert (tmp_path / "copies" / "records.jsonl").read_bytes() == journal
    (copy,) = (tmp_path / "copies").glob("metadata-*.db")
    assert copy.name == "metadata-7.schema-6.db"
    with contextlib.closing(sqlite3.connect(copy)) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (6,)
        assert db.execute("SELECT reference FROM image").fetchall() == [("registry.example/a:1",)]


def test_a_disk_without_room_for_a_copy_keeps_no_store_from_being_migrated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    version_6(tmp_path / "metadata.db")
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_blocks=9, f_bavail=9, f_frsize=4096, f_flag=0))
    with contextlib.closing(SqliteMetadataStore(tmp_path / "metadata.db")) as store:
        assert len(store.images.find()) == 1
    assert "no copy of the records is made" in caplog.text


def test_a_migration_that_dies_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "metadata.db"
    version_6(path)
    with monkeypatch.context() as patch:
        patch.setattr(ChangeLog, "migrated", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            SqliteMetadataStore(path)
    assert (tmp_path / "records.jsonl").exists()
    with contextlib.closing(SqliteMetadataStore(path)) as store:
        assert len(store.images.find()) == 1
    assert len(list((tmp_path / "copies").glob("metadata-*.db"))) == 1


@pytest.mark.parametrize("last", [{"begin": 8}, {"number": 8, "committed": True}, {"number": 8, "remove": ["a", "b"]}])
def test_an_older_database_beside_its_journal_is_not_migrated(tmp_path: Path, last: dict[str, object]) -> None:
    """Only the version that wrote the journal can rebuild it from there."""
    path = tmp_path / "metadata.db"
    version_6(path)
    with open(tmp_path / "records.jsonl", "a") as journal:
        journal.write("\n" + json.dumps(last) + "\n{cut off")
    before = (tmp_path / "records.jsonl").read_bytes()
    with pytest.raises(StoreCorruptError, match=r"ends with change 7, but records\.jsonl knows of change 8") as caught:
        SqliteMetadataStore(path)
    assert "of the version before" in caught.value.hint
    assert (tmp_path / "records.jsonl").read_bytes() == before
    with contextlib.closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (6,)


def test_a_database_that_is_gone_beside_an_earlier_journal_is_not_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    version_6(path)
    path.unlink()
    with pytest.raises(StoreCorruptError, match=r"the database is gone, but records\.jsonl") as caught:
        SqliteMetadataStore(path)
    assert "of the version before" in caught.value.hint


def test_who_went_back_to_the_version_before_and_comes_again_goes_on(tmp_path: Path) -> None:
    """The journal of that version says that its database is the newest, whatever was noted before."""
    path = tmp_path / "metadata.db"
    version_6(path)
    with contextlib.closing(SqliteMetadataStore(path)) as store:
        for number in range(20):
            store.leases.create(str(number), lifetime_seconds=1e9)
        store.keep_copy(at_once=True)
    path.unlink()
    shutil.copy(tmp_path / "copies" / "metadata-7.schema-6.db", path)
    (tmp_path / "copies" / "records.jsonl").rename(tmp_path / "records.jsonl")
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.execute("DELETE FROM counter WHERE name = 'copied'")  # as that version does when it opens it
    with contextlib.closing(SqliteMetadataStore(path)) as store:
        assert [lease.id for lease in store.leases.find()] == ["l"]
        before = store.generation()
        store.leases.create("new", lifetime_seconds=1e9)
        assert store.damage() == ()
        assert before is not None
        assert before > 27
        store.keep_copy(at_once=True)
    newest, *_ = DatabaseCopies(path, time.time).found()
    with contextlib.closing(sqlite3.connect(newest.path)) as db:
        assert ("new",) in db.execute("SELECT id FROM lease").fetchall()


def test_version_3_keeps_what_labels_of_its_images_name(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    version_3(path)
    with contextlib.closing(SqliteMetadataStore(path)) as store:
        (record,) = store.images.find()
        assert (record.roots, set(record.held)) == (
            tuple(map(Digest.parse, [MANIFEST])),
            set(map(Digest.parse, [MANIFEST, LAYER, CONFIG])),
        )
        assert store.graph.garbage([MANIFEST, LAYER, CONFIG, NAMED]) == []
        store.images.put(replace(record, labels={}), {})
        assert store.graph.garbage([MANIFEST, LAYER, CONFIG, NAMED]) == [CONFIG]
        (image,) = store.named_images.find("k8s.io")
        assert image.also_keeps == ()


def test_a_migrated_database_has_the_shape_of_a_new_one(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    version_1(tmp_path / "metadata.db")
    SqliteMetadataStore(tmp_path / "metadata.db").close()
    SqliteMetadataStore(tmp_path / "new" / "metadata.db").close()
    assert tables(tmp_path / "metadata.db") == tables(tmp_path / "new" / "metadata.db")


def test_every_version_but_the_newest_has_a_test_here() -> None:
    made = [name for name in globals() if name.startswith("version_")]
    assert made == [f"version_{number}" for number in range(1, schema.CURRENT)]


MOUNTS = """\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
23 22 0:31 / {root}/net rw shared:1 - nfs4 server:/export rw
24 23 0:32 / {root}/net/local rw - xfs /dev/vdb rw
25 22 0:33 / {root}/with\\040space rw - fuse.sshfs host: rw
26 22 0:34 / {root}/hidden rw - nfs server:/a rw
27 22 0:35 / {root}/hidden rw - tmpfs none rw
nonsense
"""


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("", "ext4"),
        ("net", "nfs4"),
        ("net/below", "nfs4"),
        ("net/local", "xfs"),
        ("network", "ext4"),
        ("with space", "fuse.sshfs"),
        ("hidden", "tmpfs"),
    ],
)
def test_the_longest_and_latest_mount_point_decides(tmp_path: Path, folder: str, kind: str) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTS.format(root=tmp_path))
    (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    assert file_system(tmp_path / folder, mounts=mounts) == kind


def test_without_a_mount_table_nothing_is_known(tmp_path: Path) -> None:
    assert file_system(tmp_path, mounts=tmp_path / "missing") == ""


@pytest.mark.parametrize("kind", sorted(NETWORK))
def test_network_file_systems_are_refused_before_a_file_is_made(tmp_path: Path, kind: str) -> None:
    with pytest.raises(StoreError, match=f"network file system \\({kind}\\)") as caught:
        SqliteMetadataStore(tmp_path / "metadata.db", file_system=lambda _: kind)
    assert "--root" in caught.value.hint
    assert list(tmp_path.iterdir()) == []


def test_a_backup_is_a_whole_database_and_never_replaces_a_file(tmp_path: Path) -> None:
    version_1(tmp_path / "metadata.db")
    (tmp_path / "backup").mkdir()
    copy = tmp_path / "backup" / "metadata.db"
    with contextlib.closing(SqliteMetadataStore(tmp_path / "metadata.db")) as store:
        store.backup(copy)
        assert copy.stat().st_mode & 0o777 == 0o600
        assert sorted(path.name for path in copy.parent.iterdir()) == ["metadata.db"]
        with contextlib.closing(SqliteMetadataStore(copy)) as copied:
            assert copied.images.find() == store.images.find()
        with pytest.raises(AlreadyExistsError, match="expected a new file"):
            store.backup(copy)
        with pytest.raises(InvalidInputError, match="No such file"):
            store.backup(tmp_path / "nowhere" / "file")


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, ""), sqlite3.OperationalError("database or disk is full")])
def test_a_backup_to_a_full_disk_does_not_say_that_the_store_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    if isinstance(error, sqlite3.Error):
        error.sqlite_errorcode = sqlite3.SQLITE_FULL

    def fail(_: str) -> None:
        raise error

    monkeypatch.setattr(backup, "reach", fail)
    with contextlib.closing(SqliteMetadataStore(tmp_path / "metadata.db")) as store:
        with pytest.raises(PreconditionError, match=r"/copy: ") as caught:
            store.backup(tmp_path / "copy")
        assert caught.value.hint == "free space there, or choose another place"
    assert not list(tmp_path.glob("*copy*"))


def test_a_backup_keeps_its_name_when_the_power_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is told that it is made may damage the original next."""
    (tmp_path / "backups").mkdir()
    with contextlib.closing(SqliteMetadataStore(tmp_path / "metadata.db")) as store:
        synced = noted_syncs(monkeypatch)
        store.backup(tmp_path / "backups" / "copy.db")
    assert synced[-1] == os.fspath(tmp_path / "backups")


@pytest.mark.parametrize(
    "write",
    [
        lambda store: store.leases.create("new", lifetime_seconds=60),
        lambda store: store.leases.delete("lease"),
        lambda store: store.images.drop([("registry.example/one:1", "kata")]),
        lambda store: store.transient().__enter__(),
    ],
)
def test_who_has_the_database_open_while_a_newer_version_changes_its_schema_writes_no_more(
    tmp_path: Path, write: Callable[[SqliteMetadataStore], object]
) -> None:
    """Its rows would lack what the new tables count on. As a server does that outlives an update."""
    path = tmp_path / "metadata.db"
    with contextlib.closing(SqliteMetadataStore(path)) as store:
        store.leases.create("lease", lifetime_seconds=60)
        with contextlib.closing(sqlite3.connect(path)) as newer:
            newer.executescript(f"CREATE TABLE future (a TEXT) STRICT; PRAGMA user_version = {schema.CURRENT + 1}")
        for _ in range(2):
            with pytest.raises(schema.SchemaTooNewError, match=f"from schema version {schema.CURRENT} to") as caught:
                write(store)
            assert "start this process again" in caught.value.hint
        assert [lease.id for lease in store.leases.find()] == ["lease"]


def test_an_older_database_on_a_read_only_disk_says_what_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version_1(tmp_path / "metadata.db")
    monkeypatch.setattr(location, "is_read_only", lambda _: True)
    with pytest.raises(StoreReadOnlyError, match=f"expected schema version {schema.CURRENT}, found 1") as caught:
        SqliteMetadataStore(tmp_path / "metadata.db")
    assert "mount it writable" in caught.value.hint


def test_a_store_of_the_version_before_ids_is_read_from_a_read_only_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "metadata.db"
    version_5(path)
    monkeypatch.setattr(location, "is_read_only", lambda _: True)
    with contextlib.closing(SqliteMetadataStore(path)) as store:
        assert [record.reference for record in store.images.find()] == ["registry.example/a:1"]
        assert store.leases.images("l") == ("registry.example/a:1",)
        with pytest.raises(StoreReadOnlyError, match="gave stores no id") as caught:
            _ = store.store_id
    assert "mount it writable" in caught.value.hint


def test_a_read_only_disk_is_read_unless_changes_lie_beside_the_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody can bring them in there, and without them the database says what it said long ago."""
    path = tmp_path / "metadata.db"
    with contextlib.closing(SqliteMetadataStore(path)) as store:
        store.leases.create("here", lifetime_seconds=60)
    monkeypatch.setattr(location, "is_read_only", lambda _: True)
    for log in (None, b""):
        if log is not None:
            Path(f"{path}-wal").write_bytes(log)
        with contextlib.closing(SqliteMetadataStore(path)) as store:
            assert [lease.id for lease in store.leases.find()] == ["here"]
            with pytest.raises(StoreReadOnlyError, match="file system is read-only") as refused:
                store.leases.delete("here")
            assert "mount it writable" in refused.value.hint
    Path(f"{path}-wal").write_bytes(b"changes")
    with pytest.raises(StoreReadOnlyError, match="log next to it holds changes") as caught:
        SqliteMetadataStore(path)
    assert "mount it writable" in caught.value.hint


def test_a_disk_that_refuses_changes_without_being_mounted_so_is_read_like_one_that_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ext4 does after an error, and a read-only subvolume of btrfs: statvfs(2) says nothing."""
    path = tmp_path / "metadata.db"
    with contextlib.closing(SqliteMetadataStore(path)) as store:
        store.leases.create("here", lifetime_seconds=60)
    without_log(path)
    system_open = os.open

    def refuse(name: str | Path, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_CREAT:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return system_open(name, flags, mode)

    monkeypatch.setattr(os, "open", refuse)
    with contextlib.closing(SqliteMetadataStore(path)) as store:
        assert [lease.id for lease in store.leases.find()] == ["here"]
        assert store.is_unchanging
        with pytest.raises(StoreReadOnlyError, match="file system is read-only") as caught:
            store.leases.delete("here")
    assert "mount it writable" in caught.value.hint


def test_where_it_is_the_database_that_cannot_be_opened_nobody_blames_the_disk(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    SqliteMetadataStore(path).close()
    without_log(path)
    with pytest.raises(StoreReadOnlyError) as caught:
        SqliteMetadataStore(path)
    assert "store's owner" in caught.value.hint


@pytest.mark.parametrize("kind", [FileNotFoundError, sqlite3.OperationalError])
def test_what_a_callers_transaction_raises_is_the_callers(tmp_path: Path, kind: type[Exception]) -> None:
    """Not a failure of the store's database, whose name would be all that it says."""
    raised = kind("of somebody else")

    def fail(store: SqliteMetadataStore) -> None:
        with store.exclusive():
            store.leases.create("undone", lifetime_seconds=60)
            raise raised

    with contextlib.closing(SqliteMetadataStore(tmp_path / "metadata.db")) as store:
        with pytest.raises(kind) as caught:
            fail(store)
        assert caught.value is raised
        assert (raised.__cause__, raised.__context__) == (None, None)
        assert list(store.leases.find()) == []


def test_a_backup_goes_where_no_file_has_two_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a memory stick."""

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refuse)
    with contextlib.closing(SqliteMetadataStore(tmp_path / "metadata.db")) as store:
        store.leases.create("mine", lifetime_seconds=60)
        store.backup(tmp_path / "copy")
        (tmp_path / "there").write_text("mine")
        with pytest.raises(AlreadyExistsError, match="it exists"):
            store.backup(tmp_path / "there")
    with contextlib.closing(sqlite3.connect(tmp_path / "copy")) as copy:
        assert copy.execute("SELECT id FROM lease").fetchall() == [("mine",)]
    assert not list(tmp_path.glob(".*"))
