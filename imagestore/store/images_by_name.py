"""What callers do with images by name, id or digest: find, list, tag, pin and remove them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from imagestore.errors import InvalidInputError, StoreBusyError
from imagestore.oci.reference import Reference
from imagestore.store import garbage, in_use, record_lookup
from imagestore.store.image import Image
from imagestore.store.maintenance.removal import Removal, Remover
from imagestore.store.record_lookup import RemovalRule

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from imagestore.metadata.api import MetadataStore
    from imagestore.metadata.records import ImageRecord
    from imagestore.oci.digest import Digest
    from imagestore.store.image_groups import ImageGroup
    from imagestore.store.parts import StoreParts
    from imagestore.util.cancel import CancelToken

    #: (reference, runtime handler) of records.
    Keys = tuple[tuple[str, str], ...]


class ImagesByName:
    """The part of ImageStore that works on its records."""

    def __init__(self, parts: StoreParts) -> None:
        self._parts = parts
        self._metadata = parts.metadata
        self._default = parts.config.default_handler

    def get(self, name: str, runtime_handler: str | None) -> Image:
        """See ImageStore.get()."""
        handler = self._parts.known_handler(runtime_handler)
        record = record_lookup.find(self._metadata, name, handler, self._default)
        if record is None:
            others = ", ".join(sorted({each.handler for each in record_lookup.by_name(self._metadata, name)}))
            raise record_lookup.not_found(name, handler, hint=f"it is there under: {others}" if others else "")
        return Image(record, self._parts.content)

    def list(
        self, name: str | None, runtime_handler: str | None, after: tuple[str, str] | None, limit: int | None
    ) -> Iterator[Image]:
        """See ImageStore.list()."""
        if limit is not None and limit < 1:
            raise InvalidInputError(f"a page of {limit} images: expected at least 1")
        handler = self._parts.known_handler(runtime_handler)
        if name is None:
            records = self._metadata.images.find(handler=handler, after=after, limit=limit)
        else:
            found = record_lookup.by_name_or_id(self._metadata, name)
            fitting = (record for record in found if handler is None or record.handler == handler)
            records = [each for each in fitting if after is None or (each.reference, each.handler) > after][:limit]
        return (Image(record, self._parts.content) for record in records)

    def by_id(self) -> dict[str, ImageGroup]:
        """See ImageStore.images_by_id()."""
        return self._grouped(None)

    def group(self, image_id: Digest) -> ImageGroup | None:
        """See ImageStore.image_group()."""
        return self._grouped(str(image_id)).get(str(image_id))

    def _grouped(self, image_id: str | None) -> dict[str, ImageGroup]:
        with self._parts.loading():
            from imagestore.store.image_groups import by_image

        found = self._metadata.images.find_listed(image_id=image_id)
        return by_image(found, record_lookup.pinned_by(self._parts.config))

    def note_in_use(self, images: Iterable[tuple[str, str]], holder: str, seconds: float) -> Keys:
        """See ImageStore.note_in_use()."""
        return in_use.note(self._metadata, images, holder=holder, seconds=seconds, default_handler=self._default)

    def rule(self, runtime_handler: str | None, all_handlers: bool = False, all_names: bool = False) -> RemovalRule:
        """How a call understands a name.

        Raises:
            UnknownRuntimeHandlerError: neither configured nor in any record.
            InvalidInputError: handler and all_handlers are both given.
        """
        if all_handlers and runtime_handler is not None:
            raise InvalidInputError("give a runtime handler or all handlers, not both")
        handler = self._parts.known_handler(runtime_handler)
        return RemovalRule(handler, self._default, is_for_all=all_handlers, all_names=all_names)

    def remove(self, names: Iterable[str], rule: RemovalRule, *, collect: bool, dry_run: bool) -> Removal:
        """See ImageStore.remove()."""
        if dry_run:
            return Removal({name: _keys(record_lookup.to_remove(self._metadata, name, rule)) for name in names})
        if collect:
            self._metadata.graph.refuse_damaged_indexes()
        remover = Remover(self._metadata, rule)
        try:
            removed, roots = remover.remove(names)
        except InvalidInputError as error:
            error.report = Removal(remover.removed)
            raise
        if not collect:
            return Removal(removed)
        swept = garbage.collect_from(self._metadata, self._parts.content, roots)
        report = Removal(removed, sum(swept.freed.values()))
        swept.check(report)
        return report

    def pin(self, name: str, runtime_handler: str | None, *, is_pinned: bool) -> Keys:
        """See ImageStore.pin() and unpin()."""
        records = record_lookup.to_remove(self._metadata, name, self.rule(runtime_handler, all_names=True))
        changed = self._metadata.images.pin(_keys(records), is_pinned=is_pinned)
        if not changed:
            raise record_lookup.not_found(name, runtime_handler)
        self._metadata.keep_copy()
        return _keys(changed)

    def tag(self, name: str, reference: str, rule: RemovalRule, cancel: CancelToken | None) -> tuple[Image, ...]:
        """See ImageStore.tag()."""
        further = further_reference(reference)
        records = record_lookup.meant(self._metadata, name, rule)
        if not records:
            raise record_lookup.not_found(name, rule.handler)
        with self._parts.operation(cancel) as token:
            for target in {each.target for each in records}:
                self._parts.verifier.verify(str(further), target, cancel=token)
        tagged = tag_records(self._metadata, records, further)
        self._metadata.keep_copy()
        return tuple(Image(each, self._parts.content) for each in tagged)

    def untag(self, reference: str, rule: RemovalRule) -> Keys:
        """See ImageStore.untag()."""
        exact = str(Reference.parse(reference))
        records = [each for each in record_lookup.meant(self._metadata, exact, rule) if each.reference == exact]
        if not records:
            raise record_lookup.not_found(reference, rule.handler)
        with self._metadata.exclusive():
            for each in records:
                if len(self._metadata.images.find(image_id_prefix=str(each.image_id), handler=each.handler)) < 2:
                    raise InvalidInputError(
                        f"image {each.reference!r} has no other reference under runtime handler {each.handler!r}",
                        hint="to remove the image: imagestore rmi",
                    )
            removed = _keys(self._metadata.images.remove(_keys(records)))
            record_lookup.drop_hidden(self._metadata, removed, self._default)
            return removed


def further_reference(text: str) -> Reference:
    """A reference that an image can be given.

    Raises:
        InvalidReferenceError: it is none.
        InvalidInputError: it has a digest, which says what the image is.
    """
    reference = Reference.parse(text)
    if reference.digest is not None:
        raise InvalidInputError(
            f"reference {text!r}: expected a name and a tag, it has a digest", hint="leave the digest out"
        )
    return reference


def tag_records(metadata: MetadataStore, records: Sequence[ImageRecord], further: Reference) -> list[ImageRecord]:
    """Write each record once more, under another reference; return the new records, by handler.

    The records are as they were read. Of several of one handler (they hold the same image) the first counts.

    Raises:
        StoreBusyError: one was changed since it was read; nothing was written.
    """
    stored = []
    with metadata.exclusive():
        for owner, record in sorted({each.handler: each for each in reversed(records)}.items()):
            now = metadata.images.get(record.reference, owner)
            # If it is still there, so is all that it needs.
            if now is None or now.target != record.target:
                raise StoreBusyError(f"image {record.reference!r} was changed or removed since then", hint="try again")
            new = replace(now, reference=str(further), is_pinned=False, created_at=0.0)
            stored.append(now if now.reference == new.reference else metadata.images.put(new, {}))
    return stored


def _keys(records: Iterable[ImageRecord]) -> Keys:
    return tuple((record.reference, record.handler) for record in records)
