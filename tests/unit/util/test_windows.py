"""What runs without POSIX: the packages that need no store, in a Python that lacks what Windows' lacks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

#: Packages that docs/requirements.md says run on Windows.
PACKAGES = ("platforms", "oci", "config", "registry", "resources", "errors")
#: The beginning of a program. Other packages are imported first: they ask which system this is.
WITHOUT_POSIX = """
import importlib, importlib.abc, os, pkgutil, select, signal, socket, sys, sqlite3
import httpx, h11, jsonschema, anyio, certifi, click, rich.table, platformdirs, tempfile, shutil, subprocess
import asyncio, multiprocessing.connection, concurrent.futures, uuid, logging.handlers, tomllib, yaml

class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name in ("fcntl", "grp", "pwd", "resource", "termios"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

for module in ("fcntl", "grp", "pwd", "resource", "termios"):
    sys.modules.pop(module, None)
sys.meta_path.insert(0, Missing())
for module, names in {
    os: "O_CLOEXEC O_DIRECTORY O_NOFOLLOW O_NONBLOCK O_PATH O_TMPFILE chown fchmod fork geteuid getuid getgid "
        "mkfifo pread pwrite posix_fallocate register_at_fork statvfs uname",
    select: "poll epoll",
    signal: "SIGHUP SIGUSR1 SIGKILL pthread_sigmask",
    socket: "AF_UNIX",
}.items():
    for name in names.split():
        delattr(module, name)
"""


def without_posix(program: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a program in such a Python."""
    command = [sys.executable, "-c", WITHOUT_POSIX + program, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_is_imported_whole(package: str) -> None:
    program = """
top = importlib.import_module("imagestore." + sys.argv[1])
for each in pkgutil.walk_packages(getattr(top, "__path__", ()), top.__name__ + "."):
    importlib.import_module(each.name)
"""
    done = without_posix(program, package)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_store_says_that_it_needs_posix(tmp_path: Path) -> None:
    program = """
import imagestore
for do in (lambda: imagestore.open(sys.argv[1]), lambda: imagestore.ImageStore, lambda: imagestore.aio):
    try:
        do()
    except imagestore.errors.UnsupportedError as error:
        print(error)
"""
    done = without_posix(program, str(tmp_path / "store"))
    line = f"a store needs a POSIX system: this Python, for {sys.platform}, has no module fcntl"
    assert (done.stdout.splitlines(), done.stderr) == ([line] * 3, "")
    assert list(tmp_path.iterdir()) == []


def test_the_command_line_says_so_too() -> None:
    program = """
sys.platform = "win32"
from imagestore.__main__ import main
sys.exit(main())
"""
    done = without_posix(program, "images")
    assert done.returncode == 1
    assert done.stderr.startswith("imagestore: the command line needs a POSIX system")
    assert done.stderr.count("\n") == 1
