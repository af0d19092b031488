"""containerd's content folder on this machine: blobs of the store get a name there, without a byte sent.

containerd's local content store and ours have the same layout (plugins/content/local). A file that has its digest's
name in ``blobs/<algorithm>`` is taken by the next COMMIT of that digest as it is: neither existence nor digest is
checked, so what containerd makes of a placed file must be verified (by the diff id after Apply).

Rules for this folder:

- Names go straight to their final place; another name in ``blobs/<algorithm>`` would stop containerd's collector.
- Nothing but the probe's own name is ever removed here: the end of the lease takes linked blobs away.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import shutil
from typing import TYPE_CHECKING, Final

from imagestore.errors import IntegrityError
from imagestore.oci import Digest, Verifier
from imagestore.publish.model import ContentWay
from imagestore.util.failpoint import reach
from imagestore.util.file_calls import reflink
from imagestore.util.files import sync_directory

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from imagestore.oci import Descriptor
    from imagestore.util.cancel import CancelToken

#: Names of ours beside ``blobs``, where containerd never looks: only while a file is written, or replaces another.
_SCRATCH: Final = re.compile(r"imagestore-[0-9a-f]+-[0-9a-f]{16}")
_COPY_BYTES: Final = 1 << 30
_PIECE_BYTES: Final = 1 << 20
_READ_BYTES: Final = 1 << 20
_READ_ONLY: Final = 0o444
_PROBE_BYTES: Final = 50
#: How often the collector may be faster.
_PROBES: Final = 5
#: The file system, or the kernel, makes no files without names.
_NO_NAMELESS: Final = frozenset({errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL})
#: File systems of two kinds, or one that is not in the kernel.
_NO_RANGES: Final = frozenset({errno.EXDEV, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})


class ContentFolder:
    """The folder ``root`` of containerd's content plugin, and the way by which files come into it.

    Args:
        root: has, or will have, ``blobs``.
        way: LINKED (one inode with the store's) or OWN_FILE (blocks shared or copied by the kernel).
        owner: hexadecimal, part of the names beside ``blobs``; the store's id.
    """

    def __init__(self, root: Path, way: ContentWay, owner: str) -> None:
        self.root = root
        self.way = way
        self._owner = owner

    def path(self, digest: Digest) -> Path:
        """Where a blob lies."""
        return self.root / "blobs" / digest.algorithm / digest.encoded

    def size(self, digest: Digest) -> int | None:
        """Bytes of the file under a digest's name; None if there is none."""
        try:
            return self.path(digest).lstat().st_size
        except FileNotFoundError:
            return None

    def place(self, source: Path, digest: Digest) -> bool:
        """Give a blob of the store its name here; returns whether the name is new.

        Raises:
            FileNotFoundError: the store's file is gone, or this folder.
            OSError: it can't be linked, or written.
        """
        target = self.path(digest)
        if os.path.lexists(target):
            return False
        # containerd makes these with its first commit, and its root when it starts.
        for folder in (target.parent.parent, target.parent):
            folder.mkdir(mode=0o755, exist_ok=True)
        reach("publish-place")
        try:
            if self.way is ContentWay.LINKED:
                os.link(source, target, follow_symlinks=False)
            else:
                self._write(source, target)
        except FileExistsError:
            return False
        return True

    def replace(self, source: Path, digest: Digest) -> None:
        """Put a blob of the store in the place of a damaged file under its name, by rename.

        Raises:
            OSError: it can't be linked, written or renamed.
        """
        waiting = self._scratch_name()
        try:
            if self.way is ContentWay.LINKED:
                os.link(source, waiting, follow_symlinks=False)
            else:
                with open(source, "rb") as file:
                    self._write_named(file.fileno(), waiting)
            reach("publish-replace")
            os.rename(waiting, self.path(digest))
        finally:
            # Also where both names were one file already: rename then does nothing.
            with contextlib.suppress(FileNotFoundError):
                os.unlink(waiting)
        self.sync(digest.algorithm)

    def is_same_file(self, source: Path, digest: Digest) -> bool:
        """Whether the name here leads to the store's own file."""
        try:
            return os.path.samefile(source, self.path(digest))
        except FileNotFoundError:
            return False

    def is_damaged(self, blob: Descriptor, cancel: CancelToken) -> bool:
        """Whether the file under a blob's name has other bytes than the blob; False if there is none.

        Raises:
            OSError: it can't be read.
        """
        verifier = Verifier(blob.digest, blob.size)
        try:
            with open(self.path(blob.digest), "rb") as file:
                while chunk := file.read(_READ_BYTES):
                    cancel.check()
                    verifier.update(chunk)
            verifier.finish()
        except FileNotFoundError:
            return False
        except IntegrityError:
            return True
        return False

    def sync(self, algorithm: str = "sha256") -> None:
        """Make the names in a folder of blobs durable."""
        sync_directory(self.root / "blobs" / algorithm)

    def clear(self) -> None:
        """Remove what a killed process of this store left beside ``blobs``."""
        beginning = f"imagestore-{self._owner}-"
        for name in os.listdir(self.root):
            if name.startswith(beginning) and _SCRATCH.fullmatch(name):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self.root / name)

    def probe(self, scratch: Path, sees: Callable[[Digest, int], bool]) -> str:
        """Try whether containerd takes what is placed here; returns why not, or an empty text.

        One answer for mounts, namespaces, quota projects, ``protected_hardlinks``, read-only folders, a content sharing
        policy and proxy stores, none of which device numbers tell apart.

        Args:
            scratch: a folder of the store's, on the file system of its blobs.
            sees: asks containerd whether it has all bytes of a digest, given the size, before a byte was sent.
        """
        data = secrets.token_bytes(_PROBE_BYTES)
        digest = Digest.of(data)
        mine = scratch / f"publish-probe-{secrets.token_hex(8)}"
        try:
            mine.write_bytes(data)
            mine.chmod(_READ_ONLY)
            for _ in range(_PROBES):
                self.place(mine, digest)
                if sees(digest, len(data)):
                    return ""
                if self.size(digest) is not None:
                    return "containerd doesn't take what is in its content folder (another folder, or a sharing policy)"
            return "containerd's collector removed the trial file each time"
        except OSError as error:
            return f"{self.root}: {error.strerror or error}"
        finally:
            for path in (mine, self.path(digest)):
                with contextlib.suppress(OSError):
                    path.unlink()

    def _scratch_name(self) -> Path:
        return self.root / f"imagestore-{self._owner}-{secrets.token_hex(8)}"

    def _write(self, source: Path, target: Path) -> None:
        """Write a file that has no name in ``blobs`` until it is whole."""
        with open(source, "rb") as file:
            descriptor = _nameless(target.parent)
            if descriptor is None:
                waiting = self._scratch_name()
                try:
                    self._write_named(file.fileno(), waiting)
                    os.link(waiting, target)
                finally:
                    with contextlib.suppress(FileNotFoundError):
                        waiting.unlink()
                return
            try:
                _fill(descriptor, file.fileno())
                # With a folder's descriptor Python calls linkat(2), which follows the link in /proc to the file.
                os.link(f"/proc/self/fd/{descriptor}", target, src_dir_fd=descriptor, follow_symlinks=True)
            finally:
                os.close(descriptor)

    @staticmethod
    def _write_named(source: int, path: Path) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            _fill(descriptor, source)
        finally:
            os.close(descriptor)


def _nameless(folder: Path) -> int | None:
    """A new file without a name; None where the system or the file system has no such files."""
    if not hasattr(os, "O_TMPFILE"):
        return None
    try:
        return os.open(folder, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno not in _NO_NAMELESS:
            raise
        return None


def _copy_range(target: int, source: int) -> bool:
    """Copy the rest of a file; returns whether the kernel can do that between its file systems."""
    if not hasattr(os, "copy_file_range"):
        return False
    try:
        while os.copy_file_range(source, target, _COPY_BYTES):
            pass
    except OSError as error:
        if error.errno in _NO_RANGES:
            return False
        raise
    return True


def _fill(target: int, source: int) -> None:
    """Copy a file into an empty one: by sharing its blocks, or in the kernel; then make it read-only and durable."""
    if not reflink(target, source) and not _copy_range(target, source):
        with open(source, "rb", closefd=False) as given, open(target, "wb", closefd=False) as copy:
            shutil.copyfileobj(given, copy, _PIECE_BYTES)
    os.fchmod(target, _READ_ONLY)
    os.fsync(target)
