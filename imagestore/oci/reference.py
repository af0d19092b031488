"""Image references: parse once at the edge, then never touch the text again.

Grammar and Docker Hub's short forms are those of the distribution project's reference package: ``python`` means
``docker.io/library/python:latest``. Only ASCII, matched whole. The first component is a host when it has a ``.`` or a
``:``, is ``localhost``, or has an upper-case letter (which a repository path can't have).
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from imagestore.errors import InvalidDigestError, InvalidReferenceError
from imagestore.oci.digest import Digest
from imagestore.oci.grammar import COMPONENT, IMAGE_ID, LABEL, MAX_PATH, TAG, looks_like_host
from imagestore.util.logins import reference_without_login

if TYPE_CHECKING:
    from typing import Self

DOCKER_HUB: Final = "docker.io"
DOCKER_HUB_API: Final = "registry-1.docker.io"
DEFAULT_TAG: Final = "latest"
# A name, a tag and a digest, with room for the longest there is.
_MAX_TEXT: Final = 1024
_MAX_TAG: Final = 128
_LEGAL: Final = re.compile(r"[a-zA-Z0-9_.:/@+=\[\]-]*")
_PORT: Final = re.compile(":([0-9]{1,5})")
_IPV6: Final = re.compile(r"\[[0-9a-fA-F:]+\]")
_IPV6_IN_DECIMALS: Final = re.compile(r"\[[0-9a-fA-F:]+(?:\.[0-9]+){1,3}\]")


@dataclass(frozen=True, slots=True)
class Reference:
    """Host, repository path, and a tag, a digest or both; always complete.

    Attributes:
        host: lower-case host with port, for example ``docker.io`` or ``[::1]:5000``; a mere name keeps its capitals.
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
            # Looked at no further: megabytes would take seconds.
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
        if len(path) > MAX_PATH:
            raise InvalidReferenceError(text, offset, f"the path is longer than {MAX_PATH} characters")
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
        means_other = looks_like_host(first) if slash else IMAGE_ID.fullmatch(short) is not None
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
    end = _end(_LEGAL, text)
    if end != len(text):
        raise InvalidReferenceError(text, end, f"character {text[end]!r} is not allowed")


def _split_digest(text: str) -> tuple[str, Digest | None]:
    rest, at, encoded = text.partition("@")
    if not at:
        return rest, None
    if not rest:
        raise InvalidReferenceError(text, 0, "the repository name before '@' is missing")
    if reference_without_login(text) != text:
        raise InvalidReferenceError(text, 0, "a reference carries no login; leave out everything up to '@'")
    try:
        return rest, Digest.parse(encoded)
    except InvalidDigestError as error:
        raise InvalidReferenceError(text, len(rest) + 1, str(error)) from error


def _is_bare_host_port(rest: str, slash: int, colon: int) -> bool:
    # "[::1]:5000" alone: colons inside brackets are not a tag's.
    return slash < 0 and rest.startswith("[") and colon < rest.find("]")


def _check_tag(text: str, tag: str, offset: int) -> None:
    if not tag:
        raise InvalidReferenceError(text, offset, "the tag after ':' is missing")
    end = _end(TAG, tag)
    if end == len(tag):
        return
    if end == _MAX_TAG:
        raise InvalidReferenceError(text, offset + end, f"the tag is longer than {_MAX_TAG} characters")
    raise InvalidReferenceError(
        text, offset + end, f"{tag[end]!r} does not fit a tag (letters, digits, '_', then also '.' and '-')"
    )


def _split_host(text: str, name: str) -> tuple[str, str, int]:
    """Host, path, and where the path starts in the text."""
    first, slash, rest = name.partition("/")
    if slash and looks_like_host(first):
        _check_host(text, first)
        # What only its capitals tell from a path keeps them, or its canonical form would be another image's.
        host = first.lower() if looks_like_host(first.lower()) else first
        return (DOCKER_HUB if host == "index.docker.io" else host), rest, len(first) + 1
    if first.startswith("["):
        raise InvalidReferenceError(text, len(name), "a repository path must follow the host")
    if IMAGE_ID.fullmatch(name):
        raise InvalidReferenceError(text, 0, "64 hex digits are an image id, not a name")
    return DOCKER_HUB, name, 0


def _check_host(text: str, host: str) -> None:
    if host.startswith("["):
        found = _IPV6.match(host)
        if found is None:
            reason = "an IPv6 host is written [address]"
            if _IPV6_IN_DECIMALS.match(host):
                reason += ", all of it in hexadecimal digits"
            raise InvalidReferenceError(text, 0, reason)
        _check_ipv6(text, found.group())
        rest, at = host[found.end() :], found.end()
    else:
        at = host.find(":")
        at = len(host) if at < 0 else at
        rest, start = host[at:], 0
        for label in host[:at].split("."):
            if not LABEL.fullmatch(label):
                raise InvalidReferenceError(text, start, f"{label!r} is not a host name's part")
            start += len(label) + 1
    if not rest:
        return
    port = _PORT.fullmatch(rest)
    if port is None or not 0 < int(port[1]) < 65536:
        raise InvalidReferenceError(text, at, f"expected a port from 1 to 65535 after the host, found {rest!r}")


def _check_ipv6(text: str, bracketed: str) -> None:
    try:
        ipaddress.IPv6Address(bracketed[1:-1])
    except ValueError as error:
        raise InvalidReferenceError(text, 1, f"not an IPv6 address: {error}") from error


def _check_path(text: str, path: str, offset: int) -> None:
    start = offset
    for component in path.split("/"):
        end = _end(COMPONENT, component)
        if not component:
            raise InvalidReferenceError(text, start, "a path component is empty")
        if end != len(component):
            bad = component[end]
            upper = "; repository paths are lower case" if bad.isupper() else ""
            raise InvalidReferenceError(text, start + end, f"{bad!r} does not fit a repository path{upper}")
        start += len(component) + 1


def _end(grammar: re.Pattern[str], text: str) -> int:
    """How much of its beginning keeps a grammar."""
    found = grammar.match(text)
    return found.end() if found else 0
