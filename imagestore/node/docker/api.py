"""Answers of the Docker Engine API as values; every member is checked."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from imagestore.errors import (
    AccessDeniedError,
    AuthenticationError,
    ImageServiceError,
    ImageStoreError,
    InvalidDigestError,
    InvalidInputError,
    RateLimitedError,
    ReferenceNotFoundError,
    RegistryError,
    RegistryUnavailableError,
)
from imagestore.oci.digest import Digest
from imagestore.oci.reference import Reference
from imagestore.registry.credentials import files

if TYPE_CHECKING:
    from imagestore.registry.credentials.cri import AuthConfig


_MAX_MESSAGE: Final = 2000
_OF_REGISTRIES: Final[dict[int, type[RegistryError]]] = {
    401: AuthenticationError,
    403: AccessDeniedError,
    404: ReferenceNotFoundError,
    429: RateLimitedError,
}
_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9:+._-]{0,199}")


@dataclass(frozen=True, slots=True)
class EngineImage:
    """An image as the engine lists or inspects it.

    Attributes:
        id: as the engine's store identifies it.
        repo_tags, repo_digests: complete references, without ``<none>``.
        size: bytes, at least 1.
        user: of the config, without the group; empty when not told (lists never tell).
    """

    id: str
    repo_tags: tuple[str, ...]
    repo_digests: tuple[str, ...]
    size: int
    user: str = ""


def decode(body: bytes, what: str) -> Any:
    """The JSON of an answer.

    Raises:
        ImageServiceError: it is none.
    """
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ImageServiceError(f"{what}: the answer is no JSON") from error


def failure(status: int, body: bytes, what: str, *, is_registry: bool = False) -> ImageStoreError:
    """The error that an answer with an error status means.

    Args:
        status: of HTTP, 300 or more.
        body: of the answer.
        what: names the request.
        is_registry: the status is that of a registry, passed on by the engine.
    """
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        value = None
    said = value.get("message") if isinstance(value, dict) else None
    text = said[:_MAX_MESSAGE] if isinstance(said, str) and said else f"HTTP status {status}"
    message = f"{what}: {text}"
    if status == 400:
        return InvalidInputError(message)
    kind = _OF_REGISTRIES.get(status) if is_registry else None
    return kind(message, status=status) if kind else ImageServiceError(message, status=status)


def stream_failure(code: int, message: str) -> ImageStoreError:
    """The error that a pull's stream ends with.

    Args:
        code: ``errorDetail.code``, the status that the registry answered with; 0 where the engine gives none.
        message: in the engine's words.
    """
    kind = RegistryUnavailableError if code >= 500 else _OF_REGISTRIES.get(code)
    return kind(message, status=code) if kind else ImageServiceError(message, status=code)


def listed_images(value: Any, what: str) -> list[EngineImage]:
    """``GET /images/json``.

    Raises:
        ImageServiceError: it isn't that.
    """
    if not isinstance(value, list):
        raise ImageServiceError(f"{what}: expected a list of images")
    return [inspected_image(each, what) for each in value]


def inspected_image(value: Any, what: str) -> EngineImage:
    """``GET /images/{name}/json``.

    Raises:
        ImageServiceError: it isn't that.
    """
    image_id = value.get("Id") if isinstance(value, dict) else None
    # It becomes a part of paths.
    if not isinstance(image_id, str) or _ID.fullmatch(image_id) is None:
        raise ImageServiceError(f"{what}: expected an image with an Id")
    size = value.get("Size")
    config = value.get("Config")
    user = config.get("User") if isinstance(config, dict) else None
    return EngineImage(
        id=image_id,
        repo_tags=_names(value.get("RepoTags")),
        repo_digests=tuple(sorted(_names(value.get("RepoDigests")))),
        # CRI knows no image of 0 bytes.
        size=max(1, size) if isinstance(size, int) and not isinstance(size, bool) else 1,
        user=user.partition(":")[0] if isinstance(user, str) else "",
    )


def remote_digest(value: Any, what: str) -> Digest:
    """``GET /distribution/{name}/json``: what the registry has under a name.

    Raises:
        ImageServiceError: it isn't that.
    """
    descriptor = value.get("Descriptor") if isinstance(value, dict) else None
    text = descriptor.get("digest") if isinstance(descriptor, dict) else None
    try:
        return Digest.parse(text if isinstance(text, str) else "")
    except InvalidDigestError as error:
        raise ImageServiceError(f"{what}: expected a Descriptor with a digest") from error


def _names(value: Any) -> tuple[str, ...]:
    """The engine shortens Docker Hub's names; ours are always complete."""
    found: dict[str, None] = {}
    for text in value if isinstance(value, list) else ():
        if not isinstance(text, str) or "<none>" in text:
            continue
        try:
            found[str(Reference.parse(text))] = None
        except InvalidInputError:
            found[text] = None
    return tuple(found)


_FORM: Final = re.compile(r"([0-9]{1,4})\.([0-9]{1,4})")


class ApiVersion(NamedTuple):
    """Major and minor number.

    >>> ApiVersion(1, 9) < ApiVersion(1, 41)
    True
    """

    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


#: The newest we know.
NEWEST: Final = ApiVersion(1, 56)
#: Pulling for a platform came with it; engines since 2017 have it.
OLDEST: Final = ApiVersion(1, 32)


def negotiate(told: str | None) -> ApiVersion:
    """The version to speak.

    Args:
        told: the engine's ``Api-Version``.

    Raises:
        ImageServiceError: it tells none, or one that is too old.
    """
    found = _FORM.fullmatch(told or "")
    if found is None:
        raise ImageServiceError("docker engine: /_ping told no API version", hint="is something else on this socket?")
    version = ApiVersion(int(found[1]), int(found[2]))
    if version < OLDEST:
        raise ImageServiceError(f"docker engine: API version {version}: expected {OLDEST} or newer")
    return min(version, NEWEST)


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
