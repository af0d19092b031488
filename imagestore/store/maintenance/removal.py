"""Removing many images by name in few transactions, each synced, none so long that other writers wait noticeably.

The result is that of removing them one after the other. What several plain references mean is looked up together;
ids, digests and names of images that an earlier name took along are looked up one by one.
"""

from __future__ import annotations

import collections
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from imagestore.errors import InvalidInputError
from imagestore.oci.digest import Digest
from imagestore.oci.reference import Reference
from imagestore.store import garbage, record_lookup
from imagestore.store.garbage import BatchTimer

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from imagestore.content.api import ContentStore
    from imagestore.metadata.api import MetadataStore
    from imagestore.store.record_lookup import RemovalRule

#: (reference, runtime handler) of removed records, by the name that meant them.
Keys = dict[str, tuple[tuple[str, str], ...]]
#: Names that are looked up together: some milliseconds.
_AT_ONCE: Final = 64


@dataclass(frozen=True, slots=True)
class Removal:
    """What names removed, or would remove.

    Attributes:
        by_name: (reference, runtime handler) of the records, by the name that meant them; none for a missing image.
        bytes_freed: what their content took, if it was freed at once.
    """

    by_name: Mapping[str, tuple[tuple[str, str], ...]]
    bytes_freed: int = 0

    @property
    def removed(self) -> tuple[tuple[str, str], ...]:
        """(reference, runtime handler) of all these records, each once."""
        return tuple(dict.fromkeys(key for keys in self.by_name.values() for key in keys))


@dataclass(frozen=True, slots=True)
class Remover:
    """Removes records that names mean by a rule; ``removed`` has those that were removed so far."""

    metadata: MetadataStore
    rule: RemovalRule
    removed: Keys = field(default_factory=dict)

    def remove(self, names: Iterable[str]) -> tuple[Keys, set[str]]:
        """Remove the records that these names mean; return them, and the digests that they held, in text form.

        Raises:
            InvalidInputError: a name is refused; the records of the names before it are removed, those after it weren't
                looked at.
        """
        roots: set[str] = set()
        waiting = collections.deque(dict.fromkeys(names))
        timer = BatchTimer(self.metadata)
        refusal: InvalidInputError | None = None
        while waiting and refusal is None:
            self.metadata.give_way()
            with self.metadata.exclusive():
                timer.begin()
                while waiting:
                    some = [waiting.popleft() for _ in range(min(_AT_ONCE, len(waiting)))]
                    try:
                        roots.update(self._remove(some))
                    except InvalidInputError as error:
                        refusal = error  # raised after the transaction, which would be undone otherwise
                        break
                    if timer.is_over():
                        break
        if refusal is not None:
            raise refusal
        return self.removed, roots

    def _remove(self, names: Sequence[str]) -> set[str]:
        """One step; when a name is refused, the records of those before it are dropped already."""
        plain = keys_to_remove(self.metadata, names, self.rule)
        roots: set[str] = set()
        gone: set[tuple[str, str]] = set()
        going: list[tuple[str, str]] = []
        try:
            for name in names:
                keys = plain.get(name)
                if keys is None or not gone.isdisjoint(keys):
                    roots.update(self.metadata.images.drop(going))
                    going = []
                    records = record_lookup.to_remove(self.metadata, name, self.rule)
                    keys = record_lookup.keys(records)
                self.removed[name] = keys
                going += keys
                gone.update(keys)
            roots.update(self.metadata.images.drop(going))
        except InvalidInputError:
            # What the removed records hid belongs to no client any more.
            record_lookup.drop_hidden(self.metadata, gone, self.rule.default_handler)
            raise
        roots.update(record_lookup.drop_hidden(self.metadata, gone, self.rule.default_handler))
        return roots


def remove(
    metadata: MetadataStore, content: ContentStore, names: Iterable[str], rule: RemovalRule, *, collect: bool
) -> Removal:
    """Remove the records that names mean, and with ``collect`` their content; raises what ImageStore.remove() does."""
    if collect:
        metadata.graph.refuse_damaged_indexes()
    remover = Remover(metadata, rule)
    try:
        removed, roots = remover.remove(names)
    except InvalidInputError as error:
        error.report = Removal(remover.removed)
        raise
    if not collect:
        return Removal(removed)
    swept = garbage.collect_from(metadata, content, roots)
    report = Removal(removed, sum(swept.freed.values()))
    swept.check(report)
    return report


def untag(metadata: MetadataStore, reference: str, rule: RemovalRule) -> tuple[tuple[str, str], ...]:
    """Remove a reference of images that have another one; returns (reference, runtime handler) of the records.

    Raises:
        ImageNotFoundError, InvalidReferenceError: there is no such record, or the text is no reference.
        InvalidInputError: an image has no other reference; nothing is removed.
    """
    exact = str(Reference.parse(reference))
    records = [each for each in record_lookup.meant(metadata, exact, rule) if each.reference == exact]
    if not records:
        raise record_lookup.not_found(reference, rule.handler)
    with metadata.exclusive():
        for each in records:
            if len(metadata.images.find(image_id_prefix=str(each.image_id), handler=each.handler)) < 2:
                raise InvalidInputError(
                    f"image {each.reference!r} has no other reference under runtime handler {each.handler!r}",
                    hint="to remove the image: imagestore rmi",
                )
        removed = record_lookup.keys(metadata.images.remove(record_lookup.keys(records)))
        record_lookup.drop_hidden(metadata, removed, rule.default_handler)
        return removed


def keys_to_remove(metadata: MetadataStore, texts: Iterable[str], rule: RemovalRule) -> Keys:
    """As record_lookup.to_remove(), for those of several texts that are references in the store, without digests.

    Raises:
        StoreCorruptError: the index of image ids lacks a record.
    """
    named: dict[str, set[tuple[str, str]]] = {}

    def _look_up(references: Iterable[str]) -> None:
        for reference, handler, image_id in metadata.images.find_ids(set(references)):
            named.setdefault(reference, set()).add((handler, image_id))

    references = {text: text for text in texts if "@" not in text}
    _look_up(references)
    # A text that is a record's reference needs no parsing; parse the others.
    for text in references.keys() - named.keys():
        reference = record_lookup.canonical(text)
        if reference is None:
            del references[text]
        else:
            references[text] = reference
    _look_up(references.values() - named.keys())
    meant = {text: rule.chosen(named[each]) for text, each in references.items() if each in named}
    if not rule.all_names:
        return {text: tuple((references[text], handler) for handler, _ in images) for text, images in meant.items()}
    keys: dict[tuple[str, str], list[tuple[str, str]]] = {}
    ids = {(image_id, handler) for images in meant.values() for handler, image_id in images}
    for reference, handler, image_id in metadata.images.find_keys(ids):
        keys.setdefault((handler, image_id), []).append((reference, handler))
    for text, images in meant.items():
        for handler, image_id in images:
            if (references[text], handler) not in keys.get((handler, image_id), ()):
                record_lookup.check_gone(metadata, (references[text], handler), Digest.parse(image_id))
    return {text: tuple(key for image in images for key in keys.get(image, ())) for text, images in meant.items()}
