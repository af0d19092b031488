"""Credentials of a CRI request (runtime.v1 ``AuthConfig``), read as containerd's CRI plugin reads them.

The first of: user name and password; identity token; ``auth`` (base64 of ``user:password``); registry token, which
containerd leaves unused. With ``server_address`` they count for that host only. Without it, they count for the registry
of the image alone; containerd would send them to every mirror as well. As in containerd, credentials that can't be read
are an error only when a registry asks for them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from imagestore.errors import ConfigError, InvalidInputError
from imagestore.registry.credentials import files
from imagestore.registry.credentials.model import (
    NO_SECRET,
    Credential,
    Explicit,
    Findings,
    FoundCredential,
    Outcome,
    Step,
)
from imagestore.registry.credentials.sources import host_of
from imagestore.util.secret import Secret

if TYPE_CHECKING:
    from imagestore.registry.credentials.model import Target
    from imagestore.util.cancel import CancelToken

_PROVENANCE: Final = "the request's AuthConfig"


@dataclass(frozen=True, slots=True)
class AuthConfig:
    """The message's members as values."""

    server_address: str = ""
    username: str = ""
    password: Secret = field(default=NO_SECRET)
    auth: Secret = field(default=NO_SECRET)
    identity_token: Secret = field(default=NO_SECRET)
    registry_token: Secret = field(default=NO_SECRET)


class _Unreadable(Explicit):
    """Credentials that can't be used: an error for the registry they were given for, which quotes no secret."""

    def __init__(self, error: InvalidInputError, given: Credential, host: str) -> None:
        # For the fingerprint only.
        super().__init__(FoundCredential(given, _PROVENANCE), host)
        self._error = error

    def find(self, target: Target, *, is_shadowed: bool, cancel: CancelToken) -> Findings:
        """As the base class, but where credentials would be found, the findings carry the error instead."""
        found = super().find(target, is_shadowed=is_shadowed, cancel=cancel)
        if found.found is None:
            return found
        return Findings(None, (Step(_PROVENANCE, "", Outcome.FAILED, str(self._error)),), self._error)


def explicit_source(config: AuthConfig, registry: str) -> Explicit | None:
    """The source to put first for a pull from a registry host; None when the message holds no credentials."""
    host = host_of(config.server_address.strip()) if config.server_address.strip() else registry
    where = "CRI AuthConfig"
    username, password, identity, registry_token = config.username, "", "", ""
    try:
        if username:
            password = config.password.reveal()
        elif config.identity_token:
            identity = config.identity_token.reveal()
        elif config.auth:
            username, password = files.decode_pair(config.auth.reveal(), f"{where}: auth")
        elif config.registry_token:
            registry_token = config.registry_token.reveal()
        credential = files.build(username, password, where, identity=identity, registry=registry_token)
    except (ConfigError, InvalidInputError) as error:
        secrets = config.password, config.identity_token, config.registry_token
        given = Credential(f"{config.username} {config.auth.reveal()}", *secrets)
        return _Unreadable(InvalidInputError(str(error)), given, host)
    return Explicit(FoundCredential(credential, _PROVENANCE), host) if credential else None
