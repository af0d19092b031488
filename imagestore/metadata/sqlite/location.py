"""Where a database may be, and why it can't be opened.

SQLite's write-ahead log needs memory that all processes share, so a local disk. The kernel's mount table says what file
system a path is on (proc(5), mountinfo).
"""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path
from typing import Final

from imagestore.errors import StoreCorruptError, StoreError, StoreMissingError
from imagestore.util.file_calls import allocate

#: What is left of a store whose database is gone: copies, or the journal of an older version.
_TRACES: Final = ("copies", "records.jsonl")
#: SQLite's log and its index: what they add to the database's name.
LOG_FILES: Final = ("-wal", "-shm")
MOUNTS: Final = Path("/proc/self/mountinfo")
#: File systems that several machines write, or whose locks and mappings hold for one machine only.
NETWORK: Final = frozenset(
    {
        *("9p", "acfs", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "gfs2", "glusterfs", "gpfs", "lustre"),
        *("ncpfs", "nfs", "nfs3", "nfs4", "ocfs2", "orangefs", "panfs", "pvfs2", "smb2", "smb3", "smbfs"),
        *("fuse.ceph", "fuse.davfs", "fuse.gcsfuse", "fuse.glusterfs", "fuse.goofys", "fuse.rclone", "fuse.s3fs"),
        *("fuse.sshfs", "fuse.juicefs"),
    }
)
# For SQLite's log and its index, which alone takes 32 KiB.
_LEAST_BYTES: Final = 64 * 1024
_ESCAPE: Final = re.compile(r"\\([0-7]{3})")


def file_system(path: Path, *, mounts: Path = MOUNTS) -> str:
    """The kernel's name for the file system of an existing folder; empty where there is no mount table."""
    try:
        table = mounts.read_text("utf-8", "replace")
    except OSError:
        return ""
    wanted = os.path.realpath(path)
    best, kind = -1, ""
    for line in table.splitlines():
        left, _, right = line.partition(" - ")
        fields = left.split(" ")
        if len(fields) < 5 or not right:
            continue
        point = fields[4]
        if "\\" in point:
            point = _ESCAPE.sub(lambda found: chr(int(found[1], 8)), point)
        covers = wanted == point or wanted.startswith(point.rstrip("/") + "/")
        # A later mount on the same point hides the earlier one.
        if covers and len(point) >= best:
            best, kind = len(point), right.split(" ", 1)[0]
    return kind


def refuse_network(path: Path, kind: str) -> None:
    """Refuse a database on a network file system; ``kind`` is file_system()'s.

    Raises:
        StoreError: it is one of NETWORK.
    """
    if kind in NETWORK:
        raise StoreError(
            f"{path}: expected a local disk, but the folder is on a network file system ({kind}), where locks and"
            " shared memory do not hold between machines",
            hint="choose a folder on a local disk with --root",
        )


def refuse_missing(path: Path) -> None:
    """Refuse to create a store. Where copies of one are left, opening the database reports what is missing.

    Raises:
        StoreMissingError: there is no store.
        StoreCorruptError: there is only content.
    """
    try:
        # A crash may leave a file of no bytes.
        if not os.stat(path).st_size:
            raise FileNotFoundError(path)
    except FileNotFoundError:
        if any(os.path.exists(path.with_name(name)) for name in _TRACES):
            return
        if _has_blobs(path.with_name("content")):
            raise StoreCorruptError(
                f"{path}: the database is gone, but the content next to it is there",
                hint="run 'imagestore check --rebuild'",
            ) from None
        raise StoreMissingError(
            f"there is no store in {path.parent}", hint="is --root right, and its disk mounted? A pull would make one"
        ) from None
    except OSError:
        return  # opening it says what that means


def has_database(path: Path) -> bool:
    """Whether there is a database that isn't empty."""
    try:
        return os.stat(path).st_size > 0
    except OSError:
        return False


def _has_blobs(content: Path) -> bool:
    """Whether there is content. Empty folders may come from a process that died at once."""
    try:
        return any(each.is_file() for each in (content / "blobs").glob("*/*"))
    except OSError:
        return True


def is_read_only(folder: Path) -> bool:
    """Whether the file system of a folder is mounted read-only; False when that is unknown."""
    try:
        return bool(os.statvfs(folder).f_flag & os.ST_RDONLY)
    except OSError:
        return False


def refusal(path: Path) -> int | None:
    """The errno of creating a small file next to a database; None when that works or fails for another reason.

    No other call reveals an exceeded quota, a lack of inodes, or a disk that became read-only without being mounted so
    (ext4 after an error, a subvolume of btrfs).
    """
    made = path.with_name(f"{path.name}.{os.urandom(8).hex()}.tmp")
    try:
        descriptor = os.open(made, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        try:
            allocate(descriptor, _LEAST_BYTES)
        finally:
            os.close(descriptor)
            os.unlink(made)
    except OSError as error:
        return error.errno if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS) else None
    return None


def cause(path: Path) -> int | None:
    """The errno of opening a database; None when it can be opened, or the reason is unknown.

    The file is opened only where that will fail: closing it would drop SQLite's locks in this process (fcntl(2)). A
    dead disk shows at the files next to it.
    """
    try:
        # Fails when no descriptor is left, and in folders without search permission.
        os.close(os.open(path, os.O_PATH | os.O_CLOEXEC)) if hasattr(os, "O_PATH") else os.stat(path)
        if not os.access(path, os.R_OK | os.W_OK, effective_ids=os.access in os.supports_effective_ids):
            # If it succeeds after all, the descriptor stays open; see above.
            os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        pass  # it was to be created
    except OSError as error:
        return error.errno
    # SQLite creates two more files, its log and the log's index.
    return _neighbour_error(path) or refusal(path)


def refused(path: Path) -> Path | None:
    """The file of a database, or its folder, that this user may not read and write; None where all can be."""
    is_effective = os.access in os.supports_effective_ids
    for each in (path.parent, path, *(path.with_name(path.name + end) for end in LOG_FILES)):
        if os.path.lexists(each) and not os.access(each, os.R_OK | os.W_OK, effective_ids=is_effective):
            return each
    return None


def _neighbour_error(path: Path) -> int | None:
    """The errno of reading a file in the same folder that isn't SQLite's; None if one can be read."""
    try:
        for each in path.parent.iterdir():
            if not each.name.startswith(path.name) and each.is_file():
                os.close(os.open(each, os.O_RDONLY | os.O_CLOEXEC))
                return None
    except OSError as error:
        return error.errno if error.errno not in (errno.EACCES, errno.EPERM, errno.ENOENT) else None
    return None
