"""Typed parsing of what documents share: descriptors and platforms, and how a document says what it is."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Final

from imagestore.errors import DocumentError, IntegrityError
from imagestore.oci import media_types
from imagestore.oci.descriptor import Descriptor
from imagestore.oci.digest import Digest, verify
from imagestore.platforms.platform import Platform

if TYPE_CHECKING:
    import re
    from typing import Any

    from imagestore.oci.typed_members import Members

_DESCRIPTOR_MEMBERS: Final = frozenset(
    {"mediaType", "digest", "size", "urls", "annotations", "data", "artifactType", "platform"}
)
_PLATFORM_MEMBERS: Final = frozenset({"os", "architecture", "variant", "os.version", "os.features"})

_MAX_NAME: Final = 256
_MAX_TEXT: Final = 1024
_MAX_URL: Final = 8192
_MAX_TEXTS: Final = 64
# Inline data is a convenience for tiny contents; the whole document is bounded anyway.
_MAX_INLINE: Final = 1024 * 1024


def parse_descriptor(found: Members, grammar: re.Pattern[str]) -> Descriptor:
    """A descriptor in a document.

    Args:
        found: its members.
        grammar: of its media type.

    Raises:
        DocumentError: it isn't one.
    """
    found.refuse_case_variants(_DESCRIPTOR_MEMBERS)
    digest, size = found.digest("digest"), found.size()
    platform = found.object("platform")
    if platform is not None:
        platform.refuse_case_variants(_PLATFORM_MEMBERS)
        platform.texts("features", longest=_MAX_TEXT, most=_MAX_TEXTS)
    return Descriptor(
        media_type=found.media_type(grammar),
        digest=digest,
        size=size,
        platform=None if platform is None else parse_platform(platform),
        annotations=found.annotations(),
        urls=tuple(url for url in found.texts("urls", longest=_MAX_URL, most=_MAX_TEXTS) if url),
        data=_inline(found, digest, size),
        artifact_type=found.artifact_type(),
    )


def parse_platform(found: Members) -> Platform:
    """The platform members of an index entry or an image config; absent and null are empty, as peers read them."""
    features = found.texts("os.features", longest=_MAX_TEXT, most=_MAX_TEXTS)
    return Platform(
        os=found.text("os", _MAX_NAME),
        architecture=found.text("architecture", _MAX_NAME),
        variant=found.text("variant", _MAX_TEXT),
        os_version=found.text("os.version", _MAX_TEXT),
        # An empty text asks for nothing that a sandbox could provide.
        os_features=tuple(text for text in features if text and not text.isspace()),
    )


def leave_out_unstated_version(document: dict[str, Any], what: str) -> None:
    """Null and 0 are no version, and peers ask for none; any other than 2 is refused.

    Raises:
        DocumentError: it is no integer as JSON readers with types know them, though schemas do.
    """
    version = document.get("schemaVersion")
    if version is None or (type(version) is int and version == 0):
        document.pop("schemaVersion", None)
    elif type(version) is float:
        raise DocumentError(what, [f"$.schemaVersion: expected an integer, found {version!r}"])


def check_media_type(stated: str, expected: str, kind: media_types.Kind, what: str) -> str:
    """Agree on one media type between the descriptor (or the server's word) and the body's own.

    Args:
        stated: the body's own; empty when it states none.
        expected: what the descriptor or the Content-Type said; empty when neither said anything.
        kind: what the caller is about to read the document as.

    Returns:
        The media type.

    Raises:
        DocumentError: they disagree, or name another kind, or Docker's manifest doesn't say that it is one.
    """
    if stated and media_types.kind(stated) is not kind:
        raise DocumentError(what, [f"$.mediaType: {stated!r} is no {kind.value}"])
    if expected and stated and media_types.bare(stated) != media_types.bare(expected):
        raise DocumentError(what, [f"$.mediaType: {stated!r}, but it was announced as {expected!r}"])
    if not stated and media_types.bare(expected) == media_types.DOCKER_MANIFEST:
        raise DocumentError(what, [f"$.mediaType: missing, which only OCI manifests may do; announced as {expected!r}"])
    return stated or expected


def _inline(found: Members, digest: Digest, size: int) -> bytes | None:
    text = found.text("data")
    if not text and (size or not found.has("data")):
        return None  # no text is no data, as peers read it
    if size > _MAX_INLINE or len(text) > 2 * _MAX_INLINE:
        found.refuse("data", f"longer than {_MAX_INLINE} bytes")
    try:
        data = base64.b64decode(text, validate=True)
        if digest.is_verifiable:
            verify(data, digest, size)
    except IntegrityError as error:
        found.refuse("data", f"contradicts digest and size: {error}")
    except ValueError:
        found.refuse("data", "is not base64")
    return data if digest.is_verifiable else None
