"""A shared store whose database is killed, stalls, is full of clients, sits behind a pooler or fails over."""

from __future__ import annotations

import contextlib
import logging
import socket
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

import psycopg
import pytest

from imagestore import Digest
from imagestore.errors import ContentUnavailableError, ImageStoreError, StoreBusyError, StoreError
from imagestore.events import BlobStarted, Noticed
from imagestore.metadata import PostgresMetadataStore
from imagestore.testing import RegistryServer, build_image, synthetic_layer
from tests.support.patience import until
from tests.support.pgbouncer import pgbouncer
from tests.support.postgres import Postgres, postgres, standby, url_of_both
from tests.support.stopped import stopped
from tests.support.tcp_proxy import TcpProxy, tcp_proxy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from imagestore import ImageStore
    from imagestore.events import Event
    from tests.support.shared_place import SharedPlace

pytestmark = pytest.mark.integration

IMAGE: Final = build_image("linux/amd64", layers=[synthetic_layer("small", 1 << 20), synthetic_layer("large", 9 << 20)])
DIGEST: Final = Digest.of(b"anything")


@pytest.fixture
def name() -> Iterator[str]:
    with RegistryServer({"registry.example/app:1": IMAGE}) as server:
        yield f"{server.address}/app:1"


@pytest.fixture
def proxy(postgres_server: Postgres) -> Iterator[TcpProxy]:
    """Between stores and the database."""
    with tcp_proxy(postgres_server.port) as running:
        yield running


def through(place: SharedPlace, port: int) -> str:
    """The store's address at another port."""
    server, _, database = place.url.rpartition("/")
    return f"{server.rpartition(':')[0]}:{port}/{database}"


def is_there(store: ImageStore, name: str) -> bool:
    """Whether the store answers, and has an image."""
    try:
        return store.get(name).reference == name
    except StoreError:
        return False


class TestLostConnections:
    def test_a_restart_between_two_calls_is_not_noticed(
        self, shared_place: SharedPlace, postgres_server: Postgres, name: str
    ) -> None:
        with shared_place.open() as store:
            store.pull(name)
            postgres_server.restart(immediately=True)
            assert [image.reference for image in store.list()] == [name]
            store.remove(name)
            postgres_server.restart(immediately=True)
            assert len(store.collect_garbage().digests) == 4

    def test_a_restart_in_a_pull_fails_it_or_not_and_loses_nothing(
        self, shared_place: SharedPlace, postgres_server: Postgres, name: str
    ) -> None:
        def restart(event: Event) -> None:
            if isinstance(event, BlobStarted) and event.descriptor.size > 1 << 20:
                postgres_server.restart(immediately=True)

        with shared_place.open() as store:
            with contextlib.suppress(StoreError):
                store.pull(name, observer=restart)
            assert store.pull(name).layers
            assert store.check().faults == ()
            store.remove(name)
            store.collect_garbage()
            assert shared_place.objects() == []

    def test_cut_connections_are_a_typed_error_at_most(
        self, shared_place: SharedPlace, proxy: TcpProxy, name: str
    ) -> None:
        with shared_place.open(url=through(shared_place, proxy.port)) as store:
            store.pull(name)
            for _ in range(3):
                proxy.cut()
                assert [image.reference for image in store.list()] == [name]
            proxy.refuse()
            with pytest.raises(StoreError) as refused:
                list(store.list())
            assert "postgresql://" in str(refused.value)
            assert refused.value.hint
            proxy.go_on()
            until(lambda: is_there(store, name), "the store answers again")

    def test_a_gateway_that_is_killed_loses_nothing(self, shared_place: SharedPlace, name: str) -> None:
        with shared_place.open() as store:
            shared_place.gateway.kill_gateway()
            try:
                with pytest.raises(ContentUnavailableError):
                    store.pull(name)
            finally:
                shared_place.gateway.start_gateway()
            store.pull(name)
            assert store.check().faults == ()


