"""What is configured for a registry host, as values: its mirrors, its own address, and how to connect to each."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from imagestore.config.tree import Location
from imagestore.errors import ConfigError
from imagestore.util import files
from imagestore.util.logins import without_login

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator, Mapping

    from imagestore.config.findings import Finding

_KEY_HINT: Final = 'a certificate whose key is in another file is written client = [["client.cert", "client.key"]]'
#: What a host may be asked, in containerd's words.
CAPABILITIES: Final = frozenset({"pull", "resolve", "push", "referrers"})


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """TLS and dialling for one host: containerd's ``ca``, ``client``, ``skip_verify`` and ``dial_timeout``.

    Attributes:
        ca_files: PEM files with authorities trusted in addition to the system's.
        client_pairs: (certificate file, key file); the key file is empty when the certificate's file holds it too.
        skip_verify: accept any certificate.
        dial_timeout_seconds: how long to wait for a connection; None for the default.
        places: where a file of certificates is named, by its path.
    """

    ca_files: tuple[str, ...] = ()
    client_pairs: tuple[tuple[str, str], ...] = ()
    skip_verify: bool = False
    dial_timeout_seconds: float | None = None
    places: Mapping[str, Location] = field(default_factory=dict, compare=False)

    def place(self, path: str) -> Location:
        """The line that names a file; the file itself if none does."""
        return self.places.get(path) or Location(path, 0)

    def named(self, path: str) -> str:
        """The prefix of an error about a file: the line that names it; empty if none does."""
        return f"{self.places[path]}: " if path in self.places else ""


@dataclass(frozen=True, slots=True)
class HostConfig:
    """One address that serves a registry's repositories.

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
    """What is configured for one registry host.

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


def load_certificates(context: ssl.SSLContext, settings: ConnectionSettings) -> Iterator[tuple[Location, ConfigError]]:
    """Load a host's authorities and client certificates into a context.

    Yields:
        For each file that can't be used, the place that names it, and the error. Later files are loaded when the next
        item is asked for.
    """
    for path in settings.ca_files:
        try:
            files.check_regular(path)
            context.load_verify_locations(path)
        except (OSError, ValueError) as error:
            what = f"ca {without_login(path)}: not a readable PEM file of certificates: {_reason(error, path)}"
            yield settings.place(path), ConfigError(f"{settings.named(path)}{what}")
    for certificate, key in settings.client_pairs:
        try:
            files.check_regular(certificate)
            if key:
                files.check_regular(key)
            # An empty password: a key that needs one fails instead of asking on the terminal.
            context.load_cert_chain(certificate, key or None, password="")
        except (OSError, ValueError) as error:
            named = f"{certificate} with key {key}" if key else certificate
            what = f"client certificate {named}: can't be used: {_reason(error, named)}"
            fault = ConfigError(f"{settings.named(certificate)}{what}", hint="" if key else _KEY_HINT)
            yield settings.place(certificate), fault


def _reason(error: Exception, told: str) -> str:
    """What went wrong, without the number of a system's error, nor the file ``told``, which is named already."""
    import ssl

    if not isinstance(error, OSError) or isinstance(error, ssl.SSLError) or error.strerror is None:
        return str(error)
    return error.strerror if error.filename in (None, told) else f"{error.filename}: {error.strerror}"
