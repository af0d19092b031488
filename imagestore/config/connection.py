"""What is configured for a registry host, as values: its mirrors and itself, and how each of them is connected to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from imagestore.config.tree import Location

if TYPE_CHECKING:
    from collections.abc import Mapping

    from imagestore.config.findings import Finding

#: What a host may be asked, in containerd's words.
CAPABILITIES: Final = frozenset({"pull", "resolve", "push", "referrers"})


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """TLS and dialling for one host: containerd's ``ca``, ``client``, ``skip_verify`` and ``dial_timeout``.

    Attributes:
        ca_files: PEM files with authorities trusted besides the system's.
        client_pairs: (certificate file, key file); the key file is empty when the certificate's file holds it too.
        skip_verify: take any certificate; only where the operator said so.
        dial_timeout_seconds: how long to wait for a connection; None for the default.
        places: where a file of certificates is named, by its path.
    """

    ca_files: tuple[str, ...] = ()
    client_pairs: tuple[tuple[str, str], ...] = ()
    skip_verify: bool = False
    dial_timeout_seconds: float | None = None
    places: Mapping[str, Location] = field(default_factory=dict, compare=False)

    def place(self, path: str) -> Location:
        """Where a file is named; the file itself where no line does."""
        return self.places.get(path) or Location(path, 0)

    def named(self, path: str) -> str:
        """The place that names a file, to begin an error with; empty where no line does."""
        return f"{self.places[path]}: " if path in self.places else ""


@dataclass(frozen=True, slots=True)
class HostConfig:
    """One place that serves a registry's repositories.

    Attributes:
        base: URL with its path, ``/v2`` included unless overridden; empty for the registry's built-in address.
        capabilities: what it may be asked.
        headers: sent with every request to it.
        connection: TLS and dialling.
        location: file and line, for people.
    """

    base: str = ""
    capabilities: frozenset[str] = CAPABILITIES
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    connection: ConnectionSettings = ConnectionSettings()
    location: str = ""


@dataclass(frozen=True, slots=True)
class RegistryHosts:
    """What the folders say about one registry host.

    Attributes:
        mirrors: in the order to try them.
        server: the registry itself, tried last.
        folder: the folder that was found; empty when there is none.
        remarks: warnings of unknown members.
    """

    mirrors: tuple[HostConfig, ...] = ()
    server: HostConfig = HostConfig()
    folder: str = ""
    remarks: tuple[Finding, ...] = ()
