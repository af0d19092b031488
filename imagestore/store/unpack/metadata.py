"""What an entry says of owner, mode, times and extended attributes, and how a file gets them."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import tarfile

_XATTR: Final = "SCHILY.xattr."
_NANOSECONDS: Final = 1_000_000_000
#: Times that every file system takes; others become the nearest of them.
_FIRST_NS: Final = -(2**31) * _NANOSECONDS
_LAST_NS: Final = 2**33 * _NANOSECONDS
#: What says that a file system, or this user, can't have an attribute.
_NO_XATTR: Final = {errno.ENOTSUP, errno.EPERM, errno.EACCES, errno.EINVAL}


@dataclass(frozen=True, slots=True)
class FileMetadata:
    """What a file gets besides its content.

    Attributes:
        uid: owner.
        gid: group.
        mode: permission bits with set-id and sticky bits.
        times_ns: last access and last modification, nanoseconds since 1970.
        xattrs: extended attributes.
    """

    uid: int
    gid: int
    mode: int
    times_ns: tuple[int, int]
    xattrs: tuple[tuple[str, bytes], ...]

    @classmethod
    def of(cls, entry: tarfile.TarInfo) -> FileMetadata:
        """What a header says; PAX records come before the plain fields."""
        modified = _nanoseconds(entry.pax_headers.get("mtime"), entry.mtime)
        accessed = _nanoseconds(entry.pax_headers.get("atime"), None)
        xattrs = tuple(
            (name.removeprefix(_XATTR), value.encode("utf-8", "surrogateescape"))
            for name, value in entry.pax_headers.items()
            if name.startswith(_XATTR)
        )
        times = (modified if accessed is None else accessed, modified or 0)
        return cls(entry.uid, entry.gid, entry.mode & 0o7777, (times[0] or 0, times[1]), xattrs)


def _nanoseconds(text: str | None, seconds: float | None) -> int | None:
    """PAX writes fractions of seconds, which a float can't hold."""
    if text is not None:
        try:
            return _possible(int(Decimal(text[:64]) * _NANOSECONDS))
        except (InvalidOperation, ValueError, OverflowError):
            pass
    try:
        return None if seconds is None else _possible(int(seconds) * _NANOSECONDS)
    except (ValueError, OverflowError):  # what PAX calls infinity, for example
        return 0


def _possible(nanoseconds: int) -> int:
    return min(max(nanoseconds, _FIRST_NS), _LAST_NS)


def set_on_open(descriptor: int, metadata: FileMetadata, *, has_owner: bool, mode: int | None = None) -> list[str]:
    """Give an open file or folder its owner, mode and attributes; times come last, by the caller.

    Args:
        descriptor: of the file.
        metadata: what it gets.
        has_owner: whether this user may give files away.
        mode: instead of the one in the metadata.

    Returns:
        The attributes that couldn't be set.
    """
    if has_owner:
        os.fchown(descriptor, metadata.uid, metadata.gid)
    # After the owner: giving a file away clears its set-id bits.
    os.fchmod(descriptor, metadata.mode if mode is None else mode)
    return _set_xattrs(descriptor, metadata)


def set_on_name(above: int, name: str, metadata: FileMetadata, *, has_owner: bool, is_link: bool) -> list[str]:
    """Give what can't be opened, a link, device or FIFO, its owner, mode and times.

    Returns:
        The attributes that couldn't be set: links and devices take those of the system only, by their path.
    """
    if has_owner:
        os.chown(name, metadata.uid, metadata.gid, dir_fd=above, follow_symlinks=False)
    if not is_link:
        # No call changes a mode by name without following links before Linux 6.6, so by what the name was opened as.
        descriptor = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
        try:
            os.chmod(f"/proc/self/fd/{descriptor}", metadata.mode)
        finally:
            os.close(descriptor)
    os.utime(name, ns=metadata.times_ns, dir_fd=above, follow_symlinks=False)
    return [attribute for attribute, _ in metadata.xattrs]


def _set_xattrs(descriptor: int, metadata: FileMetadata) -> list[str]:
    refused = []
    for name, value in metadata.xattrs:
        try:
            os.setxattr(descriptor, name, value)
        except OSError as error:
            if error.errno not in _NO_XATTR:
                raise
            refused.append(name)
    return refused
