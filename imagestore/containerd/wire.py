"""Values of the wire: times, field masks, labels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from google.protobuf.timestamp_pb2 import Timestamp

from imagestore.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

#: The longest key of containerd's database, in bytes.
LONGEST_KEY: Final = 32768
# 0001-01-01T00:00:00Z and 9999-12-31T23:59:59Z.
_FIRST: Final = -62_135_596_800
_LAST: Final = 253_402_300_799


def timestamp(seconds: float) -> Timestamp:
    """Seconds since 1970 as the wire has them.

    >>> timestamp(1.5).nanos
    500000000
    """
    whole, part = divmod(seconds, 1)
    nanoseconds = int(whole) * 10**9 + round(part * 10**9)
    return Timestamp(seconds=nanoseconds // 10**9, nanos=nanoseconds % 10**9)


def seconds(moment: Timestamp) -> float:
    """A time of the wire as seconds since 1970.

    Raises:
        InvalidInputError: outside of the years 1 to 9999 (google.protobuf.Timestamp's own rule).
    """
    if not _FIRST <= moment.seconds <= _LAST or not 0 <= moment.nanos < 10**9:
        raise InvalidInputError(f"time {moment.seconds} s {moment.nanos} ns: expected one of the years 1 to 9999")
    return moment.seconds + moment.nanos / 10**9


def checked_key(what: str, key: str) -> None:
    """Refuse a name of something that containerd's database couldn't hold.

    Args:
        what: for the message.
        key: the name.

    Raises:
        InvalidInputError: it is longer.
    """
    if len(key.encode()) > LONGEST_KEY:
        raise InvalidInputError(f"{what}: expected a name of at most {LONGEST_KEY} bytes")


def checked_mask(paths: Sequence[str], *, whole: Collection[str], keyed: Collection[str]) -> None:
    """Refuse a field mask that names what can't change.

    Args:
        paths: of the mask.
        whole: fields that may be replaced.
        keyed: fields of which single keys may be replaced, ``labels.<key>``.

    Raises:
        InvalidInputError: names the path.
    """
    for path in paths:
        name, dot, key = path.partition(".")
        if path not in whole and not (dot and key and name in keyed):
            allowed = [*whole, *(f"{each}.<key>" for each in keyed)]
            raise InvalidInputError(f"field mask {path[:100]!r}: expected one of {', '.join(allowed)}")


def changed_map(
    field: str, before: Mapping[str, str], given: Mapping[str, str], paths: Sequence[str]
) -> dict[str, str]:
    """A map after an update: replaced without a mask or when named, else single keys.

    Args:
        field: the map's name in the mask.
        before: what it is.
        given: what the caller sent.
        paths: of the mask.

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
