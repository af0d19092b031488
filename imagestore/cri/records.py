"""The store's images as CRI lists them: one entry for each (image id, runtime handler).

An entry gathers every reference under which a handler has an image. Tags become ``repo_tags``; each repository's target
digest becomes a ``repo_digests`` entry, so that a caller can ask again for exactly what was pulled. A reference with a
digest has no tag in CRI's eyes, as in containerd. The CRI face and the embedded image service answer with these.
"""

from __future__ import annotations

import json
import re
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from imagestore import platforms
from imagestore.cri.model import ImageSpec, ServedImage
from imagestore.errors import (
    ContentNotFoundError,
    DocumentError,
    ImageNotFoundError,
    IntegrityError,
    InvalidDigestError,
    StoreCorruptError,
)
from imagestore.metadata.failures import CORRUPT_HINT
from imagestore.metadata.records import ListedImage
from imagestore.oci.decode import MAX_DOCUMENT_BYTES
from imagestore.oci.digest import Digest
from imagestore.oci.reference import Reference
from imagestore.store import record_lookup
from imagestore.store.image import Image
from imagestore.util.text import is_utf8

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence, Set

    from imagestore.content.api import ContentStore
    from imagestore.metadata.records import ImageRecord
    from imagestore.store.image_store import ImageStore


#: All references of one image of one handler; never empty.
Group: TypeAlias = "Sequence[ListedImage]"

_NUMBER: Final = re.compile(r"[+-]?[0-9]+")
_NUMBERS: Final = range(-(2**63), 2**63)
_MOST_USERS: Final = 20_000
_LONGEST_USER: Final = 1024


class Users:
    """Whom images start as, remembered by image id: the config under an id never changes. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[Digest, str] = OrderedDict()

    def knows(self, image_id: Digest) -> bool:
        """Whether the config was read before."""
        with self._lock:
            return image_id in self._known

    def of(self, image_id: Digest, content: ContentStore) -> str:
        """The config's user without its group; empty when it has none, or the content is damaged or no image config."""
        with self._lock:
            known = self._known.get(image_id)
        if known is not None:
            return known
        try:
            raw = content.read(image_id, limit_bytes=MAX_DOCUMENT_BYTES)
        except (ContentNotFoundError, IntegrityError):
            # A check of the store reports that; the image must stay listed so that it can be removed.
            return ""
        user = _user(raw)
        with self._lock:
            self._known[image_id] = user
            if len(self._known) > _MOST_USERS:
                self._known.popitem(last=False)
        return user


def meant(store: ImageStore, spec: ImageSpec) -> ImageRecord | None:
    """The record that a caller means; None when it is absent, or no image is named.

    Raises:
        UnknownRuntimeHandlerError, InvalidInputError: handler or image can't be read.
    """
    if not spec.image:
        return None
    try:
        return store.get(spec.image, runtime_handler=spec.runtime_handler or None).record
    except ImageNotFoundError:
        return None


def whole(store: ImageStore, line: ListedImage) -> Group:
    """Every reference of an image; the given one alone when it was removed a moment ago."""
    return store.metadata.list_images(image_id=line.image_id, handler=line.handler) or (line,)


def listed(store: ImageStore, spec: ImageSpec) -> list[Group]:
    """The images a filter lets through, each with all its references, in the order of their first ones.

    Args:
        store: has them.
        spec: an empty image or handler lets all through.

    Raises:
        UnknownRuntimeHandlerError, InvalidInputError: handler or image can't be read.
    """
    if spec.image or spec.runtime_handler:
        images = store.list(name=spec.image or None, runtime_handler=spec.runtime_handler or None)
        lines = [ListedImage.of(image.record) for image in images]
    else:
        lines = store.metadata.list_images()
    groups: dict[tuple[str, str], list[ListedImage]] = {}
    for line in lines:
        groups.setdefault((line.image_id, line.handler), []).append(line)
    return [whole(store, group[0]) if spec.image else group for group in groups.values()]


def served(groups: Iterable[Group], store: ImageStore, users: Users) -> list[ServedImage]:
    """Entries.

    Args:
        groups: for each entry its references.
        store: has the content and names the pinned images.
        users: whom images start as.
    """
    pinned = record_lookup.pinned_by(store.config)
    return [_entry(records, pinned, store.content, users) for records in groups]


def _entry(records: Group, pinned: Set[str], content: ContentStore, users: Users) -> ServedImage:
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
        is_pinned=any(record.is_pinned or record.reference in pinned for record in records),
    )


def _digest(text: str) -> Digest:
    try:
        return Digest.parse(text)
    except InvalidDigestError as error:
        raise StoreCorruptError(f"record of an image: {error}", hint=CORRUPT_HINT) from error


def _uid(user: str) -> int | None:
    """The number that a user is, as Go's ``strconv.ParseInt`` reads it; None where it is a name."""
    if not _NUMBER.fullmatch(user):
        return None
    number = int(user)
    return number if number in _NUMBERS else None


def _names(records: Group) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The tags and the digest references of one image, each once; sorted, as containerd's are."""
    tags: set[str] = set()
    digests: set[str] = set()
    for record in records:
        reference = Reference.parse(record.reference)
        if reference.tag and reference.digest is None:
            tags.add(str(reference))
        digests.add(str(reference.with_digest(reference.digest or _digest(record.target))))
    return tuple(sorted(tags)), tuple(sorted(digests))


def _user(raw: bytes) -> str:
    # Validated when it entered the store, where it is an image config at all: an artifact's config may be anything.
    try:
        document: Any = json.loads(raw)
        settings = document["config"]
    except (ValueError, RecursionError, TypeError, KeyError):
        return ""
    if not isinstance(settings, dict):
        return ""
    # In any case, and the last one counts: so it is read by who starts the container.
    user = next((value for name, value in reversed(settings.items()) if name.casefold() == "user"), "")
    name = user.partition(":")[0] if isinstance(user, str) else ""
    # What no system could start as must not spoil a whole list: messages are UTF-8, and have a limit.
    return name if len(name) <= _LONGEST_USER and is_utf8(name) else ""


def chain_id(diff_ids: Sequence[Digest]) -> str:
    """Identity of the layers applied on top of each other; empty without layers.

    >>> from imagestore.oci.digest import Digest
    >>> chain_id([Digest.of(b"base")]) == str(Digest.of(b"base"))
    True
    """
    chain = ""
    for diff_id in map(str, diff_ids):
        chain = str(Digest.of(f"{chain} {diff_id}".encode())) if chain else diff_id
    return chain


def info(record: ImageRecord, store: ImageStore) -> dict[str, str]:
    """Texts by key.

    Args:
        record: the record that was asked for.
        store: has its content.

    Returns:
        Both keys; ``info`` is missing for an artifact, and where the store was damaged, which ``damage`` then tells.
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
    shown = {"chainID": chain_id(config.diff_ids), "imageSpec": json.loads(config.raw)}
    return {"imagestore": json.dumps(own), "info": json.dumps(shown)}
