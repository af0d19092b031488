"""Where the system has no descriptor left, what fails says so as everything else does."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import imagestore

_CODE = """
import json, os, resource, sys
from pathlib import Path
import imagestore
from imagestore import Digest
from imagestore.errors import ImageStoreError
from imagestore import EvictionPolicy

Path(sys.argv[1], "verified").unlink()  # as after a crash: a removal checks the database first
store = imagestore.open(sys.argv[1])
zeros = Digest.parse("sha256:" + 64 * "0")
ways = {
    "backup": lambda: store.backup(Path(sys.argv[1], "copy")),
    "check": store.check,
    "collect": store.collect_garbage,
    "damage": store.metadata.damage,
    "delete": lambda: store.remove("python:3", collect=True),
    "evict": lambda: store.evict(EvictionPolicy(unused_seconds=1.0)),
    "export": lambda: store.export_images(["python:3"], "-"),
    "import": lambda: store.import_images(sys.argv[1]),
    "match": lambda: store.match("python:3", offline=True),
    "plan": lambda: store.plan([("python:3", "")]),
    "pull": lambda: store.pull("python:3"),
    "repair": lambda: store.repair(None),
    "usage": store.usage,
    "why": lambda: store.why(zeros),
}

def said_by(way):
    try:
        way()
    except ImageStoreError as error:
        return str(error)
    except OSError as error:
        return f"raw: {error}"

_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) - 1, hard))
said = {name: said_by(way) for name, way in ways.items()}
os.write(1, json.dumps(said).encode())
"""
_OPENING = """
import os, resource, sys
import imagestore
from imagestore.store import image_store as store
from imagestore.errors import StoreError

imagestore.open(sys.argv[1]).close()
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
used = len(os.listdir("/proc/self/fd")) - 1
said = []
for free in range(20):
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + free, hard))
    try:
        imagestore.open(sys.argv[1]).close()
    except StoreError as error:
        said.append(str(error))
    else:
        break
assert 0 < len(said) < 20, said
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="counts descriptors in /proc")


def run(code: str, root: Path) -> str:
    with imagestore.open(root):
        pass
    done = subprocess.run([sys.executable, "-c", code, str(root)], capture_output=True, text=True, check=False)
    assert not done.stderr
    return done.stdout


def test_modules_that_cannot_be_read_are_a_failure_of_the_store(tmp_path: Path) -> None:
    said = json.loads(run(_CODE, tmp_path))
    for way, text in said.items():
        assert text, way
        assert str(tmp_path) in text, way
        assert "Too many open files" in text, way
        assert "raw" not in text, way


def test_opening_with_any_number_of_descriptors_works_or_is_a_failure_of_the_store(tmp_path: Path) -> None:
    run(_OPENING, tmp_path)
