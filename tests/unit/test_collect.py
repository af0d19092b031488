"""Collection frees exactly what nobody needs, also when others work meanwhile."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from imagestore import collect as collecting
from imagestore.cancel import CancelToken
from imagestore.collect import STALE_INGEST_SECONDS, Patience, collect, collect_from, sweep
from imagestore.content import put_away
from imagestore.content.ingest_folder import ingest_name
from imagestore.content.local import LocalContentStore
from imagestore.content.put_away import PutAway
from imagestore.descriptor import Descriptor
from imagestore.digest import Digest
from imagestore.errors import StoreFullError
from imagestore.gc import breathing, in_order, mark
from imagestore.media_types import OCI_MANIFEST
from imagestore.metadata import graph
from imagestore.metadata.api import ImageRecord
from imagestore.metadata.sqlite import SqliteMetadataStore
from imagestore.platforms.spec import Platform

NEVER = CancelToken()


class Node:
    """A store with one-line moves."""

    def __init__(self, root: Path) -> None:
        self.content = LocalContentStore(root / "content", root / "locks")
        self.database = root / "metadata.db"
        self.metadata = SqliteMetadataStore(self.database)

    def blob(self, name: str) -> Digest:
        data = name.encode()
        digest = Digest.of(data)
        with self.content.writer(f"layer-{digest}", expected=digest, total=len(data), cancel=NEVER) as writer:
            writer.write(data)
            writer.commit(digest, len(data))
        return digest

    def image(self, name: str, *layers: str, handler: str = "runc") -> None:
        manifest = self.blob(f"manifest {name} {handler}")
        children = [self.blob(layer) for layer in layers if not self.content.exists(Digest.of(layer.encode()))]
        children += [Digest.of(layer.encode()) for layer in layers]
        self.metadata.put_image(
            ImageRecord(
                reference=f"registry.example/{name}:1",
                handler=handler,
                target=Descriptor(OCI_MANIFEST, manifest, 1),
                manifest=Descriptor(OCI_MANIFEST, manifest, 1),
                image_id=manifest,
                platform=Platform("linux", "amd64"),
                wanted="linux/amd64",
                roots=(manifest,),
                content_size=1,
            ),
            {manifest: children},
        )

    def names(self) -> set[str]:
        return {self.content.read(info.digest, limit_bytes=100).decode() for info in self.content.walk()}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    with contextlib.closing(node.metadata):
        yield node


def test_mark_follows_cycles_and_shared_nodes_once() -> None:
    graph = {"a": ["b", "c"], "b": ["d"], "c": ["d"], "d": ["a"], "x": ["a"]}
    assert mark(["a"], lambda name: graph.get(name, ())) == {"a", "b", "c", "d"}


def test_long_lists_let_other_threads_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    breaths: list[float] = []
    monkeypatch.setattr(time, "sleep", breaths.append)
    assert list(breathing(range(3000))) == list(range(3000))
    assert len(breaths) == 2
    texts = [str(Digest.of(str(number).encode())) for number in range(1500)]
    assert list(in_order(texts)) == sorted(texts)
    assert len(breaths) == 3


def test_content_of_no_record_is_freed_and_shared_content_stays(node: Node) -> None:
    node.image("one", "shared", "own of one")
    node.image("two", "shared", "own of two")
    node.blob("orphan")
    node.metadata.remove_images([("registry.example/one:1", "runc")])
    report = collect(node.metadata, node.content)
    assert node.names() == {"manifest two runc", "shared", "own of two"}
    assert report.bytes_freed == len("manifest one runc") + len("own of one") + len("orphan")
    assert (len(report.digests), report.kept_blobs) == (3, 3)
    assert collect(node.metadata, node.content).digests == ()


def test_a_dry_run_says_the_same_and_deletes_nothing(node: Node) -> None:
    node.image("one", "layer")
    node.blob("orphan")
    planned = collect(node.metadata, node.content, dry_run=True)
    assert node.names() == {"manifest one runc", "layer", "orphan"}
    done = collect(node.metadata, node.content)
    assert (planned.digests, planned.bytes_freed) == (done.digests, done.bytes_freed)


def test_a_file_that_can_not_be_looked_at_keeps_no_plan_from_telling_of_the_others(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one whose inode is damaged, which can't be deleted either."""
    broken, other = node.blob("broken"), node.blob("other")
    lstat = os.lstat

    def fail(path: str) -> os.stat_result:
        if os.fspath(path).endswith(broken.encoded):
            raise OSError(errno.EBADMSG, os.strerror(errno.EBADMSG))
        return lstat(path)

    monkeypatch.setattr(os, "lstat", fail)
    planned = collect(node.metadata, node.content, dry_run=True)
    assert (planned.digests, planned.kept_blobs) == ((other,), 1)


