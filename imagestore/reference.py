"""Image references: parse once at the edge, then never touch the text again.

Grammar and Docker Hub's short forms are those of the distribution project's reference package: ``python`` means
``docker.io/library/python:latest``. Only ASCII, matched whole. The first component is a host when it has a ``.`` or a
``:``, is ``localhost``, or has an upper-case letter (which a repository path can't have).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from imagestore.digest import Digest
from imagestore.errors import InvalidDigestError, InvalidReferenceError, without_login
from imagestore.patterns import pattern
from imagestore.values import dataclass, replace

if TYPE_CHECKING:
    from typing import Self

DOCKER_HUB: Final = "docker.io"
DOCKER_HUB_API: Final = "registry-1.docker.io"
DEFAULT_TAG: Final = "latest"
# Host, slash and path together, as the distribution project caps it.
_MAX_NAME: Final = 255
# A name, a tag and a digest, with room for the longest there is.
_MAX_TEXT: Final = 1024

_PATH: Final = pattern(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*")
_TAG: Final = pattern(r"[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}")
_LABEL: Final = pattern(r"[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?")
_IPV6: Final = pattern(r"\[[0-9a-fA-F:]+(?:\.[0-9]+){0,3}\]")
_PORT: Final = pattern(r"[0-9]{1,5}")
_LEGAL: Final = pattern(r"[a-zA-Z0-9._:/@+=\[\]-]*")
_HEX_ID: Final = pattern(r"[a-f0-9]{64}")


@dataclass(frozen=True, slots=True)
class Reference:
    """Host, repository path, and a tag, a digest or both; always complete.

    Attributes:
        host: lower-case host with port, for example ``docker.io`` or ``[::1]:5000``.
        path: repository path on that host.
        tag: empty when the reference has only a digest.
        digest: None when the reference has only a tag.

    >>> str(Reference.parse("python"))
    'docker.io/library/python:latest'
    >>> Reference.parse("docker.io/library/python:3").familiar
    'python:3'
    """

    host: str
    path: str
    tag: str = ""
    digest: Digest | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a reference as people type it and complete it.

        Raises:
            InvalidReferenceError: says the reason and the position.
        """
        if len(text) > _MAX_TEXT:
            # Looked at no further: whoever sends megabytes would keep us busy for seconds.
            raise InvalidReferenceError(text, _MAX_TEXT, f"is longer than {_MAX_TEXT} characters")
        _check_characters(text)
        rest, digest = _split_digest(text)
        slash = rest.rfind("/")
        colon = rest.find(":", slash + 1)
        has_tag = colon >= 0 and not _is_bare_host_port(rest, slash, colon)
        name, tag = (rest[:colon], rest[colon + 1 :]) if has_tag else (rest, "")
        if has_tag:
            _check_tag(text, tag, len(name) + 1)
        host, path, offset = _split_host(text, name)
        _check_path(text, path, offset)
        if host == DOCKER_HUB and "/" not in path:
            path = f"library/{path}"
        if len(host) + 1 + len(path) > _MAX_NAME:
            raise InvalidReferenceError(text, 0, f"host and path are longer than {_MAX_NAME} characters")
        if not tag and digest is None:
            tag = DEFAULT_TAG
        return cls(host, path, tag, digest)

    @property
    def name(self) -> str:
        """``host/path`` without tag and digest."""
        return f"{self.host}/{self.path}"

    @property
    def familiar_name(self) -> str:
        """The name as short as Docker's tools show it; still long where the short form would mean something else."""
        if self.host != DOCKER_HUB:
            return self.name
        short = self.path.removeprefix("library/") if self.path.count("/") == 1 else self.path
        first, slash, _ = short.partition("/")
        means_other = _looks_like_host(first) if slash else _HEX_ID.fullmatch(short) is not None
        return self.name if means_other else short

    @property
    def familiar(self) -> str:
        """The whole reference as short as Docker's tools show it."""
        return self.familiar_name + self._suffix()

    def __str__(self) -> str:
        return self.name + self._suffix()

    def with_digest(self, digest: Digest) -> Self:
        """The same repository, by digest only."""
        return replace(self, tag="", digest=digest)

    def _suffix(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        return f"{tag}@{self.digest}" if self.digest else tag


def api_host(host: str) -> str:
    """The host that speaks the registry API for a reference's host."""
    return DOCKER_HUB_API if host == DOCKER_HUB else host


def _check_characters(text: str) -> None:
    if not text:
        raise InvalidReferenceError(text, 0, "is empty")
    scheme = text.find("://")
    if scheme >= 0:
        raise InvalidReferenceError(text, scheme, "a reference has no URL scheme; leave out everything up to '//'")
    legal = _LEGAL.match(text)
    end = legal.end() if legal else 0
    if end != len(text):
        raise InvalidReferenceError(text, end, f"character {text[end]!r} is not allowed")


def _split_digest(text: str) -> tuple[str, Digest | None]:
    rest, at, encoded = text.partition("@")
    if not at:
        return rest, None
    if not rest:
        raise InvalidReferenceError(text, 0, "the repository name before '@' is missing")
    if without_login(text) != text:
        raise InvalidReferenceError(text, 0, "a reference carries no login; leave out everything up to '@'")
    try:
        return rest, Digest.parse(encoded)
    except InvalidDigestError as error:
        raise InvalidReferenceError(text, len(rest) + 1, str(error)) from error


def _is_bare_host_port(rest: str, slash: int, colon: int) -> bool:
    # "[::1]:5000" alone: colons inside brackets are not a tag's.
    return slash < 0 and rest.startswith("[") and colon < rest.find("]")


def _check_tag(text: str, tag: str, offset: int) -> None:
    found = _TAG.match(tag)
    end = found.end() if found else 0
    if end == len(tag) and tag:
        return
    if not tag:
        raise InvalidReferenceError(text, offset, "the tag after ':' is missing")
    if end == 128:
        raise InvalidReferenceError(text, offset + end, "the tag is longer than 128 characters")
    raise InvalidReferenceError(
        text, offset + end, f"{tag[end]!r} does not fit a tag (letters, digits, '_', then also '.' and '-')"
    )


def _looks_like_host(first: str) -> bool:
    return "." in first or ":" in first or first == "localhost" or first != first.lower()


def _split_host(text: str, name: str) -> tuple[str, str, int]:
    """Host, path, and where the path starts in the text."""
    first, slash, rest = name.partition("/")
    if slash and _looks_like_host(first):
        _check_host(text, first)
        host = first.lower()
        return (DOCKER_HUB if host == "index.docker.io" else host), rest, len(first) + 1
    if first.startswith("["):
        raise InvalidReferenceError(text, len(name), "a repository path must follow the host")
    if _HEX_ID.fullmatch(name):
        raise InvalidReferenceError(text, 0, "64 hex digits are an image id, not a name")
    return DOCKER_HUB, name, 0


def _check_host(text: str, host: str) -> None:
    if host.startswith("["):
        found = _IPV6.match(host)
        if found is None:
            raise InvalidReferenceError(text, 0, "an IPv6 host is written [address]")
        _check_ipv6(text, found.group())
        rest, at = host[found.end() :], found.end()
    else:
        at = host.find(":")
        at = len(host) if at < 0 else at
        rest, start = host[at:], 0
        for label in host[:at].split("."):
            if not _LABEL.fullmatch(label):
                raise InvalidReferenceError(text, start, f"{label!r} is not a host name's part")
            start += len(label) + 1
    if not rest:
        return
    if not rest.startswith(":") or not _PORT.fullmatch(rest[1:]) or not 0 < int(rest[1:]) < 65536:
        raise InvalidReferenceError(text, at, f"expected a port from 1 to 65535 after the host, found {rest!r}")


def _check_ipv6(text: str, bracketed: str) -> None:
    import ipaddress

    try:
        ipaddress.IPv6Address(bracketed[1:-1])
    except ValueError as error:
        raise InvalidReferenceError(text, 1, f"not an IPv6 address: {error}") from error


def _check_path(text: str, path: str, offset: int) -> None:
    start = offset
    for component in path.split("/"):
        found = _PATH.match(component)
        end = found.end() if found else 0
        if not component:
            raise InvalidReferenceError(text, start, "a path component is empty")
        if end != len(component):
            bad = component[end]
            upper = "; repository paths are lower case" if bad.isupper() else ""
            raise InvalidReferenceError(text, start + end, f"{bad!r} does not fit a repository path{upper}")
        start += len(component) + 1
