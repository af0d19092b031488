"""Every error this package raises on purpose, in one tree.

    ImageStoreError
    ├─ InvalidInputError (ValueError)
    │  ├─ InvalidReferenceError   InvalidDigestError   InvalidPlatformError   OutOfRangeError
    │  ├─ InvalidQuantityError   InvalidResourcesError
    ├─ ConfigError
    │  ├─ UnknownRuntimeHandlerError   UnsupportedRuntimeTypeError
    ├─ NotFoundError (LookupError)
    │  ├─ ImageNotFoundError   ContentNotFoundError   LeaseNotFoundError   ReferenceNotFoundError
    │  ├─ RuntimeClassNotFoundError
    ├─ AlreadyExistsError
    ├─ PreconditionError
    ├─ UnsupportedError
    ├─ NoMatchingManifestError
    ├─ ImageDeniedError
    ├─ DocumentError
    ├─ IntegrityError
    │  ├─ ContentUnreadableError   DigestMismatchError   SizeMismatchError
    ├─ RegistryError
    │  ├─ RegistryUnavailableError   RateLimitedError   AuthenticationError   AccessDeniedError   ProtocolError
    ├─ StoreError
    │  ├─ StoreBusyError
    │  │  └─ IngestLockedError
    │  ├─ ContentUnavailableError
    │  ├─ WriterClosedError   StoreFullError   StoreReadOnlyError   StoreCorruptError
    │  ├─ StoreMissingError   UndeletableError
    ├─ ServerError
    ├─ ImageServiceError
    │  ├─ ServiceUnavailableError
    ├─ ImageCollectionError
    └─ OperationCancelledError
       └─ DeadlineExceededError

A message is printable, since what came from outside is escaped, and one sentence: the object first, then what was
expected and what came. ``hint`` has what to do about it, if that is known. Data is in attributes, so that no caller
parses text. The cause is kept in ``__cause__``. A bug is not an ImageStoreError: TypeError, AssertionError and friends
pass through.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, ClassVar

from imagestore.util.text import cut, printable, without_login

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Category(enum.Enum):
    """containerd's error words (its errdefs package); one table turns them into a status code or an exit status."""

    INVALID_ARGUMENT = "invalid argument"
    NOT_FOUND = "not found"
    ALREADY_EXISTS = "already exists"
    FAILED_PRECONDITION = "failed precondition"
    OUT_OF_RANGE = "out of range"
    NOT_IMPLEMENTED = "not implemented"
    UNAVAILABLE = "unavailable"
    RESOURCE_EXHAUSTED = "resource exhausted"
    PERMISSION_DENIED = "permission denied"
    UNAUTHENTICATED = "unauthenticated"
    ABORTED = "aborted"
    DATA_LOSS = "data loss"
    CANCELLED = "cancelled"
    DEADLINE_EXCEEDED = "deadline exceeded"
    INTERNAL = "internal"


class ImageStoreError(Exception):
    """Base of all errors of this package.

    Attributes:
        category: which of containerd's error words it is.
        hint: what the person reading it can do, or an empty text.
        report: what was done all the same, as the call would have returned it; None where nothing tells.
    """

    category: ClassVar[Category] = Category.INTERNAL
    report: object = None

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(printable(message))
        self.hint = printable(hint)

    def __reduce__(self) -> tuple[object, ...]:
        # As it is: most classes are made from other arguments than the message, and a process pool that can't read the
        # error of a worker is broken.
        return _as_it_was, (type(self), self.args), self.__dict__


def _as_it_was(cls: type[ImageStoreError], arguments: tuple[object, ...]) -> ImageStoreError:
    return cls.__new__(cls, *arguments)


class InvalidInputError(ImageStoreError, ValueError):
    """The caller's input can't be read."""

    category = Category.INVALID_ARGUMENT


