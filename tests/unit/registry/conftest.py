"""What registry tests share: time that passes only on demand, a client over scripted answers, a raw loopback server."""

from __future__ import annotations

import contextlib
import datetime
import socket
import ssl
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import httpx
import pytest
import respx

from imagestore import CancelToken, TransferPolicy
from imagestore.errors import AuthenticationError
from imagestore.registry.auth.access import Access
from imagestore.registry.client import RegistryClient
from imagestore.registry.endpoints import default_endpoint
from imagestore.registry.retry import Timing
from imagestore.registry.transport.http import HttpSender
from imagestore.registry.transport.proxy import ProxyRules
from tests.unit.registry.scripted_server import Server
from tests.unit.registry.wire import HASTY, PATIENT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from httpx import Headers

    from imagestore import CredentialLookup
    from imagestore.events import Event
    from imagestore.registry.endpoints import Endpoint
    from imagestore.registry.transport.addresses import Origin
    from tests.unit.registry.scripted_server import Script, Serve


@dataclass
class FakeTime:
    """Time that passes only when somebody sleeps or says so."""

    seconds: float = 1000.0
    chance: float = 0.5
    slept: list[float] = field(default_factory=list)
    on_sleep: Callable[[CancelToken], None] = lambda cancel: None

    def timing(self) -> Timing:
        return Timing(lambda: self.seconds, self.now, lambda: self.chance, self.sleep)

    def now(self) -> datetime.datetime:
        return datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(seconds=self.seconds - 1000)

    def sleep(self, cancel: CancelToken, seconds: float) -> None:
        self.on_sleep(cancel)
        cancel.check()
        self.slept.append(seconds)
        self.seconds += seconds


@dataclass
class FakeAuthenticator:
    """Gives scripted header values and remembers what it was asked."""

    known: str = ""
    account: str = ""
    stored: str = ""
    answers: list[str] = field(default_factory=list)
    asked: list[tuple[str, str, tuple[str, ...]]] = field(default_factory=list)

    def authorization(self, origin: Origin, repository: str) -> str:
        return self.known

    def provenance(self, origin: Origin, repository: str) -> str:
        return self.account

    def forget(self, origin: Origin, repository: str, refused: str) -> None:
        if self.known == refused:
            self.known = ""

    def stored_login(self, origin: Origin, repository: str, *, cancel: CancelToken) -> str:
        return self.stored

    def respond(self, origin: Origin, repository: str, headers: Headers, *, cancel: CancelToken) -> str:
        self.asked.append((str(origin), repository, tuple(headers.get_list("WWW-Authenticate"))))
        if not self.answers:
            raise AuthenticationError("no credentials")
        self.known = self.answers.pop(0)
        return self.known


@dataclass
class Bench:
    """A client whose every answer is scripted, and what it did."""

    client: RegistryClient
    time: FakeTime
    events: list[Event]
    ledger: list[httpx.Request] = field(default_factory=list)
    cancel: CancelToken = field(default_factory=CancelToken)


@pytest.fixture
def make_bench() -> Callable[..., Bench]:
    """Build a bench over a transport."""

    def make(
        transport: httpx.BaseTransport | Callable[[httpx.Request], httpx.Response],
        *,
        endpoints: Callable[[str], tuple[Endpoint, ...]] | None = None,
        authenticators: Callable[[Endpoint], FakeAuthenticator] | None = None,
        policy: TransferPolicy | None = None,
    ) -> Bench:
        used = transport if isinstance(transport, httpx.BaseTransport) else httpx.MockTransport(transport)
        return _bench(HttpSender(transport=used, proxies=ProxyRules()), endpoints, authenticators, policy)

    return make


@dataclass
class FakeAccess:
    """An AccessProvider whose authenticators a test chose; they have their own credentials."""

    sender: HttpSender
    choose: Callable[[Endpoint], FakeAuthenticator]

    def __call__(self, endpoint: Endpoint) -> Access:
        return Access(self.sender.bound(endpoint.origin, endpoint.connection), self.choose(endpoint))

    def with_credentials(self, credentials: CredentialLookup) -> FakeAccess:
        raise AssertionError("no test of the bench changes credentials")


def _bench(
    sender: HttpSender,
    endpoints: Callable[[str], tuple[Endpoint, ...]] | None,
    authenticators: Callable[[Endpoint], FakeAuthenticator] | None,
    policy: TransferPolicy | None,
) -> Bench:
    time = FakeTime()
    events: list[Event] = []
    nobody = FakeAuthenticator()
    choose = authenticators or (lambda endpoint: nobody)
    client = RegistryClient(
        access=FakeAccess(sender, choose),
        endpoints=endpoints or (lambda host: (default_endpoint(host),)),
        policy=policy,
        observer=events.append,
        foreign_sender=sender.public_only(),
        timing=time.timing(),
    )
    return Bench(client, time, events)


@pytest.fixture
def router() -> respx.MockRouter:
    """Scripted answers by method and URL."""
    return respx.MockRouter(assert_all_called=False)


@pytest.fixture
def authenticator() -> FakeAuthenticator:
    """One without credentials, unless the test gives it some."""
    return FakeAuthenticator()


@dataclass
class RawServer:
    """A loopback server that writes exactly the bytes it is told, one script for each connection."""

    port: int
    scripts: list[Callable[[socket.socket], None]]
    requests: list[str] = field(default_factory=list)

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"


@pytest.fixture
def raw_server() -> Iterator[Callable[..., RawServer]]:
    """Start servers; each connection reads one request head, then runs the next script."""
    stop = threading.Event()
    with contextlib.ExitStack() as stack:

        def start(*scripts: Callable[[socket.socket], None]) -> RawServer:
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            server = RawServer(listener.getsockname()[1], list(scripts))
            thread = threading.Thread(target=_serve, args=(listener, server, stop))
            thread.start()
            stack.callback(thread.join)
            stack.callback(_wake, listener)
            stack.callback(stop.set)
            return server

        yield start


def _wake(listener: socket.socket) -> None:
    # accept() can't be ended from outside on every system; one more connection ends it.
    with contextlib.suppress(OSError), socket.create_connection(listener.getsockname(), timeout=60):
        pass


def _serve(listener: socket.socket, server: RawServer, stop: threading.Event) -> None:
    while not stop.is_set():
        connection, _ = listener.accept()
        with connection, contextlib.suppress(OSError):
            connection.settimeout(60)
            head = b""
            while b"\r\n\r\n" not in head:
                data = connection.recv(65536)
                if not data:
                    break
                head += data
            else:
                server.requests.append(head.decode("latin-1"))
                if server.scripts:
                    server.scripts.pop(0)(connection)


@pytest.fixture
def sender() -> Iterator[HttpSender]:
    """One for real sockets."""
    with contextlib.closing(HttpSender(proxies=ProxyRules(), timeouts=PATIENT)) as made:
        yield made


@pytest.fixture
def hasty() -> Iterator[HttpSender]:
    """One that soon gives up peers who never go on."""
    with contextlib.closing(HttpSender(proxies=ProxyRules(), timeouts=HASTY)) as made:
        yield made


@pytest.fixture
def proxy() -> Iterator[Server]:
    server = Server([])
    yield server
    server.stop()


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start servers of scripts, which end with the test."""
    with contextlib.ExitStack() as stack:

        def start(*scripts: Script, context: ssl.SSLContext | None = None) -> Server:
            server = Server(list(scripts), context)
            stack.callback(server.stop)
            return server

        yield start
