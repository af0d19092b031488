"""Each rule of the shared store's protocol, at the moment that needs it: with the rule content stays, without it goes.

The harness ``tests/crash/shared.py`` looks for moments that nobody thought of; these are those that were.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

import obstore
import psycopg
import pytest

import imagestore
from imagestore import BucketSettings, Digest, ImageStore
from imagestore.errors import ContentNotFoundError, IntegrityError
from imagestore.testing import Registry, build_image
from tests.crash.shared_variants import ASKING, leave_out

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.integration

PATIENCE_SECONDS: Final = 60
NAME: Final = "registry.example/app:1"
IMAGE: Final = build_image("linux/amd64", seed="protocol")
CONTENT: Final = sorted({*IMAGE.documents, *IMAGE.blobs})
ADVISORY: Final = 77


@pytest.fixture
def open_store(
    settings: BucketSettings,
    database_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    bucket_keys: None,
) -> Iterator[Callable[[], ImageStore]]:
    """Opens the same shared store again and again."""
    monkeypatch.setattr("imagestore.store.adapters.machine_folder", lambda url: tmp_path / "machine")
    with contextlib.ExitStack() as stack:
        yield lambda: stack.enter_context(
            imagestore.open(database_url, content=settings, transport=Registry({NAME: IMAGE}).transport)
        )


class Gate:
    """Where the sweep stops until the other one has looked."""

    def __init__(self) -> None:
        self._reached = threading.Event()
        self._open = threading.Event()

    def pass_through(self) -> None:
        """Stop here, the first time."""
        if not self._reached.is_set():
            self._reached.set()
            assert self._open.wait(PATIENCE_SECONDS)

    def wait(self) -> None:
        """Until the sweep is here."""
        assert self._reached.wait(PATIENCE_SECONDS)

    def open(self) -> None:
        """Let it go on."""
        self._open.set()


def until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.01)


def is_locking(query: str) -> bool:
    """Whether a statement locks the rows of content that a sweep may delete."""
    return "FROM content" in query and "FOR UPDATE SKIP LOCKED" in query


def is_waiting(database: psycopg.Connection, kind: str) -> bool:
    """Whether a session waits for a lock of a kind."""
    query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = %s"
    row = database.execute(query, (kind,)).fetchone()
    return row is not None and row[0] > 0


def patch_statements(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[str], str], behind: Callable[[str], None]
) -> Callable[[], None]:
    """Change the statements of a thread, and do something behind each; call the result in that thread."""
    execute: Callable[..., Any] = psycopg.Cursor.execute
    sweeper = 0

    def executing(cursor: Any, query: str, *arguments: Any, **options: Any) -> Any:
        if threading.get_ident() != sweeper:
            return execute(cursor, query, *arguments, **options)
        result = execute(cursor, change(query), *arguments, **options)
        behind(query)
        return result

    def begin() -> None:
        nonlocal sweeper
        sweeper = threading.get_ident()

    monkeypatch.setattr(psycopg.Cursor, "execute", executing)
    return begin


def is_readable(store: ImageStore, digest: Digest) -> bool:
    try:
        with store.content.open(digest) as file:
            return Digest.of(file.read()) == digest
    except (ContentNotFoundError, IntegrityError):
        return False


def lost(store: ImageStore, looked: threading.Event, swept: Future[Any]) -> list[Digest]:
    """Lease, look, and tell what was there and isn't when the sweep has ended."""
    with store.hold(CONTENT):
        found = [digest for digest in CONTENT if store.content.exists(digest)]
        looked.set()
        swept.result(PATIENCE_SECONDS)
        return [digest for digest in found if not is_readable(store, digest)]


@pytest.mark.parametrize("is_kept", [True, False], ids=["kept", "left-out"])
@pytest.mark.parametrize("variant", ["look-without-share", "one-statement", "repeatable-read"])
def test_what_is_leased_and_seen_stays(
    open_store: Callable[[], ImageStore],
    database_url: str,
    monkeypatch: pytest.MonkeyPatch,
    variant: str,
    is_kept: bool,
) -> None:
    """A sweep and a look meet: the look sees nothing, or what it sees stays."""
    one, other = open_store(), open_store()
    one.pull(NAME)
    one.remove(NAME)
    leave_out("" if is_kept else variant, monkeypatch.setattr)
    gate, looked = Gate(), threading.Event()

    def change(query: str) -> str:
        if is_locking(query) and variant == "repeatable-read":
            gate.pass_through()  # the transaction has begun, nothing is locked
        if is_locking(query) and variant == "one-statement":
            # The statement has begun, and sees what was so then; its rows aren't locked.
            return query.replace(" WHERE ", f" WHERE pg_advisory_xact_lock_shared({ADVISORY}) IS NOT NULL AND ", 1)
        return query

    def behind(query: str) -> None:
        if ASKING in query and variant == "look-without-share":
            gate.pass_through()  # what to delete is decided, and isn't deleted

    begin = patch_statements(monkeypatch, change, behind)

    def sweep() -> None:
        begin()
        one.collect_garbage()

    with psycopg.connect(database_url, autocommit=True) as database, ThreadPoolExecutor(2) as threads:
        database.execute("SELECT pg_advisory_lock(%s)", (ADVISORY,))
        swept = threads.submit(sweep)
        if variant == "one-statement":
            until(lambda: is_waiting(database, "advisory"), "the sweep doesn't come to its lock")
        else:
            gate.wait()
        looking = threads.submit(lost, other, looked, swept)
        until(lambda: looked.is_set() or is_waiting(database, "transactionid"), "nobody looks, and nobody waits")
        gate.open()
        database.execute("SELECT pg_advisory_unlock(%s)", (ADVISORY,))
        gone = looking.result(PATIENCE_SECONDS)
    assert bool(gone) is not is_kept


@pytest.mark.parametrize("is_kept", [True, False], ids=["kept", "left-out"])
def test_what_is_brought_anew_while_the_old_object_goes_stays(
    open_store: Callable[[], ImageStore], monkeypatch: pytest.MonkeyPatch, is_kept: bool
) -> None:
    """A sweep has forgotten content, and deletes its objects after another store has brought it again."""
    leave_out("" if is_kept else "key-is-the-digest", monkeypatch.setattr)
    one, other = open_store(), open_store()
    one.pull(NAME)
    one.remove(NAME)
    gate, delete = Gate(), obstore.delete

    def deleting(*arguments: Any) -> None:
        gate.pass_through()
        delete(*arguments)

    monkeypatch.setattr(obstore, "delete", deleting)
    with ThreadPoolExecutor(1) as threads:
        swept = threads.submit(one.collect_garbage)
        gate.wait()
        other.pull(NAME)
        gate.open()
        swept.result(PATIENCE_SECONDS)
    assert all(is_readable(other, digest) for digest in CONTENT) is is_kept
