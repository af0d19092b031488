"""The system's errors about files and folders, as this library's."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Final

from imagestore.errors import StoreError, StoreFullError, StoreReadOnlyError
from imagestore.util.permissions import permission_hint

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

_FULL: Final = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_REFUSED: Final = {errno.EROFS, errno.EACCES, errno.EPERM}


class translated:  # noqa: N801 - reads as the statement that it makes
    """Turn an OSError of a block into a StoreError that names what was tried and where.

    Args:
        what: completes "can't".

    Raises:
        StoreFullError, StoreReadOnlyError, StoreError: by errno.
    """

    __slots__ = ("_path", "_what")

    def __init__(self, what: str, path: Path | str) -> None:
        self._what = what
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None, /
    ) -> None:
        if not isinstance(error, OSError):
            return
        reason = error.strerror or str(error)
        message = f"{self._path}: can't {self._what}: {reason}"
        if error.errno in _FULL:
            raise StoreFullError(message, hint="free space there, or run 'imagestore gc'") from error
        if error.errno in _REFUSED:
            hint = StoreReadOnlyError.MOUNTED_HINT if error.errno == errno.EROFS else StoreReadOnlyError.HINT
            if error.errno == errno.EACCES:
                hint = permission_hint(self._path, error.filename, error.filename2)
            raise StoreReadOnlyError(message, hint=hint) from error
        raise StoreError(message) from error
