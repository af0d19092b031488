"""A programmatic registry: images in, a server or a transport out.

    with RegistryServer({"registry.example/base:1": build_index(["linux/amd64"])}) as server:
        client.pull(f"{server.address}/base:1")
        assert server.ledger.count(kind="blob") == 3

The same object has ``transport`` for unit tests with httpx, without any socket.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, Self

from imagestore.errors import InvalidInputError
from imagestore.testing.engine.auth import BasicAuth, TokenAuth, canonical_host, make_gates
from imagestore.testing.engine.distribution import Library, RegistryRules, Responder
from imagestore.testing.engine.engine import Engine, Explainer, Shaper
from imagestore.testing.engine.ledger import Ledger
from imagestore.testing.engine.messages import error
from imagestore.testing.faults.effect import Effect
from imagestore.testing.faults.replies import ForeignRealm, RedirectTargets
from imagestore.testing.faults.rules import FaultPlan, FaultRule
from imagestore.testing.servers.loopback import LoopbackServer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from imagestore.testing.builders.images import Image
    from imagestore.testing.engine.messages import Reply, Request
    from imagestore.testing.servers.authority import Authority
    from imagestore.testing.servers.transport import AsyncReplayTransport, ReplayTransport


class Registry:
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
        rules = RegistryRules(self.library, storage_host=storage_host)
        self.hosts = self.library.hosts()
        guards = (
            auth if auth is None or not isinstance(auth, (BasicAuth, TokenAuth)) else dict.fromkeys(self.hosts, auth)
        )
        served = {canonical_host(host) for host in self.hosts}
        for host in guards or {}:
            if canonical_host(host) not in served:
                known = ", ".join(self.hosts) or "none"
                raise InvalidInputError(f"auth for {host!r}: no image has this host; hosts with images: {known}")
        self._assembly = assemble(rules, gates=make_gates(guards or {}, rules), faults=faults, ledger=self.ledger)
        self.engine = self._assembly.engine

    @property
    def transport(self) -> ReplayTransport:
        """An httpx transport; logical host names are used as they are."""
        from imagestore.testing.servers.transport import ReplayTransport

        return ReplayTransport(self.engine)

    @property
    def async_transport(self) -> AsyncReplayTransport:
        """The same for httpx.AsyncClient."""
        from imagestore.testing.servers.transport import AsyncReplayTransport

        return AsyncReplayTransport(self.engine)

    def serve(self, *, is_tls: bool = False) -> LoopbackServer:
        """A loopback server for any client; a context manager."""
        from imagestore.testing.servers.authority import Authority

        return LoopbackServer(self.engine, self.hosts, authority=Authority() if is_tls else None)


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
        """Who issues the certificates, for clients to trust; see LoopbackServer.

        Raises:
            ConfigError: the server speaks plain HTTP.
        """
        return self.server.authority

    @property
    def address(self) -> str:
        """``127.0.0.1:<port>`` of the first logical host; where it was, after the server's block.

        Raises:
            ConfigError: the server didn't listen yet, or no image has a host.
        """
        return self.server.address


@dataclass(frozen=True, slots=True)
class Assembly:
    """An engine, and the fault plan inside it."""

    engine: Engine
    plan: FaultPlan


class Recorded(Responder, Explainer, Protocol):
    """Recorded answers."""

    def respond_open(self, request: Request) -> Reply | None:
        """The recorded content whatever credential it needed; None when there is none."""


class _Open:
    """Content without credentials, for what redirects lead to."""

    def __init__(self, rules: Responder, exchanges: Recorded | None) -> None:
        self._rules = rules
        self._exchanges = exchanges

    def respond(self, request: Request) -> Reply | None:
        recorded = self._exchanges.respond_open(request) if self._exchanges is not None else None
        return recorded or self._rules.respond(request)


class _Collectors:
    """The hosts that ForeignRealm names: they refuse, and the ledger shows what they were sent."""

    def __init__(self, rules: Sequence[FaultRule]) -> None:
        self._hosts = {rule.what.realm_host for rule in rules if isinstance(rule.what, ForeignRealm)}

    def respond(self, request: Request) -> Reply | None:
        if request.host not in self._hosts:
            return None
        return error(403, "DENIED", "this is the foreign token service of a fault", kind="token")


def assemble(
    rules: Responder,
    *,
    gates: Sequence[Responder] = (),
    exchanges: Recorded | None = None,
    faults: Sequence[FaultRule | Shaper] = (),
    ledger: Ledger | None = None,
) -> Assembly:
    """Make an engine.

    Args:
        rules: answers what nothing else does.
        gates: authentication in front of the rules.
        exchanges: recorded answers; they come first.
        faults: rules, and other shapers such as chaos(seed), which come after all rules.
        ledger: where requests are noted.

    Raises:
        InvalidInputError: ``faults`` is no list, or something in it is neither.
    """
    if not isinstance(faults, Iterable):
        raise InvalidInputError(f"faults: expected a list of rules, found {type(faults).__name__}")
    given = tuple(faults)
    fault_rules = [one for one in given if isinstance(one, FaultRule)]
    others = [_shaper(one) for one in given if not isinstance(one, FaultRule)]
    plan = FaultPlan(fault_rules)
    shapers = [plan, *others]
    recorded: list[Responder] = [exchanges] if exchanges is not None else []
    responders = [*recorded, RedirectTargets(_Open(rules, exchanges)), _Collectors(fault_rules), *gates, rules]
    return Assembly(Engine(responders, shapers=shapers, explainer=exchanges, ledger=ledger), plan)


def _shaper(given: Shaper | Effect) -> Shaper:
    """What is no rule; asked for an answer, anything else would break every connection, as if faults did."""
    if isinstance(given, (Effect, type)) or not hasattr(given, "shape"):
        found = type(given).__name__
        hint = f"write FaultRule({found}(...))" if isinstance(given, Effect) else ""
        raise InvalidInputError(f"faults: expected rules, found {found}", hint=hint)
    return given
