"""A programmatic registry: images in, a server or a transport out.

    with RegistryServer({"registry.example/base:1": build_index(["linux/amd64"])}) as server:
        client.pull(f"{server.address}/base:1")
        assert server.ledger.count(kind="blob") == 3

    with RegistryServer(writable=True) as server:
        client.push(f"{server.address}/base:1")
        assert server.ledger.pushes("base")

The same object has ``transport`` for unit tests with httpx, without any socket.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Self

from imagestore.errors import InvalidInputError
from imagestore.testing.engine.auth import BasicAuth, TokenAuth, make_gates
from imagestore.testing.engine.distribution import DistributionApi, Library, canonical_host
from imagestore.testing.engine.engine import Engine, FaultInjector, RequestHandler
from imagestore.testing.engine.ledger import Ledger
from imagestore.testing.engine.messages import error
from imagestore.testing.engine.writing import WritableApi, WriteRules
from imagestore.testing.faults.replies import ForeignRealm, redirect_target
from imagestore.testing.faults.rules import Effect, FaultPlan, FaultRule
from imagestore.testing.servers.authority import Authority
from imagestore.testing.servers.loopback import LoopbackServer
from imagestore.testing.servers.proxy import ProxyServer
from imagestore.testing.servers.transport import AsyncReplayTransport, ReplayTransport

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from imagestore.testing.builders.images import Image
    from imagestore.testing.engine.messages import Reply, Request, Responder

_NO_IMAGES: Final[Mapping[str, Image]] = MappingProxyType({})
# Where a registry without images is pushed to.
_WRITABLE_HOST: Final = "registry.example"


class RecordedRegistry:
    """What answers requests, and the ways to reach it: httpx transports, loopback servers, a proxy."""

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

    def serve(self, *hosts: str, tls: bool = False) -> LoopbackServer:
        """A loopback server for any client, by default for all ``hosts``; a context manager.

        ``tls`` serves HTTPS with a throw-away authority.

        Raises:
            ConfigError: TLS is wanted and the package trustme is missing.
        """
        return LoopbackServer(self.engine, hosts or self.hosts, authority=Authority() if tls else None)

    def proxy(self) -> ProxyServer:
        """An HTTP proxy for clients that use the logical names themselves; a context manager.

        Raises:
            ConfigError: the package trustme is missing.
        """
        return ProxyServer(self.engine, (), authority=Authority())


class Registry(RecordedRegistry):
    """A registry without a socket.

    Args:
        images: reference to image, or a library. Without any, a writable registry is ``registry.example``.
        auth: the same for every host, or per logical host of the images.
        faults: what goes wrong; see imagestore.testing.faults.
        storage_host: blobs are redirected to this logical host when set.
        writable: whether it takes pushes and deletions, or by which rules. What is pushed is in ``library``.

    Raises:
        InvalidInputError: ``auth`` names a host that has no images, or ``faults`` is no list of rules.
    """

    def __init__(
        self,
        images: Mapping[str, Image] | Library = _NO_IMAGES,
        *,
        auth: BasicAuth | TokenAuth | Mapping[str, BasicAuth | TokenAuth] | None = None,
        faults: Sequence[FaultRule | FaultInjector] = (),
        storage_host: str = "",
        writable: bool | WriteRules = False,
    ) -> None:
        hosts = (_WRITABLE_HOST,) if writable and not images else ()
        self.library = images if isinstance(images, Library) else Library(images, hosts=hosts)
        self.ledger = Ledger()
        content = DistributionApi(self.library, storage_host=storage_host).respond
        if writable:
            rules = writable if isinstance(writable, WriteRules) else WriteRules()
            content = WritableApi(self.library, rules, content).respond
        auths = dict.fromkeys(self.hosts, auth) if isinstance(auth, (BasicAuth, TokenAuth)) else auth or {}
        served = {canonical_host(host) for host in self.hosts}
        for host in auths:
            if canonical_host(host) not in served:
                known = ", ".join(self.hosts) or "none"
                raise InvalidInputError(f"auth for {host!r}: no image has this host; hosts with images: {known}")
        self._engine, _ = assemble(content, auths=auths, faults=faults, ledger=self.ledger)

    @property
    def engine(self) -> Engine:
        """What answers."""
        return self._engine

    @property
    def hosts(self) -> tuple[str, ...]:
        """Logical hosts of the images."""
        return self.library.hosts()


class RegistryServer(Registry):
    """A registry that listens on loopback while the block runs; with ``tls`` it speaks HTTPS. See Registry."""

    def __init__(
        self,
        images: Mapping[str, Image] | Library = _NO_IMAGES,
        *,
        auth: BasicAuth | TokenAuth | Mapping[str, BasicAuth | TokenAuth] | None = None,
        faults: Sequence[FaultRule | FaultInjector] = (),
        storage_host: str = "",
        writable: bool | WriteRules = False,
        tls: bool = False,
    ) -> None:
        super().__init__(images, auth=auth, faults=faults, storage_host=storage_host, writable=writable)
        self.server = self.serve(tls=tls)

    def __enter__(self) -> Self:
        self.server.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.close()

    @property
    def authority(self) -> Authority:
        """The certificate authority, for clients to trust; see LoopbackServer.authority."""
        return self.server.authority

    @property
    def url(self) -> str:
        """Base address of the first logical host; see LoopbackServer.url."""
        return self.server.url

    @property
    def address(self) -> str:
        """``127.0.0.1:<port>`` of the first logical host; see LoopbackServer.address."""
        return self.server.address

    def reference(self, text: str) -> str:
        """A reference with its logical host replaced by this server; see LoopbackServer.reference()."""
        return self.server.reference(text)


def assemble(
    content: Responder,
    *,
    auths: Mapping[str, BasicAuth | TokenAuth],
    faults: Sequence[FaultRule | FaultInjector],
    ledger: Ledger,
    recorded: Sequence[Responder] = (),
    open_content: Responder | None = None,
    explain: Callable[[Request], str] | None = None,
) -> tuple[Engine, FaultPlan]:
    """Make an engine of recorded answers, redirect targets, authentication, content and faults, in that order.

    Gives the engine, and the plan of its fault rules. Other injectors, such as chaos(seed), come after all rules.

    Args:
        content: answers by the registry's rules.
        recorded: answer before it.
        open_content: what redirects lead to, without credentials; ``content`` by default.
        auths, faults, ledger: as for Registry.
        explain: names the recorded requests nearest to an unexpected one.

    Raises:
        InvalidInputError: ``faults`` is no list, or something in it is neither rule nor injector.
    """
    if not isinstance(faults, Iterable):
        raise InvalidInputError(f"faults: expected a list of rules, found {type(faults).__name__}")
    given = tuple(faults)
    plan = FaultPlan([one for one in given if isinstance(one, FaultRule)])
    injectors = [plan, *(_injector(one) for one in given if not isinstance(one, FaultRule))]
    foreign_realms = {rule.what.realm_host for rule in plan.rules if isinstance(rule.what, ForeignRealm)}

    def _foreign_realm(request: Request) -> Reply | None:
        """The hosts that ForeignRealm names refuse; the ledger shows what they were sent."""
        if request.host not in foreign_realms:
            return None
        return error(403, "DENIED", "this is the foreign token service of a fault", kind="token")

    responders = [
        *recorded,
        lambda request: redirect_target(request, open_content or content),
        _foreign_realm,
        *make_gates(auths, content),
        content,
    ]
    return Engine(responders, injectors=injectors, explain=explain, ledger=ledger), plan


def _injector(given: FaultInjector | Effect) -> FaultInjector:
    """Refuse now what is neither rule nor injector: later it would break every connection, like a fault."""
    if isinstance(given, (Effect, type)) or not hasattr(given, "inject"):
        found = type(given).__name__
        hint = f"write FaultRule({found}(...))" if isinstance(given, Effect) else ""
        raise InvalidInputError(f"faults: expected rules, found {found}", hint=hint)
    return given
