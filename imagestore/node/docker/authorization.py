"""``X-Registry-Auth``: whose credentials the engine uses for a pull.

Rule (Docker Engine API): URL-safe base64, with padding, of a JSON object with user name, password and server address,
or with an identity token, or with a registry token. Without the header the engine pulls anonymously.
"""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING

from imagestore.registry.credentials import files

if TYPE_CHECKING:
    from imagestore.registry.credentials.cri import AuthConfig

HEADER = "X-Registry-Auth"


def header(auth: AuthConfig | None, host: str) -> dict[str, str]:
    """The header for a pull; empty for an anonymous one.

    Args:
        auth: of the request.
        host: registry of the image, where the credentials name no server.

    Raises:
        ConfigError: ``auth`` is no base64 of ``user:password``; quotes no secret.
    """
    if auth is None:
        return {}
    server = auth.server_address or host
    if auth.identity_token:
        value = {"identitytoken": auth.identity_token.reveal(), "serveraddress": server}
    elif auth.registry_token:
        value = {"registrytoken": auth.registry_token.reveal(), "serveraddress": server}
    else:
        username, password = auth.username, auth.password.reveal()
        if not username and auth.auth:
            username, password = files.decode_pair(auth.auth.reveal(), "AuthConfig: auth")
        if not username and not password:
            return {}
        value = {"username": username, "password": password, "serveraddress": server}
    return {HEADER: base64.urlsafe_b64encode(json.dumps(value).encode()).decode("ascii")}
