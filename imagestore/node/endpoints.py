"""Endpoints of container runtimes in configuration files, as the kubelet writes and checks them.

Rules: ``unix:///path``; a bare path is deprecated and taken as unix; ``npipe://`` is for Windows; ``tcp://`` can be
written but no client dials it; any other scheme is an error. What a client dials is `imagestore.cri.endpoint`'s.
"""

from __future__ import annotations

from dataclasses import dataclass

from imagestore.cri import endpoint as sockets
from imagestore.errors import ConfigError, InvalidInputError


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A parsed endpoint.

    Attributes:
        scheme: ``unix``, ``tcp`` or ``npipe``.
        address: path of the socket, host and port, or the pipe.
    """

    scheme: str
    address: str

    @property
    def url(self) -> str:
        """With its scheme."""
        return f"{self.scheme}://{self.address}"

    def socket_path(self) -> str:
        """Path of the unix socket to dial.

        Raises:
            ConfigError: it is none, or longer than the system allows.
        """
        if self.scheme != "unix":
            raise ConfigError(f"endpoint {self.url[:200]!r}: only support unix socket endpoint")
        try:
            return sockets.Endpoint.parse(self.url).path
        except InvalidInputError as error:
            raise ConfigError(str(error), hint=error.hint) from error


def parse_endpoint(text: str) -> Endpoint:
    """Read an endpoint.

    Raises:
        ConfigError: it has blanks, no address, or an unknown scheme.
    """
    shown = repr(text[:200])
    if not text or any(character.isspace() or not character.isprintable() for character in text):
        raise ConfigError(f"endpoint {shown}: expected for example {'unix:///run/containerd/containerd.sock'!r}")
    scheme, address = sockets.split_scheme(text)
    if scheme not in ("", "unix", "tcp", "npipe"):
        raise ConfigError(f'endpoint {shown}: protocol "{scheme}" not supported', hint="use unix://")
    if not address or (scheme in ("", "unix") and not address.startswith("/")):
        raise ConfigError(f"endpoint {shown}: expected an absolute path{f' behind {scheme}://' if scheme else ''}")
    return Endpoint(scheme or "unix", address)
