"""Descriptors: typed pointers to content, and how documents write them (OCI image-spec 1.1, descriptor.md).

The first member that doesn't fit ends the reading of a document; the schema library then words all faults
(``decode.parse_with_faults``). A property test holds that both accept the same documents.
"""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from imagestore.errors import DocumentError, IntegrityError, InvalidDigestError
from imagestore.oci import media_types
from imagestore.oci.decode import CASE_VARIANT, case_variant
from imagestore.oci.digest import Digest, verify
from imagestore.platforms.platform import Platform
from imagestore.util.members import Members

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

#: Docker's mark on an index entry that describes another entry instead of being an image.
ATTESTATION_TYPE_KEY: Final = "vnd.docker.reference.type"
ATTESTATION_TYPE: Final = "attestation-manifest"
_DESCRIPTOR_MEMBERS: Final = frozenset(
    {"mediaType", "digest", "size", "urls", "annotations", "data", "artifactType", "platform"}
)
_PLATFORM_MEMBERS: Final = frozenset({"os", "architecture", "variant", "os.version", "os.features"})

_INGEST_PREFIX: Final = {
    media_types.Kind.INDEX: "index",
    media_types.Kind.MANIFEST: "manifest",
    media_types.Kind.CONFIG: "config",
    media_types.Kind.LAYER: "layer",
    media_types.Kind.FOREIGN_LAYER: "layer",
}

_MAX_NAME: Final = 256
_MAX_TEXT: Final = 1024
_MAX_URL: Final = 8192
_MAX_TEXTS: Final = 64
# Inline data is a convenience for tiny contents; the whole document is bounded anyway.
_MAX_INLINE: Final = 1024 * 1024


_MAX_MEDIA_TYPE: Final = 512
_TYPE: Final = "[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,126}/[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,126}(; *.{0,200})?"
#: Media types of layers, which must be stated; of configs and of documents themselves, which need not be; of entries of
#: an index, which may be anything that all readers take for the same.
LAYER_TYPE: Final = re.compile(_TYPE)
STATED_TYPE: Final = re.compile(f"({_TYPE})?")
ENTRY_TYPE: Final = re.compile(r"(?!\s)(?![^;]*\s(;|$))[^\x00-\x1f\x7f]*")


@dataclass(frozen=True, slots=True)
class Descriptor:
    """Media type, digest and size of some content, and what a document says about it.

    Attributes:
        media_type: as written in the document.
        digest: of the content.
        size: of the content in bytes.
        platform: which platform the content is for; only on index entries.
        annotations: free text by key.
        urls: other places to fetch from (foreign layers).
        data: the content itself, when the document carries it inline.
        artifact_type: what an artifact is.
    """

    media_type: str
    digest: Digest
    size: int
    platform: Platform | None = None
    annotations: Mapping[str, str] = field(default_factory=dict, hash=False)
    urls: tuple[str, ...] = ()
    data: bytes | None = None
    artifact_type: str = ""

    def __str__(self) -> str:
        """Digest, media type and size, for people."""
        return f"{self.digest} ({self.media_type}, {self.size} bytes)"

    @property
    def kind(self) -> media_types.Kind:
        """What kind of content this points at."""
        return media_types.kind(self.media_type)

    @property
    def ingest_ref(self) -> str:
        """The ingest's name for fetched content, in containerd's form (remotes.MakeRefKey): kind, hyphen, digest."""
        return f"{_INGEST_PREFIX.get(self.kind, 'unknown')}-{self.digest}"

    def members(self) -> dict[str, str | int]:
        """Media type, digest and size, as documents name them."""
        return {"mediaType": self.media_type, "digest": str(self.digest), "size": self.size}

    @property
    def is_attestation(self) -> bool:
        """Whether this index entry is a build attestation and never runs."""
        return self.annotations.get(ATTESTATION_TYPE_KEY) == ATTESTATION_TYPE


class DocumentMembers(Members):
    """The members of one object in a document."""

    __slots__ = ()

    def media_type(self, grammar: re.Pattern[str] = STATED_TYPE) -> str:
        """The member ``mediaType``; empty when absent, where the grammar takes that."""
        value = self.text("mediaType", _MAX_MEDIA_TYPE)
        if not grammar.fullmatch(value):
            self.refuse("mediaType", "is no media type")
        return value

    def artifact_type(self) -> str:
        """The member ``artifactType``; empty when absent."""
        return self.text("artifactType", _MAX_MEDIA_TYPE)

    def check_version(self) -> None:
        """Refuse a ``schemaVersion`` that states another one than 2."""
        value = self.values.get("schemaVersion", 2)
        if type(value) is not int or value != 2:
            self.refuse("schemaVersion", "expected 2")

    def digest(self, name: str) -> Digest:
        """A digest, which must be there."""
        return self.parse_digest(self.text(name), name)

    def parse_digest(self, text: str, name: str) -> Digest:
        """The digest that a member, or an item of it, is."""
        try:
            return Digest.parse(text)
        except InvalidDigestError as error:
            self.refuse(name, str(error))

    def size(self) -> int:
        """The member ``size``, which must be there."""
        value = self.values.get("size")
        # One without a fraction is an integer to the schemas, but not to JSON readers with types. decode() refuses what
        # 64 bits don't hold.
        if type(value) is not int or value < 0:
            self.refuse("size", f"expected an integer from 0 on, found {value!r:.40}")
        return value

    def refuse_case_variants(self, known: frozenset[str]) -> None:
        """Refuse members that differ from a known name only by case."""
        name = case_variant(self.values, known)
        if name:
            self.refuse(name, CASE_VARIANT)

    def refuse_any_of(self, *names: str) -> None:
        """Refuse members of another kind of document."""
        for name in names:
            if name in self.values:
                self.refuse(name, "belongs to another kind of document")


def members_of(document: Mapping[str, Any], what: str) -> DocumentMembers:
    """The members of a document, which ``what`` names; they raise DocumentError for what doesn't fit."""
    return DocumentMembers(document, "$", lambda path, text: DocumentError(what, [f"{path}: {text}"]))


def parse_descriptor(found: DocumentMembers, grammar: re.Pattern[str]) -> Descriptor:
    """A descriptor in a document; ``grammar`` is that of its media type.

    Raises:
        DocumentError: it isn't one.
    """
    found.refuse_case_variants(_DESCRIPTOR_MEMBERS)
    digest, size = found.digest("digest"), found.size()
    platform = found.object("platform") if "platform" in found else None
    if platform is not None:
        platform.refuse_case_variants(_PLATFORM_MEMBERS)
        platform.texts("features", longest=_MAX_TEXT, most=_MAX_TEXTS)
    return Descriptor(
        media_type=found.media_type(grammar),
        digest=digest,
        size=size,
        platform=None if platform is None else parse_platform(platform),
        annotations=found.labels("annotations"),
        urls=tuple(url for url in found.texts("urls", longest=_MAX_URL, most=_MAX_TEXTS) if url),
        data=_inline(found, digest, size),
        artifact_type=found.artifact_type(),
    )


def parse_platform(found: DocumentMembers) -> Platform:
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


def _inline(found: DocumentMembers, digest: Digest, size: int) -> bytes | None:
    text = found.text("data")
    if not text and (size or "data" not in found):
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
