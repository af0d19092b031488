"""What requests share: namespace and lease in the headers, waiting for an ingest, field masks, keys and times.

containerd-namespace   required for everything namespaced: FAILED_PRECONDITION if absent, INVALID_ARGUMENT if malformed
containerd-lease       what the call creates is put under this lease
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from imagestore.errors import IngestLockedError, InvalidInputError, PreconditionError
from imagestore.metadata.records import checked_namespace
from imagestore.protos.google.protobuf.timestamp_pb2 import Timestamp

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
    from typing import Any, TypeVar

    import grpc

    T = TypeVar("T")
    Context = grpc.aio.ServicerContext[Any, Any]

NAMESPACE_HEADER: Final = "containerd-namespace"
LEASE_HEADER: Final = "containerd-lease"
#: Pauses between attempts at a locked ingest. containerd's own store tries ten times within about half a second, since
#: its clients close a writer and open the next one without waiting for the end of the first stream.
_PAUSES_SECONDS: Final = (0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256)
#: The longest key of containerd's database, in bytes.
LONGEST_KEY: Final = 32768
# 0001-01-01T00:00:00Z and 9999-12-31T23:59:59Z.
_FIRST: Final = -62_135_596_800
_LAST: Final = 253_402_300_799


def namespace_of(context: Context) -> str:
    """The caller's namespace.

    Raises:
        PreconditionError: none is given.
        InvalidInputError: it is malformed.
    """
    namespace = _header(context, NAMESPACE_HEADER)
    if not namespace:
        raise PreconditionError("namespace is required", hint=f"send the header {NAMESPACE_HEADER}")
    return checked_namespace(namespace)


def lease_of(context: Context) -> str:
    """The name of the caller's lease, or empty."""
    return _header(context, LEASE_HEADER)


def _header(context: Context, name: str) -> str:
    for key, value in context.invocation_metadata() or ():
        if key == name and isinstance(value, str):
            return value
    return ""


async def once_unlocked(attempt: Callable[[], Awaitable[T]]) -> T:
    """The result of work that needs an ingest, retried for half a second while another writer has it open."""
    for pause in _PAUSES_SECONDS:
        try:
            return await attempt()
        except IngestLockedError:
            await asyncio.sleep(pause)
    return await attempt()


def timestamp(seconds: float) -> Timestamp:
    """Seconds since 1970 as a protobuf timestamp.

    >>> timestamp(1.5).nanos
    500000000
    """
    whole, part = divmod(seconds, 1)
    nanoseconds = int(whole) * 10**9 + round(part * 10**9)
    return Timestamp(seconds=nanoseconds // 10**9, nanos=nanoseconds % 10**9)


def seconds(moment: Timestamp) -> float:
    """A protobuf timestamp as seconds since 1970.

    Raises:
        InvalidInputError: outside of the years 1 to 9999 (google.protobuf.Timestamp's own rule).
    """
    if not _FIRST <= moment.seconds <= _LAST or not 0 <= moment.nanos < 10**9:
        raise InvalidInputError(f"time {moment.seconds} s {moment.nanos} ns: expected one of the years 1 to 9999")
    return moment.seconds + moment.nanos / 10**9


def checked_key(what: str, key: str) -> None:
    """Raise InvalidInputError if a name, of ``what``, is too long for containerd's database."""
    if len(key.encode()) > LONGEST_KEY:
        raise InvalidInputError(f"{what}: expected a name of at most {LONGEST_KEY} bytes")


def checked_mask(paths: Sequence[str], *, whole: Collection[str], keyed: Collection[str]) -> None:
    """Raise InvalidInputError for a field mask with other fields than the allowed ones.

    Args:
        paths: of the mask.
        whole: fields that may be replaced.
        keyed: fields of which single keys may be replaced, ``labels.<key>``.
    """
    for path in paths:
        name, dot, key = path.partition(".")
        if path not in whole and not (dot and key and name in keyed):
            allowed = [*whole, *(f"{each}.<key>" for each in keyed)]
            raise InvalidInputError(f"field mask {path[:100]!r}: expected one of {', '.join(allowed)}")


def changed_map(
    field: str, before: Mapping[str, str], given: Mapping[str, str], paths: Sequence[str]
) -> dict[str, str]:
    """A map after an update: replaced if the mask is empty or names the field, else changed key by key.

    >>> changed_map("labels", {"a": "1", "b": "2"}, {"a": "3"}, ["labels.a"])
    {'a': '3', 'b': '2'}
    """
    if not paths or field in paths:
        return dict(given)
    after = dict(before)
    for path in paths:
        name, _, key = path.partition(".")
        if name == field and key:
            after[key] = given.get(key, "")
    # An empty value removes a label.
    return {key: value for key, value in after.items() if value}
