"""Records as CRI's messages: one entry for each (image id, runtime handler).

An entry gathers every reference under which a handler has an image. Tags become ``repo_tags``; each repository's target
digest becomes a ``repo_digests`` entry, so that a caller can ask again for exactly what was pulled. A reference with a
digest has no tag in CRI's eyes, as in containerd.
"""

from __future__ import annotations

import json
import re
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final

from imagestore.cri._proto import api_pb2
from imagestore.documents.decode import MAX_DOCUMENT_BYTES
from imagestore.errors import ContentNotFoundError, IntegrityError
from imagestore.reference import Reference

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence, Set

    from imagestore.content.api import ContentStore
    from imagestore.digest import Digest
    from imagestore.metadata.api import ImageRecord
    from imagestore.store import ImageStore

_NUMBER: Final = re.compile(r"[0-9]{1,18}")
_MOST_USERS: Final = 20_000
_LONGEST_USER: Final = 1024


class Users:
    """Whom images start as, remembered by image id: the config under an id never changes. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[Digest, str] = OrderedDict()

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


def _user(raw: bytes) -> str:
    # Validated when it entered the store, where it is an image config at all: an artifact's config may be anything.
    try:
        document: Any = json.loads(raw)
        user = document["config"]["User"]
    except (ValueError, RecursionError, TypeError, KeyError):
        return ""
    name = user.partition(":")[0] if isinstance(user, str) else ""
    # What no system could start as must not spoil a whole list: messages are UTF-8, and have a limit.
    return name if len(name) <= _LONGEST_USER and _is_text(name) else ""


def _is_text(value: str) -> bool:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:  # half a surrogate pair, which JSON can write
        return False
    return True


def gather(records: Iterable[ImageRecord]) -> list[list[ImageRecord]]:
    """Records by (image id, handler), in the order of their first references."""
    found: dict[tuple[Digest, str], list[ImageRecord]] = {}
    for record in records:
        found.setdefault((record.image_id, record.handler), []).append(record)
    return list(found.values())


def names(records: Sequence[ImageRecord]) -> tuple[list[str], list[str]]:
    """The tags and the digest references of one image, in the order of the references, each once."""
    tags: dict[str, None] = {}
    digests: dict[str, None] = {}
    for record in records:
        reference = Reference.parse(record.reference)
        if reference.tag and reference.digest is None:
            tags[str(reference)] = None
        digests[str(reference.with_digest(reference.digest or record.target.digest))] = None
    return list(tags), list(digests)


def images(groups: Iterable[Sequence[ImageRecord]], store: ImageStore, users: Users) -> list[api_pb2.Image]:
    """Entries.

    Args:
        groups: for each entry all references of one image of one handler; none is empty.
        store: has the content and names the pinned images.
        users: whom images start as.
    """
    pinned = {pinned_name(text) for text in store.config.settings.pinned_images.values()}
    return [_image(records, pinned, store.content, users) for records in groups]


def _image(records: Sequence[ImageRecord], pinned: Set[str], content: ContentStore, users: Users) -> api_pb2.Image:
    first = records[0]
    tags, digests = names(records)
    message = api_pb2.Image(
        id=str(first.image_id),
        repo_tags=tags,
        repo_digests=digests,
        size=max(record.content_size for record in records),
        spec=api_pb2.ImageSpec(image=first.reference, runtime_handler=first.handler),
        pinned=any(record.is_pinned or record.reference in pinned for record in records),
    )
    user = users.of(first.image_id, content)
    if _NUMBER.fullmatch(user):
        message.uid.value = int(user)
    else:
        message.username = user
    return message


def pinned_name(text: str) -> str:
    """The canonical form of a configured reference; as it stands where it can't be read."""
    try:
        return str(Reference.parse(text))
    except ValueError:
        return text
