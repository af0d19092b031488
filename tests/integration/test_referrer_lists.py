"""Referrers that threads and processes push to one subject at the same time, in Debian's docker-registry."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest

from imagestore import CancelToken, Descriptor, Digest, Reference
from imagestore.registry import connect
from imagestore.testing import build_image
from tests.support.peers import docker_registry

pytestmark = pytest.mark.integration

TOP: Final = Path(__file__).parents[2]
WORKERS: Final = 4
EACH: Final = 4
#: Waits for a line, so that all begin at the same time.
PROCESS: Final = """
import sys
from tests.integration.test_referrer_lists import push
print("ready", flush=True)
sys.stdin.readline()
push(sys.argv[1], int(sys.argv[2]))
"""


def push(subject: str, worker: int) -> None:
    """Push referrers of an image, each through a client of its own, as commands do."""
    reference = Reference.parse(subject)
    for number in range(EACH):
        with connect() as client:
            target, raw = client.resolve_whole(reference, cancel=CancelToken())
            manifest = json.loads(raw or b"")
            manifest |= {"subject": target.members(), "annotations": {"name": f"{worker} {number}"}}
            data = json.dumps(manifest).encode()
            descriptor = Descriptor(target.media_type, Digest.of(data), len(data))
            client.writer(reference, cancel=CancelToken()).manifest(descriptor, data, subject=target.digest)


def listed(subject: str) -> set[str]:
    """The names of an image's referrers, as the registry lists them."""
    reference = Reference.parse(subject)
    with connect() as client:
        target = client.resolve(reference, cancel=CancelToken())
        found = client.referrers(reference, target.digest, cancel=CancelToken())
        assert found.is_from_tag
        return {entry.annotations["name"] for entry in found.entries}


@pytest.fixture
def subject(tmp_path: Path) -> Iterator[str]:
    with docker_registry(tmp_path) as registry:
        yield registry.push("team/app", "1", build_image("linux/amd64", seed="subject"))


def wanted(workers: int) -> set[str]:
    return {f"{worker} {number}" for worker in range(workers) for number in range(EACH)}


def test_threads_lose_no_referrer(subject: str) -> None:
    with ThreadPoolExecutor(WORKERS) as threads:
        list(threads.map(lambda worker: push(subject, worker), range(WORKERS)))
    assert listed(subject) == wanted(WORKERS)


@pytest.mark.parametrize("workers", [2, 3])
def test_processes_lose_no_referrer(subject: str, workers: int) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROCESS, subject, str(worker)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=TOP,
            text=True,
        )
        for worker in range(workers)
    ]
    try:
        for each in processes:
            assert each.stdout is not None
            assert each.stdout.readline() == "ready\n"
        for each in processes:
            assert each.stdin is not None
            each.stdin.write("\n")
            each.stdin.flush()
        assert [each.wait(120) for each in processes] == [0] * workers
    finally:
        for each in processes:
            each.kill()
            each.communicate()
    assert listed(subject) == wanted(workers)
