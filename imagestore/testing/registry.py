"""A programmatic registry: images in, a server or a transport out.

    with RegistryServer({"registry.example/base:1": build_index(["linux/amd64"])}) as server:
        client.pull(f"{server.address}/base:1")
        assert server.ledger.count(kind="blob") == 3

The same object has ``transport`` for unit tests with httpx, without any socket.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol, Self

from imagestore.errors import InvalidInputError
from imagestore.testing.engine.auth import BasicAuth, TokenAuth, canonical_host, make_gates
from imagestore.testing.engine.distribution import DistributionApi, Library
from imagestore.testing.engine.engine import Engine, Shaper
from imagestore.testing.engine.ledger import Ledger
from imagestore.testing.engine.messages import error
from imagestore.testing.faults.replies import ForeignRealm, redirect_target
from imagestore.testing.faults.rules import Effect, FaultPlan, FaultRule
from imagestore.testing.servers.authority import Authority
from imagestore.testing.servers.loopback import LoopbackServer
from imagestore.testing.servers.proxy import ProxyServer
from imagestore.testing.servers.transport import AsyncReplayTransport, ReplayTransport

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from imagestore.testing.builders.images import Image
    from imagestore.testing.engine.engine import RequestHandler
    from imagestore.testing.engine.messages import Reply, Request, Responder


class Reachable:
    """The ways to reach what answers requests: httpx transports, loopback servers, a proxy."""

    @property
    def engine(self) -> RequestHandler:
        """What answers."""
        raise NotImplementedError

    @property
    def hosts(self) -> tuple[str, ...]:
        """Logical hosts that serve() opens listeners for."""
        raise NotImplementedError

    @property
    def transport(self) -> ReplayTransport:
        """An httpx transport; logical host names are used as they are."""
        return ReplayTransport(self.engine)

    @property
    def async_transport(self) -> AsyncReplayTransport:
        """The same for httpx.AsyncClient."""
        return AsyncReplayTransport(self.engine)

    def serve(self, *hosts: str, is_tls: bool = False) -> LoopbackServer:
        """A loopback server for any client; a context manager.

        Args:
            hosts: logical hosts; ``hosts`` of this object by default.
            is_tls: HTTPS with a throw-away authority.

        Raises:
            ConfigError: TLS is wanted and the package trustme is missing.
        """
        return LoopbackServer(self.engine, hosts or self.hosts, authority=Authority() if is_tls else None)

    def proxy(self) -> ProxyServer:
        """An HTTP proxy for clients that use the logical names themselves; a context manager.

        Raises:
            ConfigError: the package trustme is missing.
        """
        return ProxyServer(self.engine, (), authority=Authority())


class Registry(Reachable):
    """A registry without a socket.

    Args:
        images: reference to image, or a library.
        auth: the same for every host, or per logical host of the images.
        faults: what goes wrong; see imagestore.testing.faults.
        storage_host: blobs are redirected to this logical host when set.

    Raises:
        InvalidInputError: ``auth`` names a host that has no images, which would never be asked for; or ``faults`` is no
            list of rules.
    """

    def __init__(
        self,
        images: Mapping[str, Image] | Library,
        *,
        auth: BasicAuth | TokenAuth | Mapping[str, BasicAuth | TokenAuth] | None = None,
        faults: Sequence[FaultRule | Shaper] = (),
        storage_host: str = "",
    ) -> None:
        self.library = images if isinstance(images, Library) else Library(images)
        self.ledger = Ledger()
        content = DistributionApi(self.library, storage_host=storage_host)
        auths = dict.fromkeys(self.hosts, auth) if isinstance(auth, (BasicAuth, TokenAuth)) else auth or {}
        served = {canonical_host(host) for host in self.hosts}
        for host in auths:
            if canonical_host(host) not in served:
                known = ", ".join(self.hosts) or "none"
                raise InvalidInputError(f"auth for {host!r}: no image has this host; hosts with images: {known}")
        self._engine, _ = assemble(content.respond, auths=auths, faults=faults, ledger=self.ledger)

    @property
    def engine(self) -> Engine:
        """What answers."""
        return self._engine

    @property
    def hosts(self) -> tuple[str, ...]:
        """Logical hosts of the images."""
        return self.library.hosts()


class RegistryServer(Registry):
    """A registry that listens on loopback while the block runs.

    Args:
        images, auth, faults, storage_host: as for Registry.
        is_tls: HTTPS with a throw-away authority.
    """

    def __init__(
        self,
        images: Mapping[str, Image] | Library,
        *,
        auth: BasicAuth | TokenAuth | Mapping[str, BasicAuth | TokenAuth] | None = None,
        faults: Sequence[FaultRule | Shaper] = (),
        storage_host: str = "",
        is_tls: bool = False,
    ) -> None:
        super().__init__(images, auth=auth, faults=faults, storage_host=storage_host)
        self.server = self.serve(is_tls=is_tls)

    def __enter__(self) -> Self:
        self.server.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.close()

    @property
    def authority(self) -> Authority:
        """The certificate authority, for clients to trust; see LoopbackServer.

        Raises:
            ConfigError: the server speaks plain HTTP.
        """
        return self.server.authority

    @property
    def url(self) -> str:
        """``http://127.0.0.1:<port>``, or ``https://…``, of the first logical host; see LoopbackServer.url.

        Raises:
            ConfigError: the server didn't listen yet, or no image has a host.
        """
        return self.server.url

    def reference(self, text: str) -> str:
        """A reference with its logical host replaced by this server; see LoopbackServer.reference()."""
        return self.server.reference(text)

    @property
    def address(self) -> str:
        """``127.0.0.1:<port>`` of the first logical host; still readable after the server's block.

        Raises:
            ConfigError: the server didn't listen yet, or no image has a host.
        """
        return self.server.address


class Recorded(Protocol):
    """Recorded answers."""

    def respond(self, request: Request) -> Reply | None:
        """The recorded answer, or None."""

    def respond_open(self, request: Request) -> Reply | None:
        """The recorded content whatever credential it needed; None when there is none."""

    def explain(self, request: Request) -> str:
        """The nearest recorded requests, as text."""


def assemble(
    content: Responder,
    *,
    auths: Mapping[str, BasicAuth | TokenAuth],
    exchanges: Recorded | None = None,
    faults: Sequence[FaultRule | Shaper] = (),
    ledger: Ledger,
) -> tuple[Engine, FaultPlan]:
    """Make an engine of recorded exchanges, redirect targets, authentication, content and faults, in that order.

    Gives the engine, and the plan of its fault rules. Other shapers, such as chaos(seed), come after all rules.

    Raises:
        InvalidInputError: ``faults`` is no list, or something in it is neither rule nor shaper.
    """
    if not isinstance(faults, Iterable):
        raise InvalidInputError(f"faults: expected a list of rules, found {type(faults).__name__}")
    given = tuple(faults)
    plan = FaultPlan([one for one in given if isinstance(one, FaultRule)])
    shapers = [plan, *(_shaper(one) for one in given if not isinstance(one, FaultRule))]
    foreign_realms = {rule.what.realm_host for rule in plan.rules if isinstance(rule.what, ForeignRealm)}

    def open_content(request: Request) -> Reply | None:
        """Content without credentials, for what redirects lead to."""
        return (exchanges.respond_open(request) if exchanges is not None else None) or content(request)

    def foreign_realm(request: Request) -> Reply | None:
        """The hosts that ForeignRealm names refuse; the ledger shows what they were sent."""
        if request.host not in foreign_realms:
            return None
        return error(403, "DENIED", "this is the foreign token service of a fault", kind="token")

    responders = [
        *([exchanges.respond] if exchanges is not None else []),
        lambda request: redirect_target(request, open_content),
        foreign_realm,
        *make_gates(auths, content),
        content,
    ]
    explain = exchanges.explain if exchanges is not None else None
    return Engine(responders, shapers=shapers, explain=explain, ledger=ledger), plan


def _shaper(given: Shaper | Effect) -> Shaper:
    """Refuse now what is neither rule nor shaper: asked for an answer, it would break every connection like a fault."""
    if isinstance(given, (Effect, type)) or not hasattr(given, "shape"):
        found = type(given).__name__
        hint = f"write FaultRule({found}(...))" if isinstance(given, Effect) else ""
        raise InvalidInputError(f"faults: expected rules, found {found}", hint=hint)
    return given
