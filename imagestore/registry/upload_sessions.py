"""The URLs of unfinished uploads, kept in files for later processes.

A registry names a URL for each upload, and reports there how much it has kept. The URL of a large blob's upload is
noted until the registry has the blob. A killed process leaves its note, and the next copy of the same blob into the
same repository resumes there, if the registry still knows the upload.

A note is locked while its upload runs: two uploads to one URL would corrupt each other.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from imagestore.oci.digest import Digest
from imagestore.util.files import open_regular
from imagestore.util.try_lock import try_lock

if TYPE_CHECKING:
    from imagestore.registry.transport.addresses import Origin

#: Below a client's state folder.
FOLDER: Final = "uploads"
#: Registries forget uploads after some days; distribution's default is a week.
_OLDEST_SECONDS: Final = 24 * 3600.0
_MOST_BYTES: Final = 8192


@dataclass(slots=True)
class UploadNote:
    """The URL of one upload, or empty; without a file it is forgotten with the process."""

    location: str = ""
    _descriptor: int | None = None

    def keep(self, location: str, *, is_lasting: bool = True) -> None:
        """Note where the upload resumes; empty when it is over. The URL may be signed, so it is secret.

        One that isn't lasting is forgotten with the process.
        """
        self.location = location
        if self._descriptor is not None:
            # A note that can't be written, or only in part, costs an upload from the beginning.
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, 0)
                os.lseek(self._descriptor, 0, os.SEEK_SET)
                os.write(self._descriptor, (location if is_lasting else "").encode())


@contextlib.contextmanager
def upload_note(folder: str, origin: Origin, repository: str, digest: Digest) -> Iterator[UploadNote]:
    """The note of a blob's upload, locked, in a folder that is made when first needed.

    It is in memory only without a folder, if another process has locked it, and where there are no locks (Windows).
    """
    path = os.path.join(folder, Digest.of(f"{origin} {repository} {digest}".encode()).encoded)
    descriptor = _locked(path) if folder else None
    if descriptor is None:
        yield UploadNote()
        return
    try:
        found = UploadNote(_read(descriptor), descriptor)
        yield found
    finally:
        if not os.fstat(descriptor).st_size:
            with contextlib.suppress(OSError):
                os.unlink(path)
        os.close(descriptor)


def _locked(path: str) -> int | None:
    """A descriptor of the file, locked; None if that fails."""
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        descriptor = open_regular(path, os.O_RDWR | os.O_CREAT)
    except OSError:
        return None
    try:
        is_ours = try_lock(descriptor)
    except OSError:
        is_ours = False
    if not is_ours:
        os.close(descriptor)
        return None
    return descriptor


def _read(descriptor: int) -> str:
    """What was noted; empty for nothing, too old, or no text."""
    age = time.time() - os.fstat(descriptor).st_mtime
    raw = os.read(descriptor, _MOST_BYTES + 1)
    if not 0 <= age <= _OLDEST_SECONDS or len(raw) > _MOST_BYTES or not raw.isascii():
        return ""
    text = raw.decode("ascii")
    return text if text.isprintable() else ""
