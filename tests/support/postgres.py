"""A PostgreSQL server of Debian's package, on loopback and on a unix socket."""

from __future__ import annotations

import contextlib
import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psycopg
from psycopg import sql

#: The server's superuser. It needs no password.
USER: Final = "imagestore"
_PATIENCE_SECONDS: Final = 60.0
_SETTINGS: Final = {
    "listen_addresses": "'127.0.0.1'",
    "max_connections": "200",
    # A test's server is small, and many run at a time.
    "shared_buffers": "'32MB'",
    "autovacuum_naptime": "'5s'",
}


@dataclass
class Postgres:
    """A server and its folder; it runs from :meth:`start` to :meth:`stop`, :meth:`kill` or :meth:`close`.

    Attributes:
        folder: holds the data, the socket and the log.
        port: on 127.0.0.1; the same after each start.
        settings: of postgresql.conf, in its syntax.
    """

    folder: Path
    port: int
    settings: Mapping[str, str] = field(default_factory=dict)
    _process: subprocess.Popen[bytes] | None = None
    _databases: int = 0

    @property
    def data(self) -> Path:
        """The folder that initdb or pg_basebackup makes."""
        return self.folder / "data"

    @property
    def socket_folder(self) -> Path:
        """Where the unix socket is, as ``host`` of a connection."""
        return self.folder / "s"

    def url(self, database: str = "postgres", *, by_socket: bool = False) -> str:
        """The address of a database, for psycopg."""
        if by_socket:
            return f"postgresql://{USER}@/{database}?host={self.socket_folder}&port={self.port}"
        return f"postgresql://{USER}@127.0.0.1:{self.port}/{database}"

    def create_database(self) -> str:
        """Create an empty database; its name."""
        self._databases += 1
        name = f"test_{self._databases}"
        self.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        return name

    def drop_database(self, name: str) -> None:
        """Drop a database, and close its connections."""
        self.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))

    def execute(self, statement: sql.Composed | sql.SQL) -> None:
        """Run one statement in the database ``postgres``."""
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(statement)

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        assert self._process is None, "it runs already"
        settings = {**_SETTINGS, "port": str(self.port), "unix_socket_directories": f"'{self.socket_folder}'"}
        options = [f"--{name}={value.strip(chr(39))}" for name, value in {**settings, **self.settings}.items()]
        with open(self.folder / "log", "ab") as log:
            self._process = run_as_server(["postgres", "-D", str(self.data), *options], self.folder, log.fileno())
        self._wait_until_ready()

    def stop(self) -> None:
        """Stop the server in order: its clients are disconnected, and a checkpoint is written."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """Stop the server as a crash would: nothing is written, and the next start recovers from the log (WAL)."""
        self._end(signal.SIGQUIT)

    def restart(self, *, immediately: bool = False) -> None:
        """Stop the server and start it again.

        Args:
            immediately: by :meth:`kill`, not by :meth:`stop`.
        """
        self._end(signal.SIGQUIT if immediately else signal.SIGINT)
        self.start()

    def pause(self) -> None:
        """Suspend all processes of the server: connections stay open, and nothing is answered."""
        assert self._process is not None, "it doesn't run"
        # Its first process starts the others, so it is stopped before they are listed.
        os.kill(self._process.pid, signal.SIGSTOP)
        self._signal_children(signal.SIGSTOP)

    def resume(self) -> None:
        """Go on after :meth:`pause`."""
        assert self._process is not None, "it doesn't run"
        self._signal_children(signal.SIGCONT)
        os.kill(self._process.pid, signal.SIGCONT)

    def promote(self) -> None:
        """Make a standby the primary, and wait until it accepts writes."""
        run_tool("pg_ctl", "-D", str(self.data), "-w", "promote", folder=self.folder)

    def close(self) -> None:
        """End the server and delete its folder."""
        if self._process is not None:
            self.resume()
            self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _end(self, number: signal.Signals) -> None:
        assert self._process is not None, "it doesn't run"
        self._process.send_signal(number)
        self._process.wait(_PATIENCE_SECONDS)
        self._process = None

    def _signal_children(self, number: signal.Signals) -> None:
        assert self._process is not None
        for child in children_of(self._process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, number)

    def _wait_until_ready(self) -> None:
        assert self._process is not None
        end = time.monotonic() + _PATIENCE_SECONDS
        while True:
            log = (self.folder / "log").read_text()[-2000:]
            assert self._process.poll() is None, f"PostgreSQL ended\n{log}"
            try:
                psycopg.connect(self.url(), connect_timeout=5).close()
            except psycopg.OperationalError as error:
                assert time.monotonic() < end, f"PostgreSQL doesn't answer: {error}\n{log}"
                time.sleep(0.02)
            else:
                return


@contextlib.contextmanager
def postgres(settings: Mapping[str, str] | None = None) -> Iterator[Postgres]:
    """Make an empty server and start it.

    Args:
        settings: of postgresql.conf, such as ``{"fsync": "off"}``; they win over those that the server has here.
    """
    server = Postgres(make_folder("postgres-"), free_port(), settings or {})
    try:
        run_tool(
            *("initdb", "-D", str(server.data), "-U", USER, "-A", "trust"),
            *("--no-sync", "-E", "UTF8", "--no-locale"),
            folder=server.folder,
        )
        server.start()
        yield server
    finally:
        server.close()


@contextlib.contextmanager
def standby(primary: Postgres) -> Iterator[Postgres]:
    """Copy a running server, and start the copy as its standby: it follows by streaming, and is read only."""
    copy = Postgres(make_folder("standby-"), free_port(), primary.settings)
    try:
        run_tool(
            *("pg_basebackup", "-D", str(copy.data), "-d", primary.url(), "-R", "-X", "stream"),
            *("--checkpoint=fast", "--no-sync"),
            folder=copy.folder,
        )
        copy.start()
        yield copy
    finally:
        copy.close()


def url_of_both(one: Postgres, other: Postgres, database: str) -> str:
    """An address with two hosts: the client takes the one that accepts writes."""
    hosts = f"127.0.0.1:{one.port},127.0.0.1:{other.port}"
    return f"postgresql://{USER}@{hosts}/{database}?target_session_attrs=read-write"


def make_folder(prefix: str) -> Path:
    """A folder of the account that servers run as."""
    # In /tmp: that account may not enter pytest's folders, and a socket's path has at most 107 bytes.
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir="/tmp"))
    (folder / "s").mkdir()
    if account := server_account():
        for path in (folder, folder / "s"):
            shutil.chown(path, account, pwd.getpwnam(account).pw_gid)
    return folder


def server_account() -> str | None:
    """The account that servers run as; None for the own one. PostgreSQL and PgBouncer refuse to run as root."""
    if os.geteuid() != 0:
        return None
    known = {each.pw_name for each in pwd.getpwall()}
    return next(name for name in ("postgres", "nobody") if name in known)


def run_as_server(command: Sequence[str], folder: Path, log: int) -> subprocess.Popen[bytes]:
    """Start a program in the foreground, under the account of servers.

    Args:
        command: the program, by its name or path, and its arguments.
        folder: its working directory.
        log: a file descriptor, for what it writes.
    """
    account = server_account()
    return subprocess.Popen(
        [find_program(command[0]), *command[1:]],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        cwd=folder,
        env={"PATH": os.environ["PATH"], "LC_ALL": "C", "HOME": str(folder)},
        user=account,
        group=None if account is None else pwd.getpwnam(account).pw_gid,
        extra_groups=None if account is None else [],
    )


def run_tool(*command: str, folder: Path) -> None:
    """Run one of PostgreSQL's tools to its end, under the account of servers."""
    with tempfile.TemporaryFile() as output:
        process = run_as_server(command, folder, output.fileno())
        status = process.wait(_PATIENCE_SECONDS)
        output.seek(0)
        assert status == 0, f"{' '.join(command)}\n{output.read()[-2000:].decode()}"


def find_program(name: str) -> str:
    """The path of a program; of PostgreSQL's, which Debian keeps out of PATH, those of the newest version."""
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name), reverse=True)
    places = os.pathsep.join([*map(str, versions), os.environ["PATH"], "/usr/sbin"])
    path = shutil.which(name, path=places)
    assert path is not None, f"{name} is not installed; run tests/integration/install-peers"
    return path


def children_of(parent: int) -> list[int]:
    """The processes that a process has started and that still run."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # A name in parentheses, which may hold anything; then the state and the parent.
            if int(path.read_text().rpartition(")")[2].split()[1]) == parent:
                found.append(int(path.parent.name))
    return found


def free_port() -> int:
    """A free port on loopback, below those that the kernel gives to clients: a restarted server finds it free."""
    for port in random.Random().sample(range(15000, 32000), 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no free port")
