"""Why a file that somebody asked for can't be written: archives and backups, which lie outside of the store."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Final

from imagestore.errors import AlreadyExistsError, InvalidInputError, PreconditionError

if TYPE_CHECKING:
    from imagestore.errors import ImageStoreError

#: What says that the path is wrong, and no other time would do.
_OF_PATHS: Final = {
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ENAMETOOLONG,
    errno.ELOOP,
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
}
_TAKEN: Final = {errno.EEXIST, errno.ENOTEMPTY}
_FULL: Final = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
FULL_HINT: Final = "free space there, or choose another place"


def refusal(path: str | os.PathLike[str], error: OSError) -> ImageStoreError:
    """The error of ours for one of the system's.

    Args:
        path: that was to be written.
        error: what the system said.

    >>> refusal("a/b.tar", FileNotFoundError(errno.ENOENT, ""))
    InvalidInputError("a/b.tar: can't be written: No such file or directory")
    """
    message = f"{os.fspath(path)}: can't be written: {os.strerror(error.errno or 0)}"
    if error.errno in _TAKEN:
        return AlreadyExistsError(message, hint="choose another place")
    if error.errno in _OF_PATHS:
        return InvalidInputError(message, hint="choose another place")
    return PreconditionError(message, hint=FULL_HINT if error.errno in _FULL else "choose another place")
