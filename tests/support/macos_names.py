"""A pytest plug-in that takes away what Python's modules have on Linux and not on macOS.

    python -m pytest -p tests.support.macos_names tests/unit/store

Type checkers find such names in this package (``make types``); this shows that what is done without them works. Tests
that need one of the names themselves are left out.
"""

from __future__ import annotations

import errno
import fcntl
import importlib
import os
import shutil
import signal
import tempfile
from typing import Final

#: Module to names, by the availability that Python's documentation notes.
NAMES: Final = {
    errno: ("EBADFD", "ECOMM", "ENOMEDIUM", "ENONET", "EREMOTEIO", "ERESTART", "EUCLEAN", "EUNATCH"),
    fcntl: ("F_ADD_SEALS", "F_GETPIPE_SZ", "F_OFD_GETLK", "F_OFD_SETLK", "F_OFD_SETLKW", "F_SETPIPE_SZ"),
    os: (
        *("O_DIRECT", "O_LARGEFILE", "O_NOATIME", "O_PATH", "O_RSYNC", "O_TMPFILE"),
        *("copy_file_range", "eventfd", "fdatasync", "getrandom", "memfd_create", "pidfd_open", "pipe2", "splice"),
        *("getxattr", "listxattr", "removexattr", "setxattr"),
        *("posix_fadvise", "posix_fallocate", "sched_getaffinity", "sched_setaffinity"),
    ),
    signal: ("SIGPOLL", "SIGPWR", "SIGRTMAX", "SIGRTMIN", "SIGSTKFLT", "sigtimedwait", "sigwaitinfo"),
}


def pytest_configure() -> None:
    """Take them away, after the libraries of the tests were imported: those ask which system this is."""
    for module, names in NAMES.items():
        for name in names:
            if hasattr(module, name):
                delattr(module, name)
    # They asked when they were imported.
    for module in (shutil, tempfile):
        importlib.reload(module)