class InvalidReferenceError(InvalidInputError):
    """An image reference breaks the distribution grammar.

    Attributes:
        text: what was given.
        position: 0-based index into ``text`` of the first character that doesn't fit.
        reason: the rule that was broken.
    """

    def __init__(self, text: str, position: int, reason: str) -> None:
        shown = cut(without_login(text), 300)
        super().__init__(f"reference {shown!r}: at position {position}: {reason}")
        self.text = text
        self.position = position
        self.reason = reason


class InvalidDigestError(InvalidInputError):
    """A digest is not ``algorithm:encoded``, or not what its algorithm demands."""


class InvalidPlatformError(InvalidInputError):
    """A platform specifier, or a platform's member, can't be read."""


class OutOfRangeError(InvalidInputError):
    """An offset lies outside of what it counts in."""

    category = Category.OUT_OF_RANGE


class InvalidQuantityError(InvalidInputError):
    """A resource quantity breaks Kubernetes' grammar, or is too large to be computed with.

    Attributes:
        text: what was given.
        reason: the rule that was broken.
    """

    def __init__(self, text: str, reason: str, *, hint: str = "") -> None:
        shown = cut(text, 100)
        super().__init__(f"quantity {shown!r}: {reason}", hint=hint)
        self.text = text
        self.reason = reason


class InvalidResourcesError(InvalidInputError):
    """Resources of a pod, a container or a node contradict themselves, or don't fit where they are to go."""


class ConfigError(ImageStoreError):
    """A configuration file can't be used; names file, line and key."""

    category = Category.FAILED_PRECONDITION


class UnknownRuntimeHandlerError(ConfigError):
    """A runtime handler that the configuration doesn't have.

    Attributes:
        handler: the name that was asked for.
        known: the configured names, sorted.
    """

    category = Category.INVALID_ARGUMENT

    def __init__(self, handler: str, known: Sequence[str]) -> None:
        names = ", ".join(sorted(known))
        shown = cut(handler, 100)
        super().__init__(
            f"runtime handler {shown!r} is not configured; known handlers: {names}",
            hint=f"add a table runtimes.{shown} to the configuration, or use one of the known handlers",
        )
        self.handler = handler
        self.known = tuple(sorted(known))


class UnsupportedRuntimeTypeError(ConfigError):
    """edged's runtime type is neither ``docker`` nor ``remote``.

    Attributes:
        runtime_type: what the configuration says.
    """

    category = Category.INVALID_ARGUMENT

    def __init__(self, runtime_type: str) -> None:
        shown = cut(runtime_type, 100)
        super().__init__(f'unsupported CRI runtime: "{shown}"', hint="expected docker or remote; case matters")
        self.runtime_type = runtime_type


class NotFoundError(ImageStoreError, LookupError):
    """A named thing isn't there."""

    category = Category.NOT_FOUND


class ImageNotFoundError(NotFoundError):
    """No image record under this name, id or digest (and runtime handler)."""


class ContentNotFoundError(NotFoundError):
    """The content store has no blob of this digest, or no ingest of this name."""


class LeaseNotFoundError(NotFoundError):
    """No such lease, or it has expired."""


class RuntimeClassNotFoundError(NotFoundError):
    """A pod names a RuntimeClass that the cluster doesn't have; the text is that of the Kubernetes API.

    Attributes:
        name: of the RuntimeClass.
    """

    def __init__(self, name: str) -> None:
        super().__init__(f'runtimeclass.node.k8s.io "{name}" not found', hint="create the RuntimeClass")
        self.name = name


class AlreadyExistsError(ImageStoreError):
    """The thing to be made is there already; callers that only want it to exist take this as success."""

    category = Category.ALREADY_EXISTS


class PreconditionError(ImageStoreError):
    """What was asked for can't be done as things are."""

    category = Category.FAILED_PRECONDITION


class UnsupportedError(ImageStoreError):
    """What was asked for is no part of this program."""

    category = Category.NOT_IMPLEMENTED


