"""How one host is connected to, as a value: containerd's ``ca``, ``client``, ``skip_verify`` and ``dial_timeout``."""

from __future__ import annotations

from imagestore.values import dataclass


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """TLS and dialling for one host.

    Attributes:
        ca_files: PEM files with authorities trusted beside the system's.
        client_pairs: (certificate file, key file); the key file is empty when the certificate's file holds it too.
        skip_verify: take any certificate; only where the operator said so.
        dial_timeout_seconds: how long to wait for a connection; None for the default.
    """

    ca_files: tuple[str, ...] = ()
    client_pairs: tuple[tuple[str, str], ...] = ()
    skip_verify: bool = False
    dial_timeout_seconds: float | None = None
