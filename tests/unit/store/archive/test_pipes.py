"""Archives that come from pipes and go to them: nothing there may wait in a way that nobody can end."""

from __future__ import annotations

import gzip
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from imagestore import CancelToken
from imagestore.errors import OperationCancelledError
from imagestore.events import Event
from imagestore.store.archive.source import opened
from imagestore.store.archive.writing import Member, write_tar
from tests.support.node import PYTHON, Node, node, python_image
from tests.unit.store.archive.making import layout_files, tar_of


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Node]:
    with node(tmp_path / "store") as made:
        yield made


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    return path


@pytest.fixture
def soon() -> Iterator[CancelToken]:
    """A token that is cancelled a moment later."""
    token = CancelToken()
    timer = threading.Timer(0.2, token.cancel)
    timer.start()
    yield token
    timer.cancel()


def ignore(_: Event) -> None:
    """Hear nothing."""


def test_an_import_that_waits_for_a_writer_ends_with_its_token(here: Node, pipe: Path, soon: CancelToken) -> None:
    with pytest.raises(OperationCancelledError):
        here.store.import_images(pipe, cancel=soon)


def test_an_export_that_waits_for_a_reader_ends_with_its_token(here: Node, pipe: Path, soon: CancelToken) -> None:
    here.store.pull(PYTHON)
    with pytest.raises(OperationCancelledError):
        here.store.export_images([PYTHON], pipe, cancel=soon)


def test_an_export_whose_reader_reads_no_more_ends_with_its_token(pipe: Path, soon: CancelToken) -> None:
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with pytest.raises(OperationCancelledError):
            write_tar(str(pipe), [Member.of("large", bytes(4 * 1024 * 1024))], observer=ignore, cancel=soon)
    finally:
        os.close(reader)


def test_a_named_pipe_carries_an_archive_both_ways(here: Node, pipe: Path, tmp_path: Path) -> None:
    here.store.pull(PYTHON)
    with node(tmp_path / "other") as other:
        receiver = threading.Thread(target=other.store.import_images, args=(pipe,))
        receiver.start()
        here.store.export_images([PYTHON], pipe)
        receiver.join()
        assert [each.id for each in other.store.list()] == [each.id for each in here.store.list()]


def test_a_pipe_is_read_whatever_the_number_of_its_descriptor(here: Node, tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if before[1] != resource.RLIM_INFINITY and before[1] < 2048:
        pytest.skip("the system allows no descriptors above 1023")
    archive = tmp_path / "python.tar.gz"
    archive.write_bytes(gzip.compress(tar_of(layout_files({PYTHON: python_image()}))))
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], 2048), before[1]))
    taken: list[int] = []
    try:
        while not taken or taken[-1] < 1024:
            taken.append(os.open(os.devnull, os.O_RDONLY))
        with opened(str(archive), scratch=tmp_path, limit_bytes=10**9, cancel=CancelToken()) as source:
            assert "index.json" in source.sizes()
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
