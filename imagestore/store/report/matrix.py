"""The matrix of an image: the entries of its index down, runtime handlers across."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from imagestore.oci.descriptor import Descriptor
    from imagestore.oci.select import Selection, Verdict
    from imagestore.platforms import Platform


@dataclass(frozen=True, slots=True)
class Row:
    """One entry of an index.

    Attributes:
        position: where it stands, one number for each level of indexes; empty for a single manifest.
        descriptor: the entry.
        platform: its own, or its config's where a handler's search read that; None where neither is known.
        verdicts: one for each handler of the matrix; None where its search went into an index that stays closed for
            this one, or the other way round.
    """

    position: tuple[int, ...]
    descriptor: Descriptor
    platform: Platform | None
    verdicts: tuple[Verdict | None, ...]


@dataclass(frozen=True, slots=True)
class Matrix:
    """What every handler gets from one target, and why.

    Attributes:
        names: the references that lead to it, or what people call it.
        target: the index or manifest; None where its digest was not asked for.
        selections: what each handler gets, by its name; empty where it can't be told.
        failure: why it can't be told; else empty.
    """

    names: tuple[str, ...]
    target: Descriptor | None
    selections: Mapping[str, Selection] = field(hash=False)
    failure: str = ""

    @property
    def handlers(self) -> tuple[str, ...]:
        """The runtime handlers, in the order of the verdicts of each row."""
        return tuple(self.selections)

    @property
    def rows(self) -> tuple[Row, ...]:
        """One for each entry that any handler has a verdict on, in index order."""
        columns = [{each.position: each for each in found.verdicts} for found in self.selections.values()]
        rows = []
        for position in sorted({position for column in columns for position in column}):
            verdicts = tuple(column.get(position) for column in columns)
            # One handler's search may have read the config that another's had no need of.
            known = max((each for each in verdicts if each is not None), key=lambda each: each.platform is not None)
            rows.append(Row(position, known.descriptor, known.platform, verdicts))
        return tuple(rows)
