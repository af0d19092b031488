"""Origins, and which network addresses a server may name.

A registry names addresses in redirects, token realms, ``Link`` headers and layer URLs. If the client followed all of
them, a hostile registry could reach hosts that only this machine can reach (SSRF: CVE-2026-33540, GHSA-28r5-37g7-p6mp).
So an address named by a *public* registry must itself be public. It is checked after name resolution: a name may
resolve to any address, and to another one a moment later.
"""

from __future__ import annotations

import functools
import ipaddress
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    Address = ipaddress.IPv4Address | ipaddress.IPv6Address

PRIVATE_HINT: Final = "a public registry may not send its clients to private addresses"
_ENDS_IN_NUMBER: Final = re.compile(r"(?:.*\.)?(?:[0-9]+|0x[0-9a-f]*)", re.IGNORECASE)
_PORT: Final = re.compile(r":[0-9]*\Z")
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
# Reserved for local use, protocols and examples, and not covered by is_global on every supported Python.
_LOCAL_NETWORKS: Final[tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]] = (
    *map(ipaddress.IPv4Network, ("100.64.0.0/10", "192.0.0.0/24", "192.88.99.0/24")),
    *map(ipaddress.IPv6Network, ("64:ff9b:1::/48", "2001::/23", "3fff::/20", "fec0::/10")),
)


@dataclass(frozen=True, slots=True)
class Origin:
    """Scheme, host and port: what a secret is bound to (RFC 6454).

    >>> str(Origin("https", "registry.example", 443))
    'https://registry.example'
    """

    scheme: str
    host: str
    port: int

    def __str__(self) -> str:
        shown = f"[{self.host}]" if ":" in self.host else self.host
        default = {"https": 443, "http": 80}.get(self.scheme)
        return f"{self.scheme}://{shown}" + ("" if self.port == default else f":{self.port}")


@functools.lru_cache(maxsize=256)
def parse(host: str) -> Address | None:
    """An address literal, with or without brackets; None for a name, and for an address with a zone.

    >>> parse("[::1]"), parse("registry.example")
    (IPv6Address('::1'), None)
    """
    text = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    try:
        return None if "%" in text else ipaddress.ip_address(text)
    except ValueError:
        return None


@functools.lru_cache(maxsize=256)
def is_public(address: Address) -> bool:
    """Whether an address belongs to the public internet; IPv4 inside IPv6 forms counts as the IPv4 it reaches.

    >>> is_public(ipaddress.ip_address("::ffff:127.0.0.1"))
    False
    """
    embedded = _embedded(address)
    if embedded is not None:
        return all(is_public(inner) for inner in embedded)
    if any(address in network for network in _LOCAL_NETWORKS if network.version == address.version):
        return False
    return address.is_global and not (address.is_multicast or address.is_reserved)


def _embedded(address: Address) -> tuple[ipaddress.IPv4Address, ...] | None:
    if isinstance(address, ipaddress.IPv4Address):
        return None
    if address.ipv4_mapped is not None:
        return (address.ipv4_mapped,)
    if address.sixtofour is not None:
        return (address.sixtofour,)
    if address.teredo is not None:
        return address.teredo
    if address in _NAT64:
        return (ipaddress.IPv4Address(int(address) & 0xFFFFFFFF),)
    return None


def machine(host: str) -> str:
    """The machine that a host with or without a port means, for limits: all ports and spellings of an address are one.

    >>> machine("Registry.example:5000"), machine("127.0.0.1:5000"), machine("[0::1]:5000")
    ('registry.example', '127.0.0.1', '::1')
    """
    address = parse(host) or parse(_PORT.sub("", host))
    if address is None:
        return _PORT.sub("", host).lower().removesuffix(".")
    return str(getattr(address, "ipv4_mapped", None) or address)


def is_loopback_name(host: str) -> bool:
    """Whether a host is literally this machine: ``localhost``, 127.0.0.0/8 (also as IPv4 inside IPv6) or ::1.

    Nothing is resolved.

    >>> is_loopback_name("127.9.9.9"), is_loopback_name("localhost.example")
    (True, False)
    """
    if host.lower() == "localhost":
        return True
    address = parse(host)
    # Python before 3.13 doesn't look at IPv4 inside IPv6.
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return address is not None and (mapped or address).is_loopback


def is_address_in_disguise(host: str) -> bool:
    """Whether resolvers may read a host as an address although it isn't written as one: "127.1", "0x7f000001",
    "2130706433". The rule is the browsers': a host that ends in a number (WHATWG URL, "ends in a number checker").

    >>> is_address_in_disguise("0177.0.0.1"), is_address_in_disguise("127.0.0.1"), is_address_in_disguise("r1.example")
    (True, False, False)
    """
    return parse(host) is None and _ENDS_IN_NUMBER.fullmatch(host) is not None


class PeerMemory:
    """Remembers whether endpoints answered from public or private addresses; thread-safe."""

    def __init__(self) -> None:
        self._public: set[Origin] = set()
        self._private: set[Origin] = set()

    def note(self, origin: Origin, address: str) -> None:
        """An endpoint answered from this address."""
        parsed = parse(address)
        if parsed is not None:
            (self._public if is_public(parsed) else self._private).add(origin)

    def is_private(self, origin: Origin) -> bool:
        """Whether an endpoint is on a private network, so that it may name other hosts there.

        An endpoint that once answered from a public address is public: a name may resolve to both kinds.
        """
        literal = parse(origin.host)
        if is_loopback_name(origin.host) or literal is not None:
            return literal is None or not is_public(literal)
        return origin in self._private and origin not in self._public
