"""The content store on disk: containerd's layout, and its writer's behaviour as containerd's content tests list it."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
from pathlib import Path

import pytest

from imagestore import CancelToken, Digest
from imagestore.content.ingests import ingest_name
from imagestore.content.local import LocalContentStore
from imagestore.errors import (
    AlreadyExistsError,
    ContentNotFoundError,
    DeadlineExceededError,
    DigestMismatchError,
    ImageStoreError,
    IntegrityError,
    InvalidDigestError,
    InvalidInputError,
    SizeMismatchError,
    StoreBusyError,
    StoreCorruptError,
    StoreError,
    StoreFullError,
    StoreReadOnlyError,
)
from imagestore.util.disk_errors import translated
from imagestore.util.file_locks import FileLock

NEVER = CancelToken()


@pytest.fixture
def store(tmp_path: Path) -> LocalContentStore:
    return LocalContentStore(tmp_path / "content", tmp_path / "locks")


def put(store: LocalContentStore, data: bytes, algorithm: str = "sha256") -> Digest:
    digest = Digest.of(data, algorithm)
    with store.writer(f"layer-{digest}", expected=digest, total=len(data), cancel=NEVER) as writer:
        writer.write(data)
        writer.commit(digest, len(data))
    return digest


@pytest.mark.parametrize("algorithm", ["sha256", "sha384", "sha512"])
def test_a_committed_blob_lies_where_containerd_looks_and_is_read_only(
    store: LocalContentStore, algorithm: str
) -> None:
    digest = put(store, b"hello", algorithm)
    path = store.root / "blobs" / algorithm / digest.encoded
    assert store.path(digest) == path
    assert path.read_bytes() == b"hello"
    assert stat.S_IMODE(path.stat().st_mode) == 0o444
    assert list((store.root / "ingest").iterdir()) == []


@pytest.mark.parametrize(
    ("ref", "name"),
    [
        ("hello-ref", "9e2b3b72513eb12f1bd1f346378ecc41f609b3ce1f5e802fe693ca035ab466e4"),
        ("default/1/part/one", "8827c577f475ae2ad3be25789068e3681d225299327d166f64ca1c9cca4af0d1"),
    ],
)
def test_ingest_folders_are_named_as_containerd_names_them(ref: str, name: str) -> None:
    assert ingest_name(ref) == name


def test_an_open_ingest_has_containerds_five_files(store: LocalContentStore) -> None:
    digest = Digest.of(b"0123456789")
    with store.writer("some-ref", expected=digest, total=10, cancel=NEVER) as writer:
        writer.write(b"0123")
        directory = store.root / "ingest" / ingest_name("some-ref")
        assert sorted(path.name for path in directory.iterdir()) == ["data", "ref", "startedat", "total", "updatedat"]
        assert (directory / "ref").read_bytes() == b"some-ref"
        assert (directory / "total").read_bytes() == b"10"
        started = (directory / "startedat").read_text()
        assert started.endswith("Z")
        assert "\n" not in started


@pytest.mark.parametrize("part", [0, 1, 250, 499, 500])
def test_a_closed_ingest_is_resumed_at_its_offset(store: LocalContentStore, part: int) -> None:
    data = os.urandom(500)
    digest = Digest.of(data)
    with store.writer("r", expected=digest, total=500, cancel=NEVER) as writer:
        writer.write(data[:part])
    (status,) = store.statuses()
    assert (status.ref, status.offset, status.total) == ("r", part, 500)
    with store.writer("r", expected=digest, total=500, cancel=NEVER) as writer:
        assert writer.offset == part
        writer.write(data[part:])
        writer.commit(digest, 500)
    assert store.read(digest, limit_bytes=500) == data


def test_status_progresses_and_the_start_stays(store: LocalContentStore) -> None:
    digest = Digest.of(b"ab")
    with store.writer("r", expected=digest, total=2, cancel=NEVER) as writer:
        (before,) = store.statuses()
        writer.write(b"a")
        (after,) = store.statuses()
    assert (before.offset, after.offset) == (0, 1)
    assert before.started_at == after.started_at > 1_600_000_000
    assert after.updated_at >= before.updated_at


def test_truncate_starts_again_from_nothing(store: LocalContentStore) -> None:
    digest = Digest.of(b"good")
    with store.writer("r", expected=digest, total=4, cancel=NEVER) as writer:
        writer.write(b"bad")
        writer.truncate()
        assert writer.offset == 0
        writer.write(b"good")
        writer.commit(digest, 4)
    assert store.exists(digest)


def test_an_ingest_of_another_total_is_started_again(store: LocalContentStore) -> None:
    digest = Digest.of(b"abc")
    with store.writer("r", expected=digest, total=9, cancel=NEVER) as writer:
        writer.write(b"abcdef")
    with store.writer("r", expected=digest, total=3, cancel=NEVER) as writer:
        assert writer.offset == 0


def test_a_failed_commit_leaves_a_resumable_ingest(store: LocalContentStore) -> None:
    data, digest = b"right", Digest.of(b"right")
    with store.writer("r", expected=digest, total=5, cancel=NEVER) as writer:
        writer.write(data)
        with pytest.raises(SizeMismatchError):
            writer.commit(digest, 6)
        with pytest.raises(DigestMismatchError):
            writer.commit(Digest.of(b"wrong"), 5)
        assert next(store.statuses()).offset == 5
        writer.commit(digest, 5)
    assert list(store.statuses()) == []


def test_a_blob_that_is_here_needs_no_writer(store: LocalContentStore) -> None:
    digest = put(store, b"x")
    with pytest.raises(AlreadyExistsError):
        store.writer("other", expected=digest, total=1, cancel=NEVER)


def test_two_ingests_of_one_blob_end_with_one_blob_and_no_ingest(store: LocalContentStore) -> None:
    digest = Digest.of(b"x")
    first = store.writer("one", expected=digest, total=1, cancel=NEVER)
    second = store.writer("two", expected=digest, total=1, cancel=NEVER)
    first.write(b"x")
    second.write(b"x")
    first.commit(digest, 1)
    with pytest.raises(AlreadyExistsError):
        second.commit(digest, 1)
    assert [info.digest for info in store.walk()] == [digest]
    assert list(store.statuses()) == []


def test_a_second_writer_of_one_ref_waits_and_then_finds_the_blob(store: LocalContentStore) -> None:
    digest = Digest.of(b"x")
    writer = store.writer("r", expected=digest, total=1, cancel=NEVER)
    outcome: list[str] = []

    def wait() -> None:
        try:
            store.writer("r", expected=digest, total=1, cancel=CancelToken(120))
        except AlreadyExistsError:
            outcome.append("already exists")

    waiter = threading.Thread(target=wait)
    waiter.start()
    writer.write(b"x")
    writer.commit(digest, 1)
    waiter.join()
    assert outcome == ["already exists"]


def test_waiting_for_a_held_ref_ends_with_the_deadline(store: LocalContentStore) -> None:
    digest = Digest.of(b"x")
    with store.writer("r", expected=digest, total=1, cancel=NEVER), pytest.raises(DeadlineExceededError):
        store.writer("r", expected=digest, total=1, cancel=CancelToken(0.05))


def test_abort_spares_a_held_ingest_and_removes_a_free_one(store: LocalContentStore) -> None:
    digest = Digest.of(b"x")
    with store.writer("r", expected=digest, total=1, cancel=NEVER):
        assert not store.abort("r")
    assert store.abort("r")
    assert store.abort("never-there")
    assert list(store.statuses()) == []


def test_reading_verifies_again(store: LocalContentStore) -> None:
    digest = put(store, b"good")
    path = store.path(digest)
    path.chmod(0o644)
    path.write_bytes(b"evil")
    with pytest.raises(DigestMismatchError, match="at rest"):
        store.read(digest, limit_bytes=100)


def test_reading_is_bounded(store: LocalContentStore) -> None:
    with pytest.raises(SizeMismatchError):
        store.read(put(store, b"12345"), limit_bytes=4)


def test_missing_content_is_named(store: LocalContentStore) -> None:
    digest = Digest.of(b"not there")
    assert not store.exists(digest)
    for ask in (store.info, store.path, store.open):
        with pytest.raises(ContentNotFoundError, match=digest.encoded):
            ask(digest)
    assert store.delete(digest) == 0


def test_content_under_an_unknown_algorithm_never_becomes_a_path(store: LocalContentStore) -> None:
    assert not store.exists(Digest("unknown", "x"))
    with pytest.raises(ContentNotFoundError, match="can't be verified"):
        store.open(Digest("unknown", "x"))


def test_delete_returns_the_bytes_it_freed(store: LocalContentStore) -> None:
    digest = put(store, b"12345")
    assert store.delete(digest) == 5
    assert not store.exists(digest)


def test_walk_leaves_strange_files_alone(store: LocalContentStore) -> None:
    digest = put(store, b"x")
    (store.root / "blobs" / "sha256" / "README").write_text("hello")
    (store.root / "blobs" / "unknown").mkdir()
    assert [info.digest for info in store.walk()] == [digest]


def test_strange_ingest_folders_are_skipped(store: LocalContentStore) -> None:
    (store.root / "ingest" / "empty").mkdir()
    (store.root / "ingest" / "file").write_text("x")
    assert list(store.statuses()) == []


def test_damaged_times_and_totals_do_not_stop_a_resume(store: LocalContentStore) -> None:
    digest = Digest.of(b"ab")
    with store.writer("r", expected=digest, total=2, cancel=NEVER) as writer:
        writer.write(b"a")
    directory = store.root / "ingest" / ingest_name("r")
    (directory / "total").write_text("\u0665")
    (directory / "startedat").write_text("")
    with store.writer("r", expected=digest, total=2, cancel=NEVER) as writer:
        assert writer.offset == 1


def test_an_ingest_needs_a_name(store: LocalContentStore) -> None:
    with pytest.raises(InvalidInputError):
        store.writer("", expected=Digest.of(b""), total=0, cancel=NEVER)


def test_the_empty_blob_is_content_too(store: LocalContentStore) -> None:
    assert store.read(put(store, b""), limit_bytes=0) == b""


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, StoreFullError),
        (errno.EDQUOT, StoreFullError),
        (errno.EROFS, StoreReadOnlyError),
        (errno.EACCES, StoreReadOnlyError),
        (errno.EPERM, StoreReadOnlyError),
        (errno.EIO, StoreError),
    ],
)
def test_system_errors_become_ours_and_keep_the_cause(number: int, kind: type[ImageStoreError]) -> None:
    with pytest.raises(kind, match="/somewhere: can't write") as caught, translated("write", Path("/somewhere")):
        raise OSError(number, os.strerror(number))
    assert isinstance(caught.value.__cause__, OSError)
    if number in (errno.EACCES, errno.EPERM):
        assert "run as the store's owner" in caught.value.hint


def test_locks_exclude_each_other_and_leave_no_file(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    first, second = FileLock(path), FileLock(path)
    assert first.try_acquire()
    assert not second.try_acquire()
    first.release()
    assert second.try_acquire()
    second.release()
    second.release()
    assert not path.exists()


def test_a_lock_file_left_by_the_dead_is_cleared_but_a_held_one_stays(store: LocalContentStore) -> None:
    locks = store.root.parent / "locks"
    (locks / "dead").touch()
    digest = Digest.of(b"x")
    with store.writer("r", expected=digest, total=1, cancel=NEVER):
        store.clear_locks()
        assert [path.name for path in locks.iterdir()] == [f"ingest-{ingest_name('r')}"]


def test_content_that_goes_between_two_looks_is_missing_and_no_system_error(store: LocalContentStore) -> None:
    digest = put(store, b"x")
    stop = threading.Event()

    def come_and_go() -> None:
        while not stop.is_set():
            store.delete(digest)
            put(store, b"x")

    other = threading.Thread(target=come_and_go)
    other.start()
    try:
        for _ in range(2000):
            with contextlib.suppress(ContentNotFoundError):
                assert store.info(digest).size == 1
            with contextlib.suppress(ContentNotFoundError):
                assert store.read(digest, limit_bytes=1) == b"x"
    finally:
        stop.set()
        other.join()


def test_a_writer_that_may_not_wait_is_sent_away_while_another_writes(store: LocalContentStore) -> None:
    with store.try_writer("r", algorithm="sha256", total=0) as first:
        first.write(b"hel")
        with pytest.raises(StoreBusyError, match="locked by another writer"):
            store.try_writer("r", algorithm="sha256", total=0)
    with store.try_writer("r", algorithm="sha256", total=0) as second:
        assert (second.offset, second.digest) == (3, Digest.of(b"hel"))
        status = store.status("r")
        assert status is not None
        assert (status.ref, status.offset) == ("r", 3)
    assert store.status("other") is None
    with pytest.raises(InvalidInputError):
        store.try_writer("", algorithm="sha256", total=0)
    with pytest.raises(InvalidDigestError):
        store.try_writer("s", algorithm="md5", total=0)
    with store.try_writer("s", algorithm="sha256", total=0) as third:
        assert third.offset == 0, "a refused one leaves no lock"


def test_a_writer_can_change_its_algorithm(store: LocalContentStore) -> None:
    wanted = Digest.of(b"hello", "sha512")
    with store.try_writer("r", algorithm="sha256", total=0) as writer:
        writer.write(b"hello")
        writer.hash_with("sha256")
        assert writer.digest == Digest.of(b"hello")
        writer.hash_with("sha512")
        assert (writer.digest, writer.offset) == (wanted, 5)
        writer.write(b"")
        writer.commit(wanted, 5)
    assert store.read(wanted, limit_bytes=5) == b"hello"


@pytest.mark.parametrize("what", ["folder", "pipe", "link"])
def test_what_is_no_file_in_a_blobs_place_is_a_blob_that_is_missing(store: LocalContentStore, what: str) -> None:
    path = store.path(put(store, b"hello")).with_name("0" * 64)
    digest = Digest("sha256", path.name)
    if what == "folder":
        path.mkdir()
    elif what == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(store.path(Digest.of(b"hello")))
    assert not store.exists(digest)
    with pytest.raises((ContentNotFoundError, IntegrityError)):
        store.read(digest, limit_bytes=10)


def test_what_is_no_file_in_a_blobs_place_costs_no_bytes_that_came(store: LocalContentStore) -> None:
    """Who were told that the blob is here already would believe it, and have nothing."""
    digest = Digest.of(b"hello")
    place = store.root / "blobs" / "sha256" / digest.encoded
    place.mkdir()
    with store.writer("r", expected=digest, total=5, cancel=NEVER) as writer:
        writer.write(b"hello")
        with pytest.raises(StoreCorruptError, match="something else"):
            writer.commit(digest, 5)
    place.rmdir()
    with store.writer("r", expected=digest, total=5, cancel=NEVER) as writer:
        assert writer.offset == 5
        writer.commit(digest, 5)
    assert store.exists(digest)


def fail_to_close(monkeypatch: pytest.MonkeyPatch, path: Path, code: int) -> None:
    """Closing a file of this name fails, and closes it, as on Linux."""
    real = os.close

    def close(descriptor: int) -> None:
        name = os.readlink(f"/proc/self/fd/{descriptor}")
        real(descriptor)
        if name == str(path):
            raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "close", close)


@pytest.mark.parametrize(
    ("code", "error"), [(errno.EIO, StoreError), (errno.ENOSPC, StoreFullError), (errno.EDQUOT, StoreFullError)]
)
def test_an_ingest_that_cannot_be_closed_is_named(
    store: LocalContentStore, monkeypatch: pytest.MonkeyPatch, code: int, error: type[StoreError]
) -> None:
    digest = Digest.of(b"hello")
    writer = store.writer(f"layer-{digest}", expected=digest, total=5, cancel=NEVER)
    writer.write(b"hello")
    fail_to_close(monkeypatch, store.root / "ingest" / ingest_name(f"layer-{digest}") / "data", code)
    with pytest.raises(error, match=rf"ingest layer-{digest}: can't close its file: {os.strerror(code)}"):
        writer.close()
    monkeypatch.undo()
    # Closed all the same: what came is here, and another may go on.
    writer.close()
    with store.writer(f"layer-{digest}", expected=digest, total=5, cancel=NEVER) as again:
        assert again.offset == 5


def test_a_commit_whose_close_fails_names_the_blob(store: LocalContentStore, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = Digest.of(b"hello")
    writer = store.writer(f"layer-{digest}", expected=digest, total=5, cancel=NEVER)
    writer.write(b"hello")
    fail_to_close(monkeypatch, store.root / "blobs" / "sha256" / digest.encoded, errno.EIO)
    with pytest.raises(StoreError, match=f"layer-{digest}: can't close its file"):
        writer.commit(digest, 5)
    monkeypatch.undo()
    # It was synced and renamed before.
    assert store.path(digest).read_bytes() == b"hello"


def test_a_blob_that_cannot_be_closed_after_reading_is_named(store: LocalContentStore) -> None:
    digest = put(store, b"hello")
    reader = store.open(digest)
    assert reader.read() == b"hello"
    os.close(reader.fileno())
    with pytest.raises(StoreError, match=f"content {digest}: can't close its file: Bad file descriptor"):
        reader.close()
    assert reader.closed


def test_a_lock_whose_file_cannot_be_closed_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = FileLock(tmp_path / "lock")
    lock.acquire(NEVER)
    fail_to_close(monkeypatch, tmp_path / "lock", errno.EIO)
    lock.release()
    monkeypatch.undo()
    assert FileLock(tmp_path / "lock").try_acquire()
