"""containerd's garbage-collection labels as typed values (containerd, docs/garbage-collection.md and pkg/gc).

    on content   containerd.io/gc.root[...]                  never collected, whatever the value
                 containerd.io/gc.ref.content[.x or /x]      the value is the digest of content that is kept too
    on leases    containerd.io/gc.expire                     RFC 3339; after that moment it keeps nothing
                 containerd.io/gc.flat                       keeps what it lists, not what that refers to
                 imagestore/gc.keep-all                      ours: keeps all content, known or not
    on images    containerd.io/gc.ref.content[.x or /x]      the value is the digest of content that is kept with it
                 containerd.io/gc.expire                     RFC 3339; after that moment the record goes

As in containerd an expiry that can't be read counts as none, a reference that is no digest as no reference, and
gc.expire on content means nothing.
"""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from imagestore.errors import InvalidDigestError, InvalidInputError
from imagestore.oci.digest import Digest

if TYPE_CHECKING:
    from collections.abc import Mapping

#: When a lease without an end ends.
NEVER: Final = float("inf")
ROOT: Final = "containerd.io/gc.root"
REFERENCE: Final = "containerd.io/gc.ref.content"
EXPIRE: Final = "containerd.io/gc.expire"
FLAT: Final = "containerd.io/gc.flat"
KEEP_ALL: Final = "imagestore/gc.keep-all"
#: Longest key and value together, in bytes; containerd's limit.
MAX_LABEL_BYTES: Final = 4096
_TIME: Final = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2})T([0-9:]{8})(\.[0-9]{1,9})?(Z|[+-][0-9]{2}:[0-9]{2})")


@dataclass(frozen=True, slots=True)
class ContentTerms:
    """What labels on content (or, the references, on an image) mean: a root of its own, and what else it keeps."""

    is_root: bool
    references: tuple[Digest, ...]

    @classmethod
    def of(cls, labels: Mapping[str, str]) -> ContentTerms:
        """Read the labels.

        >>> ContentTerms.of({"containerd.io/gc.root": "2024-01-01"}).is_root
        True
        """
        references = []
        for key, value in sorted(labels.items()):
            rest = key.removeprefix(REFERENCE)
            if rest != key and (not rest or rest[0] in "./"):
                try:
                    references.append(Digest.parse(value))
                except InvalidDigestError:
                    continue
        return cls(any(key.startswith(ROOT) for key in labels), tuple(dict.fromkeys(references)))


@dataclass(frozen=True, slots=True)
class LeaseTerms:
    """What labels on a lease (or, the expiry, on an image) mean; ``expires_at`` in seconds since 1970 or infinite."""

    expires_at: float
    is_flat: bool

    @classmethod
    def of(cls, labels: Mapping[str, str]) -> LeaseTerms:
        """Read the labels.

        >>> LeaseTerms.of({"containerd.io/gc.expire": "1970-01-01T00:01:00Z"})
        LeaseTerms(expires_at=60.0, is_flat=False)
        """
        return cls(moment(labels.get(EXPIRE, "")), FLAT in labels)


def moment(text: str) -> float:
    """An RFC 3339 time in seconds since 1970; infinity when it isn't one.

    >>> moment("1970-01-01T01:00:00.5+01:00"), moment("soon")
    (0.5, inf)
    """
    found = _TIME.fullmatch(text) if text else None
    if found is None:
        return NEVER
    date, clock, fraction, zone = found.groups()
    try:
        whole = datetime.datetime.fromisoformat(f"{date}T{clock}{'+00:00' if zone == 'Z' else zone}")
        return whole.timestamp() + float(f"0{fraction or '.0'}")
    except (ValueError, OverflowError):
        return NEVER


def checked(labels: Mapping[str, str]) -> dict[str, str]:
    """Labels as they are stored: an empty value stands for no label.

    Raises:
        InvalidInputError: a key is empty, or key and value are longer than MAX_LABEL_BYTES.
    """
    for key, value in labels.items():
        length = len(key.encode()) + len(value.encode())
        if not key or length > MAX_LABEL_BYTES:
            raise InvalidInputError(
                f"label {key[:64]!r}: expected a key and at most {MAX_LABEL_BYTES} bytes in all, not {length}"
            )
    return {key: value for key, value in labels.items() if value}
