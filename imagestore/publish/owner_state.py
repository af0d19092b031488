"""What a publisher says of its work to other processes: a small JSON file beside its lock, replaced atomically.

Only what can't be learned from containerd is in it: how layers come, why containerd can't be used, and which images
are at work or failed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from imagestore.errors import StoreCorruptError
from imagestore.publish.model import ContentWay, ImageState
from imagestore.util.disk_errors import translated
from imagestore.util.files import TooLongError, read_regular, replace

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SUFFIX: Final = ".json"
#: Images in a file: those that failed or are at work before those that are published.
MOST_IMAGES: Final = 10_000
_MOST_BYTES: Final = 16 * 1024 * 1024
_LONGEST_REASON: Final = 500


@dataclass(frozen=True, slots=True)
class ImageNote:
    """One image id.

    Attributes:
        state: where it is.
        reason: why it failed or can't run; empty otherwise.
        next_try: when a failed one is tried again, in seconds since 1970; None if nothing is planned.
        ways: bytes of its layers by the way they came in this process.
    """

    state: ImageState
    reason: str = ""
    next_try: float | None = None
    ways: Mapping[ContentWay, int] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class OwnerState:
    """A publisher that runs.

    Attributes:
        process_id: its number; in a container the container's.
        address: of containerd's socket.
        namespace: containerd's namespace.
        reason: why containerd can't be used; empty if it can.
        way: how layers come into containerd; None if that isn't known yet.
        way_reason: why not by a cheaper way; empty for the cheapest.
        images: at most MOST_IMAGES.
    """

    process_id: int
    address: str
    namespace: str
    reason: str = ""
    way: ContentWay | None = None
    way_reason: str = ""
    images: Mapping[str, ImageNote] = field(default_factory=dict, hash=False)


def write(path: Path, state: OwnerState) -> None:
    """Replace the file; only its owner may read it, since reasons name registries and paths.

    Raises:
        StoreError: it can't be written.
    """
    ordered = sorted(state.images.items(), key=lambda item: item[1].state is ImageState.PUBLISHED)
    document = {
        "processId": state.process_id,
        "address": state.address,
        "namespace": state.namespace,
        "reason": state.reason[:_LONGEST_REASON],
        "way": state.way.value if state.way is not None else None,
        "wayReason": state.way_reason[:_LONGEST_REASON],
        "images": {
            image_id: {
                "state": note.state.value,
                "reason": note.reason[:_LONGEST_REASON],
                "nextTry": note.next_try,
                "ways": {way.value: size for way, size in note.ways.items()},
            }
            for image_id, note in ordered[:MOST_IMAGES]
        },
    }
    with translated("write the publisher's state", path):
        replace(path, json.dumps(document).encode() + b"\n")


def read(path: Path) -> OwnerState:
    """What a running publisher says; of a file that isn't there yet, nothing but that there is one.

    Raises:
        StoreCorruptError: it isn't a publisher's state.
        StoreError: it can't be read.
    """
    with translated("read the publisher's state", path):
        try:
            raw = read_regular(path, _MOST_BYTES)
        except FileNotFoundError:
            return OwnerState(0, "", "")
        except TooLongError as error:
            raise _corrupt(path) from error
    try:
        return _value(json.loads(raw))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise _corrupt(path) from error


def _value(document: Any) -> OwnerState:
    images = {str(image_id): _note(each) for image_id, each in document["images"].items()}
    way = document["way"]
    texts = [_text(document[name]) for name in ("address", "namespace", "reason", "wayReason")]
    return OwnerState(
        int(document["processId"]),
        texts[0],
        texts[1],
        reason=texts[2],
        way=ContentWay(way) if way is not None else None,
        way_reason=texts[3],
        images=images,
    )


def _note(document: Any) -> ImageNote:
    next_try = document["nextTry"]
    return ImageNote(
        ImageState(document["state"]),
        _text(document["reason"]),
        float(next_try) if next_try is not None else None,
        {ContentWay(way): int(size) for way, size in document["ways"].items()},
    )


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value


def _corrupt(path: Path) -> StoreCorruptError:
    return StoreCorruptError(f"{path}: expected a publisher's state, found something else", hint="delete it")
