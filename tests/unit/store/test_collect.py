"""Collection frees exactly what nobody needs, also when others work meanwhile."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from imagestore import CancelToken, Descriptor, Digest, Platform
from imagestore.content.ingests import ingest_name
from imagestore.content.local import LocalContentStore
from imagestore.metadata import ImageRecord
from imagestore.metadata.marking import breathing, in_order, mark
from imagestore.metadata.sqlite.store import SqliteMetadataStore
from imagestore.oci.media_types import OCI_MANIFEST
from imagestore.store.garbage import STALE_INGEST_SECONDS, BatchTimer, collect, collect_from, sweep
from tests.support.embedded import edges_of

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
        self.metadata.images.put(
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
    node.metadata.images.remove([("registry.example/one:1", "runc")])
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
    node.metadata.images.remove([("registry.example/one:1", "runc")])
    node.metadata.leases.create("l", lifetime_seconds=100)
    node.metadata.leases.add_content("l", [Digest.of(b"manifest one runc")])
    assert collect(node.metadata, node.content).digests == ()
    node.metadata.leases.delete("l")
    assert len(collect(node.metadata, node.content).digests) == 2


def test_expired_leases_protect_nothing_and_are_deleted(node: Node) -> None:
    node.metadata.leases.create("l", lifetime_seconds=-1)
    node.metadata.leases.add_content("l", [node.blob("x")])
    assert len(collect(node.metadata, node.content).digests) == 1
    assert list(node.metadata.leases.find()) == []


def test_what_was_leased_or_recorded_after_the_mark_is_spared(node: Node) -> None:
    garbage, leased = node.blob("garbage"), node.blob("leased meanwhile")
    candidates = [garbage, leased, node.blob("layer recorded meanwhile")]
    node.metadata.leases.create("l", lifetime_seconds=100)
    node.metadata.leases.add_content("l", [leased])
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
    node.metadata.leases.create("l", lifetime_seconds=9e9)
    node.metadata.namespaces.put_ingest("default", "r", expected=None, lease="l")
    assert node.metadata.namespaces.lease_ingest("default", "r", "")
    assert collect(node.metadata, node.content).ingests == ()
    with contextlib.closing(SqliteMetadataStore(node.database, clock=lambda: 1e9)) as metadata:
        assert metadata.namespaces.kept_ingests() == frozenset()
    with contextlib.closing(SqliteMetadataStore(node.database, clock=lambda: time.time() + 25 * 3600)) as metadata:
        collect(metadata, node.content)
    assert list(node.content.statuses()) == []


def test_an_ingest_under_way_is_spared_however_old(node: Node) -> None:
    with node.content.writer("held", expected=Digest.of(b"x"), total=9, cancel=NEVER):
        report = collect(node.metadata, node.content, clock=lambda: 4e9 + STALE_INGEST_SECONDS)
        assert report.ingests == ()


def test_edges_of_content_that_is_gone_are_forgotten(node: Node) -> None:
    node.image("one", "layer")
    node.metadata.images.remove([("registry.example/one:1", "runc")])
    node.content.delete(Digest.of(b"manifest one runc"))
    collect(node.metadata, node.content)
    assert edges_of(node.metadata) == {}


def test_a_batch_that_takes_its_time_ends_and_others_follow(node: Node) -> None:
    """More garbage than one batch asks about at once, images and orphans mixed."""
    for number in range(12):
        node.image(f"image {number}", f"layer {number}", "base")
        node.blob(f"orphan {number}")
    node.image("kept", "base")
    node.metadata.images.remove((f"registry.example/image {number}:1", "runc") for number in range(12))
    freed = collect(node.metadata, node.content)
    assert (len(freed.digests), freed.kept_blobs) == (36, 2)
    assert node.names() == {"manifest kept runc", "base"}
    assert edges_of(node.metadata).keys() == {Digest.of(b"manifest kept runc")}


def removed(node: Node, count: int) -> list[Digest]:
    """Roots of images that were the only ones, each with a layer of its own; most are more than one batch takes."""
    for number in range(count):
        node.image(str(number), f"layer {number}")
    records = node.metadata.images.remove((f"registry.example/{number}:1", "runc") for number in range(count))
    return [root for record in records for root in record.roots]


def test_where_nothing_is_kept_nobody_is_asked(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    roots = removed(node, 50)
    orphan = node.blob("another's orphan")
    asked: list[object] = []
    monkeypatch.setattr(node.metadata.graph, "is_held", asked.append)
    swept = collect_from(node.metadata, node.content, map(str, roots))
    assert (len(swept.freed), node.names(), edges_of(node.metadata), asked) == (100, {"another's orphan"}, {}, [])
    assert collect(node.metadata, node.content).digests == (orphan,)


@pytest.mark.parametrize("is_recorded", [True, False])
def test_what_comes_back_while_everything_goes_keeps_what_it_points_at(
    node: Node, monkeypatch: pytest.MonkeyPatch, *, is_recorded: bool
) -> None:
    """Recorded, or leased until it will be."""
    roots, batch = removed(node, 50), node.metadata.batch
    batches: list[int] = []

    def come_back() -> AbstractContextManager[object]:
        batches.append(len(node.names()))
        if len(batches) == 3:
            # Deleted in the first batch, as roots are.
            again = next(number for number in range(50) if not node.content.exists(manifest(number)))
            node.image(str(again), f"layer {again}")
            came.append(again)
            if not is_recorded:
                node.metadata.leases.create("l", lifetime_seconds=100, content=[manifest(again)])
                node.metadata.images.remove([(f"registry.example/{again}:1", "runc")])
        return batch()

    def manifest(number: int) -> Digest:
        return Digest.of(f"manifest {number} runc".encode())

    came: list[int] = []
    monkeypatch.setattr(BatchTimer, "is_over", lambda _self: True)
    monkeypatch.setattr(node.metadata, "batch", come_back)
    collect_from(node.metadata, node.content, map(str, roots))
    (again,) = came
    assert node.names() == {f"manifest {again} runc", f"layer {again}"}
    assert edges_of(node.metadata) == {manifest(again): (Digest.of(f"layer {again}".encode()),)}


def test_labels_on_content_that_is_gone_or_can_not_be_here_are_forgotten(node: Node) -> None:
    child = node.blob("child")
    for digest in (Digest.of(b"gone"), Digest("blake3", "0" * 64)):
        node.metadata.graph.label_content(digest, {"containerd.io/gc.ref.content.0": str(child)})
    report = collect(node.metadata, node.content)
    assert report.digests == (child,)
    assert edges_of(node.metadata) == {}


def test_removed_images_take_what_only_they_pointed_at(node: Node) -> None:
    node.image("one", "shared", "own")
    node.image("two", "shared")
    (removed,) = node.metadata.images.remove([("registry.example/one:1", "runc")])
    swept = collect_from(node.metadata, node.content, map(str, removed.roots))
    assert swept.freed == {str(Digest.of(b"manifest one runc")): 17, str(Digest.of(b"own")): 3}
    assert collect_from(node.metadata, node.content, map(str, removed.roots)).freed == {}


def test_removed_images_take_what_labels_chain_to_them(node: Node) -> None:
    node.image("one", "layer")
    node.image("two", "kept")
    below, last = node.blob("below"), node.blob("last")
    for parent, child in ((Digest.of(b"layer"), below), (below, last), (Digest.of(b"layer"), Digest.of(b"kept"))):
        reference = {f"containerd.io/gc.ref.content.{child.encoded[:8]}": str(child)}
        node.metadata.graph.label_content(parent, {**node.metadata.graph.content_labels(parent), **reference})
    (removed,) = node.metadata.images.remove([("registry.example/one:1", "runc")])
    swept = collect_from(node.metadata, node.content, map(str, removed.roots))
    assert swept.freed.keys() == {str(Digest.of(name)) for name in (b"manifest one runc", b"layer", b"below", b"last")}
    assert node.names() == {"manifest two runc", "kept"}


def test_what_labels_chain_to_a_record_is_no_garbage_at_any_depth(node: Node) -> None:
    node.image("one", "layer")
    below, last = node.blob("below"), node.blob("last")
    for parent, child in ((Digest.of(b"layer"), below), (below, last)):
        node.metadata.graph.label_content(parent, {"containerd.io/gc.ref.content.0": str(child)})
    assert collect(node.metadata, node.content, dry_run=True).digests == ()
    assert edges_of(node.metadata)[below] == (last,)


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


def test_many_blobs_go_where_nothing_is_kept(node: Node) -> None:
    roots = removed(node, 200)
    swept = collect_from(node.metadata, node.content, map(str, roots))
    assert (len(swept.freed), swept.failures) == (400, {})
    assert (node.names(), edges_of(node.metadata)) == (set(), {})


@pytest.mark.parametrize("failpoint", ["delete-unlink:1", "delete-unlink:7", "database-commit:1"])
def test_a_collection_that_dies_leaves_garbage_for_the_next(node: Node, failpoint: str) -> None:
    removed(node, 6)
    root = node.database.parent
    environment = {**os.environ, "IMAGESTORE_FAILPOINT": failpoint}
    command = [sys.executable, "-c", COLLECT, str(root)]
    assert subprocess.run(command, env=environment, check=False).returncode == -signal.SIGKILL
    collect(node.metadata, node.content)
    assert (node.names(), edges_of(node.metadata)) == (set(), {})


COLLECT = """
import sys
from pathlib import Path
from imagestore.store.garbage import collect
from imagestore.content.local import LocalContentStore
from imagestore.metadata.sqlite.store import SqliteMetadataStore
root = Path(sys.argv[1])
collect(SqliteMetadataStore(root / "metadata.db"), LocalContentStore(root / "content", root / "locks"))
"""
