"""Keeps a test off the network: connections and look-ups outside loopback and the allowed hosts raise.

Unix sockets and loopback always work, since recorded registries live there. A host is allowed by name, by address, or
by a regular expression that matches one of them whole.
"""

from __future__ import annotations

import contextlib
import ipaddress
import re
import socket
from typing import TYPE_CHECKING, Any
from unittest import mock

from imagestore.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class NetworkBlockedError(RuntimeError):
    """A blocked test tried to reach a host."""

    def __init__(self, host: str) -> None:
        super().__init__(f"the network is blocked for this test: {host!r}; allow it with --allowed-hosts")
        self.host = host


class _Policy:
    def __init__(self, allowed: Sequence[str]) -> None:
        self._allowed = [_pattern(text) for text in allowed]
        self._resolved: set[str] = set()

    def check(self, host: str) -> None:
        if not (_is_loopback(host) or host in self._resolved or any(one.fullmatch(host) for one in self._allowed)):
            raise NetworkBlockedError(host)

    def remember(self, answers: Sequence[Any]) -> None:
        """Addresses that an allowed name has are allowed too."""
        self._resolved |= {str(one[4][0]) for one in answers}


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as problem:
        raise InvalidInputError(
            f"allowed host {text!r}: expected a name, an address or a regular expression: {problem}"
        ) from problem


def _is_loopback(host: str) -> bool:
    if host in ("localhost", ""):
        return True
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False


@contextlib.contextmanager
def blocked_network(allowed: Sequence[str] = ()) -> Iterator[None]:
    """Block the network while the block runs, in all threads of the process.

    Args:
        allowed: host names, addresses, or regular expressions.

    Raises:
        InvalidInputError: an allowed host is no regular expression.
        NetworkBlockedError: from inside, when code connects to or looks up another host.
    """
    policy = _Policy(allowed)
    send, message = socket.socket.sendto, socket.socket.sendmsg
    by_name, by_name_list = socket.gethostbyname, socket.gethostbyname_ex
    connect, connect_ex, lookup = socket.socket.connect, socket.socket.connect_ex, socket.getaddrinfo

    def guarded_connect(self: socket.socket, address: Any) -> None:
        if isinstance(address, tuple):
            policy.check(str(address[0]))
        return connect(self, address)

    def guarded_connect_ex(self: socket.socket, address: Any) -> int:
        if isinstance(address, tuple):
            policy.check(str(address[0]))
        return connect_ex(self, address)

    def guarded_lookup(host: Any, *arguments: Any, **options: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else str(host or "")
        policy.check(name)
        answers = lookup(host, *arguments, **options)
        policy.remember(answers)
        return answers

    def guarded_send(self: socket.socket, data: Any, *arguments: Any) -> int:
        if arguments and isinstance(arguments[-1], tuple):
            policy.check(str(arguments[-1][0]))
        return send(self, data, *arguments)

    def guarded_message(
        self: socket.socket, buffers: Any, ancillary: Any = (), flags: int = 0, address: Any = None
    ) -> int:
        if isinstance(address, tuple):
            policy.check(str(address[0]))
        return message(self, buffers, ancillary, flags, address)

    def guarded_name(name: str) -> str:
        policy.check(name)
        found = by_name(name)
        policy.remember([(0, 0, 0, "", (found, 0))])
        return found

    def guarded_name_list(name: str) -> tuple[str, list[str], list[str]]:
        policy.check(name)
        found = by_name_list(name)
        policy.remember([(0, 0, 0, "", (address, 0)) for address in found[2]])
        return found

    # The doors through which Python code leaves the machine; put back in any case.
    with (
        mock.patch.object(socket.socket, "connect", guarded_connect),
        mock.patch.object(socket.socket, "connect_ex", guarded_connect_ex),
        mock.patch.object(socket.socket, "sendto", guarded_send),
        mock.patch.object(socket.socket, "sendmsg", guarded_message),
        mock.patch.object(socket, "getaddrinfo", guarded_lookup),
        mock.patch.object(socket, "gethostbyname", guarded_name),
        mock.patch.object(socket, "gethostbyname_ex", guarded_name_list),
    ):
        yield
