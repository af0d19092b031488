"""The kubelet's events, error classes and messages about images, with Go's format of texts and lists of errors.

The error class becomes the container's waiting reason, the message its waiting message. A runtime's text that begins
with the name of a CRI error (RegistryUnavailable, SignatureValidationFailed) is rephrased as the kubelet does; every
other text is passed on unchanged. Go's forms are those of ``strconv.Quote`` and of apimachinery's error aggregate.
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

_SHORT_ESCAPES: Final = {each: f"\\{name}" for each, name in zip('\a\b\f\n\r\t\v\\"', 'abfnrtv\\"', strict=True)}


class ErrorClass(enum.StrEnum):
    """Why an image is not available: the kubelet's error classes."""

    INVALID_IMAGE_NAME = "InvalidImageName"
    IMAGE_INSPECT = "ImageInspectError"
    NEVER_PULL = "ErrImageNeverPull"
    PULL = "ErrImagePull"
    BACK_OFF = "ImagePullBackOff"
    REGISTRY_UNAVAILABLE = "RegistryUnavailable"
    SIGNATURE_VALIDATION = "SignatureValidationFailed"


_REPHRASED: Final = {
    ErrorClass.REGISTRY_UNAVAILABLE: "the registry is unavailable",
    ErrorClass.SIGNATURE_VALIDATION: "the signature validation failed",
}


@dataclass(frozen=True, slots=True)
class ObjectReference:
    """The object of an event (``v1.ObjectReference``, as far as images need it).

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
        message: the kubelet's text.
        subject: the object it is about, if any.
    """

    type: Literal["Normal", "Warning"]
    reason: str
    message: str
    subject: ObjectReference | None = None


EventRecorder = Callable[[NodeEvent], None]


def log_event(event: NodeEvent, subject: str = "") -> None:
    """Log an event: the default recorder, also used for events without an object.

    ``subject`` is written before the message, for example ``namespace/pod/image``; by default the event's reason.
    """
    level = logging.WARNING if event.type == "Warning" else logging.INFO
    _LOGGER.log(level, "%s %s", subject or f"{event.reason}:", event.message)


@dataclass(frozen=True, slots=True)
class EnsureResult:
    """The result of EnsureImageExists.

    Attributes:
        image_ref: image id; empty if the image is absent or the pod may not use it.
        message: the kubelet's text; empty after a successful pull.
        reason: the error class, or the text of an error that has no class; empty on success.
        error: the error class, if the failure has one.
        was_pulled: this call pulled the image.
        steps: the decisions in order, for people.
        cause: the error of the service, the records or the keyring.
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
        """Whether a container may be started from the image."""
        return not self.reason


def classify(image: str, text: str) -> tuple[ErrorClass, str]:
    """Error class and message of a failed pull, from the image as written in the pod and the runtime's error text.

    >>> classify("busybox", "RegistryUnavailable: no route")[1]
    'image pull failed for busybox because the registry is unavailable: no route'
    """
    for kind, words in _REPHRASED.items():
        if text.startswith(kind):
            return kind, f"image pull failed for {image} because {words}{text.removeprefix(kind)}"
    return ErrorClass.PULL, text


def runtime_text(error: ImageStoreError) -> str:
    """An error's text as a CRI runtime gives it: registry and verifier errors begin with CRI's name for them."""
    text = str(error)
    if text.startswith(tuple(_REPHRASED)):
        return text
    if isinstance(error, RegistryUnavailableError):
        return f"{ErrorClass.REGISTRY_UNAVAILABLE}: {text}"
    if isinstance(error, ImageDeniedError):
        # The reason is the endpoint's own text, without our sentence around it.
        reason, name = error.reason or text, ErrorClass.SIGNATURE_VALIDATION
        return reason if reason.startswith(name) else f"{name}: {reason}"
    return text


def start_failure(result: EnsureResult, subject: ObjectReference | None = None) -> NodeEvent:
    """The event that a container's start adds when its image could not be ensured."""
    return NodeEvent("Warning", FAILED, f"Error: {result.reason}", subject)


def quoted(text: str) -> str:
    """A text in double quotes, unprintable characters escaped as Go's ``%q`` does.

    >>> quoted('a"b')
    '"a\\\\"b"'
    """
    return '"' + "".join(_SHORT_ESCAPES.get(each) or _escaped(each) for each in text) + '"'


def _escaped(character: str) -> str:
    if character.isprintable():
        return character
    code = ord(character)
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def aggregate(texts: Iterable[str]) -> str:
    """Several errors as one text: each once, in brackets if more than one is left.

    >>> aggregate(["a", "b", "a"]), aggregate(["a", "a"])
    ('[a, b]', 'a')
    """
    once = list(dict.fromkeys(texts))
    return once[0] if len(once) == 1 else f"[{', '.join(once)}]"