class NoMatchingManifestError(ImageStoreError):
    """The image offers nothing that the wanted platform can run.

    Attributes:
        reference: canonical reference, or the digest of the index.
        wanted: text form of the wanted platform.
        offered: text forms of the platforms on offer, in index order.
        explanation: the selection with a verdict for every entry, when there was an index.
    """

    category = Category.NOT_FOUND

    def __init__(
        self, reference: str, wanted: str, offered: Sequence[str], *, explanation: object = None, hint: str = ""
    ) -> None:
        shown = list(offered[:20]) + ([f"and {len(offered) - 20} more"] if len(offered) > 20 else [])
        super().__init__(
            f"{reference}: no manifest for {wanted}; offered: {', '.join(shown) or 'nothing that can run'}", hint=hint
        )
        self.reference = reference
        self.wanted = wanted
        self.offered = tuple(offered)
        self.explanation = explanation


class ImageDeniedError(ImageStoreError):
    """An image verifier refuses the image.

    Attributes:
        reference: canonical reference.
        verifier: name of the program (or object) that refused.
        reason: what it said, escaped and shortened; may be empty.
    """

    category = Category.PERMISSION_DENIED

    def __init__(self, reference: str, verifier: str, reason: str) -> None:
        said = f": {reason}" if reason else ""
        super().__init__(f"{reference}: denied by image verifier {verifier}{said}")
        self.reference = reference
        self.verifier = verifier
        self.reason = reason


class DocumentError(ImageStoreError):
    """An index, manifest or image config breaks its rules.

    Attributes:
        what: the document, for example ``manifest sha256:…``.
        faults: every fault found (bounded), each with its path inside the document.
    """

    category = Category.FAILED_PRECONDITION

    def __init__(self, what: str, faults: Sequence[str], *, hint: str = "") -> None:
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        super().__init__(f"{what}: {faults[0]}{more}", hint=hint)
        self.what = what
        self.faults = tuple(faults)


class IntegrityError(ImageStoreError):
    """Bytes are not what their descriptor says."""

    category = Category.DATA_LOSS


class ContentUnreadableError(IntegrityError):
    """The disk can't read content now; what it holds can't be judged, and another try may succeed.

    Attributes:
        reason: the system's words.
    """

    def __init__(self, what: str, reason: str) -> None:
        super().__init__(f"{what}: the disk can't read it: {reason}")
        self.reason = reason


class DigestMismatchError(IntegrityError):
    """Content hashes to another digest than expected.

    Attributes:
        expected: text of the digest that was announced.
        actual: text of the digest that was computed.
    """

    def __init__(self, what: str, *, expected: str, actual: str) -> None:
        super().__init__(f"{what}: expected digest {expected}, content has {actual}")
        self.expected = expected
        self.actual = actual


class SizeMismatchError(IntegrityError):
    """Content is longer or shorter than its descriptor says; sizes in bytes.

    Attributes:
        expected: announced size.
        actual: bytes seen; when more came than expected, the count at which reading stopped.
    """

    def __init__(self, what: str, *, expected: int, actual: int) -> None:
        word = "truncated at" if actual < expected else "longer, at least"
        super().__init__(f"{what}: expected {expected} bytes, content is {word} {actual} bytes")
        self.expected = expected
        self.actual = actual


