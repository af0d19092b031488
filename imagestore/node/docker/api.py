"""Messages of the Docker Engine API: answers as values, errors, the API version, and the credentials of a pull.

Every member of an answer is checked. An answer of another form is an ImageServiceError.
"""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

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
from imagestore.oci import Digest, Reference

if TYPE_CHECKING:
    from imagestore.registry import AuthConfig


_MAX_MESSAGE: Final = 2000
_REGISTRY_ERRORS: Final[dict[int, type[RegistryError]]] = {
    401: AuthenticationError,
    403: AccessDeniedError,
    404: ReferenceNotFoundError,
    429: RateLimitedError,
}
_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9:+._-]{0,199}")
_VERSION: Final = re.compile(r"([0-9]{1,4})\.([0-9]{1,4})")
#: The newest version that we know.
_NEWEST: Final = (1, 56)
#: Supports pulls for a platform; engines since 2017 have it.
_OLDEST: Final = (1, 32)


@dataclass(frozen=True, slots=True)
class EngineImage:
    """An image as the engine lists or inspects it.

    Attributes:
        id: as the engine's store identifies it.
        repo_tags, repo_digests: complete references, without ``<none>``.
        size: bytes, at least 1.
        user: of the config, without the group; empty if unknown, as in every list.
    """

    id: str
    repo_tags: tuple[str, ...]
    repo_digests: tuple[str, ...]
    size: int
    user: str = ""


def decode(body: bytes, what: str) -> Any:
    """The JSON of an answer."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ImageServiceError(f"{what}: invalid JSON in the answer") from error


def member(value: Any, *path: str) -> Any:
    """A member of nested objects in an answer; None if an object or the member is missing."""
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def failure(status: int, body: bytes, what: str, *, is_registry: bool = False) -> ImageStoreError:
    """The error for an answer with an error status; ``is_registry``: the engine passes on a registry's status."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        value = None
    text = member(value, "message")
    message = f"{what}: {text[:_MAX_MESSAGE] if isinstance(text, str) and text else f'HTTP status {status}'}"
    if status == 400:
        return InvalidInputError(message)
    kind = _REGISTRY_ERRORS.get(status) if is_registry else None
    return kind(message, status=status) if kind else ImageServiceError(message, status=status)


def stream_failure(code: int, message: str) -> ImageStoreError:
    """The error at the end of a pull's stream; its code is the registry's HTTP status, 0 if unknown."""
    kind = RegistryUnavailableError if code >= 500 else _REGISTRY_ERRORS.get(code)
    return kind(message, status=code) if kind else ImageServiceError(message, status=code)


def listed_images(value: Any, what: str) -> list[EngineImage]:
    """``GET /images/json``."""
    if not isinstance(value, list):
        raise ImageServiceError(f"{what}: expected a list of images")
    return [inspected_image(each, what) for each in value]


def inspected_image(value: Any, what: str) -> EngineImage:
    """``GET /images/{name}/json``."""
    image_id, size, user = member(value, "Id"), member(value, "Size"), member(value, "Config", "User")
    # The id becomes part of URL paths.
    if not isinstance(image_id, str) or _ID.fullmatch(image_id) is None:
        raise ImageServiceError(f"{what}: expected an image with an Id")
    return EngineImage(
        id=image_id,
        repo_tags=_names(value.get("RepoTags")),
        repo_digests=tuple(sorted(_names(value.get("RepoDigests")))),
        # CRI has no image of 0 bytes.
        size=max(1, size) if isinstance(size, int) and not isinstance(size, bool) else 1,
        user=user.partition(":")[0] if isinstance(user, str) else "",
    )


def remote_digest(value: Any, what: str) -> Digest:
    """``GET /distribution/{name}/json``: the digest that the registry has under a name."""
    text = member(value, "Descriptor", "digest")
    try:
        return Digest.parse(text if isinstance(text, str) else "")
    except InvalidDigestError as error:
        raise ImageServiceError(f"{what}: expected a Descriptor with a digest") from error


def _names(value: Any) -> tuple[str, ...]:
    """Complete references: the engine shortens Docker Hub's."""
    found: dict[str, None] = {}
    for text in value if isinstance(value, list) else ():
        if not isinstance(text, str) or "<none>" in text:
            continue
        try:
            found[str(Reference.parse(text))] = None
        except InvalidInputError:
            found[text] = None
    return tuple(found)


def negotiate(offered: str | None) -> str:
    """The API version to use: the older one of ours and the engine's, from ``Api-Version`` in its answer to ``/_ping``.

    >>> negotiate("1.41")
    '1.41'
    """
    found = _VERSION.fullmatch(offered or "")
    if found is None:
        raise ImageServiceError("docker engine: /_ping: no API version", hint="is another program on this socket?")
    version = (int(found[1]), int(found[2]))
    if version < _OLDEST:
        oldest = ".".join(map(str, _OLDEST))
        raise ImageServiceError(f"docker engine: API version {offered}: expected {oldest} or newer")
    return ".".join(map(str, min(version, _NEWEST)))


def registry_auth(auth: AuthConfig | None, host: str) -> dict[str, str]:
    """The header ``X-Registry-Auth`` of a pull; nothing for an anonymous pull.

    Rule: padded URL-safe base64 of a JSON object with user name and password, an identity token or a registry token,
    and the server's address (by default ``host``).

    Raises:
        ConfigError: ``auth.auth`` is no base64 of ``user:password``; the text quotes no secret.
    """
    if auth is None:
        return {}
    server = auth.server_address or host
    if auth.identity_token:
        value = {"identitytoken": auth.identity_token.reveal(), "serveraddress": server}
    elif auth.registry_token:
        value = {"registrytoken": auth.registry_token.reveal(), "serveraddress": server}
    else:
        username, password = auth.pair("AuthConfig")
        if not username and not password:
            return {}
        value = {"username": username, "password": password, "serveraddress": server}
    return {"X-Registry-Auth": base64.urlsafe_b64encode(json.dumps(value).encode()).decode("ascii")}
