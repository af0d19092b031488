"""The servers that tests of a shared store use do what those tests rely on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import psycopg
import pytest

from tests.support.pgbouncer import Mode, pgbouncer
from tests.support.postgres import Postgres, postgres, standby, url_of_both
from tests.support.tcp_proxy import TcpProxy, tcp_proxy

pytestmark = pytest.mark.integration

PATIENCE_SECONDS = 60


def connect(url: str) -> psycopg.Connection:
    return psycopg.connect(url, autocommit=True, connect_timeout=PATIENCE_SECONDS)


def count(url: str) -> int:
    with connect(url) as connection:
        row = connection.execute("SELECT count(*) FROM t").fetchone()
        assert row is not None
        return int(row[0])


def until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.05)


def pid(connection: psycopg.Connection) -> int:
    row = connection.execute("SELECT pg_backend_pid()").fetchone()
    assert row is not None
    return int(row[0])


def ask(connection: psycopg.Connection) -> Future[int]:
    """Ask in a thread: for who waits for an answer in the library's own calls, nobody else of this process runs."""
    executor = ThreadPoolExecutor(1)
    asked = executor.submit(pid, connection)
    executor.shutdown(wait=False)
    return asked


@pytest.fixture
def server() -> Iterator[Postgres]:
    """One that the test may stop without a trace in other tests."""
    with postgres() as running:
        yield running


@pytest.fixture
def proxy(postgres_server: Postgres) -> Iterator[TcpProxy]:
    with tcp_proxy(postgres_server.port) as running:
        yield running


def through(proxy: TcpProxy, server: Postgres, url: str) -> str:
    return url.replace(f":{server.port}/", f":{proxy.port}/")


def test_each_test_has_a_database_that_sorts_by_bytes(postgres_server: Postgres, database_url: str) -> None:
    with connect(database_url) as connection:
        connection.execute("CREATE TABLE t (name text)")
        connection.execute("INSERT INTO t VALUES ('a'), ('B'), ('ä')")
        names = [row[0] for row in connection.execute("SELECT name FROM t ORDER BY name")]
        assert names == ["B", "a", "ä"]
        shown = [connection.execute(f"SHOW {name}").fetchone() for name in ("fsync", "max_connections")]
        assert shown == [("on",), ("200",)]
    other = postgres_server.create_database()
    for url in (postgres_server.url(other), postgres_server.url(other, by_socket=True)):
        with pytest.raises(psycopg.errors.UndefinedTable):
            count(url)
    postgres_server.drop_database(other)


def test_a_crash_loses_what_was_not_committed_and_nothing_else(server: Postgres) -> None:
    url = server.url(server.create_database())
    first = connect(url)
    first.execute("CREATE TABLE t (id int)")
    first.execute("INSERT INTO t VALUES (1)")
    first.execute("BEGIN")
    first.execute("INSERT INTO t VALUES (2)")
    server.kill()
    with pytest.raises(psycopg.OperationalError):
        first.execute("COMMIT")
    first.close()
    with pytest.raises(psycopg.OperationalError):
        connect(url)
    server.start()
    assert count(url) == 1
    for immediately in (False, True):
        server.restart(immediately=immediately)
        assert count(url) == 1


def test_settings_are_given_to_the_server() -> None:
    with postgres({"fsync": "off", "max_connections": "20"}) as server, connect(server.url()) as connection:
        shown = [connection.execute(f"SHOW {name}").fetchone() for name in ("fsync", "max_connections")]
        assert shown == [("off",), ("20",)]


def test_a_paused_server_answers_nothing_and_goes_on(server: Postgres) -> None:
    with connect(server.url()) as connection:
        connection.execute("CREATE TABLE t (id int)")
        server.pause()
        try:
            with pytest.raises(psycopg.errors.ConnectionTimeout):
                psycopg.connect(server.url(), connect_timeout=2)
            asked = ask(connection)
            assert not asked.done()
        finally:
            server.resume()
        assert asked.result(PATIENCE_SECONDS) > 0
    assert count(server.url()) == 0


@pytest.mark.parametrize("mode", ["session", "transaction"])
def test_a_pooler_lends_connections_by_its_mode(postgres_server: Postgres, database_url: str, mode: Mode) -> None:
    database = database_url.rpartition("/")[2]
    with (
        pgbouncer(postgres_server, mode, size=1, more="query_wait_timeout = 1") as pooler,
        psycopg.connect(pooler.url(database)) as one,
    ):
        process = pid(one)
        one.commit()
        if mode == "transaction":
            # One connection to the server serves both, in turns.
            with psycopg.connect(pooler.url(database)) as two:
                assert pid(two) == process
        else:
            with pytest.raises(psycopg.OperationalError, match="query_wait_timeout"):
                psycopg.connect(pooler.url(database), connect_timeout=PATIENCE_SECONDS).execute("SELECT 1")


def test_a_promoted_standby_is_found_by_the_same_address(server: Postgres) -> None:
    database = server.create_database()
    with connect(server.url(database)) as connection:
        connection.execute("CREATE TABLE t (id int)")
    with standby(server) as other:
        both = url_of_both(server, other, database)
        with connect(both) as connection:
            assert connection.info.port == server.port
            connection.execute("INSERT INTO t VALUES (1)")
        with connect(other.url(database)) as connection, pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            connection.execute("INSERT INTO t VALUES (1)")
        until(lambda: count(other.url(database)) == 1, "the standby doesn't follow")
        server.kill()
        other.promote()
        with connect(both) as connection:
            assert connection.info.port == other.port
            connection.execute("INSERT INTO t VALUES (2)")
        assert count(both) == 2


def test_a_proxy_cuts_connections(postgres_server: Postgres, database_url: str, proxy: TcpProxy) -> None:
    url = through(proxy, postgres_server, database_url)
    connection = connect(url)
    pid(connection)
    proxy.cut()
    with pytest.raises(psycopg.OperationalError):
        connection.execute("SELECT 1")
    connection.close()
    proxy.refuse()
    with pytest.raises(psycopg.OperationalError):
        connect(url)
    proxy.go_on()
    with connect(url) as connection:
        pid(connection)
    assert proxy.opened == 3


def test_a_proxy_stalls_and_goes_on(postgres_server: Postgres, database_url: str, proxy: TcpProxy) -> None:
    url = through(proxy, postgres_server, database_url)
    with connect(url) as connection:
        pid(connection)
        proxy.stall()
        with pytest.raises(psycopg.errors.ConnectionTimeout):
            psycopg.connect(url, connect_timeout=2)
        asked = ask(connection)
        assert not asked.done()
        proxy.go_on()
        assert asked.result(PATIENCE_SECONDS) > 0
