"""Credentials of a CRI request (runtime.v1 ``AuthConfig``), read as containerd's CRI plugin reads them.

The first of: user name and password; identity token; ``auth`` (base64 of ``user:password``); registry token, which
containerd leaves unused. With ``server_address`` they count for that host only. Without it, they count for the registry
of the image alone; containerd would send them to every mirror as well. As in containerd, credentials that can't be read
are an error only when a registry asks for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from imagestore.errors import ConfigError, InvalidInputError
from imagestore.registry.credentials import files
from imagestore.registry.credentials.model import NO_SECRET, Credential, FoundCredential
from imagestore.registry.credentials.sources import ExplicitSource, host_of

if TYPE_CHECKING:
    from imagestore.util.secret import Secret

_PROVENANCE: Final = "the request's AuthConfig"


@dataclass(frozen=True, slots=True)
class AuthConfig:
    """The message's members as values."""

    server_address: str = ""
    username: str = ""
    password: Secret = NO_SECRET
    auth: Secret = NO_SECRET
    identity_token: Secret = NO_SECRET
    registry_token: Secret = NO_SECRET

    def pair(self, where: str) -> tuple[str, str]:
        """User name and password; without a user those in ``auth``, or two empty texts.

        Raises:
            ConfigError: ``auth`` isn't base64 of ``user:password``; the message begins with ``where``.
        """
        if self.username or not self.auth:
            return self.username, self.password.reveal()
        return files.decode_pair(self.auth.reveal(), f"{where}: auth")


def explicit_source(config: AuthConfig, registry: str) -> ExplicitSource | None:
    """The source to put first for a pull from a registry host; None when the message holds no credentials."""
    host = host_of(config.server_address.strip()) if config.server_address.strip() else registry
    where = "CRI AuthConfig"
    username, password, identity, registry_token = "", "", "", ""
    try:
        if config.username or (config.auth and not config.identity_token):
            username, password = config.pair(where)
        elif config.identity_token:
            identity = config.identity_token.reveal()
        elif config.registry_token:
            registry_token = config.registry_token.reveal()
        credential = files.build(username, password, where, identity=identity, registry=registry_token)
    except (ConfigError, InvalidInputError) as error:
        secrets = config.password, config.identity_token, config.registry_token
        # For the fingerprint only.
        given = Credential(f"{config.username} {config.auth.reveal()}", *secrets)
        return ExplicitSource(FoundCredential(given, _PROVENANCE), host, failure=InvalidInputError(str(error)))
    return ExplicitSource(FoundCredential(credential, _PROVENANCE), host) if credential else None
