"""A sample of the crash harness; ``make crash KILLS=1000`` is the long form."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from imagestore import ImageStore, platforms
from imagestore.events import BlobStarted, Event
from imagestore.testing import RegistryServer, build_index, synthetic_layer
from imagestore.util.failpoint import VARIABLE

pytestmark = pytest.mark.integration

TOP = Path(__file__).parents[2]
LARGE = "registry.example/large:1"
#: Several of the pieces in which large blobs are written.
LARGE_BYTES = 8 * 1024 * 1024


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    image = build_index(["linux/amd64"], seed="large", shared=[synthetic_layer("large", LARGE_BYTES)])
    with RegistryServer({LARGE: image}) as running:
        yield running


def pull(root: Path, server: RegistryServer, failpoint: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "imagestore", "--root", str(root), "pull", "--platform", "linux/amd64"]
    return subprocess.run(
        [*line, server.server.reference(LARGE)],
        env={**os.environ, VARIABLE: failpoint, "DOCKER_CONFIG": str(root)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_nothing_is_lost_and_nothing_leaks_whoever_dies(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.crash", "--kills", "60", "--seed", "7"],
        cwd=TOP,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    found = re.search(r"^([0-9]+) kills, 0 violations$", done.stdout.strip().splitlines()[-1])
    assert done.returncode == 0, done.stdout + done.stderr
    assert found is not None, done.stdout
    assert int(found[1]) >= 60


def test_nothing_is_lost_and_nothing_leaks_in_a_shared_store(tmp_path: Path) -> None:
    """Processes, the database and the bucket's gateway are killed."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.crash.shared", "--kills", "24", "--restarts", "2"],
        cwd=TOP,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "24 kills, 0 unexpected failures, 0 violations"


def test_a_killed_pull_is_taken_over_and_continues_at_its_offset(tmp_path: Path, server: RegistryServer) -> None:
    root = tmp_path / "store"
    assert pull(root, server, "ingest-write:3").returncode == -signal.SIGKILL
    events: list[Event] = []
    with ImageStore(root, host=platforms.parse("linux/amd64")) as store:
        (left,) = [status for status in store.content.statuses() if status.total == LARGE_BYTES]
        assert 0 < left.offset < left.total
        store.pull(server.server.reference(LARGE), observer=events.append)
    offsets = {event.descriptor.size: event.offset for event in events if isinstance(event, BlobStarted)}
    assert offsets[left.total] == left.offset


@pytest.mark.parametrize(
    ("failpoint", "text"),
    [
        ("commit-sync:1:EIO", "Input/output error"),
        ("commit-rename:1:EIO", "Input/output error"),
        ("small-folder:1:ENOSPC", "No space left"),
        ("small-write:2:ENOSPC", "No space left"),
        ("small-sync:1:EIO", "Input/output error"),
        ("small-rename:3:EIO", "Input/output error"),
        ("names-sync:1:EIO", "Input/output error"),
        ("note-write:1:ENOSPC", "No space left"),
        ("ingest-write:3:EIO", "Input/output error"),
    ],
)
def test_a_failing_disk_is_named_and_leaves_a_store_that_works(
    tmp_path: Path, server: RegistryServer, failpoint: str, text: str
) -> None:
    root = tmp_path / "store"
    failed = pull(root, server, failpoint)
    assert failed.returncode == 8, failed.stderr
    assert text in failed.stderr
    assert "Traceback" not in failed.stderr
    with ImageStore(root) as store:
        assert list(store.list()) == []
        assert store.collect_garbage().kept_blobs == 0
    assert pull(root, server, "").returncode == 0


def test_a_store_whose_folder_cannot_be_made_durable_is_refused(tmp_path: Path, server: RegistryServer) -> None:
    failed = pull(tmp_path / "store", server, "folder-make:1:EIO")
    assert failed.returncode == 8
    assert "Input/output error" in failed.stderr