def test_a_lease_protects_what_it_holds_and_what_that_points_at(node: Node) -> None:
    node.image("one", "layer")
    node.metadata.remove_images([("registry.example/one:1", "runc")])
    node.metadata.create_lease("l", lifetime_seconds=100)
    node.metadata.lease_content("l", [Digest.of(b"manifest one runc")])
    assert collect(node.metadata, node.content).digests == ()
    node.metadata.delete_lease("l")
    assert len(collect(node.metadata, node.content).digests) == 2


def test_expired_leases_protect_nothing_and_are_deleted(node: Node) -> None:
    node.metadata.create_lease("l", lifetime_seconds=-1)
    node.metadata.lease_content("l", [node.blob("x")])
    assert len(collect(node.metadata, node.content).digests) == 1
    assert list(node.metadata.leases()) == []


def test_what_was_leased_or_recorded_after_the_mark_is_spared(node: Node) -> None:
    garbage, leased = node.blob("garbage"), node.blob("leased meanwhile")
    candidates = [garbage, leased, node.blob("layer recorded meanwhile")]
    node.metadata.create_lease("l", lifetime_seconds=100)
    node.metadata.lease_content("l", [leased])
    node.image("new", "layer recorded meanwhile")
    assert sweep(node.metadata, node.content, map(str, candidates)).freed == {str(garbage): len("garbage")}


def test_stale_ingests_go_and_young_ones_stay(node: Node) -> None:
    for name in ("old", "young"):
        with node.content.writer(name, expected=Digest.of(b"x"), total=9, cancel=NEVER) as writer:
            writer.write(b"123")
    directory = node.content.root / "ingest" / ingest_name("old")
    (directory / "updatedat").write_text("2020-01-01T00:00:00Z")
    os.utime(directory / "data", (0, 0))
    planned = collect(node.metadata, node.content, dry_run=True)
    report = collect(node.metadata, node.content)
    assert (report.ingests, report.bytes_freed) == (planned.ingests, planned.bytes_freed) == (("old",), 3)
    assert [status.ref for status in node.content.statuses()] == ["young"]


def test_an_old_ingest_that_was_taken_off_its_lease_has_its_day(node: Node) -> None:
    """And no more than that, should the clock have been wrong when the day was given."""
    with node.content.writer("r", expected=Digest.of(b"x"), total=9, cancel=NEVER) as writer:
        writer.write(b"123")
    directory = node.content.root / "ingest" / ingest_name("r")
    (directory / "updatedat").write_text("2020-01-01T00:00:00Z")
    os.utime(directory / "data", (0, 0))
    node.metadata.create_lease("l", lifetime_seconds=9e9)
    node.metadata.put_ingest("default", "r", expected=None, lease="l")
    assert node.metadata.lease_ingest("default", "r", "")
    assert collect(node.metadata, node.content).ingests == ()
    with contextlib.closing(SqliteMetadataStore(node.database, clock=lambda: 1e9)) as metadata:
        assert metadata.kept_ingests() == frozenset()
    with contextlib.closing(SqliteMetadataStore(node.database, clock=lambda: time.time() + 25 * 3600)) as metadata:
        collect(metadata, node.content)
    assert list(node.content.statuses()) == []


def test_an_ingest_under_way_is_spared_however_old(node: Node) -> None:
    with node.content.writer("held", expected=Digest.of(b"x"), total=9, cancel=NEVER):
        report = collect(node.metadata, node.content, clock=lambda: 4e9 + STALE_INGEST_SECONDS)
        assert report.ingests == ()


def test_edges_of_content_that_is_gone_are_forgotten(node: Node) -> None:
    node.image("one", "layer")
    node.metadata.remove_images([("registry.example/one:1", "runc")])
    node.content.delete(Digest.of(b"manifest one runc"))
    collect(node.metadata, node.content)
    assert node.metadata.edges() == {}


