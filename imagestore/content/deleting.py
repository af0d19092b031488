"""Deleting blobs while others wait: names go at once, the space of large files afterwards.

Taking a gigabyte's blocks and cached pages back takes the kernel a tenth of a second, which happens when the last name
and the last open file are gone. So large files are held open until the caller has let go of whatever others wait for.
Who is killed meanwhile lets go of them too.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Final

from imagestore.content.disk import translated
from imagestore.failpoint import reach

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from imagestore.digest import Digest

#: Smaller files go in less than a millisecond.
_LARGE_BYTES: Final = 8 * 1024 * 1024
#: However many descriptors the process may have, these few it can spare.
_MOST_OPEN: Final = 64
_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Deleting:
    """Deletes blobs; their space is free when the block ends.

    Args:
        blobs: the folder of all blobs.
    """

    def __init__(self, blobs: Path) -> None:
        self._blobs = os.fspath(blobs)
        self._open: list[int] = []

    def delete(self, digest: Digest) -> int | None:
        """Remove a blob and return its size in bytes; None when it wasn't there.

        Raises:
            StoreError: it can't be deleted.
        """
        if not digest.is_verifiable:  # labels may name anything; such a blob never was here
            return None
        path = f"{self._blobs}/{digest.algorithm}/{digest.encoded}"
        with translated("delete", path):
            try:
                size = os.lstat(path).st_size
                if size >= _LARGE_BYTES and len(self._open) < _MOST_OPEN:
                    with contextlib.suppress(OSError):  # whoever has no descriptor left waits a little longer
                        self._open.append(os.open(path, _FLAGS))
                reach("delete-unlink")
                os.unlink(path)
            except FileNotFoundError:
                return None
        return size

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None, /
    ) -> None:
        while self._open:
            os.close(self._open.pop())
