"""Rebuilding after a process died between its lines in the journal and its commit: nothing committed is lost."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from imagestore import Digest, Image, ImageStore
from imagestore.metadata import ImageRecord
from imagestore.metadata.sqlite.store import SqliteMetadataStore
from imagestore.store.leases import LIFETIME_SECONDS
from imagestore.store.maintenance.rebuild import rebuild
from imagestore.store.maintenance.restoring import RebuildReport
from imagestore.testing import build_index
from tests.support.embedded import database_of
from tests.support.node import PYTHON, Node, node, python_image
from tests.unit.store.test_repairing import put
from tests.unit.store.test_upkeep import OTHER, damage_database, present

MOVE = """
import sys
from dataclasses import replace
from pathlib import Path
from imagestore.metadata.sqlite.store import SqliteMetadataStore
store = SqliteMetadataStore(Path(sys.argv[1]))
(old,), (new,) = store.images.find(reference=sys.argv[2]), store.images.find(reference=sys.argv[3])
store.images.put(replace(new, reference=old.reference, handler=old.handler), {})
"""


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Node]:
    images = {PYTHON: python_image(), OTHER: build_index(["windows(10.0.20348)/amd64"], seed="other")}
    with node(tmp_path / "store", images) as opened:
        yield opened


def move(root: Path, old: str, new: str, *, failpoint: str) -> None:
    """Another process lets one name point at another's image, and dies."""
    command = [sys.executable, "-c", MOVE, str(root / "metadata.db"), old, new]
    environment = {**os.environ, "IMAGESTORE_FAILPOINT": failpoint}
    assert subprocess.run(command, env=environment, check=False).returncode == -signal.SIGKILL


def rebuilt(root: Path) -> RebuildReport:
    damage_database(root)
    return rebuild(root)


def is_rebuilt(root: Path, failpoint: str) -> bool:
    """Another process rebuilds, unless it dies."""
    command = [sys.executable, "-c", "import sys, pathlib; from imagestore.store.maintenance.rebuild import rebuild"]
    command[-1] += "; rebuild(pathlib.Path(sys.argv[1]))"
    environment = {**os.environ, "IMAGESTORE_FAILPOINT": failpoint}
    status = subprocess.run([*command, str(root)], env=environment, check=False).returncode
    assert status in (0, -signal.SIGKILL)
    return status == 0


def targets(report: RebuildReport) -> dict[str, Digest]:
    return {record.reference: record.target.digest for record in report.restored}


def collected(root: Path, *, after_seconds: float = 0.0) -> set[Digest]:
    """What is left after a collection."""
    with ImageStore(root, clock=lambda: time.time() + after_seconds) as store:
        store.collect_garbage()
        return present(store)


def both(here: Node) -> tuple[Image, Image]:
    return here.store.pull(PYTHON), here.store.pull(OTHER)


@contextlib.contextmanager
def undone(metadata: SqliteMetadataStore) -> Iterator[None]:
    """A transaction whose lines are in the journal and that never is committed."""
    with contextlib.suppress(ZeroDivisionError), metadata.exclusive():
        yield
        raise ZeroDivisionError


def moved(image: Image, to: Image) -> ImageRecord:
    return replace(to.record, reference=image.reference, handler=image.runtime_handler)


@pytest.mark.parametrize("failpoint", ["database-commit:1", "database-committed:1"])
def test_what_a_dead_process_may_have_replaced_is_kept_for_a_day(here: Node, failpoint: str) -> None:
    python, other = both(here)
    here.store.close()
    root, before = here.store.root, present(here.store)
    move(root, PYTHON, OTHER, failpoint=failpoint)
    report = rebuilt(root)
    assert targets(report) == dict.fromkeys([PYTHON, OTHER], other.target.digest)
    assert set(report.replaced) == set(python.record.roots)
    with contextlib.closing(SqliteMetadataStore(root / "metadata.db")) as metadata:
        (lease,) = metadata.leases.find()
        assert (lease.id, lease.is_flat) == (report.replaced_lease, False)
        assert lease.expires_at - lease.created_at == LIFETIME_SECONDS
    assert lease.id.startswith("rebuild-replaced-")
    assert collected(root) == before
    own = {python.id, *(layer.digest for layer in python.layers), *python.record.roots}
    assert collected(root, after_seconds=LIFETIME_SECONDS + 60) == before - own


def test_what_a_label_named_may_have_been_let_go_and_is_kept_too(here: Node) -> None:
    python, _ = both(here)
    named = put(here.store, b"named")
    metadata = here.store.metadata
    assert isinstance(metadata, SqliteMetadataStore)
    labelled = metadata.images.put(replace(python.record, labels={"containerd.io/gc.ref.content": str(named)}), {})
    with undone(metadata):
        metadata.images.put(replace(labelled, labels={}), {})
    here.store.close()
    report = rebuilt(here.store.root)
    assert report.replaced == (named,)
    assert named in collected(here.store.root)


def test_a_later_change_tells_that_the_one_before_was_never_made(here: Node) -> None:
    python, other = both(here)
    here.store.close()
    move(here.store.root, PYTHON, OTHER, failpoint="database-commit:1")
    with ImageStore(here.store.root) as store:
        store.pin(OTHER, runtime_handler=other.runtime_handler)
    report = rebuilt(here.store.root)
    assert targets(report) == {PYTHON: python.target.digest, OTHER: other.target.digest}
    assert (report.replaced, report.replaced_lease) == ((), "")
    assert collected(here.store.root) == present(here.store)


