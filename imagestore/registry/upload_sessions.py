"""The URLs of unfinished uploads, kept in files for later processes.

A registry names a URL for each upload, and reports there how much it has kept. The URL of a large blob's upload is
noted until the registry has the blob. A killed process leaves its note, and the next copy of the same blob into the
same repository resumes there, if the registry still knows the upload.

A note is locked while its upload runs: two uploads to one URL would corrupt each other.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from imagestore.oci.digest import Digest

if TYPE_CHECKING:
    from imagestore.registry.transport.addresses import Origin

#: Below a client's state folder.
FOLDER: Final = "uploads"
#: Registries forget uploads after some days; distribution's default is a week.
_OLDEST_SECONDS: Final = 24 * 3600.0
_MOST_BYTES: Final = 8192
_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


@dataclass(slots=True)
class UploadNote:
    """The URL of one upload, or empty; without a file it is forgotten with the process."""

    location: str = ""
    _descriptor: int | None = None

    def keep(self, location: str) -> None:
        """Note where the upload resumes; empty when it is over. The URL may be signed, so it is secret."""
        self.location = location
        if self._descriptor is not None:
            # A note that can't be written, or only in part, costs an upload from the beginning.
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, 0)
                os.pwrite(self._descriptor, location.encode(), 0)


class UploadSessions:
    """The notes of one client, in a folder that is made when first needed; without one, in memory only."""

    def __init__(self, folder: str = "") -> None:
        self._folder = folder

    @contextlib.contextmanager
    def note(self, origin: Origin, repository: str, digest: Digest) -> Iterator[UploadNote]:
        """The note of a blob's upload, locked; one in memory only if another process has locked it."""
        descriptor = self._opened(f"{origin} {repository} {digest}") if self._folder else None
        if descriptor is None:
            yield UploadNote()
            return
        try:
            found = UploadNote(_read(descriptor), descriptor)
            yield found
            if not found.location:
                with contextlib.suppress(OSError):
                    os.unlink(self._path(f"{origin} {repository} {digest}"))
        finally:
            os.close(descriptor)

    def _opened(self, name: str) -> int | None:
        """The file, locked; None if that fails."""
        try:
            os.makedirs(self._folder, mode=0o700, exist_ok=True)
            descriptor = os.open(self._path(name), _FLAGS, 0o600)
        except OSError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
        except OSError:
            is_file = False
        if not is_file:
            os.close(descriptor)
            return None
        return descriptor

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, Digest.of(name.encode()).encoded)


def _read(descriptor: int) -> str:
    """What was noted; empty for nothing, too old, or no text."""
    age = time.time() - os.fstat(descriptor).st_mtime
    raw = os.pread(descriptor, _MOST_BYTES + 1, 0)
    if not 0 <= age <= _OLDEST_SECONDS or len(raw) > _MOST_BYTES or not raw.isascii():
        return ""
    text = raw.decode("ascii")
    return text if text.isprintable() else ""
