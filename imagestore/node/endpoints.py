"""Endpoints of container runtimes, as the kubelet writes and checks them.

Rules: ``unix:///path``; a bare path is deprecated and taken as unix; ``npipe://`` is for Windows; ``tcp://`` can be
written but no CRI client dials it; any other scheme is an error.
"""

from __future__ import annotations

import re
from typing import Final

from imagestore.errors import ConfigError
from imagestore.values import dataclass

_SCHEME: Final = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*)://(.*)", re.DOTALL)
# sun_path of Linux, with its final zero.
_MAX_SOCKET_PATH: Final = 107


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A parsed endpoint.

    Attributes:
        scheme: ``unix``, ``tcp`` or ``npipe``.
        address: path of the socket, host and port, or the pipe.
        is_bare: the scheme was not written.
    """

    scheme: str
    address: str
    is_bare: bool = False

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
        if len(self.address.encode()) > _MAX_SOCKET_PATH:
            raise ConfigError(
                f"endpoint {self.url[:200]!r}: path is longer than the {_MAX_SOCKET_PATH} bytes a socket may have"
            )
        return self.address


def parse_endpoint(text: str) -> Endpoint:
    """Read an endpoint.

    Raises:
        ConfigError: it has blanks, no address, or an unknown scheme.
    """
    shown = repr(text[:200])
    if not text or any(character.isspace() or not character.isprintable() for character in text):
        raise ConfigError(f"endpoint {shown}: expected for example {'unix:///run/containerd/containerd.sock'!r}")
    found = _SCHEME.fullmatch(text)
    if found is None:
        if not text.startswith("/"):
            raise ConfigError(f"endpoint {shown}: expected unix:// and an absolute path")
        return Endpoint("unix", text, is_bare=True)
    scheme, address = found[1].lower(), found[2]
    if scheme not in ("unix", "tcp", "npipe"):
        raise ConfigError(f'endpoint {shown}: protocol "{scheme}" not supported', hint="use unix://")
    if not address or (scheme == "unix" and not address.startswith("/")):
        raise ConfigError(f"endpoint {shown}: expected an absolute path behind {scheme}://")
    return Endpoint(scheme, address)
