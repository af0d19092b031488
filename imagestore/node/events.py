"""Events of the node side, with the kubelet's types and reasons."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

_LOGGER: Final = logging.getLogger(__name__)

PULLING: Final = "Pulling"
PULLED: Final = "Pulled"
FAILED: Final = "Failed"
INSPECT_FAILED: Final = "InspectFailed"
NEVER_PULL: Final = "ErrImageNeverPull"
BACK_OFF: Final = "BackOff"
INVALID_IMAGE_ID: Final = "InvalidImageID"
INVALID_DISK_CAPACITY: Final = "InvalidDiskCapacity"
FREE_DISK_SPACE_FAILED: Final = "FreeDiskSpaceFailed"
IMAGE_GC_FAILED: Final = "ImageGCFailed"


@dataclass(frozen=True, slots=True)
class ObjectReference:
    """What an event is attached to (``v1.ObjectReference``, as far as images need it).

    Attributes:
        kind: ``Pod`` or ``Node``.
        name, namespace, uid: of the object.
        field_path: for example ``spec.containers{web}``.
    """

    kind: str
    name: str
    namespace: str = ""
    uid: str = ""
    field_path: str = ""


@dataclass(frozen=True, slots=True)
class NodeEvent:
    """One event.

    Attributes:
        type: ``Normal`` or ``Warning``.
        reason: in one word.
        message: in the kubelet's words.
        subject: what it is attached to; None where there is nothing to attach it to.
    """

    type: Literal["Normal", "Warning"]
    reason: str
    message: str
    subject: ObjectReference | None = None


EventRecorder = Callable[[NodeEvent], None]


def log_event(event: NodeEvent) -> None:
    """The recorder that only logs."""
    level = logging.WARNING if event.type == "Warning" else logging.INFO
    _LOGGER.log(level, "%s: %s", event.reason, event.message)


def log_line(prefix: str, event: NodeEvent) -> None:
    """For an event without an object: one log line behind ``namespace/name/image``."""
    level = logging.WARNING if event.type == "Warning" else logging.INFO
    _LOGGER.log(level, "%s %s", prefix, event.message)
