"""Every error this package raises on purpose, in one tree.

    ImageStoreError
    ├─ InvalidInputError (ValueError)
    │  ├─ InvalidReferenceError   InvalidDigestError   InvalidPlatformError   InvalidQuantityError
    │  ├─ InvalidResourcesError   OutOfRangeError
    ├─ ConfigError ── UnknownRuntimeHandlerError   UnsupportedRuntimeTypeError
    ├─ NotFoundError (LookupError)
    │  ├─ ImageNotFoundError   ContentNotFoundError   LeaseNotFoundError   RuntimeClassNotFoundError
    ├─ AlreadyExistsError   PreconditionError   UnsupportedError   ServerError   ImageCollectionError
    ├─ NoMatchingManifestError   ImageDeniedError   DocumentError
    ├─ IntegrityError ── ContentUnreadableError   DigestMismatchError   SizeMismatchError
    ├─ RegistryError ── RegistryUnavailableError   RateLimitedError   ProtocolError
    │  ├─ AuthenticationError   AccessDeniedError   ReferenceNotFoundError (NotFoundError)
    ├─ StoreError
    │  ├─ ContentUnavailableError   WriterClosedError   StoreFullError   StoreReadOnlyError   StoreCorruptError
    │  ├─ StoreMissingError   UndeletableError   StoreBusyError ── IngestLockedError
    ├─ ImageServiceError ── ServiceUnavailableError
    └─ OperationCancelledError ── DeadlineExceededError

A message is one sentence: the object, what was expected, what came. Text from outside is escaped, logins of addresses
are left out. ``hint`` says what to do; data is in attributes. A bug is no ImageStoreError.
"""

from __future__ import annotations

import copyreg
import enum
from typing import TYPE_CHECKING, ClassVar

from imagestore.util.logins import reference_without_login, without_logins
from imagestore.util.text import cut, printable

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
        hint: what the reader can do, or an empty text.
        report: what was done all the same, as the call would have returned it; or None.
    """

    category: ClassVar[Category] = Category.INTERNAL
    report: object = None

    def __init_subclass__(cls, category: Category | None = None) -> None:
        if category is not None:
            cls.category = category

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(printable(without_logins(message)))
        self.hint = printable(without_logins(hint))

    def __reduce__(self) -> tuple[object, ...]:
        # By default pickle calls the class with the message; most classes take other arguments.
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]  # PEP 307


class InvalidInputError(ImageStoreError, ValueError, category=Category.INVALID_ARGUMENT):
    """The caller's input can't be read."""


class InvalidReferenceError(InvalidInputError):
    """An image reference breaks the distribution grammar: ``reason``, at the 0-based ``position`` in ``text``."""

    def __init__(self, text: str, position: int, reason: str) -> None:
        super().__init__(f"reference {cut(reference_without_login(text), 300)!r}: at position {position}: {reason}")
        self.text = text
        self.position = position
        self.reason = reason


class InvalidDigestError(InvalidInputError):
    """A digest is not ``algorithm:encoded``, or not what its algorithm demands."""


class InvalidPlatformError(InvalidInputError):
    """A platform specifier, or a platform's member, can't be read."""


class OutOfRangeError(InvalidInputError, category=Category.OUT_OF_RANGE):
    """An offset lies outside of what it counts in."""


class InvalidQuantityError(InvalidInputError):
    """A resource quantity, ``text``, breaks Kubernetes' grammar or is too large to compute with: ``reason``."""

    def __init__(self, text: str, reason: str, *, hint: str = "") -> None:
        super().__init__(f"quantity {cut(text, 100)!r}: {reason}", hint=hint)
        self.text = text
        self.reason = reason


class InvalidResourcesError(InvalidInputError):
    """Resources of a pod, a container or a node contradict each other, or don't fit where they are to go."""


class ConfigError(ImageStoreError, category=Category.FAILED_PRECONDITION):
    """A configuration file can't be used; names file, line and key."""


class UnknownRuntimeHandlerError(ConfigError, category=Category.INVALID_ARGUMENT):
    """The configuration has no runtime handler ``handler``, only those in ``known`` (sorted)."""

    def __init__(self, handler: str, known: Sequence[str]) -> None:
        shown = cut(handler, 100)
        super().__init__(
            f"runtime handler {shown!r} is not configured; known handlers: {', '.join(sorted(known))}",
            hint=f"add a table runtimes.{shown} to the configuration, or use one of the known handlers",
        )
        self.handler = handler
        self.known = tuple(sorted(known))


