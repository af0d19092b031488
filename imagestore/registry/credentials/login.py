"""Login and logout: credentials are tried at the registry before they are stored.

They are stored where Docker's tools look: in the helper that the file names for the host, else in the file. A file that
an option or REGISTRY_AUTH_FILE names is in the containers tools' form.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from imagestore.errors import (
    AccessDeniedError,
    AuthenticationError,
    ConfigError,
    ProtocolError,
    RegistryUnavailableError,
)
from imagestore.registry.auth.authenticate import RegistryAuthenticator, target_of
from imagestore.registry.credentials import files
from imagestore.registry.credentials.helper import servers
from imagestore.registry.credentials.lookup import AUTH_FILE_VARIABLE, CredentialResolver, docker_config_path
from imagestore.registry.credentials.model import HUB_LEGACY_KEY, FoundCredential, Target
from imagestore.registry.credentials.sources import ExplicitSource, containers_keys, docker_keys, helper_for
from imagestore.registry.errors_body import read_some, tls_hint
from imagestore.registry.transport.messages import make_request
from imagestore.util.known_members import spellings

if TYPE_CHECKING:
    from imagestore.registry.credentials.helper import HelperPool
    from imagestore.registry.credentials.lookup import UserEnvironment
    from imagestore.registry.credentials.model import Credential
    from imagestore.registry.endpoints import Endpoint
    from imagestore.registry.policy import AuthPolicy
    from imagestore.registry.transport.messages import Sender
    from imagestore.util.cancel import CancelToken

_SECRET_MEMBERS: Final = ("auth", "username", "password", "identitytoken", "registrytoken")


@dataclass(frozen=True, slots=True)
class LoginFile:
    """Where a login is kept: Docker's ``config.json``, else a containers ``auth.json``."""

    path: str
    is_docker: bool


def login_file_for(user: UserEnvironment, *, auth_file: str = "") -> LoginFile:
    """The file a login goes into.

    Raises:
        ConfigError: neither a file, DOCKER_CONFIG nor a home is known.
    """
    named = auth_file or user.variables.get(AUTH_FILE_VARIABLE, "")
    if named:
        return LoginFile(named, is_docker=False)
    path = docker_config_path(user)
    if not path:
        raise ConfigError("login: no place to store credentials", hint=f"set HOME or {AUTH_FILE_VARIABLE}")
    return LoginFile(path, is_docker=True)


def check_login(
    sender: Sender, endpoint: Endpoint, credential: Credential, *, policy: AuthPolicy | None = None, cancel: CancelToken
) -> None:
    """Ask the registry's ``/v2/`` with the credentials (distribution-spec, end-1).

    Raises:
        AuthenticationError: refused, or the registry asks for none, so that they can't be checked.
        AccessDeniedError: known, but not allowed.
        ProtocolError: no registry answers there.
        RegistryUnavailableError: no answer, or one that asks to try later.
    """
    host, origin = endpoint.host, endpoint.origin
    given = ExplicitSource(FoundCredential(credential, "this login"), target_of(origin, "").host)
    lookup = CredentialResolver((given,))
    authenticator = RegistryAuthenticator(sender, lookup, policy=policy)
    header = authenticator.authorization(origin, "")
    while True:
        headers = (*endpoint.headers, ("Authorization", header)) if header else endpoint.headers
        with sender.send(make_request("GET", f"{endpoint.base}/", headers), cancel=cancel) as response:
            status, answer = response.status, response.headers
            hint = tls_hint(response, read_some(response)) if status == 400 else ""
        if status != 401:
            break
        header = authenticator.respond(origin, "", answer, cancel=cancel)
    if status >= 500 or status in (408, 429):
        raise RegistryUnavailableError(f"{host}: answered status {status} to a login", host=host, status=status)
    if status == 403:
        raise AccessDeniedError(f"{host}: knows these credentials and forbids access", host=host, status=status)
    if status != 200:
        raise ProtocolError(
            f"{host}: expected status 200 from {endpoint.base}/, {status} came", host=host, status=status, hint=hint
        )
    if not header:
        raise AuthenticationError(
            f"{host}: asks for no credentials, so these can't be checked",
            host=host,
            hint="nothing was stored; add --no-check to store them all the same",
        )


def store_login(
    place: LoginFile, host: str, credential: Credential, helpers: HelperPool, *, cancel: CancelToken
) -> str:
    """Store credentials; returns where they are now.

    Raises:
        ConfigError: the file can't be read or written, or the helper failed.
    """
    target = Target(host)
    key = HUB_LEGACY_KEY if target.is_docker_hub and place.is_docker else target.names[0]
    with files.edit(place.path) as value:
        helper = helper_for(files.interpret(value, place.path), target, is_docker=place.is_docker)
        entries = _auths(value, place)
        old = entries.get(key)
        entry = (
            {name: text for name, text in old.items() if name.casefold() not in _SECRET_MEMBERS}
            if isinstance(old, dict)
            else {}
        )
        if helper is None:
            entry.update(_encoded(credential))
        entries[key] = entry
        if helper is not None:
            # Inside the block: if the helper fails, the file stays as it was.
            username = files.TOKEN_USER if credential.identity_token else credential.username
            secret = (credential.identity_token or credential.password).reveal()
            helpers.store(helper[0], servers(target)[0], username, secret, cancel=cancel)
            return f"docker-credential-{helper[0]}, named by {helper[1]} of {place.path}"
    return f"{place.path}, member auths[{key!r}]"


def remove_login(place: LoginFile, host: str, helpers: HelperPool, *, cancel: CancelToken) -> tuple[str, ...]:
    """Delete what login stored for a host, under each of its names; returns the places.

    Entries for namespaces below the host stay.

    Raises:
        ConfigError: the file can't be read or written, or the helper failed.
    """
    found = files.read(place.path)
    if found is None:
        return ()
    target = Target(host)
    removed: list[str] = []
    with files.edit(place.path) as value:
        helper = helper_for(files.interpret(value, place.path), target, is_docker=place.is_docker)
        if helper is not None:
            # Some helpers fail at deleting what they don't have.
            held = [name for name in servers(target) if helpers.get(helper[0], [name], cancel=cancel)]
            for server in held:
                helpers.erase(helper[0], server, cancel=cancel)
            if held:
                removed.append(f"docker-credential-{helper[0]}, named by {helper[1]} of {place.path}")
        entries = files.interpret(value, place.path).entries
        for key in (docker_keys if place.is_docker else containers_keys)(entries, target):
            for spelling in spellings(value, "auths"):
                if value[spelling] is not None:
                    value[spelling].pop(key, None)
            removed.append(f"{place.path}, member auths[{key!r}]")
    return tuple(removed)


def _auths(value: dict[str, Any], place: LoginFile) -> dict[str, Any]:
    # Of several spellings the last one decides.
    spelling = next(reversed(spellings(value, "auths")), "auths")
    found = value.get(spelling)
    if found is None:
        found = value[spelling] = {}
    if not isinstance(found, dict):
        raise ConfigError(f"{place.path}: auths: expected an object")
    return found


def _encoded(credential: Credential) -> dict[str, str]:
    if credential.identity_token:
        return {"identitytoken": credential.identity_token.reveal()}
    pair = f"{credential.username}:{credential.password.reveal()}"
    return {"auth": base64.b64encode(pair.encode("utf-8")).decode("ascii")}
