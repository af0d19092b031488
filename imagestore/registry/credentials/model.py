"""Credentials as values, and the interface through which authentication asks for them.

A credential always comes with its provenance: after a refused login, the user must know which file, member or helper to
correct.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from imagestore.errors import InvalidInputError
from imagestore.util.secret import Secret

if TYPE_CHECKING:
    from collections.abc import Mapping

    from imagestore.util.cancel import CancelToken

NO_SECRET: Final = Secret("")

#: Docker Hub is known under four names; the first is the key Docker's tools write.
HUB_LEGACY_KEY: Final = "https://index.docker.io/v1/"
HUB_NAMES: Final = ("docker.io", "index.docker.io", "registry-1.docker.io")
_MAX_SECRET: Final = 256 * 1024


@dataclass(frozen=True, slots=True)
class Credential:
    """What proves an identity to one registry.

    Attributes:
        username: empty for tokens.
        password: goes to the registry (Basic) or to its token service.
        identity_token: an OAuth2 refresh token; goes to the token service only.
        registry_token: a ready bearer token; goes to the registry as it is.
    """

    username: str = ""
    password: Secret = NO_SECRET
    identity_token: Secret = NO_SECRET
    registry_token: Secret = NO_SECRET

    def __bool__(self) -> bool:
        return bool(self.password or self.identity_token or self.registry_token)

    def fingerprint(self, key: bytes) -> str:
        """A text that tells two credentials apart without revealing either.

        The key is random, 16 to 64 bytes, and secret: without it no guess can be checked against the result.
        """
        state = hashlib.blake2b(key=key, digest_size=16)
        for part in (
            self.username,
            self.password.reveal(),
            self.identity_token.reveal(),
            self.registry_token.reveal(),
        ):
            data = part.encode("utf-8", "surrogatepass")
            state.update(len(data).to_bytes(8, "big") + data)
        return state.hexdigest()


def checked(credential: Credential, what: str) -> Credential:
    """The credential, if it can be sent; ``what`` names it in the error.

    Raises:
        InvalidInputError: a member is no Unicode text, has control characters or is absurdly long, the user name has a
            colon.
    """
    for name, text, is_sent_encoded in (
        ("user name", credential.username, False),
        # Travels in base64 or percent-encoded, and Google's _json_key is a whole JSON file with its line ends.
        ("password", credential.password.reveal(), True),
        ("identity token", credential.identity_token.reveal(), False),
        ("registry token", credential.registry_token.reveal(), False),
    ):
        if len(text) > _MAX_SECRET:
            raise InvalidInputError(f"{what}: {name} is longer than {_MAX_SECRET} characters")
        if any("\ud800" <= character <= "\udfff" for character in text):
            # Half a surrogate pair, which JSON can write, and what Python makes of bytes that aren't UTF-8.
            raise InvalidInputError(f"{what}: {name} is no Unicode text")
        if not is_sent_encoded and any(character < " " or character == "\x7f" for character in text):
            raise InvalidInputError(f"{what}: {name} has control characters (a line end, perhaps)")
    token = credential.registry_token.reveal()
    if not token.isascii() or " " in token:
        raise InvalidInputError(f"{what}: registry token has characters that no header may carry")
    if ":" in credential.username:
        # RFC 7617 section 2: everything after the first colon would be read as the password.
        raise InvalidInputError(f"{what}: user name has a colon")
    return credential


@dataclass(frozen=True, slots=True)
class FoundCredential:
    """A credential and where it was found; the provenance is fit for messages.

    Attributes:
        is_given: for this call by hand, so that it is no stored login that may be wrong.
    """

    credential: Credential
    provenance: str
    is_given: bool = False


@dataclass(frozen=True, slots=True)
class Target:
    """Whose credentials are wanted.

    Attributes:
        host: as in a reference: lower case, with port unless it is the scheme's own; ``docker.io`` for Docker Hub.
        repository: path below it; empty for the registry as such.
    """

    host: str
    repository: str = ""

    @property
    def is_docker_hub(self) -> bool:
        """Whether this is Docker Hub under one of its names."""
        return self.host in HUB_NAMES

    @property
    def names(self) -> tuple[str, ...]:
        """Host names under which an entry counts, the most proper first."""
        if self.is_docker_hub:
            return HUB_NAMES
        if self.host.endswith(":443"):
            return (self.host, self.host.removesuffix(":443"))
        has_port = ":" in self.host.rpartition("]")[2]
        return (self.host,) if has_port else (self.host, f"{self.host}:443")

    @property
    def shown(self) -> str:
        """For messages."""
        return f"{self.host}/{self.repository}" if self.repository else self.host


class CredentialLookup(Protocol):
    """Where authentication gets credentials from."""

    def lookup(self, target: Target, *, cancel: CancelToken) -> FoundCredential | None:
        """The credentials to use, or None for anonymous access.

        Raises:
            ConfigError: the place exists and can't be read, the entry is broken, or its helper program failed.
            InvalidInputError: the credentials of this call can't be read.
            OperationCancelledError: cancelled while a helper program ran.
        """


class GivenCredentials:
    """Credentials that a program has itself, by registry as in a reference; no other place is looked at.

    Raises:
        InvalidInputError: a credential can't be sent.

    >>> given = GivenCredentials({"registry.example": Credential("robot", Secret("word"))})
    """

    def __init__(self, by_host: Mapping[str, Credential]) -> None:
        self._found = {
            host.lower(): FoundCredential(
                checked(credential, f"credentials for {host}"), "given by the program", is_given=True
            )
            for host, credential in by_host.items()
        }

    def lookup(self, target: Target, *, cancel: CancelToken) -> FoundCredential | None:
        """The credential of the target's registry, under any of its names; else anonymous access."""
        names = set(target.names)
        return next((found for host, found in self._found.items() if names.intersection(Target(host).names)), None)


class Anonymous:
    """Never gives credentials; for ``--anonymous`` and for hosts that must not see any."""

    def lookup(self, target: Target, *, cancel: CancelToken) -> FoundCredential | None:
        """See CredentialLookup."""
        return None
