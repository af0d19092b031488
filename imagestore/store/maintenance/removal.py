"""Removing many images by name in few transactions, each synced, none longer than those who wait can bear.

The result is that of removing them one after the other. What several plain references mean is looked up together;
everything else (ids, digests, names of images that an earlier name took along) on its own, when its turn comes.
Where the names mean every record there is, all go at once, a hundred times faster than one by one.
"""

from __future__ import annotations

import collections
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from imagestore.errors import InvalidInputError, UnknownRuntimeHandlerError
from imagestore.store import record_lookup
from imagestore.store.garbage import Patience

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from imagestore.metadata.api import MetadataStore
    from imagestore.metadata.records import ImageRecord

#: Names that are looked up together: some milliseconds.
_AT_ONCE: Final = 64
#: Records that go at once when all go: what takes tens of milliseconds to read and to note in the journal.
_MOST_TOGETHER: Final = 12_000
#: Reading every record isn't worth while for fewer names than this part of them.
_RECORDS_FOR_A_NAME: Final = 4


@dataclass(frozen=True, slots=True)
class Removal:
    """Records that were removed, as (reference, runtime handler), and the bytes that their content took."""

    removed: tuple[tuple[str, str], ...]
    bytes_freed: int


@dataclass(frozen=True, slots=True)
class Removals:
    """What several names removed, as (reference, runtime handler) by name, and the bytes freed by all together."""

    removed: Mapping[str, tuple[tuple[str, str], ...]]
    bytes_freed: int


@dataclass(frozen=True, slots=True)
class Remover:
    """Removes records.

    Attributes:
        metadata: where they are.
        rule: which records a plain reference means.
        doomed: which records any name means.
        removed: (reference, runtime handler) of what went so far, by name.
    """

    metadata: MetadataStore
    rule: record_lookup.RemovalRule
    doomed: Callable[[str], Sequence[ImageRecord]]
    removed: dict[str, tuple[tuple[str, str], ...]] = field(default_factory=dict)

    def remove(self, names: Iterable[str]) -> tuple[dict[str, tuple[tuple[str, str], ...]], set[str]]:
        """Remove the records that these names mean.

        Args:
            names: references, ids, beginnings of ids, or names with digests.

        Returns:
            (reference, runtime handler) of what went, by name; and what those records held, in text form.

        Raises:
            InvalidInputError, UnknownRuntimeHandlerError: a name is refused; the records of those before it are gone,
                those after it weren't looked at.
        """
        roots: set[str] = set()
        waiting = collections.deque(dict.fromkeys(names))
        together = self._remove_all(waiting) if len(waiting) > 1 else None
        if together is not None:
            return together
        patience = Patience(self.metadata)
        refusal: InvalidInputError | UnknownRuntimeHandlerError | None = None
        while waiting and refusal is None:
            self.metadata.give_way()
            with self.metadata.exclusive():
                patience.begin()
                while waiting:
                    some = [waiting.popleft() for _ in range(min(_AT_ONCE, len(waiting)))]
                    try:
                        roots.update(self._remove(some))
                    except (InvalidInputError, UnknownRuntimeHandlerError) as error:
                        refusal = error  # raised after the transaction, which would be undone otherwise
                        break
                    if patience.is_over():
                        break
        if refusal is not None:
            raise refusal
        return self.removed, roots

    def _remove_all(self, names: Collection[str]) -> tuple[dict[str, tuple[tuple[str, str], ...]], set[str]] | None:
        """As remove(), if the names are plain references and mean every record; else nothing is done, and None."""
        known = self.metadata.images.everything(min(_MOST_TOGETHER, len(names) * _RECORDS_FOR_A_NAME))
        removed = None if known is None else record_lookup.all_meant(known.ids, names, self.rule)
        if known is None or removed is None:
            return None
        if known.ids:
            self.metadata.give_way()
            if not self.metadata.images.drop_everything(known):
                return None
        return removed, set(known.roots)

    def _remove(self, names: Sequence[str]) -> set[str]:
        """One step; when a name is refused, the records of those before it are dropped already."""
        plain = record_lookup.doomed_keys(self.metadata, names, self.rule)
        roots: set[str] = set()
        gone: set[tuple[str, str]] = set()
        going: list[tuple[str, str]] = []
        try:
            for name in names:
                keys = plain.get(name)
                if keys is None or not gone.isdisjoint(keys):
                    roots.update(self.metadata.images.drop(going))
                    going = []
                    keys = tuple((record.reference, record.handler) for record in self.doomed(name))
                self.removed[name] = keys
                going += keys
                gone.update(keys)
            roots.update(self.metadata.images.drop(going))
        except (InvalidInputError, UnknownRuntimeHandlerError):
            # What the records before it hid belongs to no client any more.
            record_lookup.drop_hidden(self.metadata, gone, self.rule.default_handler)
            raise
        roots.update(record_lookup.drop_hidden(self.metadata, gone, self.rule.default_handler))
        return roots