def test_a_later_removal_tells_it_too(here: Node) -> None:
    python, other = both(here)
    here.store.close()
    move(here.store.root, PYTHON, OTHER, failpoint="database-commit:1")
    with ImageStore(here.store.root) as store:
        store.metadata.images.remove([(OTHER, other.runtime_handler)])
    assert targets(rebuilt(here.store.root)) == {PYTHON: python.target.digest}


def test_a_later_change_tells_that_the_one_before_was_made(here: Node) -> None:
    _, other = both(here)
    here.store.close()
    move(here.store.root, PYTHON, OTHER, failpoint="database-committed:1")
    with ImageStore(here.store.root) as store:
        store.pin(OTHER, runtime_handler=other.runtime_handler)
    report = rebuilt(here.store.root)
    assert targets(report) == dict.fromkeys([PYTHON, OTHER], other.target.digest)
    assert report.replaced == ()


def test_a_rebuild_that_dies_leaves_what_was_uncertain_uncertain(here: Node) -> None:
    """Its own lines are as uncertain as those before them, and no word about those."""
    python, other = both(here)
    here.store.close()
    root, before = here.store.root, present(here.store)
    move(root, PYTHON, OTHER, failpoint="database-commit:1")
    damage_database(root)
    for failpoint in ("journal-append:2", "database-commit:2", "rebuild-replace:1"):
        assert not is_rebuilt(root, failpoint)
    report = rebuild(root)
    assert targets(report) == dict.fromkeys([PYTHON, OTHER], other.target.digest)
    assert set(report.replaced) == set(python.record.roots)
    assert collected(root) == before


def test_what_was_rebuilt_counts_once_anything_changed_in_it(here: Node) -> None:
    _, other = both(here)
    here.store.close()
    move(here.store.root, PYTHON, OTHER, failpoint="database-commit:1")
    rebuilt(here.store.root)
    with ImageStore(here.store.root) as store:
        store.pin(PYTHON, runtime_handler=other.runtime_handler)
    report = rebuilt(here.store.root)
    assert targets(report) == dict.fromkeys([PYTHON, OTHER], other.target.digest)
    assert report.replaced == ()


def test_what_was_collected_since_is_not_leased(here: Node) -> None:
    """The uncertain change was made: a collection freed what it replaced, and left no line."""
    python, _ = both(here)
    here.store.close()
    move(here.store.root, PYTHON, OTHER, failpoint="database-committed:1")
    left = collected(here.store.root)
    assert not left & set(python.record.roots)
    report = rebuilt(here.store.root)
    assert (report.replaced, report.replaced_lease) == ((), "")


def test_an_uncertain_change_whose_content_is_not_there_changes_nothing(here: Node) -> None:
    python, other = both(here)
    here.store.remove(OTHER, runtime_handler=other.runtime_handler)
    with undone(database_of(here.store)):
        here.store.metadata.images.put(moved(python, other), {})
    here.store.close()
    here.store.content.delete(other.id)
    report = rebuilt(here.store.root)
    assert targets(report) == {PYTHON: python.target.digest}
    assert report.replaced_lease == ""


def test_labels_and_leases_of_an_uncertain_change_lose_nothing_either(here: Node) -> None:
    metadata = database_of(here.store)
    first, second, third, noted = (put(here.store, name) for name in (b"first", b"second", b"third", b"noted"))
    metadata.graph.label_content(noted, {"containerd.io/gc.root": "x", "containerd.io/gc.ref.content.a": str(first)})
    metadata.leases.create("lasting", lifetime_seconds=math.inf)
    metadata.leases.add_content("lasting", [second])
    with undone(metadata):
        metadata.graph.label_content(
            noted, {"containerd.io/gc.root": "x", "containerd.io/gc.ref.content.a": str(third)}
        )
        metadata.leases.delete("lasting")
        metadata.leases.create("lasting", lifetime_seconds=math.inf)
        metadata.leases.add_content("lasting", [third])
    here.store.close()
    report = rebuilt(here.store.root)
    assert set(report.replaced) == {first, second}
    assert report.leases == ("lasting",)
    assert collected(here.store.root) == {first, second, third, noted}


def test_labels_and_leases_that_never_were_are_not_believed(here: Node) -> None:
    metadata = database_of(here.store)
    kept, other = put(here.store, b"kept"), put(here.store, b"other")
    metadata.leases.create("lasting", lifetime_seconds=math.inf)
    metadata.leases.add_content("lasting", [kept])
    with undone(metadata):
        metadata.graph.label_content(other, {"containerd.io/gc.root": "x"})
        metadata.leases.create("never", lifetime_seconds=math.inf)
        metadata.leases.add_content("lasting", [other])
    metadata.graph.label_content(kept, {"note": "x"})
    here.store.close()
    report = rebuilt(here.store.root)
    assert (report.leases, report.labelled, report.replaced) == (("lasting",), 1, ())
    assert collected(here.store.root) == {kept}


def test_a_rebuild_that_dies_anywhere_leaves_a_lasting_lease_what_it_lists(here: Node) -> None:
    first, second = put(here.store, b"first"), put(here.store, b"second")
    here.store.metadata.leases.create("lasting", lifetime_seconds=math.inf)
    here.store.metadata.leases.add_content("lasting", [first, second])
    here.store.close()
    root, number = here.store.root, 1
    damage_database(root)
    while not is_rebuilt(root, f"journal-append:{number}"):
        with contextlib.closing(SqliteMetadataStore(root / "another.db", is_rebuilding=True)) as metadata:
            assert metadata.journaled().leases[0][1] == tuple(sorted([first, second]))
        number += 1
    assert number > 1
    with ImageStore(root) as store:
        assert store.metadata.leases.content("lasting") == tuple(sorted([first, second]))
