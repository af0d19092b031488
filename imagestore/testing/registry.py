"""A programmatic registry: images in, a server or a transport out.

    with RegistryServer({"registry.example/base:1": build_index(["linux/amd64"])}) as server:
        client.pull(f"{server.address}/base:1")
        assert server.ledger.count(kind="blob") == 3

The same object has ``transport`` for unit tests with httpx, without any socket.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from imagestore.errors import InvalidInputError
from imagestore.testing.assembled_engine import assemble
from imagestore.testing.engine.gate import BasicAuth, TokenAuth, canonical_host, make_gates
from imagestore.testing.engine.ledger import Ledger
from imagestore.testing.engine.rules import RegistryRules
from imagestore.testing.images.library import Library
from imagestore.testing.servers.loopback import LoopbackServer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from imagestore.testing.engine.engine import Shaper
    from imagestore.testing.faults.rule import FaultRule
    from imagestore.testing.images.builders import Image
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
