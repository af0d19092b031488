"""The proxy: any client, under logical host names, without changes to its configuration.

If a client honours HTTPS_PROXY and a file of trusted certificates, its requests to ``https://registry.example/...``
reach the engine: this process answers CONNECT with a certificate of the throw-away authority for the requested host.
Plain http comes with absolute addresses. environment() has the variables that common clients read.
"""

from __future__ import annotations

import os
import re
import socket
import tempfile
from typing import TYPE_CHECKING, Final, Self

from imagestore.errors import InvalidInputError
from imagestore.testing.servers.http1 import Incoming, WireError
from imagestore.testing.servers.loopback import Listener, LoopbackServer

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping, Sequence

    from imagestore.testing.engine.engine import RequestHandler
    from imagestore.testing.servers.authority import Authority

_CONNECT: Final = re.compile(r"([A-Za-z0-9.-]{1,253}):([0-9]{1,5})")
_ABSOLUTE: Final = re.compile(r"http://([A-Za-z0-9.:\[\]-]{1,260})(/[!-~]*)?")
# Name under which the proxy's own listener is kept; no logical host is called so.
_PROXY: Final = "proxy"
#: Variables that name a file of trusted certificates: Go and OpenSSL, requests, curl, Node, and git.
_CERTIFICATE_VARIABLES: Final = (
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "NODE_EXTRA_CA_CERTS",
    "GIT_SSL_CAINFO",
)


class ProxyServer(LoopbackServer):
    """A loopback server that is also an HTTP proxy; use it as a context manager.

    Args:
        engine, ports: as for LoopbackServer.
        hosts: logical hosts that also get a listener of their own (may be empty).
        authority: makes the certificates.
        tls: these listeners have certificates too; else they speak plain HTTP.
    """

    def __init__(
        self,
        engine: RequestHandler,
        hosts: Sequence[str],
        *,
        authority: Authority,
        ports: Mapping[str, int] | None = None,
        tls: bool = False,
    ) -> None:
        super().__init__(engine, (_PROXY, *hosts), authority=authority if tls else None, ports=ports)
        self._proxy_authority = authority
        self._bundle = ""

    def __enter__(self) -> Self:
        """Listen, and write the authority's certificate to a file of its own.

        Raises:
            ConfigError: a fixed port can't be had; nothing listens then.
        """
        super().__enter__()
        try:
            handle, self._bundle = tempfile.mkstemp(prefix="imagestore-authority-", suffix=".pem")
            with os.fdopen(handle, "wb") as file:
                file.write(self._proxy_authority.pem)
        except BaseException:
            self.close()
            raise
        return self

    @property
    def proxy_url(self) -> str:
        """What HTTPS_PROXY should be.

        Raises:
            ConfigError: the proxy doesn't listen.
        """
        return f"http://{self.address}"

    def environment(self) -> dict[str, str]:
        """Variables that make a child process use this proxy and trust its authority."""
        names = ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy")
        variables = dict.fromkeys(names, self.proxy_url) | dict.fromkeys(_CERTIFICATE_VARIABLES, self._bundle)
        # Plain listeners are on loopback, and a client pointed at one must not use the proxy for it.
        return variables | dict.fromkeys(("NO_PROXY", "no_proxy"), "localhost,127.0.0.1,::1")

    @property
    def authority(self) -> Authority:
        """Issues the certificates, inside the proxy's tunnels too; environment() makes child processes trust it."""
        return self._proxy_authority

    def _context(self, host: str) -> ssl.SSLContext | None:
        return super()._context(host) if host != _PROXY else None

    def close(self) -> None:
        """Stop, and delete the authority's file."""
        super().close()
        if self._bundle and os.path.exists(self._bundle):
            os.unlink(self._bundle)

    def _exchange(self, connection: socket.socket, listener: Listener, incoming: Incoming) -> bool:
        if listener.host != _PROXY:
            return super()._exchange(connection, listener, incoming)
        if incoming.method == "CONNECT":
            self._tunnel(connection, incoming.target)
            return False
        found = _ABSOLUTE.fullmatch(incoming.target)
        if found is None:
            self._refuse(connection, WireError("this is a proxy: expected CONNECT or an absolute address"))
            return False
        request = incoming.to_request("http", found[1].lower().removesuffix(":80"), found[2] or "/")
        return self._answer(connection, request, is_local=False)

    def _tunnel(self, connection: socket.socket, target: str) -> None:
        found = _CONNECT.fullmatch(target)
        if found is None:
            self._refuse(connection, WireError("CONNECT needs host:port"))
            return
        host = found[1].lower() if found[2] == "443" else target.lower()
        try:
            context = self._proxy_authority.server_context(host)
        except InvalidInputError as problem:
            self._refuse(connection, WireError(str(problem)))
            return
        connection.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
        self._talk_tls(connection, Listener("https", host, context, address=target), context, self._inside)

    def _inside(self, connection: socket.socket, listener: Listener, incoming: Incoming) -> bool:
        return self._answer(connection, incoming.to_request("https", listener.host), is_local=False)
