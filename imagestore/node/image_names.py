"""Image names as the kubelet reads them, with its texts.

Rules: the distribution project's reference package (normalized names), the kubelet's default tag, and the API server's
default pull policy. The error texts are those of a pod's events. A host that `imagestore.oci.reference` refuses (an
impossible port or IPv6 address) is refused here too, so that all commands accept the same names.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from typing import Final

from imagestore.errors import InvalidInputError, InvalidReferenceError
from imagestore.node.kubelet_messages import quoted
from imagestore.oci import DOCKER_HUB, VERIFIABLE, Reference, grammar
from imagestore.util.logins import reference_without_login

_LABEL: Final = grammar.LABEL.pattern
_DOMAIN: Final = rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[a-fA-F0-9:]+\])(?::[0-9]+)?"
_NAME: Final = rf"(?:(?P<domain>{_DOMAIN})/)?(?P<path>{grammar.COMPONENT.pattern}(?:/{grammar.COMPONENT.pattern})*)"
_DIGEST: Final = r"[A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{32,}"
_REFERENCE: Final = re.compile(rf"{_NAME}(?::(?P<tag>{grammar.TAG.pattern}))?(?:@(?P<digest>{_DIGEST}))?")
#: Longer texts are never names and are not matched.
_MAX_TEXT: Final = 4096


class PullPolicy(enum.StrEnum):
    """``imagePullPolicy`` of a container."""

    ALWAYS = "Always"
    IF_NOT_PRESENT = "IfNotPresent"
    NEVER = "Never"


class InvalidImageNameError(InvalidInputError):
    """An image text is no reference; the message is that of the kubelet's parser."""


@dataclass(frozen=True, slots=True)
class ImageName:
    """A parsed and completed name.

    Attributes:
        repository: with its domain, for example ``docker.io/library/busybox``.
        tag: as written; ``latest`` if neither tag nor digest was written.
        digest: as written, or empty.
        has_default_tag: no tag was written.
    """

    repository: str
    tag: str
    digest: str = ""
    has_default_tag: bool = False


def parse_image_name(text: str) -> ImageName:
    """Complete and split an image text.

    Raises:
        InvalidImageNameError: with the kubelet's words.

    >>> parse_image_name("busybox")
    ImageName(repository='docker.io/library/busybox', tag='latest', digest='', has_default_tag=True)
    """
    fault, name = _normalized(text)
    if name is None:
        shown = reference_without_login(text)
        shown = quoted(shown if len(text) <= _MAX_TEXT else shown[:100] + "...")
        raise InvalidImageNameError(f"couldn't parse image name {shown}: {fault}")
    return name


def with_default_tag(text: str) -> str:
    """The text as written, with ``:latest`` appended if it has neither tag nor digest.

    Raises:
        InvalidImageNameError: it is no image name.

    >>> with_default_tag("busybox"), with_default_tag("busybox:1")
    ('busybox:latest', 'busybox:1')
    """
    return f"{text}:latest" if parse_image_name(text).has_default_tag else text


def written_repository(text: str) -> str:
    """The text as written without its tag and digest: the key of allow lists and pull records.

    Raises:
        InvalidImageNameError: it is no image name.

    >>> written_repository("busybox:1"), written_repository("docker.io/library/busybox")
    ('busybox', 'docker.io/library/busybox')
    """
    name = parse_image_name(text)
    rest = text.removesuffix(f"@{name.digest}") if name.digest else text
    return rest if name.has_default_tag or not name.tag else rest.removesuffix(f":{name.tag}")


def spellings(text: str) -> frozenset[str]:
    """The names under which a service may list an image: as written, and completed (with a digest: without the tag).

    >>> sorted(spellings("busybox"))
    ['busybox', 'docker.io/library/busybox:latest']
    """
    _, name = _normalized(text)
    if name is None:
        return frozenset({text})
    return frozenset({text, name.repository + (f"@{name.digest}" if name.digest else f":{name.tag}")})


def default_pull_policy(image: str) -> PullPolicy:
    """The API server's default for a container without a policy; an invalid image name counts as tagged.

    >>> default_pull_policy("busybox"), default_pull_policy("busybox:1")
    (<PullPolicy.ALWAYS: 'Always'>, <PullPolicy.IF_NOT_PRESENT: 'IfNotPresent'>)
    """
    _, name = _normalized(image)
    return PullPolicy.ALWAYS if name is not None and name.tag == "latest" else PullPolicy.IF_NOT_PRESENT


def name_fault(text: str) -> str:
    """Why a text is no image name, in the parser's words; empty if it is one."""
    return _normalized(text)[0]


def _normalized(text: str) -> tuple[str, ImageName | None]:
    if grammar.IMAGE_ID.fullmatch(text):
        return f"invalid repository name ({text}), cannot specify 64-byte hexadecimal strings", None
    domain, remainder = _split_domain(text)
    remote = remainder.partition(":")[0]
    if remote.lower() != remote:
        return f"invalid reference format: repository name ({remote[: grammar.MAX_PATH]}) must be lowercase", None
    full = f"{domain}/{remainder}"
    found = _REFERENCE.fullmatch(full) if len(full) <= _MAX_TEXT else None
    if found is None:
        is_case = len(full) <= _MAX_TEXT and _REFERENCE.fullmatch(full.lower()) is not None
        return "repository name must be lowercase" if is_case else "invalid reference format", None
    if len(found["path"]) > grammar.MAX_PATH:
        return f"repository name must not be more than {grammar.MAX_PATH} characters", None
    if not _is_reachable(found["domain"]):
        return "invalid reference format", None
    tag, digest = found["tag"] or "", found["digest"] or ""
    fault = _digest_fault(digest) if digest else ""
    if fault:
        return fault, None
    repository = f"{found['domain']}/{found['path']}" if found["domain"] else found["path"]
    is_bare = not tag and not digest
    return "", ImageName(repository, "latest" if is_bare else tag, digest, is_bare)


def _is_reachable(domain: str) -> bool:
    try:
        Reference.parse(f"{domain}/name")
    except InvalidReferenceError:
        return False
    return True


def _split_domain(text: str) -> tuple[str, str]:
    first, slash, rest = text.partition("/")
    domain, remainder = (first, rest) if slash and grammar.looks_like_host(first) else (DOCKER_HUB, text)
    if domain == "index.docker.io":
        domain = DOCKER_HUB
    if domain == DOCKER_HUB and "/" not in remainder:
        remainder = f"library/{remainder}"
    return domain, remainder


def _digest_fault(digest: str) -> str:
    algorithm, _, encoded = digest.partition(":")
    if not grammar.DIGEST.fullmatch(digest):
        return "invalid checksum digest format"
    length = VERIFIABLE.get(algorithm)
    if length is None:
        return "unsupported digest algorithm"
    if len(encoded) != length:
        return "invalid checksum digest length"
    return "" if re.fullmatch("[a-f0-9]+", encoded) else "invalid checksum digest format"
