"""Typed reading of documents: what descriptors, indexes, manifests and image configs have in common.

The first member that doesn't fit ends the reading; the schema library then words all faults
(``decode.parse_with_faults``). A property test holds that both accept the same documents.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from imagestore.errors import DocumentError, InvalidDigestError
from imagestore.oci.decode import CASE_VARIANT, case_variant
from imagestore.oci.digest import Digest
from imagestore.util.members import Members

if TYPE_CHECKING:
    from collections.abc import Mapping

_MAX_MEDIA_TYPE: Final = 512
_TYPE: Final = "[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,126}/[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,126}(; *.{0,200})?"
#: Media types of layers, which must be stated; of configs and of documents themselves, which need not be; of entries of
#: an index, which may be anything that all readers take for the same.
LAYER_TYPE: Final = re.compile(_TYPE)
STATED_TYPE: Final = re.compile(f"({_TYPE})?")
ENTRY_TYPE: Final = re.compile(r"(?!\s)(?![^;]*\s(;|$))[^\x00-\x1f\x7f]*")


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
