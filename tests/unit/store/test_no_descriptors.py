"""Where the system has no descriptor left, what fails says so as everything else does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import imagestore

_CODE = """
import os, resource, sys
import imagestore
from imagestore.errors import StoreError
from imagestore.upkeep.policy import Policy
store = imagestore.open(sys.argv[1])
ways = {
    "delete": lambda: store.delete("python:3"),
    "collect": store.collect_garbage,
    "evict": lambda: store.evict(Policy(unused_seconds=1.0)),
}
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) - 1, hard))
try:
    ways[sys.argv[2]]()
except StoreError as error:
    os.write(1, str(error).encode())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts descriptors in /proc")
@pytest.mark.parametrize("way", ["delete", "collect", "evict"])
def test_modules_that_cannot_be_read_are_a_failure_of_the_store(tmp_path: Path, way: str) -> None:
    with imagestore.open(tmp_path):
        pass
    done = subprocess.run([sys.executable, "-c", _CODE, str(tmp_path), way], capture_output=True, text=True, check=True)
    assert str(tmp_path) in done.stdout
    assert "Too many open files" in done.stdout
