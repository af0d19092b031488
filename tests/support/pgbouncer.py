"""PgBouncer, a pooler of connections, in front of a PostgreSQL server."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

import psycopg

from tests.support.postgres import USER, Postgres, free_port, make_folder, run_as_server

#: When a client's server connection goes to the next client: when it disconnects, or when a transaction has ended.
Mode = Literal["session", "transaction"]
_PATIENCE_SECONDS: Final = 30.0
_CONFIG: Final = """
[databases]
* = host=127.0.0.1 port={server}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = trust
auth_file = {folder}/users
pool_mode = {mode}
default_pool_size = {size}
max_client_conn = 500
{more}
"""


@dataclass(frozen=True)
class PgBouncer:
    """A running pooler; ``port`` is on 127.0.0.1."""

    port: int

    def url(self, database: str) -> str:
        """The address of a database through the pooler."""
        return f"postgresql://{USER}@127.0.0.1:{self.port}/{database}"


@contextlib.contextmanager
def pgbouncer(server: Postgres, mode: Mode, *, size: int = 20, more: str = "") -> Iterator[PgBouncer]:
    """Start a pooler.

    Args:
        server: it connects to.
        mode: of pooling.
        size: how many connections to the server it opens for one database.
        more: lines for its configuration.
    """
    folder, port = make_folder("pgbouncer-"), free_port()
    config = _CONFIG.format(server=server.port, port=port, folder=folder, mode=mode, size=size, more=more)
    (folder / "pgbouncer.ini").write_text(config)
    (folder / "users").write_text(f'"{USER}" ""\n')
    with open(folder / "log", "wb") as log:
        process = run_as_server(["pgbouncer", str(folder / "pgbouncer.ini")], folder, log.fileno())
    pooler = PgBouncer(port)
    try:
        end = time.monotonic() + _PATIENCE_SECONDS
        while True:
            said = (folder / "log").read_text()[-2000:]
            assert process.poll() is None, f"PgBouncer ended\n{said}"
            try:
                psycopg.connect(pooler.url("postgres"), connect_timeout=5).close()
            except psycopg.OperationalError as error:
                assert time.monotonic() < end, f"PgBouncer doesn't answer: {error}\n{said}"
                time.sleep(0.02)
            else:
                break
        yield pooler
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)
