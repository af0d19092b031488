"""How one host is connected to, as a value: containerd's ``ca``, ``client``, ``skip_verify`` and ``dial_timeout``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from imagestore.values import dataclass, field

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """TLS and dialling for one host.

    Attributes:
        ca_files: PEM files with authorities trusted beside the system's.
        client_pairs: (certificate file, key file); the key file is empty when the certificate's file holds it too.
        skip_verify: take any certificate; only where the operator said so.
        dial_timeout_seconds: how long to wait for a connection; None for the default.
        places: file and line that name a file of certificates, by its path, for people.
    """

    ca_files: tuple[str, ...] = ()
    client_pairs: tuple[tuple[str, str], ...] = ()
    skip_verify: bool = False
    dial_timeout_seconds: float | None = None
    places: Mapping[str, str] = field(default_factory=dict, compare=False)

    def named(self, path: str) -> str:
        """The place that names a file, to begin an error with; empty where no line does."""
        return f"{self.places[path]}: " if path in self.places else ""
