"""What came of ensuring an image: the kubelet's error classes and texts.

A class becomes the waiting reason of the container, the message its waiting message. Texts that start with the name of
a CRI error are shown in the words of the kubelet; everything else is shown as the runtime said it.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from imagestore.errors import ImageDeniedError, ImageStoreError, RegistryUnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterable


class ErrorClass(enum.StrEnum):
    """Why an image isn't there."""

    INVALID_IMAGE_NAME = "InvalidImageName"
    IMAGE_INSPECT = "ImageInspectError"
    NEVER_PULL = "ErrImageNeverPull"
    PULL = "ErrImagePull"
    BACK_OFF = "ImagePullBackOff"
    REGISTRY_UNAVAILABLE = "RegistryUnavailable"
    SIGNATURE_VALIDATION = "SignatureValidationFailed"


_PREFIXES: Final = (
    (ErrorClass.REGISTRY_UNAVAILABLE, "the registry is unavailable"),
    (ErrorClass.SIGNATURE_VALIDATION, "the signature validation failed"),
)


@dataclass(frozen=True, slots=True)
class EnsureResult:
    """What came of it.

    Attributes:
        image_ref: id of the image; empty when it isn't there, or mustn't be used.
        message: in the kubelet's words; empty after a pull that went well.
        reason: of the failure: the error class, or the text of an error that has none; empty on success.
        error: the class, where the failure has one.
        was_pulled: the image came in this call.
        steps: what was decided, in order, for people.
        cause: what the service, the records or the keyring said, where one of them failed.
    """

    image_ref: str
    message: str = ""
    reason: str = ""
    error: ErrorClass | None = None
    was_pulled: bool = False
    steps: tuple[str, ...] = ()
    cause: ImageStoreError | None = field(default=None, compare=False, repr=False)

    @property
    def is_there(self) -> bool:
        """Whether a container may be started from it."""
        return not self.reason


def classify(image: str, text: str) -> tuple[ErrorClass, str]:
    """Class and message of a failed pull.

    Args:
        image: as written in the pod.
        text: what the runtime said.

    >>> classify("busybox", "RegistryUnavailable: no route")[1]
    'image pull failed for busybox because the registry is unavailable: no route'
    """
    for kind, words in _PREFIXES:
        if text.startswith(kind.value):
            return kind, f"image pull failed for {image} because {words}{text.removeprefix(kind.value)}"
    return ErrorClass.PULL, text


def runtime_text(error: ImageStoreError) -> str:
    """What a runtime would say over CRI: errors of registries and verifiers begin with the name of their CRI error."""
    text = str(error)
    if any(text.startswith(kind.value) for kind, _ in _PREFIXES):
        return text
    if isinstance(error, RegistryUnavailableError):
        return f"{ErrorClass.REGISTRY_UNAVAILABLE}: {text}"
    if isinstance(error, ImageDeniedError):
        # What a CRI endpoint said is in the reason; the sentence around it is ours.
        said = error.reason or text
        return (
            said if said.startswith(ErrorClass.SIGNATURE_VALIDATION) else f"{ErrorClass.SIGNATURE_VALIDATION}: {said}"
        )
    return text


def start_failure(result: EnsureResult, subject: ObjectReference | None = None) -> NodeEvent:
    """The event that the start of a container adds when its image could not be ensured."""
    return NodeEvent("Warning", FAILED, f"Error: {result.reason}", subject)


_SHORT_ESCAPES: Final = {
    "\a": "\\a",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
    "\v": "\\v",
    "\\": "\\\\",
    '"': '\\"',
}


def quoted(text: str) -> str:
    """In double quotes, with what can't be printed escaped.

    >>> quoted('a"b')
    '"a\\\\"b"'
    """
    return '"' + "".join(_escaped(character) for character in text) + '"'


def _escaped(character: str) -> str:
    if character in _SHORT_ESCAPES:
        return _SHORT_ESCAPES[character]
    if character.isprintable():
        return character
    code = ord(character)
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def aggregate(texts: Iterable[str]) -> str:
    """Several errors as one text: each only once, in brackets when more than one is left.

    >>> aggregate(["a", "b", "a"]), aggregate(["a", "a"])
    ('[a, b]', 'a')
    """
    once = list(dict.fromkeys(texts))
    return once[0] if len(once) == 1 else f"[{', '.join(once)}]"


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