class UnsupportedRuntimeTypeError(ConfigError, category=Category.INVALID_ARGUMENT):
    """edged's ``runtime_type`` is neither ``docker`` nor ``remote``."""

    def __init__(self, runtime_type: str, *, member: str = "", file: str = "") -> None:
        place = f"{file}: {member}: " if file and member else ""
        message = f'{place}unsupported CRI runtime: "{cut(runtime_type, 100)}"'
        super().__init__(message, hint="expected docker or remote; case matters")
        self.runtime_type = runtime_type
        self.member = member


class NotFoundError(ImageStoreError, LookupError, category=Category.NOT_FOUND):
    """A named thing isn't there."""


class ImageNotFoundError(NotFoundError):
    """No image record under this name, id or digest (and runtime handler)."""


class ContentNotFoundError(NotFoundError):
    """The content store has no blob of this digest, or no ingest of this name."""


class LeaseNotFoundError(NotFoundError):
    """No such lease, or it has expired."""


class RuntimeClassNotFoundError(NotFoundError):
    """A pod names a RuntimeClass, ``name``, that the cluster doesn't have; the text is that of the Kubernetes API."""

    def __init__(self, name: str) -> None:
        super().__init__(f'runtimeclass.node.k8s.io "{name}" not found', hint="create the RuntimeClass")
        self.name = name


class AlreadyExistsError(ImageStoreError, category=Category.ALREADY_EXISTS):
    """What is to be made exists already; callers that only need it to exist take this as success."""


class PreconditionError(ImageStoreError, category=Category.FAILED_PRECONDITION):
    """The request can't be done in the present state."""


class UnsupportedError(ImageStoreError, category=Category.NOT_IMPLEMENTED):
    """The request is no part of this program."""


class NoMatchingManifestError(ImageStoreError, category=Category.NOT_FOUND):
    """An image has nothing for the ``wanted`` platform, but for those in ``offered`` (text forms, in index order).

    ``reference`` may be the digest of an index; then ``explanation`` is the selection, with a verdict for every entry.
    """

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


class ImageDeniedError(ImageStoreError, category=Category.PERMISSION_DENIED):
    """An image verifier (``verifier``, a program's name) refuses ``reference``; ``reason`` is its output, shortened."""

    def __init__(self, reference: str, verifier: str, reason: str) -> None:
        super().__init__(f"{reference}: denied by image verifier {verifier}" + (f": {reason}" if reason else ""))
        self.reference = reference
        self.verifier = verifier
        self.reason = reason


class DocumentError(ImageStoreError, category=Category.FAILED_PRECONDITION):
    """An index, manifest or image config, ``what``, breaks its rules; each of its ``faults`` has its path inside."""

    def __init__(self, what: str, faults: Sequence[str], *, hint: str = "") -> None:
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        super().__init__(f"{what}: {faults[0]}{more}", hint=hint)
        self.what = what
        self.faults = tuple(faults)


class IntegrityError(ImageStoreError, category=Category.DATA_LOSS):
    """Bytes are not what their descriptor says."""


class ContentUnreadableError(IntegrityError):
    """The disk can't read content now (``reason``, in the system's words); another try may succeed."""

    def __init__(self, what: str, reason: str) -> None:
        super().__init__(f"{what}: the disk can't read it: {reason}")
        self.reason = reason


class DigestMismatchError(IntegrityError):
    """Content has the digest ``actual`` instead of ``expected``; both in text form."""

    def __init__(self, what: str, *, expected: str, actual: str) -> None:
        super().__init__(f"{what}: expected digest {expected}, content has {actual}")
        self.expected = expected
        self.actual = actual


class SizeMismatchError(IntegrityError):
    """Content has not the ``expected`` bytes, but ``actual``, or more if reading stopped there."""

    def __init__(self, what: str, *, expected: int, actual: int) -> None:
        word = "truncated at" if actual < expected else "longer, at least"
        super().__init__(f"{what}: expected {expected} bytes, content is {word} {actual} bytes")
        self.expected = expected
        self.actual = actual


