"""Typed reading of documents: the members of objects, each taken as the type and within the bounds that it must have.

The first member that doesn't fit ends the reading; the schema library then words all faults
(``decode.parse_with_faults``). A property test holds that both accept the same documents.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NoReturn

from imagestore.errors import DocumentError, InvalidDigestError
from imagestore.oci.decode import refuse_case_variants
from imagestore.oci.digest import Digest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

#: The schemas word the fault instead; this text shows only where they judge otherwise.
MISFIT: Final = "is not what may stand there"

_MAX_MEDIA_TYPE: Final = 512
_TYPE: Final = "[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,126}/[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,126}(; *.{0,200})?"
#: Media types of layers, which must be stated; of configs and of documents themselves, which need not be; of entries of
#: an index, which may be anything that all readers take for the same.
LAYER_TYPE: Final = re.compile(_TYPE)
STATED_TYPE: Final = re.compile(f"({_TYPE})?")
ENTRY_TYPE: Final = re.compile(r"(?!\s)(?![^;]*\s(;|$))[^\x00-\x1f\x7f]*")


class Members:
    """The members of one object in a document.

    Args:
        values: the object as decoded.
        path: where it stands in the document.
        what: names the document in errors.

    All methods raise DocumentError for what doesn't fit. Null counts as absent, as peers read it.
    """

    __slots__ = ("_path", "_values", "_what")

    def __init__(self, values: Mapping[str, Any], path: str, what: str) -> None:
        self._values = values
        self._path = path
        self._what = what

    def text(self, name: str, longest: int | None = None) -> str:
        """A text; empty when absent."""
        value = self._values.get(name)
        return "" if value is None else self._text(value, name, longest)

    def media_type(self, grammar: re.Pattern[str] = STATED_TYPE) -> str:
        """The member ``mediaType``; empty when absent, where the grammar takes that."""
        value = self.text("mediaType", _MAX_MEDIA_TYPE)
        if not grammar.fullmatch(value):
            self.refuse("mediaType")
        return value

    def artifact_type(self) -> str:
        """The member ``artifactType``; empty when absent."""
        return self.text("artifactType", _MAX_MEDIA_TYPE)

    def annotations(self) -> Mapping[str, str]:
        """The member ``annotations``; null among them is an empty text."""
        return self.labels("annotations")

    def labels(self, name: str) -> dict[str, str]:
        """Texts by name; null among them is an empty text."""
        values = self._of_type(name, dict) or {}
        return {key: "" if text is None else self._text(text, name) for key, text in values.items()}

    def texts(self, name: str, *, longest: int | None = None, most: int | None = None) -> list[str]:
        """A list of texts; null among them is an empty text."""
        return ["" if text is None else self._text(text, name, longest) for text in self.items(name, most)]

    def flag(self, name: str) -> bool | None:
        """True or false; None when absent."""
        value: bool | None = self._of_type(name, bool)
        return value

    def has(self, name: str) -> bool:
        """Whether a member is there."""
        return self._values.get(name) is not None

    def check_version(self) -> None:
        """Refuse a ``schemaVersion`` that states another one than 2."""
        value = self._values.get("schemaVersion", 2)
        if type(value) is not int or value != 2:
            self.refuse("schemaVersion")

    def digest(self, name: str) -> Digest:
        """A digest, which must be there."""
        return self.parse_digest(self._values.get(name), name)

    def parse_digest(self, text: Any, name: str) -> Digest:
        """The digest that a member, or an item of it, is."""
        try:
            return Digest.parse(self._text(text, name))
        except InvalidDigestError as error:
            self.refuse(name, str(error))

    def size(self) -> int:
        """The member ``size``, which must be there."""
        value = self._values.get("size")
        if type(value) is float:
            # One without a fraction is an integer to the schemas, but not to JSON readers with types.
            self.refuse("size", f"expected an integer, found {value!r}")
        # decode() refuses what 64 bits don't hold.
        if type(value) is not int or value < 0:
            self.refuse("size")
        return value

    def items(self, name: str, most: int | None = None) -> Sequence[Any]:
        """A list of anything; empty when absent, as Go writes one without items."""
        values: list[Any] = self._of_type(name, list) or []
        if most is not None and len(values) > most:
            self.refuse(name)
        return values

    def objects(self, name: str, most: int) -> Iterator[Members]:
        """A list of objects; null among them has no members."""
        for position, value in enumerate(self.items(name, most)):
            if value is not None and type(value) is not dict:
                self.refuse(name)
            yield Members(value or {}, f"{self._path}.{name}[{position}]", self._what)

    def object(self, name: str) -> Members | None:
        """An object; None when absent."""
        value = self._of_type(name, dict)
        return None if value is None else Members(value, f"{self._path}.{name}", self._what)

    def refuse_case_variants(self, known: frozenset[str]) -> None:
        """Refuse members that differ from a known name only by case."""
        refuse_case_variants(self._values, known, self._what, path=self._path)

    def refuse_any_of(self, *names: str) -> None:
        """Refuse members of another kind of document."""
        for name in names:
            if name in self._values:
                self.refuse(name)

    def refuse(self, name: str, fault: str = MISFIT) -> NoReturn:
        """Refuse a member."""
        raise DocumentError(self._what, [f"{self._path}.{name}: {fault}"])

    def _of_type(self, name: str, wanted: type) -> Any:
        value = self._values.get(name)
        if value is not None and type(value) is not wanted:
            self.refuse(name)
        return value

    def _text(self, value: Any, name: str, longest: int | None = None) -> str:
        if type(value) is not str or (longest is not None and len(value) > longest):
            self.refuse(name)
        return value
