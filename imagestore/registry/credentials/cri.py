"""Credentials of a CRI request (runtime.v1 ``AuthConfig``), read as containerd's CRI plugin reads them.

The first of: user name and password; identity token; ``auth`` (base64 of ``user:password``); registry token, which
containerd leaves unused. With ``server_address`` they count for that host only. Without, they count for the registry of
the image alone: containerd would show them to every mirror as well, we don't.
"""

from __future__ import annotations

from imagestore.errors import ConfigError, InvalidInputError
from imagestore.registry.credentials import files
from imagestore.registry.credentials.docker_config import host_of
from imagestore.registry.credentials.model import NO_SECRET, Explicit, Found
from imagestore.secret import Secret
from imagestore.values import dataclass, field


@dataclass(frozen=True, slots=True)
class AuthConfig:
    """The message's members as values.

    Attributes:
        server_address: host or URL of the registry; may be empty.
        username: plain.
        password: plain.
        auth: base64 of ``user:password``.
        identity_token: OAuth2 refresh token.
        registry_token: ready bearer token.
    """

    server_address: str = ""
    username: str = ""
    password: Secret = field(default=NO_SECRET)
    auth: Secret = field(default=NO_SECRET)
    identity_token: Secret = field(default=NO_SECRET)
    registry_token: Secret = field(default=NO_SECRET)


def explicit_source(config: AuthConfig, registry: str) -> Explicit | None:
    """The source to put first for a pull; None when the message holds no credentials.

    Args:
        config: of the request.
        registry: host of the image's reference.

    Raises:
        InvalidInputError: a member can't be used; quotes no secret.
    """
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
    except ConfigError as error:
        raise InvalidInputError(str(error)) from None
    if not credential:
        return None
    host = host_of(config.server_address.strip()) if config.server_address.strip() else registry
    return Explicit(Found(credential, "the request's AuthConfig"), host)
