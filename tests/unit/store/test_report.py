"""Gathering a report: matrices by target, use by handler, what would be freed, what can't be judged."""

from __future__ import annotations

from pathlib import Path

import pytest

from imagestore import Digest, errors
from imagestore.store.report import LEFT_OUT, gather, matrices
from imagestore.testing import build_image, build_index, layer
from tests.support.node import HYPERV, PROCESS, PYTHON, Node, node, python_image

OTHER = "registry.example/library/other:1"
SINGLE = "registry.example/library/single:1"


def test_references_of_one_index_share_its_matrix(tmp_path: Path) -> None:
    with node(tmp_path) as there:
        for handler in (PROCESS, HYPERV):
            there.store.pull(PYTHON, runtime_handler=handler)
        there.store.tag(PYTHON, OTHER, runtime_handler=PROCESS)
        report = gather(there.store)
        (matrix,) = matrices(there.store, report)
    assert matrix.names == (OTHER, PYTHON)
    assert matrix.target is not None
    assert matrix.target.digest == python_image().target.digest
    assert matrix.handlers == (PROCESS, HYPERV, "kata")
    assert [row.position for row in matrix.rows] == [(0,), (1,), (2,), (3,)]
    assert [[verdict.rank for verdict in row.verdicts if verdict] for row in matrix.rows] == [
        [None, None, 0],
        [None, None, None],
        [0, None, None],
        [None, 0, None],
    ]
    assert {str(row.platform) for row in matrix.rows} >= {"linux/amd64", "windows(10.0.17763.4851)/amd64"}


def test_bytes_are_unique_to_a_handler_or_shared(tmp_path: Path) -> None:
    with node(tmp_path) as there:
        for handler in (PROCESS, HYPERV):
            there.store.pull(PYTHON, runtime_handler=handler)
        report = gather(there.store)
        content = there.store.usage().content_bytes
    process, hyperv, kata = report.uses
    assert [each.images for each in report.uses] == [1, 1, 0]
    assert kata.size == 0
    # The index and the layer that both have.
    assert process.shared_bytes == hyperv.shared_bytes > layer("shared by all").body.size
    assert process.unique_bytes + hyperv.unique_bytes + process.shared_bytes == content


def test_a_handler_that_left_the_configuration_is_named_with_what_it_takes(tmp_path: Path) -> None:
    with node(tmp_path) as there:
        there.store.pull(PYTHON, runtime_handler="kata")
    with node(tmp_path, text="version = 3\n") as there:
        report = gather(there.store)
        (matrix,) = matrices(there.store, report)
    assert [(each.handler, each.images) for each in report.uses if each.images] == [("kata", 1)]
    assert "kata" not in report.handlers
    assert matrix.handlers == tuple(report.handlers)


def test_what_a_collection_and_each_rule_would_free(tmp_path: Path) -> None:
    with node(tmp_path, {PYTHON: python_image(), OTHER: build_index(["linux/amd64"], seed="other")}) as there:
        there.store.pull(PYTHON)
        there.store.pull(OTHER, runtime_handler="kata")
        there.store.remove(OTHER, runtime_handler="kata")
        report = gather(there.store)
        assert len(list(there.store.list())) == 1
        freed = there.store.collect_garbage()
        everything = there.store.usage().content_bytes
    assert report.garbage.digests == freed.digests
    assert report.garbage.bytes_freed == freed.bytes_freed > 0
    plans = dict(report.evictions)
    assert plans["--keep-last 0"].bytes_freed == everything
    assert [each.record.reference for each in plans["--keep-last 0"].evicted] == [PYTHON]
    assert plans["--keep-last 1"].evicted == plans["--unused-for 7d"].evicted == ()


def test_an_index_that_is_gone_says_so_and_the_others_are_judged(tmp_path: Path) -> None:
    single = build_image("linux/amd64", seed="single")
    with node(tmp_path, {PYTHON: python_image(), SINGLE: single}) as there:
        there.store.pull(PYTHON)
        there.store.pull(SINGLE, runtime_handler="kata")
        _blob(there, python_image().target.digest).unlink()
        report = gather(there.store)
        gone, judged = matrices(there.store, report)
    assert gone.names == (PYTHON,)
    assert str(python_image().target.digest) in gone.failure
    assert gone.rows == ()
    assert judged.failure == ""
    assert [row.position for row in judged.rows] == [()]
    assert [verdict.rank for verdict in judged.rows[0].verdicts if verdict] == [None, None, 0]


def test_a_damaged_index_says_so(tmp_path: Path) -> None:
    with node(tmp_path) as there:
        there.store.pull(PYTHON)
        path = _blob(there, python_image().target.digest)
        path.chmod(0o644)
        path.write_bytes(b"{" + path.read_bytes()[1:].replace(b"amd64", b"ambd6"))
        (matrix,) = matrices(there.store, gather(there.store))
    assert str(python_image().target.digest) in matrix.failure


def test_names_choose_the_matrices_and_nothing_else(tmp_path: Path) -> None:
    images = {PYTHON: python_image(), OTHER: build_index(["linux/amd64"], seed="other")}
    with node(tmp_path, images) as there:
        there.store.pull(PYTHON)
        there.store.pull(OTHER, runtime_handler="kata")
        report = gather(there.store, names=[OTHER])
        by_id = gather(there.store, names=[str(images[OTHER].manifests[0].config.digest)])
        with pytest.raises(errors.ImageNotFoundError, match="missing:1"):
            gather(there.store, names=[OTHER, "registry.example/missing:1"])
    assert [each.names for each in report.targets] == [(OTHER,)]
    assert by_id.targets == report.targets
    assert len(report.usage.images) == 2


def test_matrices_end_where_there_are_too_many_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("imagestore.store.report.MOST_ENTRIES", 3)
    images = {OTHER: build_index(["linux/amd64"], seed="other"), PYTHON: python_image()}
    images["registry.example/library/zoo:1"] = build_index(["linux/amd64"], seed="zoo")
    with node(tmp_path, images) as there:
        for name in images:
            there.store.pull(name, runtime_handler="kata")
        report = gather(there.store)
        found = list(matrices(there.store, report))
        named = gather(there.store, names=list(images))
        assert all(not each.failure for each in matrices(there.store, named))
    assert [each.failure for each in found] == ["", "", LEFT_OUT]


def _blob(there: Node, digest: Digest) -> Path:
    return (there.store.root / "content") / "blobs" / digest.algorithm / digest.encoded
