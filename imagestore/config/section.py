"""One table of the merged configuration, read key by key against the names and types it may have.

Key names compare without case, as containerd's decoder compares them. An unknown key is kept and reported; a value of
the wrong type is an error, since containerd doesn't start with it either.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from imagestore.config.findings import Finding, Severity, dotted, show
from imagestore.config.key_names import fold_names
from imagestore.config.known import Kind, Shape
from imagestore.config.plugin_names import generation, place_of
from imagestore.config.redaction import kind_of
from imagestore.config.tree import Entry, Location, Table
from imagestore.errors import InvalidInputError
from imagestore.util.durations import Duration
from imagestore.util.known_members import nearest
from imagestore.util.quantity import Quantity

if TYPE_CHECKING:
    from imagestore.config.tree import Path


#: Unknown keys of one table that are named; a table with more was never meant for us.
_MAX_UNKNOWN: Final = 50
_TYPES: Final = {Kind.TEXT: str, Kind.INTEGER: int, Kind.BOOLEAN: bool, Kind.TABLE: dict}


class Section:
    """A table with its keys checked.

    Args:
        entry: the table; another value is reported, and reads as empty.
        path: its key path, for findings.
        shape: what is known of it; a shape without kinds allows any key.
        findings: gets what is found.
        version: of the main file.

    Attributes:
        path: its key path, as findings call it.
        version: of the file, if the table's own path doesn't tell it.
        location: of the table.
        table: its keys in their known spelling; those of a wrong type are left out.
    """

    def __init__(
        self,
        entry: Entry | None,
        path: Path,
        shape: Shape,
        findings: list[Finding],
        *,
        version: int = 3,
    ) -> None:
        self.path = path
        self.version = version
        self._written = entry.path if entry is not None else ()
        self.findings = findings
        self._shape = shape
        self.location = entry.location if entry is not None else Location("", 0)
        self.table: Table = {}
        if entry is None:
            return
        if not isinstance(entry.value, dict):
            self.report(Severity.ERROR, "", f"expected a table, got {kind_of(entry.value)}", "", entry)
            return
        self.table = entry.value
        if isinstance(shape.names, Mapping):
            self.table = self._checked(fold_names(entry.value, shape.names, path, findings), shape.names)

    def _checked(self, table: Table, known: Mapping[str, Kind]) -> Table:
        checked: Table = {}
        unknown: Table = {}
        for name, entry in table.items():
            kind = known.get(name)
            if kind is None:
                unknown[name] = entry
            elif not is_kind(entry, kind):
                self.report(Severity.ERROR, name, f"expected {kind.value}, got {kind_of(entry.value)}", "", entry)
                continue
            checked[name] = entry
        self._report_unknown(unknown, known)
        return checked

    def _report_unknown(self, unknown: Table, known: Mapping[str, Kind]) -> None:
        for number, (name, entry) in enumerate(unknown.items()):
            if number == _MAX_UNKNOWN:
                text = f"has {len(unknown) - number} unknown keys more"
                self.findings.append(Finding(Severity.WARNING, entry.location, dotted(self._path_of("", None)), text))
                return
            self.report(Severity.WARNING, name, *self._about_unknown(name, entry, known), entry)

    def _about_unknown(self, name: str, entry: Entry, known: Mapping[str, Kind]) -> tuple[str, str]:
        """Text and hint about a key that this table doesn't have."""
        place = place_of(name, self._path_of("", None), generation(entry.path, self.version))
        if place:
            return "is not a key of this table; it is kept and not used", f"write it as {dotted(place)}"
        near = nearest(name, known, likeness=0.8)
        hint = f"did you mean {near}?" if near else "remove it if nothing else reads it"
        return "is not a known key; it is kept and not used", hint

    def report(self, severity: Severity, name: str, text: str, hint: str = "", entry: Entry | None = None) -> None:
        """Add a finding about a key of this table, or about the table when ``name`` is empty.

        Args:
            severity: of the finding.
            name: the key.
            text: what is wrong.
            hint: what to change.
            entry: of the key, where the table doesn't have it any more.
        """
        entry = entry or self.table.get(name)
        where = self.location if entry is None else entry.location
        self.findings.append(Finding(severity, where, dotted(self._path_of(name, entry)), text, hint))

    def _path_of(self, name: str, entry: Entry | None) -> Path:
        """A key's path as written in its file, before migration and case folding."""
        if self.path[:1] == ("plugins",):
            written = entry.path if entry is not None else self._written
            if written:
                return written if entry is not None or not name else (*written, name)
        if not name:
            return self.path
        return (*self.path, (entry.spelling if entry is not None else "") or name)

    def location_of(self, name: str) -> Location:
        """Where a key is set; the table's location if it isn't."""
        entry = self.table.get(name)
        return self.location if entry is None else entry.location

    def _value(self, name: str, kind: Kind) -> Any:
        entry = self.table.get(name)
        return entry.value if entry is not None and is_kind(entry, kind) else None

    def text(self, name: str) -> str:
        """A text; empty when the key isn't set."""
        found: str | None = self._value(name, Kind.TEXT)
        return found or ""

    def integer(self, name: str) -> int | None:
        """An integer, or None when the key isn't set."""
        found: int | None = self._value(name, Kind.INTEGER)
        return found

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of texts; empty when the key isn't set."""
        return tuple(self._value(name, Kind.TEXTS) or ())

    def flag(self, name: str, *, default: bool = False) -> bool:
        """true or false; ``default`` when the key isn't set."""
        found: bool | None = self._value(name, Kind.BOOLEAN)
        return default if found is None else found

    def count(self, name: str, most: int | None = None) -> int | None:
        """A number from 1 to ``most``; None when the key isn't set or the number is reported."""
        number = self.integer(name)
        if number is None or (number >= 1 and (most is None or number <= most)):
            return number
        expected = "a number above 0" if most is None else f"a number from 1 to {most}"
        self.report(Severity.ERROR, name, f"expected {expected}, got {number}", "leave it out for the default")
        return None

    def seconds(self, name: str, default: float, *, days: bool = False) -> float:
        """A duration; ``default`` when the key isn't set or the duration is reported."""
        text = self.text(name)
        if not text:
            return default
        try:
            found = Duration.parse(text, has_days=days)
        except InvalidInputError as error:
            self.report(Severity.ERROR, name, str(error), error.hint)
            return default
        if found < Duration():
            self.report(Severity.ERROR, name, f"expected a duration that isn't negative, got {show(text)}")
            return default
        return found.seconds

    def size(self, name: str) -> int | None:
        """Bytes, such as ``200Gi``; None when the key isn't set or the size is reported."""
        text = self.text(name)
        if not text:
            return None
        try:
            found = Quantity.parse(text).value()
        except InvalidInputError as error:
            self.report(Severity.ERROR, name, str(error), error.hint)
            return None
        if found < 1:
            self.report(Severity.ERROR, name, f"expected a size above 0, got {show(text)}", "for example 200Gi")
            return None
        return found

    def section(self, name: str, *, shape: Shape | None = None, path: Path | None = None) -> Section:
        """A table inside this one; empty when it isn't there.

        Args:
            name: its key.
            shape: of it, if this table's shape doesn't say.
            path: how findings call it, if its full path would puzzle a reader of an older version's file.
        """
        here = (*self.path, name) if path is None else path
        return Section(self.table.get(name), here, shape or self._shape.at(name), self.findings, version=self.version)


def is_kind(entry: Entry, kind: Kind) -> bool:
    """Whether a value is of the wanted type."""
    value = entry.value
    if kind is Kind.TEXTS:
        return isinstance(value, list) and all(isinstance(item, str) for item in value)
    return kind is Kind.ANY or type(value) is _TYPES[kind]
