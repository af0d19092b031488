"""Where nothing is kept all content goes as a whole, and only then, whoever comes or dies in between."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager

import pytest

from imagestore import collect as collecting
from imagestore.collect import Patience, collect, collect_from
from imagestore.content import put_away
from imagestore.content.put_away import PutAway
from imagestore.digest import Digest
from imagestore.errors import StoreFullError
from imagestore.metadata import graph
from tests.unit.test_collect import Node, node, removed

__all__ = ["node"]


@pytest.fixture
def whole(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """A few blobs are many; whether each attempt to put all away went well."""
    took: list[bool] = []
    take = PutAway.take

    def noted(away: PutAway) -> bool:
        took.append(take(away))
        return took[-1]

    monkeypatch.setattr(collecting, "_FEWEST_AS_WHOLE", 10)
    monkeypatch.setattr(PutAway, "take", noted)
    return took


@pytest.mark.parametrize("is_collection", [True, False])
def test_where_nothing_is_kept_all_goes_as_a_whole(node: Node, whole: list[bool], *, is_collection: bool) -> None:
    """And what comes next is kept as ever."""
    roots = removed(node, 5)
    if is_collection:
        node.blob("orphan")
        report = collect(node.metadata, node.content)
        assert (len(report.digests), report.kept_blobs) == (11, 0)
    else:
        swept = collect_from(node.metadata, node.content, map(str, roots))
        assert (len(swept.freed), swept.failures) == (10, {})
        assert sum(swept.freed.values()) == 5 * (len("manifest 0 runc") + len("layer 0"))
    assert (whole, node.names(), node.metadata.edges()) == ([True], set(), {})
    assert list((node.content.root / "ingest").iterdir()) == []
    node.image("0", "layer 0")
    assert collect(node.metadata, node.content).digests == ()
    assert node.names() == {"manifest 0 runc", "layer 0"}


def test_a_removal_takes_nothing_as_a_whole_that_it_did_not_reach(node: Node, whole: list[bool]) -> None:
    roots = removed(node, 12)
    swept = collect_from(node.metadata, node.content, map(str, roots[:6]))
    assert (len(swept.freed), len(node.names()), whole) == (12, 12, [])


def before_the_lock(monkeypatch: pytest.MonkeyPatch, change: Callable[[], None]) -> list[bool]:
    """Change something after everybody was asked; tells whether all was ready to be put away then."""
    ready, prepare = list[bool](), PutAway.prepare

    def changed_meanwhile(away: PutAway, texts: Collection[str]) -> bool:
        ready.append(prepare(away, texts))
        change()
        return ready[-1]

    monkeypatch.setattr(PutAway, "prepare", changed_meanwhile)
    return ready


def keep_by_lease(node: Node) -> None:
    node.metadata.create_lease("l", lifetime_seconds=100, content=[Digest.of(b"manifest 3 runc")])


def keep_by_label(node: Node) -> None:
    node.metadata.label_content(Digest.of(b"manifest 3 runc"), {"containerd.io/gc.root": "x"})


def keep_by_record(node: Node) -> None:
    node.content.delete(Digest.of(b"manifest 3 runc"))
    node.image("3", "layer 3")


@pytest.mark.parametrize("keep", [keep_by_lease, keep_by_label, keep_by_record])
def test_what_is_kept_in_the_last_moment_stays_with_all_it_points_at(
    node: Node, whole: list[bool], monkeypatch: pytest.MonkeyPatch, keep: Callable[[Node], None]
) -> None:
    """After everybody was asked, and before the lock is taken."""
    roots, ready = removed(node, 5), before_the_lock(monkeypatch, lambda: keep(node))
    swept = collect_from(node.metadata, node.content, map(str, roots))
    assert (ready, whole, len(swept.freed)) == ([True], [], 8)
    assert node.names() == {"manifest 3 runc", "layer 3"}
    assert node.metadata.edges() == {Digest.of(b"manifest 3 runc"): (Digest.of(b"layer 3"),)}


def note_label(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.metadata.label_content(Digest.of(b"layer 3"), {"note": "of a layer"})


def note_edges(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph, "_MANY_EDGES", 4)


@pytest.mark.parametrize("change", [note_label, note_edges])
def test_what_takes_long_to_drop_is_dropped_one_by_one_also_when_it_came_in_the_last_moment(
    node: Node,
    whole: list[bool],
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Node, pytest.MonkeyPatch], None],
) -> None:
    roots, ready = removed(node, 5), before_the_lock(monkeypatch, lambda: change(node, monkeypatch))
    assert len(collect_from(node.metadata, node.content, map(str, roots)).freed) == 10
    assert (ready, whole, node.metadata.edges()) == ([True], [], {})
    assert node.metadata.content_labels(Digest.of(b"layer 3")) == {}


def test_a_sweep_finds_what_came_to_the_folder_that_took_the_place_of_another(
    node: Node, whole: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it took content for gone that came back, and forgot what it points at."""
    roots, batch = removed(node, 6), node.metadata.batch
    steps: list[int] = []

    def others_come_between() -> AbstractContextManager[None]:
        steps.append(len(node.names()))
        if len(steps) == 2:
            monkeypatch.setattr(collecting, "_FEWEST_AS_WHOLE", 1)
            collect(node.metadata, node.content)
            monkeypatch.setattr(collecting, "_FEWEST_AS_WHOLE", 100)
            node.image("5", "layer 5")
            node.metadata.create_lease("l", lifetime_seconds=100, content=[Digest.of(b"manifest 5 runc")])
            node.metadata.remove_images([("registry.example/5:1", "runc")])
            node.metadata.delete_lease("l")
        return batch()

    monkeypatch.setattr(collecting, "_FEWEST_AS_WHOLE", 100)
    monkeypatch.setattr(Patience, "is_over", lambda _self: True)
    monkeypatch.setattr(node.metadata, "batch", others_come_between)
    collect_from(node.metadata, node.content, map(str, roots))
    assert whole == [True]
    assert {parent for parent in node.metadata.edges() if not node.content.exists(parent)} == set()
    assert (node.names(), node.metadata.edges()) == (set(), {})


