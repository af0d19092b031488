"""A throw-away certificate authority (the ``trustme`` package), so that TLS can be tested without touching the
machine.
"""

from __future__ import annotations

import functools
import ssl
import threading
from typing import TYPE_CHECKING

from imagestore.errors import ConfigError, InvalidInputError
from imagestore.util.distribution import install_hint

if TYPE_CHECKING:
    import trustme


class Authority:
    """Makes certificates for logical hosts; lives as long as the object.

    Raises:
        ConfigError: the package trustme is missing.
    """

    def __init__(self) -> None:
        try:
            import trustme
        except ImportError as problem:
            raise ConfigError(
                "TLS listeners: the package trustme is not installed", hint=install_hint("testing")
            ) from problem
        self._authority: trustme.CA = trustme.CA()
        self._lock = threading.Lock()
        self._contexts: dict[str, ssl.SSLContext] = {}

    @functools.cached_property
    def pem(self) -> bytes:
        """The authority's certificate, for clients to trust."""
        return bytes(self._authority.cert_pem.bytes())

    def client_context(self) -> ssl.SSLContext:
        """A client context that trusts this authority and nothing else."""
        context = ssl.create_default_context(cadata=self.pem.decode())
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        return context

    def server_context(self, host: str) -> ssl.SSLContext:
        """A server context for a logical host; also good for 127.0.0.1 and localhost.

        Raises:
            InvalidInputError: no certificate can name this host.
        """
        with self._lock:
            if host not in self._contexts:
                name = host.rpartition(":")[0] or host
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                try:
                    certificate = self._authority.issue_cert(name, "localhost", "127.0.0.1")
                except ValueError as problem:  # what the library and its reader of names raise
                    raise InvalidInputError(f"host {name!r}: no certificate can name it: {problem}") from problem
                certificate.configure_cert(context)
                self._contexts[host] = context
            return self._contexts[host]