def test_a_batch_that_takes_its_time_ends_and_others_follow(node: Node) -> None:
    """More garbage than one batch asks about at once, images and orphans mixed."""
    for number in range(12):
        node.image(f"image {number}", f"layer {number}", "base")
        node.blob(f"orphan {number}")
    node.image("kept", "base")
    node.metadata.remove_images((f"registry.example/image {number}:1", "runc") for number in range(12))
    freed = collect(node.metadata, node.content)
    assert (len(freed.digests), freed.kept_blobs) == (36, 2)
    assert node.names() == {"manifest kept runc", "base"}
    assert node.metadata.edges().keys() == {Digest.of(b"manifest kept runc")}


def removed(node: Node, count: int) -> list[Digest]:
    """Roots of images that were the only ones, each with a layer of its own; most are more than one batch takes."""
    for number in range(count):
        node.image(str(number), f"layer {number}")
    records = node.metadata.remove_images((f"registry.example/{number}:1", "runc") for number in range(count))
    return [root for record in records for root in record.roots]


def test_where_nothing_is_kept_nobody_is_asked(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    roots = removed(node, 50)
    orphan = node.blob("another's orphan")
    asked: list[object] = []
    monkeypatch.setattr(node.metadata, "unheld", asked.append)
    swept = collect_from(node.metadata, node.content, roots)
    assert (len(swept.freed), node.names(), node.metadata.edges(), asked) == (100, {"another's orphan"}, {}, [])
    assert collect(node.metadata, node.content).digests == (orphan,)


@pytest.mark.parametrize("is_recorded", [True, False])
def test_what_comes_back_while_everything_goes_keeps_what_it_points_at(
    node: Node, monkeypatch: pytest.MonkeyPatch, *, is_recorded: bool
) -> None:
    """Recorded, or leased until it will be."""
    roots, batch = removed(node, 50), node.metadata.batch
    batches: list[int] = []

    def come_back() -> AbstractContextManager[None]:
        batches.append(len(node.names()))
        if len(batches) == 3:
            # Deleted in the first batch, as roots are.
            again = next(number for number in range(50) if not node.content.exists(manifest(number)))
            node.image(str(again), f"layer {again}")
            came.append(again)
            if not is_recorded:
                node.metadata.create_lease("l", lifetime_seconds=100, content=[manifest(again)])
                node.metadata.remove_images([(f"registry.example/{again}:1", "runc")])
        return batch()

    def manifest(number: int) -> Digest:
        return Digest.of(f"manifest {number} runc".encode())

    came: list[int] = []
    monkeypatch.setattr(Patience, "is_over", lambda _self: True)
    monkeypatch.setattr(node.metadata, "batch", come_back)
    collect_from(node.metadata, node.content, roots)
    (again,) = came
    assert node.names() == {f"manifest {again} runc", f"layer {again}"}
    assert node.metadata.edges() == {manifest(again): (Digest.of(f"layer {again}".encode()),)}


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
        swept = collect_from(node.metadata, node.content, roots)
        assert (len(swept.freed), swept.failures) == (10, {})
        assert sum(swept.freed.values()) == 5 * (len("manifest 0 runc") + len("layer 0"))
    assert (whole, node.names(), node.metadata.edges()) == ([True], set(), {})
    assert list((node.content.root / "ingest").iterdir()) == []
    node.image("0", "layer 0")
    assert collect(node.metadata, node.content).digests == ()
    assert node.names() == {"manifest 0 runc", "layer 0"}


def test_a_removal_takes_nothing_as_a_whole_that_it_did_not_reach(node: Node, whole: list[bool]) -> None:
    roots = removed(node, 12)
    swept = collect_from(node.metadata, node.content, roots[:6])
    assert (len(swept.freed), len(node.names()), whole) == (12, 12, [])


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
    roots, prepare = removed(node, 5), PutAway.prepare

    def kept_meanwhile(away: PutAway, texts: Collection[str]) -> bool:
        ready.append(prepare(away, texts))
        keep(node)
        return ready[-1]

    ready: list[bool] = []
    monkeypatch.setattr(PutAway, "prepare", kept_meanwhile)
    swept = collect_from(node.metadata, node.content, roots)
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
    roots, prepare = removed(node, 5), PutAway.prepare

    def changed_meanwhile(away: PutAway, texts: Collection[str]) -> bool:
        ready.append(prepare(away, texts))
        change(node, monkeypatch)
        return ready[-1]

    ready: list[bool] = []
    monkeypatch.setattr(PutAway, "prepare", changed_meanwhile)
    assert len(collect_from(node.metadata, node.content, roots).freed) == 10
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
    collect_from(node.metadata, node.content, roots)
    assert whole == [True]
    assert {parent for parent in node.metadata.edges() if not node.content.exists(parent)} == set()
    assert (node.names(), node.metadata.edges()) == (set(), {})


def test_many_edges_are_dropped_with_their_content(
    node: Node, whole: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    roots = removed(node, 6)
    monkeypatch.setattr(graph, "_MANY_EDGES", 5)
    assert len(collect_from(node.metadata, node.content, roots).freed) == 12
    assert (whole, node.metadata.edges()) == ([], {})


def test_labels_of_any_kind_are_dropped_with_their_content(node: Node, whole: list[bool]) -> None:
    roots = removed(node, 6)
    node.metadata.label_content(Digest.of(b"layer 3"), {"containerd.io/distribution.source.example": "x"})
    assert len(collect_from(node.metadata, node.content, roots).freed) == 12
    assert (whole, node.metadata.content_labels(Digest.of(b"layer 3"))) == ([], {})


def test_on_a_full_disk_the_blobs_go_first_and_then_what_is_noted_about_them(
    node: Node, whole: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full() -> None:
        raise StoreFullError("no space")

    roots = removed(node, 5)
    monkeypatch.setattr(node.metadata, "forget_all_content", full)
    swept = collect_from(node.metadata, node.content, roots)
    assert (whole, len(swept.freed), node.names(), node.metadata.edges()) == ([True], 10, set(), {})


def test_what_can_not_be_put_away_goes_one_by_one(
    node: Node, whole: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(one: str, other: str) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    roots = removed(node, 5)
    monkeypatch.setattr(put_away, "_exchange", lambda: refuse)
    swept = collect_from(node.metadata, node.content, roots)
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


def test_labels_on_content_that_is_gone_or_can_not_be_here_are_forgotten(node: Node) -> None:
    child = node.blob("child")
    for digest in (Digest.of(b"gone"), Digest("blake3", "0" * 64)):
        node.metadata.label_content(digest, {"containerd.io/gc.ref.content.0": str(child)})
    report = collect(node.metadata, node.content)
    assert report.digests == (child,)
    assert node.metadata.edges() == {}


def test_removed_images_take_what_only_they_pointed_at(node: Node) -> None:
    node.image("one", "shared", "own")
    node.image("two", "shared")
    (removed,) = node.metadata.remove_images([("registry.example/one:1", "runc")])
    swept = collect_from(node.metadata, node.content, removed.roots)
    assert swept.freed == {str(Digest.of(b"manifest one runc")): 17, str(Digest.of(b"own")): 3}
    assert collect_from(node.metadata, node.content, removed.roots).freed == {}


def test_removed_images_take_what_labels_chain_to_them(node: Node) -> None:
    node.image("one", "layer")
    node.image("two", "kept")
    below, last = node.blob("below"), node.blob("last")
    for parent, child in ((Digest.of(b"layer"), below), (below, last), (Digest.of(b"layer"), Digest.of(b"kept"))):
        reference = {f"containerd.io/gc.ref.content.{child.encoded[:8]}": str(child)}
        node.metadata.update_content_labels(parent, reference)
    (removed,) = node.metadata.remove_images([("registry.example/one:1", "runc")])
    swept = collect_from(node.metadata, node.content, removed.roots)
    assert swept.freed.keys() == {str(Digest.of(name)) for name in (b"manifest one runc", b"layer", b"below", b"last")}
    assert node.names() == {"manifest two runc", "kept"}


def test_what_labels_chain_to_a_record_is_no_garbage_at_any_depth(node: Node) -> None:
    node.image("one", "layer")
    below, last = node.blob("below"), node.blob("last")
    for parent, child in ((Digest.of(b"layer"), below), (below, last)):
        node.metadata.label_content(parent, {"containerd.io/gc.ref.content.0": str(child)})
    assert collect(node.metadata, node.content, dry_run=True).digests == ()
    assert node.metadata.edges()[below] == (last,)


def test_the_lock_file_of_a_dead_holder_goes_with_a_collection_and_stays_in_a_dry_run(
    node: Node, tmp_path: Path
) -> None:
    left = tmp_path / "locks" / f"ingest-{ingest_name('dead')}"
    left.parent.mkdir(exist_ok=True)
    left.touch()
    collect(node.metadata, node.content, dry_run=True)
    assert left.exists()
    collect(node.metadata, node.content)
    assert not left.exists()
