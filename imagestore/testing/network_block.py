"""Keeps a test off the network: connections and look-ups outside loopback and the allowed hosts raise.

Unix sockets and loopback always work, since recorded registries live there. A host is allowed by name, by address, or
by a regular expression that matches one of them whole.
"""

from __future__ import annotations

import contextlib
import ipaddress
import re
import socket
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

from imagestore.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence


class NetworkBlockedError(RuntimeError):
    """A blocked test tried to reach a host."""

    def __init__(self, host: str) -> None:
        super().__init__(f"the network is blocked for this test: {host!r}; allow it with --tape-allowed-hosts")
        self.host = host


class _Policy:
    def __init__(self, allowed: Sequence[str]) -> None:
        self._allowed = [_pattern(text) for text in allowed]
        self._resolved: set[str] = set()

    def check(self, host: str) -> None:
        """Allow loopback, allowed hosts, and addresses to which an allowed host resolved.

        Raises:
            NetworkBlockedError: the host is none of these.
        """
        if not (_is_loopback(host) or host in self._resolved or any(one.fullmatch(host) for one in self._allowed)):
            raise NetworkBlockedError(host)

    def remember(self, addresses: Iterable[str]) -> None:
        """Allow the addresses to which an allowed name resolved."""
        self._resolved.update(addresses)


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
        InvalidInputError: an allowed host is not a regular expression.
        NetworkBlockedError: from inside, when code connects to or looks up another host.
    """
    policy = _Policy(allowed)
    with contextlib.ExitStack() as doors:
        for name, address_of in _SENDERS.items():
            guarded = _guarded_sender(policy, getattr(socket.socket, name), address_of)
            doors.enter_context(mock.patch.object(socket.socket, name, guarded))
        for name, addresses_of in _LOOK_UPS.items():
            doors.enter_context(mock.patch.object(socket, name, _guarded_look_up(policy, name, addresses_of)))
        yield


# The functions through which Python code reaches the network. Methods of sockets, with the place of the address ...
_SENDERS: Final[dict[str, Callable[[tuple[Any, ...]], Any]]] = {
    "connect": lambda arguments: arguments[0],
    "connect_ex": lambda arguments: arguments[0],
    "sendto": lambda arguments: arguments[-1],
    "sendmsg": lambda arguments: arguments[3] if len(arguments) > 3 else None,
}
# ... and functions that resolve names, with the addresses in their results.
_LOOK_UPS: Final[dict[str, Callable[[Any], list[str]]]] = {
    "getaddrinfo": lambda found: [str(one[4][0]) for one in found],
    "gethostbyname": lambda found: [found],
    "gethostbyname_ex": lambda found: found[2],
}


def _guarded_sender(policy: _Policy, send: Any, address_of: Callable[[tuple[Any, ...]], Any]) -> Any:
    def _guarded(self: socket.socket, *arguments: Any) -> Any:
        address = address_of(arguments) if arguments else None
        if isinstance(address, tuple):
            policy.check(str(address[0]))
        return send(self, *arguments)

    return _guarded


def _guarded_look_up(policy: _Policy, name: str, addresses_of: Callable[[Any], list[str]]) -> Any:
    look_up = getattr(socket, name)

    def _guarded(host: Any, *arguments: Any, **options: Any) -> Any:
        policy.check(host.decode() if isinstance(host, bytes) else str(host or ""))
        found = look_up(host, *arguments, **options)
        policy.remember(addresses_of(found))
        return found

    return _guarded