def test_many_edges_are_dropped_with_their_content(
    node: Node, whole: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    roots = removed(node, 6)
    monkeypatch.setattr(graph, "_MANY_EDGES", 5)
    assert len(collect_from(node.metadata, node.content, map(str, roots)).freed) == 12
    assert (whole, node.metadata.edges()) == ([], {})


def test_labels_of_any_kind_are_dropped_with_their_content(node: Node, whole: list[bool]) -> None:
    roots = removed(node, 6)
    node.metadata.label_content(Digest.of(b"layer 3"), {"containerd.io/distribution.source.example": "x"})
    assert len(collect_from(node.metadata, node.content, map(str, roots)).freed) == 12
    assert (whole, node.metadata.content_labels(Digest.of(b"layer 3"))) == ([], {})


def test_on_a_full_disk_the_blobs_go_first_and_then_what_is_noted_about_them(
    node: Node, whole: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full() -> None:
        raise StoreFullError("no space")

    roots = removed(node, 5)
    monkeypatch.setattr(node.metadata, "forget_all_content", full)
    swept = collect_from(node.metadata, node.content, map(str, roots))
    assert (whole, len(swept.freed), node.names(), node.metadata.edges()) == ([True], 10, set(), {})


def test_what_can_not_be_put_away_goes_one_by_one(
    node: Node, whole: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(one: str, other: str) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    roots = removed(node, 5)
    monkeypatch.setattr(put_away, "_exchange", lambda: refuse)
    swept = collect_from(node.metadata, node.content, map(str, roots))
    assert (whole, len(swept.freed), node.names(), node.metadata.edges()) == ([False], 10, set(), {})


@pytest.mark.parametrize("failpoint", ["batch-make", "away-exchange", "away-sync", "database-commit", "away-unlink"])
def test_whoever_dies_while_all_goes_leaves_garbage_and_no_lock(node: Node, failpoint: str) -> None:
    """The next collection frees it at once, and counts it."""
    removed(node, 6)
    root = node.database.parent
    command = [sys.executable, "-c", COLLECT, str(root)]
    environment = {**os.environ, "IMAGESTORE_FAILPOINT": f"{failpoint}:1"}
    assert subprocess.run(command, env=environment, check=False).returncode == -signal.SIGKILL
    report = collect(node.metadata, node.content)
    assert report.bytes_freed == sum(len(f"manifest {number} runc") + len(f"layer {number}") for number in range(6))
    assert (node.names(), node.metadata.edges()) == (set(), {})
    assert list((node.content.root / "ingest").iterdir()) == list((root / "locks").iterdir()) == []


COLLECT = """
import sys
from pathlib import Path
from imagestore import collect
from imagestore.content.local import LocalContentStore
from imagestore.metadata.sqlite import SqliteMetadataStore
root = Path(sys.argv[1])
collect._FEWEST_AS_WHOLE = 10
collect.collect(SqliteMetadataStore(root / "metadata.db"), LocalContentStore(root / "content", root / "locks"))
"""
