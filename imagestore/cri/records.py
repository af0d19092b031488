"""The store's images as CRI lists them: one entry for each (image id, runtime handler).

An entry has every reference under which a handler has the image. Tags become ``repo_tags``; each repository's target
digest becomes an item of ``repo_digests``, so that a caller can request exactly what was pulled. As in containerd, a
reference with a digest has no tag in CRI. The CRI service and the embedded image service answer with these entries.

A verbose status adds two JSON objects. ``info`` has the members of containerd's CRI plugin: ``chainID`` (image-spec,
config.md, "Layer ChainID") and ``imageSpec``, the unchanged image config. ``imagestore`` has what only this store
knows: handler, platforms, manifest, warnings.
"""

from __future__ import annotations

import json
import re
import threading
from typing import TYPE_CHECKING, Final

import imagestore.platforms as platforms
from imagestore.cri.model import ImageSpec, ServedImage
from imagestore.errors import (
    ContentNotFoundError,
    DocumentError,
    ImageNotFoundError,
    IntegrityError,
    InvalidDigestError,
    StoreCorruptError,
)
from imagestore.metadata.records import ListedImage
from imagestore.metadata.sqlite.failures import CORRUPT_HINT
from imagestore.oci.decode import MAX_DOCUMENT_BYTES
from imagestore.oci.digest import Digest
from imagestore.oci.image_config import user_of
from imagestore.oci.reference import Reference
from imagestore.store import record_lookup
from imagestore.store.image import Image
from imagestore.store.image_groups import Group, by_image_and_handler, is_pinned

if TYPE_CHECKING:
    from collections.abc import Iterable, Set

    from imagestore.content.api import ContentStore
    from imagestore.metadata.records import ImageRecord
    from imagestore.store.image_store import ImageStore

_NUMBER: Final = re.compile(r"[+-]?[0-9]+")
_NUMBERS: Final = range(-(2**63), 2**63)
_MOST_USERS: Final = 20_000


class ImageUsers:
    """The users of images, cached by image id, since the config under an id never changes. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[Digest, str] = {}

    def knows(self, image_id: Digest) -> bool:
        """Whether the config was read before."""
        with self._lock:
            return image_id in self._known

    def of(self, image_id: Digest, content: ContentStore) -> str:
        """The config's user without its group; empty if there is none, or the content is damaged or no image config."""
        with self._lock:
            known = self._known.get(image_id)
        if known is not None:
            return known
        try:
            raw = content.read(image_id, limit_bytes=MAX_DOCUMENT_BYTES)
        except (ContentNotFoundError, IntegrityError):
            # `check` reports the damage; the image must stay listed so that it can be removed.
            return ""
        user = user_of(raw)
        with self._lock:
            self._known[image_id] = user
            if len(self._known) > _MOST_USERS:
                del self._known[next(iter(self._known))]
        return user


def find_record(store: ImageStore, spec: ImageSpec) -> ImageRecord | None:
    """The record for a spec; None if it is absent, or the spec names no image.

    Raises:
        UnknownRuntimeHandlerError, InvalidInputError: handler or image can't be read.
    """
    if not spec.image:
        return None
    try:
        return store.get(spec.image, runtime_handler=spec.runtime_handler or None).record
    except ImageNotFoundError:
        return None


def all_references(store: ImageStore, line: ListedImage) -> Group:
    """All references of an image; only the given one if it was just removed."""
    return store.metadata.images.find_listed(image_id=line.image_id, handler=line.handler) or (line,)


def find_groups(store: ImageStore, spec: ImageSpec) -> list[Group]:
    """The images that match a filter, each with all its references, in the order of their first ones.

    Raises:
        UnknownRuntimeHandlerError, InvalidInputError: handler or image can't be read.
    """
    if spec.image or spec.runtime_handler:
        images = store.list(name=spec.image or None, runtime_handler=spec.runtime_handler or None)
        lines = [ListedImage.of(image.record) for image in images]
    else:
        lines = store.metadata.images.find_listed()
    groups = by_image_and_handler(lines)
    return [all_references(store, group[0]) for group in groups] if spec.image else groups


def served_images(groups: Iterable[Group], store: ImageStore, users: ImageUsers) -> list[ServedImage]:
    """The entries as CRI lists them."""
    pinned = record_lookup.pinned_by(store.config)
    return [_entry(records, pinned, store.content, users) for records in groups]


def _entry(records: Group, pinned: Set[str], content: ContentStore, users: ImageUsers) -> ServedImage:
    first = records[0]
    tags, digests = _names(records)
    user = users.of(_digest(first.image_id), content)
    uid = _uid(user)
    return ServedImage(
        id=first.image_id,
        repo_tags=tags,
        repo_digests=digests,
        size=max(record.content_size for record in records),
        uid=uid,
        username=user if uid is None else "",
        spec=ImageSpec(first.reference, first.handler),
        is_pinned=is_pinned(records, pinned),
    )


def _digest(text: str) -> Digest:
    try:
        return Digest.parse(text)
    except InvalidDigestError as error:
        raise StoreCorruptError(f"record of an image: {error}", hint=CORRUPT_HINT) from error


def _uid(user: str) -> int | None:
    """A numeric user, read as Go's ``strconv.ParseInt`` does; None for a name."""
    if not _NUMBER.fullmatch(user):
        return None
    number = int(user)
    return number if number in _NUMBERS else None


def _names(records: Group) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The tags and the digest references of one image; unique and sorted, as in containerd."""
    tags: set[str] = set()
    digests: set[str] = set()
    for record in records:
        reference = Reference.parse(record.reference)
        if reference.tag and reference.digest is None:
            tags.add(str(reference))
        digests.add(str(reference.with_digest(reference.digest or _digest(record.target))))
    return tuple(sorted(tags)), tuple(sorted(digests))


def verbose_info(record: ImageRecord, store: ImageStore) -> dict[str, str]:
    """The ``info`` of a verbose status: JSON texts by key.

    ``info`` is missing for an artifact and for damaged content, which ``imagestore`` then reports as ``damage``.
    """
    own: dict[str, object] = {
        "reference": record.reference,
        "runtimeHandler": record.handler,
        "platform": platforms.format_all(record.platform),
        "wantedPlatform": record.wanted,
        "target": record.target.members(),
        "manifest": record.manifest.members(),
        "warnings": list(record.warnings),
        "createdAt": record.created_at,
        "updatedAt": record.updated_at,
    }
    image = Image(record, store.content)
    try:
        own["layers"] = [layer.members() for layer in image.layers]
        config = image.config
    except DocumentError:
        return {"imagestore": json.dumps(own)}  # an artifact: its config describes no image
    except (ContentNotFoundError, IntegrityError) as error:
        return {"imagestore": json.dumps({**own, "damage": str(error)})}
    shown = {"chainID": str(config.chain_ids[-1]) if config.chain_ids else "", "imageSpec": json.loads(config.raw)}
    return {"imagestore": json.dumps(own), "info": json.dumps(shown)}