class RegistryError(ImageStoreError, category=Category.UNAVAILABLE):
    """A registry at ``host``, or the way to it, failed.

    ``status`` is HTTP's, or 0 without an answer; ``retry_after`` the seconds that the registry asks to wait, or None;
    ``said`` the text of the answer, shortened and escaped, as the message repeats it.
    """

    def __init__(
        self, message: str, *, host: str = "", status: int = 0, hint: str = "", retry_after: float | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.host = host
        self.status = status
        self.retry_after = retry_after
        self.said = ""


class RegistryUnavailableError(RegistryError):
    """No connection, no answer, or an answer that asks to try later."""


class ReferenceNotFoundError(RegistryError, NotFoundError, category=Category.NOT_FOUND):
    """The registry answers that this repository, tag, manifest or blob doesn't exist."""


class RateLimitedError(RegistryError, category=Category.RESOURCE_EXHAUSTED):
    """The registry refuses because of too many requests."""


class AuthenticationError(RegistryError, category=Category.UNAUTHENTICATED):
    """The registry wants credentials, or refuses those it got."""


class AccessDeniedError(RegistryError, category=Category.PERMISSION_DENIED):
    """The registry accepts the credentials and forbids the request."""


class ProtocolError(RegistryError, category=Category.FAILED_PRECONDITION):
    """An answer breaks HTTP, the distribution protocol or our safety rules."""


class StoreError(ImageStoreError):
    """The store can't do what was asked."""


class StoreBusyError(StoreError, category=Category.UNAVAILABLE):
    """Another writer holds what was asked for."""


class IngestLockedError(StoreBusyError):
    """Another writer has the ingest open."""


class ContentUnavailableError(StoreError, category=Category.UNAVAILABLE):
    """Content that is kept elsewhere can't be reached now; what is here of it stays."""


class WriterClosedError(StoreError, category=Category.FAILED_PRECONDITION):
    """A writer was used after its end."""


class StoreFullError(StoreError, category=Category.RESOURCE_EXHAUSTED):
    """No space (or quota) is left where the store is."""


class StoreReadOnlyError(StoreError, category=Category.PERMISSION_DENIED):
    """The store's folder can't be written."""

    #: If this user may not write (reading takes locks, so it writes too), and if the disk is mounted read-only.
    HINT: ClassVar = "run as the store's owner, ask its server with --endpoint, or choose your own folder with --root"
    MOUNTED_HINT: ClassVar = "mount it writable, or choose another folder with --root"


class StoreMissingError(StoreError, category=Category.FAILED_PRECONDITION):
    """There is no store in the folder, and none was to be made."""


class StoreCorruptError(StoreError, category=Category.DATA_LOSS):
    """The store's own files are damaged, or were made by a newer version."""


class UndeletableError(StoreError):
    """Some garbage can't be deleted, as ``failures`` says by digest or name of an ingest; the rest was deleted."""

    def __init__(self, failures: Mapping[str, str], report: object = None) -> None:
        more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
        fault = next(iter(failures.values()))
        seen = "see the file's attributes, its folder's permissions and the disk"
        if "s3://" in fault:
            seen = "see what the access key may do in the bucket, and the bucket's own rules"
        super().__init__(f"{fault}{more}", hint=f"all the rest is freed; {seen}")
        self.failures = dict(failures)
        self.report = report


class ServerError(ImageStoreError, category=Category.FAILED_PRECONDITION):
    """A server can't listen at its address, or can't do its task."""


class ImageServiceError(ImageStoreError):
    """A service (CRI, containerd, Docker Engine) refuses or fails: message and ``status`` (HTTP or gRPC), or 0."""

    def __init__(self, message: str, *, status: int = 0, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.status = status


class ServiceUnavailableError(ImageServiceError, category=Category.UNAVAILABLE):
    """A service can't be reached, or ended in the middle of an answer."""


class ImageCollectionError(ImageStoreError):
    """A round of image collection on a node failed or freed too little: ``freed_bytes``, by the sizes in the list."""

    def __init__(self, message: str, *, freed_bytes: int = 0, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.freed_bytes = freed_bytes


class OperationCancelledError(ImageStoreError, category=Category.CANCELLED):
    """The caller cancelled."""


class DeadlineExceededError(OperationCancelledError, category=Category.DEADLINE_EXCEEDED):
    """The operation's overall deadline passed."""