class RegistryError(ImageStoreError):
    """A registry, or the way to it, failed.

    Attributes:
        host: host (and port) of the registry, or an empty text.
        status: HTTP status, or 0 when there was no answer.
        said: what the answer said, shortened and escaped, as the message repeats it; may be empty.
    """

    category = Category.UNAVAILABLE

    def __init__(self, message: str, *, host: str = "", status: int = 0, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.host = host
        self.status = status
        self.said = ""


class RegistryUnavailableError(RegistryError):
    """No connection, no answer, or an answer that says to try later.

    Attributes:
        retry_after: seconds the registry asks to wait, or None.
    """

    def __init__(
        self, message: str, *, host: str = "", status: int = 0, hint: str = "", retry_after: float | None = None
    ) -> None:
        super().__init__(message, host=host, status=status, hint=hint)
        self.retry_after = retry_after


class ReferenceNotFoundError(RegistryError, NotFoundError):
    """The registry answers that this repository, tag, manifest or blob doesn't exist."""

    category = Category.NOT_FOUND


class RateLimitedError(RegistryError):
    """The registry refuses because of too many requests.

    Attributes:
        retry_after: seconds the registry asks to wait, or None.
    """

    category = Category.RESOURCE_EXHAUSTED

    def __init__(
        self, message: str, *, host: str = "", status: int = 429, hint: str = "", retry_after: float | None = None
    ) -> None:
        super().__init__(message, host=host, status=status, hint=hint)
        self.retry_after = retry_after


class AuthenticationError(RegistryError):
    """The registry wants credentials, or refuses those it got."""

    category = Category.UNAUTHENTICATED


class AccessDeniedError(RegistryError):
    """The registry knows who asks and forbids it."""

    category = Category.PERMISSION_DENIED


class ProtocolError(RegistryError):
    """An answer breaks HTTP, the distribution protocol or our safety rules."""

    category = Category.FAILED_PRECONDITION


class StoreError(ImageStoreError):
    """The store on disk can't do what was asked."""

    category = Category.INTERNAL


class StoreBusyError(StoreError):
    """Another writer holds what was asked for."""

    category = Category.UNAVAILABLE


class IngestLockedError(StoreBusyError):
    """Another writer has the ingest open."""


class ContentUnavailableError(StoreError):
    """Content that is kept elsewhere can't be reached now; what is here of it stays."""

    category = Category.UNAVAILABLE


class WriterClosedError(StoreError):
    """A writer was used after its end."""

    category = Category.FAILED_PRECONDITION


class StoreFullError(StoreError):
    """No space (or quota) is left where the store lives."""

    category = Category.RESOURCE_EXHAUSTED


class StoreReadOnlyError(StoreError):
    """The store's folder can't be written."""

    category = Category.PERMISSION_DENIED

    #: What helps when it is the user who may not write; who only reads takes part in the store's locks too.
    HINT: ClassVar = "run as the store's owner, ask its server with --endpoint, or choose your own folder with --root"
    #: What helps when the disk is mounted read-only.
    MOUNTED_HINT: ClassVar = "mount it writable, or choose another folder with --root"


class StoreMissingError(StoreError):
    """There is no store in the folder, and none was to be made."""

    category = Category.FAILED_PRECONDITION


class StoreCorruptError(StoreError):
    """The store's own files are damaged, or were made by a newer version."""

    category = Category.DATA_LOSS


class UndeletableError(StoreError):
    """Some of what nothing needs can't be deleted; all the rest was.

    Attributes:
        failures: why, by digest or name of an ingest.
    """

    def __init__(self, failures: Mapping[str, str], report: object = None) -> None:
        more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
        super().__init__(
            f"{next(iter(failures.values()))}{more}",
            hint="all the rest is freed; see the file's attributes, its folder's permissions and the disk",
        )
        self.failures = dict(failures)
        self.report = report


class ServerError(ImageStoreError):
    """A server can't listen where it was told to, or can't do what it was started for."""

    category = Category.FAILED_PRECONDITION


class ImageServiceError(ImageStoreError):
    """An image service (CRI endpoint, Docker Engine) refuses or fails; the message is what it said.

    Attributes:
        status: its status code, for example of HTTP, or 0.
    """

    def __init__(self, message: str, *, status: int = 0, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.status = status


class ServiceUnavailableError(ImageServiceError):
    """An image service can't be reached, or ended in the middle of an answer."""

    category = Category.UNAVAILABLE


class ImageCollectionError(ImageStoreError):
    """A round of image collection on a node failed, or freed too little.

    Attributes:
        freed_bytes: what it freed all the same, by the sizes that were listed.
    """

    def __init__(self, message: str, *, freed_bytes: int = 0, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.freed_bytes = freed_bytes


class OperationCancelledError(ImageStoreError):
    """The caller cancelled."""

    category = Category.CANCELLED


class DeadlineExceededError(OperationCancelledError):
    """The operation's overall deadline passed."""

    category = Category.DEADLINE_EXCEEDED
