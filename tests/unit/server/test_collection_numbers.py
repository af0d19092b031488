"""A collection that left garbage behind is logged and counted as a failure, with what it freed."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import urllib.request
from pathlib import Path

import pytest

from imagestore import Digest, ImageStore, platforms
from imagestore.server.gc_scheduler import Collector
from imagestore.server.metrics import Metrics, StoreNumbers
from imagestore.store import StoreWorkers
from imagestore.store.garbage import GarbageReport

GOOD = GarbageReport(False, (), 5, (), 0, {})
LEFT_BEHIND = GarbageReport(False, (), 7, (), 1, {"sha256:0": "can't delete"})


@pytest.mark.parametrize(("report", "status", "freed"), [(GOOD, "success", 5), (LEFT_BEHIND, "failure", 7)])
def test_a_collection_is_counted_by_whether_it_freed_all(
    tmp_path: Path, report: GarbageReport, status: str, freed: int
) -> None:
    with ImageStore(tmp_path, host=platforms.parse("linux/amd64")) as store:
        metrics = Metrics(StoreWorkers(store))
        metrics.collected(0.1, report)
        publication = metrics.publish("127.0.0.1", 0)
        with (
            contextlib.closing(publication),
            urllib.request.urlopen(f"http://127.0.0.1:{publication.port}/metrics", timeout=60) as answer,
        ):
            lines = answer.read().decode().splitlines()
    assert [line for line in lines if line.startswith("imagestore_gc_collections_total")] == [
        f'imagestore_gc_collections_total{{status="{status}"}} 1.0'
    ]
    assert f"imagestore_gc_freed_bytes_total {freed}.0" in lines


def test_a_server_logs_what_it_can_not_delete_and_what_it_freed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    unlink = os.unlink
    stuck, other = Digest.of(b"stuck"), Digest.of(b"other")

    def refused(path: str, *, dir_fd: int | None = None) -> None:
        if path == stuck.encoded:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        unlink(path, dir_fd=dir_fd)

    async def first_report(store: ImageStore) -> GarbageReport | None:
        ended: asyncio.Future[GarbageReport | None] = asyncio.get_running_loop().create_future()
        collector = Collector(StoreWorkers(store), 0.01, lambda: 0, lambda _, report: ended.set_result(report))
        task = asyncio.create_task(collector.run())
        report = await ended
        task.cancel()
        return report

    with ImageStore(tmp_path, host=platforms.parse("linux/amd64")) as store:
        for digest, data in ((stuck, b"stuck"), (other, b"other")):
            (store.root / "content" / "blobs" / "sha256" / digest.encoded).write_bytes(data)
        monkeypatch.setattr(os, "unlink", refused)
        report = asyncio.run(first_report(store))
    assert report is not None
    assert (report.digests, report.bytes_freed, list(report.failures)) == ((other,), 5, [str(stuck)])
    (warning,) = [each for each in caplog.records if each.levelname == "WARNING"]
    assert stuck.encoded in str(vars(warning)["error"])


@pytest.mark.parametrize("blocks", [9, 0])
def test_a_disk_that_counts_no_blocks_has_no_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blocks: int
) -> None:
    """0 bytes free would raise alarms."""
    with ImageStore(tmp_path, host=platforms.parse("linux/amd64")) as store:
        real = os.statvfs(tmp_path)
        monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result((*real[:2], blocks, blocks, blocks, *real[5:])))
        names = [each.name for each in StoreNumbers(StoreWorkers(store)).collect()]
    assert "imagestore_store_blobs" in names
    assert [name for name in names if "disk" in name] == (
        ["imagestore_disk_free_bytes", "imagestore_disk_bytes"] if blocks else []
    )