class TestStandstill:
    def test_a_server_that_stands_still_is_given_up(
        self, shared_place: SharedPlace, proxy: TcpProxy, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        with shared_place.open(url=through(shared_place, proxy.port)) as store:
            store.pull(name)
            for limit in ("connection.STATEMENT_SECONDS", "database.CONNECT_SECONDS", "database.CHECK_SECONDS"):
                monkeypatch.setattr(f"imagestore.metadata.postgres.{limit}", 2.5)
            proxy.stall()
            with pytest.raises(StoreError):
                store.get(name)
            # Others needn't wait for it now.
            with pytest.raises(StoreError, match="a moment ago"):
                store.get(name)
            proxy.go_on()
            until(lambda: is_there(store, name), "the store answers again")

    def test_a_transaction_of_somebody_else_does_not_hold_us_for_ever(
        self, shared_place: SharedPlace, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        with shared_place.open() as store:
            store.pull(name)
            monkeypatch.setattr("imagestore.metadata.postgres.database.LOCK_LIMIT", "500ms")
            with psycopg.connect(shared_place.url) as other:
                other.execute("SELECT * FROM image FOR UPDATE")
                with pytest.raises(StoreBusyError):
                    store.remove(name)
            assert store.remove(name).removed


class TestLostMachines:
    """The server ends what a machine held that is gone, or suspended."""

    def test_sessions_are_watched(self, database_url: str) -> None:
        with contextlib.closing(PostgresMetadataStore(database_url)) as records:
            with records.database.writing() as db:
                assert db.execute("SHOW idle_in_transaction_session_timeout").fetchone() == ("1min",)
                assert db.execute("SHOW tcp_keepalives_idle").fetchone() == ("10",)
            with records.database.connect() as session:
                assert session.execute("SHOW tcp_keepalives_idle").fetchone() == ("10",)

    def test_who_waits_too_long_for_a_flight_flies(
        self, shared_place: SharedPlace, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        monkeypatch.setattr("imagestore.content.shared_store._PATIENCE_SECONDS", 0.5)
        with contextlib.closing(PostgresMetadataStore(shared_place.url)) as other, shared_place.open() as store:
            held = [other.objects.try_flight(digest) for digest in IMAGE.blobs]
            assert all(held)
            assert store.pull(name).layers


COLLECTS: Final = """
import sys
from imagestore.metadata.postgres import PostgresMetadataStore
records = PostgresMetadataStore(sys.argv[1])
with records.batch():
    digests = [str(each.digest) for each in records.objects.walk()]
    assert records.graph.unheld(digests), "nothing is garbage"
    print("has the rows", flush=True)
    import time
    time.sleep(600)
"""


def _list_on_and_on(store: ImageStore) -> None:
    while True:
        list(store.list())


def suspended(process: subprocess.Popen[bytes]) -> str:
    """How the server calls a process of this machine."""
    return f"imagestore/{socket.gethostname()[:40]}/{process.pid}"


class TestSuspendedCollectors:
    """A collector that is suspended while it holds rows: who waits says so, and for whom."""

    @pytest.fixture(autouse=True)
    def _soon(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("imagestore.util.long_waits.LONG_WAIT_SECONDS", 0.2)

    @pytest.mark.parametrize("is_pooled", [False, True])
    def test_a_pull_says_who_holds_what_it_waits_for(
        self,
        shared_place: SharedPlace,
        postgres_server: Postgres,
        name: str,
        caplog: pytest.LogCaptureFixture,
        is_pooled: bool,
    ) -> None:
        events: list[Event] = []
        with contextlib.ExitStack() as stack:
            url = shared_place.url
            if is_pooled:
                url = through(shared_place, stack.enter_context(pgbouncer(postgres_server, "transaction")).port)
            store = stack.enter_context(shared_place.open(url=url))
            store.pull(name)
            store.remove(name)
            process = stack.enter_context(stopped(COLLECTS, shared_place.url))
            threads = stack.enter_context(ThreadPoolExecutor(1))
            pull = threads.submit(store.pull, name, observer=events.append)
            until(lambda: any(isinstance(event, Noticed) for event in events), "the pull says what it waits for")
            process.kill()
            assert pull.result().reference == name
        (notice,) = [event.message for event in events if isinstance(event, Noticed)]
        assert notice.startswith("postgresql://127.0.0.1")
        assert f": waiting for a lock that {suspended(process)} (server process" in notice
        assert "from 127.0.0.1, idle in transaction for " in notice
        assert notice in [entry.getMessage() for entry in caplog.records if entry.levelno == logging.WARNING]

    def test_who_waited_in_vain_is_told_who_holds_the_lock(
        self, shared_place: SharedPlace, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        monkeypatch.setattr("imagestore.metadata.postgres.database.LOCK_LIMIT", "1s")
        with shared_place.open() as store:
            store.pull(name)
            store.remove(name)
            with (
                stopped(COLLECTS, shared_place.url) as process,
                pytest.raises(StoreBusyError, match="lock timeout; the lock is held by") as caught,
                store.metadata.exclusive(),
            ):
                pytest.fail("it has what the other process holds")
        assert f"{suspended(process)} (server process" in str(caught.value)
        assert "suspended" in caught.value.hint

    def test_who_finds_all_connections_waiting_is_told_for_whom(
        self, shared_place: SharedPlace, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        for limit in ("_MOST_CONNECTIONS", "CONNECT_SECONDS"):
            monkeypatch.setattr(f"imagestore.metadata.postgres.database.{limit}", 1)
        with shared_place.open() as store, ThreadPoolExecutor(1) as threads:
            store.pull(name)
            store.remove(name)
            with stopped(COLLECTS, shared_place.url) as process:
                pull = threads.submit(store.pull, name)
                with pytest.raises(ContentUnavailableError, match="couldn't get a connection") as caught:
                    _list_on_and_on(store)
                process.kill()
                assert pull.result().reference == name
        assert f"{suspended(process)} (server process" in str(caught.value)


class TestClients:
    def test_more_threads_than_connections(self, shared_place: SharedPlace, name: str) -> None:
        with shared_place.open() as store, ThreadPoolExecutor(64) as threads:
            store.pull(name)
            assert set(threads.map(lambda _: store.get(name).reference, range(256))) == {name}

    def test_a_server_without_free_connections_says_so(self, name: str) -> None:
        settings = {"max_connections": "5", "superuser_reserved_connections": "0"}
        with postgres(settings) as server, contextlib.ExitStack() as stack:
            url = server.url(server.create_database())
            store = stack.enter_context(contextlib.closing(PostgresMetadataStore(url)))
            others = [stack.enter_context(psycopg.connect(url)) for _ in range(4)]
            assert store.namespaces.find()
            others.append(stack.enter_context(psycopg.connect(url)) if _has_room(url) else others[0])
            with pytest.raises(StoreError) as refused, contextlib.closing(PostgresMetadataStore(url)):
                pass
            assert "\n" not in str(refused.value)


def _has_room(url: str) -> bool:
    try:
        psycopg.connect(url).close()
    except psycopg.OperationalError:
        return False
    return True


class TestPoolers:
    @pytest.mark.parametrize("mode", ["session", "transaction"])
    def test_behind_a_pooler(self, shared_place: SharedPlace, postgres_server: Postgres, name: str, mode: str) -> None:
        with pgbouncer(postgres_server, mode, size=4 if mode == "transaction" else 40) as pooler:  # type: ignore[arg-type]  # one of the modes
            url = through(shared_place, pooler.port)
            with shared_place.open("one", url=url) as one, shared_place.open("two", url=url) as two:
                assert one.metadata.database.is_pooled  # type: ignore[attr-defined]  # PostgreSQL's adapter
                with ThreadPoolExecutor(8) as threads:
                    pulls = [threads.submit(store.pull, name) for store in (one, two) * 4]
                    assert {pull.result().reference for pull in pulls} == {name}
                # More often than a session waits before it prepares a statement.
                for _ in range(12):
                    assert one.get(name).id == two.get(name).id
                assert one.check().faults == ()
                one.remove(name)
                two.collect_garbage()
                assert shared_place.objects() == []


class TestFailover:
    def test_a_promoted_standby_goes_on(self, shared_place: SharedPlace, name: str) -> None:
        with postgres({"synchronous_commit": "remote_apply"}) as primary:
            database = primary.create_database()
            with standby(primary) as follower:
                url = url_of_both(primary, follower, database)
                with shared_place.open(url=url) as store:
                    store.pull(name)
                    _wait_until_followed(primary, follower, database)
                    primary.kill()
                    follower.promote()
                    assert [image.reference for image in store.list()] == [name]
                    store.remove(name)
                    store.collect_garbage()
                    assert shared_place.objects() == []

    def test_a_standby_alone_is_refused_with_a_hint(self, shared_place: SharedPlace) -> None:
        with postgres() as primary:
            database = primary.create_database()
            contextlib.closing(PostgresMetadataStore(primary.url(database))).__enter__().close()
            with standby(primary) as follower:
                _wait_until_followed(primary, follower, database)
                with contextlib.closing(PostgresMetadataStore(follower.url(database))) as store:
                    assert store.images.find() == []
                    with pytest.raises(ImageStoreError) as refused:
                        store.leases.create("work", lifetime_seconds=60)
                    assert "read-write" in refused.value.hint


def _wait_until_followed(primary: Postgres, follower: Postgres, database: str) -> None:
    """Until the standby has what the primary has."""
    with psycopg.connect(primary.url(database), autocommit=True) as db:
        row = db.execute("SELECT pg_current_wal_flush_lsn()").fetchone()
    assert row is not None
    with psycopg.connect(follower.url(database), autocommit=True) as db:
        for _ in range(600):
            found = db.execute("SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", (row[0],)).fetchone()
            if found is not None and found[0]:
                return
            threading.Event().wait(0.1)
    raise AssertionError("the standby never followed")


class TestFlights:
    def test_one_flight_of_all_machines(self, database_url: str) -> None:
        with (
            contextlib.closing(PostgresMetadataStore(database_url)) as one,
            contextlib.closing(PostgresMetadataStore(database_url)) as two,
        ):
            flight = one.objects.try_flight(DIGEST)
            assert flight is not None
            assert one.objects.try_flight(DIGEST) is None
            assert two.objects.try_flight(DIGEST) is None
            flight.end()
            flight.end()
            again = two.objects.try_flight(DIGEST)
            assert again is not None
            again.end()

    def test_flights_end_with_their_session(self, database_url: str, postgres_server: Postgres) -> None:
        with (
            contextlib.closing(PostgresMetadataStore(database_url)) as one,
            contextlib.closing(PostgresMetadataStore(database_url)) as two,
        ):
            assert one.objects.try_flight(DIGEST) is not None
            postgres_server.restart(immediately=True)
            flight = two.objects.try_flight(DIGEST)
            # The first try may only find out that its session is gone; then it flies without stopping anybody.
            assert flight is not None
            flight.end()
