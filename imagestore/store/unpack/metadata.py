"""What an entry says of owner, mode, times and extended attributes, and how a file gets them."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import stat
from typing import TYPE_CHECKING, Final, NamedTuple

from imagestore.store.unpack.entry import XATTR
from imagestore.util.file_calls import get_xattr, remove_xattrs, set_xattr, xattr_names
from imagestore.util.trees import set_mode

if TYPE_CHECKING:
    from collections.abc import Callable

    from imagestore.store.unpack.entry import Entry

_NANOSECONDS: Final = 1_000_000_000
#: Times that every file system takes; others become the nearest of them.
_FIRST_NS: Final = -(2**31) * _NANOSECONDS
_LAST_NS: Final = 2**33 * _NANOSECONDS
#: What says that a file system, or this user, can't have an attribute.
_NO_XATTR: Final = {errno.ENOTSUP, errno.EPERM, errno.EACCES, errno.EINVAL}
#: Labels of the host's own policy, and what overlayfs keeps there: in a layer below, it would hide or redirect files.
_OF_THE_HOST: Final = ("security.selinux", "trusted.overlay.")
_SELINUX: Final = "security.selinux"
#: The access list that what is made in a folder inherits (acl(5)).
DEFAULT_ACL: Final = "system.posix_acl_default"


class FileMetadata(NamedTuple):
    """What a file gets in addition to its content.

    Attributes:
        mode: permission bits with set-id and sticky bits.
        times_ns: last access and last modification, nanoseconds since 1970.
    """

    uid: int
    gid: int
    mode: int
    times_ns: tuple[int, int]
    xattrs: tuple[tuple[str, bytes], ...]

    @classmethod
    def of(cls, entry: Entry) -> FileMetadata:
        """The metadata of an entry that has been checked; PAX records override the plain fields."""
        records = entry.records
        if records is None:
            return _plain(entry.uid, entry.gid, entry.mode, entry.mtime)
        modified = _bounded(entry.mtime * _NANOSECONDS)
        if text := records.get("mtime"):
            modified = _nanoseconds(text)
        accessed = _nanoseconds(text) if (text := records.get("atime")) else modified
        xattrs = tuple((name.removeprefix(XATTR), value) for name, value in records.items() if name.startswith(XATTR))
        return cls(entry.uid, entry.gid, entry.mode & 0o7777, (accessed, modified), xattrs)

    @classmethod
    def found(cls, descriptor: int) -> FileMetadata:
        """The metadata of an open file or folder, but for what is the host's."""
        status = os.fstat(descriptor)
        names = [name for name in xattr_names(descriptor) if not name.startswith(_OF_THE_HOST)]
        xattrs = tuple((name, get_xattr(descriptor, name)) for name in names)
        times = (status.st_atime_ns, status.st_mtime_ns)
        return cls(status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode), times, xattrs)


class FolderState(NamedTuple):
    """What making and removing things in a folder would change, or pass on to them.

    Attributes:
        times_ns: its last access and last modification.
        acl: its access list for what is made in it; empty for none.
    """

    times_ns: tuple[int, int]
    acl: bytes

    @classmethod
    def taken(cls, descriptor: int, *, has_acl: bool) -> FolderState:
        """The state of an open folder, which is without its access list from now on.

        Args:
            has_acl: whether it may have one; else none is looked for.
        """
        status = os.fstat(descriptor)
        acl = b""
        if has_acl:
            with contextlib.suppress(OSError):  # ENODATA: it has none
                acl = get_xattr(descriptor, DEFAULT_ACL)
                remove_xattrs(descriptor, [DEFAULT_ACL])
        return cls((status.st_atime_ns, status.st_mtime_ns), acl)

    def restore(self, descriptor: int) -> None:
        """Give the folder its state back."""
        if self.acl:
            set_xattr(descriptor, DEFAULT_ACL, self.acl)
        os.utime(descriptor, ns=self.times_ns)


@functools.lru_cache(1024)
def _plain(uid: int, gid: int, mode: int, mtime: int) -> FileMetadata:
    """Without records; cached, since many entries have the same."""
    modified = _bounded(mtime * _NANOSECONDS)
    return FileMetadata(uid, gid, mode & 0o7777, (modified, modified), ())


def _nanoseconds(text: bytes) -> int:
    """PAX writes fractions of seconds, which a float can't hold."""
    seconds, _, fraction = text.removeprefix(b"-").partition(b".")
    found = int(seconds) * _NANOSECONDS + int(fraction[:9].ljust(9, b"0"))
    return _bounded(-found if text.startswith(b"-") else found)


def _bounded(nanoseconds: int) -> int:
    return min(max(nanoseconds, _FIRST_NS), _LAST_NS)


def set_on_open(descriptor: int, metadata: FileMetadata, *, has_owner: bool, mode: int | None = None) -> None:
    """Give an open file or folder its owner and mode; attributes and times come later, by the caller.

    Args:
        has_owner: whether it gets its owner, which this user then may give it.
        mode: instead of the one in the metadata.
    """
    if has_owner:
        os.fchown(descriptor, metadata.uid, metadata.gid)
    # After the owner: giving a file away clears its set-id bits.
    os.fchmod(descriptor, metadata.mode if mode is None else mode)


def set_on_name(above: int, name: str, metadata: FileMetadata, *, has_owner: bool, is_link: bool) -> list[str]:
    """Give what can't be opened, a link, device or FIFO, its owner, mode, attributes and times.

    Args:
        above: the open folder that has the name.
        has_owner: whether this user may give files away.

    Returns:
        The attributes that couldn't be set.
    """
    if has_owner:
        os.chown(name, metadata.uid, metadata.gid, dir_fd=above, follow_symlinks=False)
    if not is_link:
        set_mode(above, name, metadata.mode)
    refused = []
    if metadata.xattrs:
        # No call of Python's takes a folder and a name. Its link of proc_pid_fd(5) is the open folder itself, wherever
        # that is by now, and the name in it isn't followed.
        path = f"/proc/self/fd/{above}/{name}"
        refused = _set_xattrs(metadata, lambda key, value: set_xattr(path, key, value))
    os.utime(name, ns=metadata.times_ns, dir_fd=above, follow_symlinks=False)
    return refused


def set_xattrs(descriptor: int, metadata: FileMetadata) -> list[str]:
    """Give an open file or folder its attributes.

    Returns:
        Those that couldn't be set.
    """
    return _set_xattrs(metadata, lambda name, value: set_xattr(descriptor, name, value))


def clear_xattrs(descriptor: int) -> None:
    """Remove attributes that an open folder has from an earlier layer or the folder above, but not the host's label."""
    # What this user, or this file system, can't change isn't the image's.
    remove_xattrs(descriptor, [name for name in xattr_names(descriptor) if name != _SELINUX])


def _set_xattrs(metadata: FileMetadata, setter: Callable[[str, bytes], None]) -> list[str]:
    refused = []
    for name, value in metadata.xattrs:
        if name.startswith(_OF_THE_HOST):
            refused.append(name)
            continue
        try:
            setter(name, value)
        except OSError as error:
            if error.errno not in _NO_XATTR:
                raise
            refused.append(name)
    return refused
