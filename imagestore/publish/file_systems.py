"""What containerd's images use on disk, for who must always have an answer."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, Final

from imagestore.errors import ImageStoreError
from imagestore.publish.containerd_values import Usage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from imagestore.publish.containerd import Containerd

#: As old as containerd lets its own figures become.
_KEPT_SECONDS: Final = 10.0
_ANSWER_SECONDS: Final = 2.0
#: Between two questions to a containerd that is away.
_RETRY_SECONDS: Final = 5.0


class ImageFileSystems:
    """containerd's answer, its last one while it is away, or what its root's file system says; thread-safe.

    Args:
        client: of containerd.
        root: containerd's folder by its configuration.
    """

    def __init__(self, client: Containerd, root: Callable[[], Path]) -> None:
        self._client = client
        self._root = root
        self._lock = threading.Lock()
        self._known: Sequence[Usage] = ()
        self._until = 0.0

    def now(self) -> Sequence[Usage]:
        """The default snapshotter's file system first; empty if nothing can be said. Never raises."""
        with self._lock:
            if time.monotonic() < self._until:
                return self._known
            try:
                self._known = self._client.cri_image_filesystems(seconds=_ANSWER_SECONDS)
                self._until = time.monotonic() + _KEPT_SECONDS
            except ImageStoreError:
                self._known = self._known or self._of_root()
                self._until = time.monotonic() + _RETRY_SECONDS
            return self._known

    def _of_root(self) -> Sequence[Usage]:
        """All that is used on the file system of containerd's folder: more than its images, and better than nothing."""
        path = self._root()
        while not path.exists() and path != path.parent:
            path = path.parent
        try:
            found = os.statvfs(path)
        except OSError:
            return ()
        used = (found.f_blocks - found.f_bfree) * found.f_frsize
        return (Usage(str(path), used, found.f_files - found.f_ffree, time.time_ns()),)
