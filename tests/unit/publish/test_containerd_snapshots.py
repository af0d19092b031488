"""One layer into one snapshotter: raced, remote, damaged, cut off."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import pytest

from imagestore import CancelToken, Descriptor
from imagestore.content.local import LocalContentStore
from imagestore.errors import IntegrityError, NotFoundError, OperationCancelledError, StoreFullError
from imagestore.oci.media_types import OCI_LAYER
from imagestore.publish import ContentWay, SnapshotLayer, SnapshotTarget
from imagestore.publish.blobs import BlobBringer
from imagestore.publish.containerd import Containerd
from imagestore.publish.containerd_snapshots import ContainerdSnapshots
from imagestore.publish.content_folder import ContentFolder
from imagestore.testing import layer
from tests.support.fake_containerd import FakeContainerd, fake_containerd
from tests.support.fake_containerd_state import Snapshot, chain_id

LEASE, STORE, OVERLAY = "lease", "0a" * 16, "overlayfs"
BELOW, ABOVE = layer("below", compression="none"), layer("above")
LAYERS = [SnapshotLayer(Descriptor(OCI_LAYER, each.digest, each.body.size), each.diff_id) for each in (BELOW, ABOVE)]
CHAINS = [str(BELOW.diff_id), chain_id(str(BELOW.diff_id), str(ABOVE.diff_id))]


@dataclass
class Unpacking:
    """A target, and what it is on."""

    fake: FakeContainerd
    client: Containerd
    content: LocalContentStore
    cancel: CancelToken = field(default_factory=CancelToken)
    brought: list[ContentWay] = field(default_factory=list)

    @property
    def target(self) -> SnapshotTarget:
        bringer = BlobBringer(self.client, self.content, ContentFolder(self.fake.root, ContentWay.LINKED, STORE), STORE)
        return ContainerdSnapshots(
            self.client, OVERLAY, LEASE, bringer, [], self.cancel, lambda _, way: self.brought.append(way)
        )

    def apply(self) -> None:
        """Both layers."""
        self.target.apply("", CHAINS[0], LAYERS[0])
        self.target.apply(CHAINS[0], CHAINS[1], LAYERS[1])

    def nothing_is_active(self) -> bool:
        """Whether every snapshot is committed."""
        return self.fake.snapshots().keys() == self.fake.committed()


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Unpacking]:
    content = LocalContentStore(tmp_path / "store" / "content", tmp_path / "store" / "locks")
    for each in (BELOW, ABOVE):
        size = each.body.size
        with content.writer("r", expected=each.digest, total=size, cancel=CancelToken()) as writer:
            for chunk in each.body.chunks():
                writer.write(chunk)
            writer.commit(each.digest)
    with fake_containerd(tmp_path / "c") as fake:
        fake.state.create_lease("k8s.io", LEASE, {})
        client = Containerd(fake.address)
        yield Unpacking(fake, client, content)
        client.close()


def test_layers_stand_on_each_other(here: Unpacking) -> None:
    here.fake.rules.is_hostile = True
    assert not here.target.has(CHAINS[0])
    here.apply()
    assert here.fake.committed() == set(CHAINS)
    assert here.target.has(CHAINS[1])
    assert here.brought == [ContentWay.LINKED, ContentWay.LINKED]
    here.target.close()
    here.fake.collect()
    assert here.fake.committed() == set(CHAINS)
    for chain in reversed(CHAINS):
        here.target.remove(chain)
        here.target.remove(chain)
    assert here.fake.snapshots() == {}


def test_a_chain_is_held_before_it_is_looked_at(here: Unpacking) -> None:
    """The look alone holds nothing: the collector would take it before it is used."""
    here.fake.here.snapshots[OVERLAY] = {CHAINS[0]: Snapshot("", {}, is_committed=True, applied=[CHAINS[0]])}
    here.fake.faults.meanwhile("Snapshots/Stat", here.fake.collect, after=True)
    assert here.target.has(CHAINS[0])
    here.fake.collect()
    assert here.fake.committed() == {CHAINS[0]}


def test_a_writable_snapshot_is_no_chain(here: Unpacking) -> None:
    here.fake.state.prepare("k8s.io", OVERLAY, CHAINS[0], "", {}, LEASE)
    assert not here.target.has(CHAINS[0])
    here.fake.here.snapshots.clear()


def test_applying_twice_is_applying_once(here: Unpacking) -> None:
    here.apply()
    here.fake.faults.clear()
    here.apply()
    assert here.fake.faults.calls["Diff/Apply"] == 0
    assert here.nothing_is_active()


def test_another_that_commits_first(here: Unpacking) -> None:
    def race() -> None:
        here.fake.here.snapshots[OVERLAY][CHAINS[0]] = Snapshot("", {}, is_committed=True, applied=[CHAINS[0]])

    here.fake.faults.meanwhile("Snapshots/Commit", race)
    here.apply()
    assert here.nothing_is_active()
    here.fake.collect()
    assert here.fake.committed() == set(CHAINS)


def test_another_that_commits_first_and_loses_it_again(here: Unpacking) -> None:
    there = here.fake.here.snapshots.setdefault(OVERLAY, {})

    def race() -> None:
        there[CHAINS[0]] = Snapshot("", {}, is_committed=True, applied=[CHAINS[0]])

    here.fake.faults.meanwhile("Snapshots/Commit", race)
    here.fake.faults.meanwhile("Snapshots/Remove", lambda: there.pop(CHAINS[0]))
    with pytest.raises(Exception, match="already exists"):
        here.apply()
    assert here.fake.snapshots() == {}
    here.apply()
    assert here.fake.committed() == set(CHAINS)


def test_a_remote_snapshotter_is_sent_nothing(here: Unpacking) -> None:
    here.fake.rules.remote = frozenset(CHAINS)
    here.apply()
    assert here.brought == []
    assert here.fake.faults.calls["Diff/Apply"] == here.fake.faults.calls["Content/Write"] == 0
    assert here.fake.committed() == set(CHAINS)
    here.fake.collect()
    assert here.fake.committed() == set(CHAINS)


def test_a_remote_snapshotter_that_has_some_layers(here: Unpacking) -> None:
    here.fake.rules.remote = frozenset(CHAINS[:1])
    here.apply()
    assert here.brought == [ContentWay.LINKED]
    assert here.fake.committed() == set(CHAINS)


def test_another_layer_than_was_expected(here: Unpacking) -> None:
    wrong = SnapshotLayer(LAYERS[0].blob, LAYERS[1].diff_id)
    with pytest.raises(IntegrityError, match="expected diff id"):
        here.target.apply("", CHAINS[0], wrong)
    assert here.fake.snapshots() == {}


@pytest.mark.parametrize("call", ["Content/Write", "Diff/Apply", "Snapshots/Commit"])
@pytest.mark.parametrize("is_removable", [True, False])
def test_nothing_is_left_of_a_layer_that_fails(here: Unpacking, call: str, is_removable: bool) -> None:
    here.fake.faults.refuse(call, grpc.StatusCode.UNKNOWN, text="no space left on device")
    if not is_removable:
        here.fake.faults.refuse("Snapshots/Remove", grpc.StatusCode.UNKNOWN)
    with pytest.raises(StoreFullError, match="no space left"):
        here.apply()
    if not is_removable:  # the end of the lease takes it away
        here.client.delete_lease(LEASE, is_synced=True)
    assert here.fake.snapshots() == {}


def test_a_parent_that_is_not_there(here: Unpacking) -> None:
    with pytest.raises(NotFoundError, match="parent"):
        here.target.apply(CHAINS[0], CHAINS[1], LAYERS[1])


def test_cancelled(here: Unpacking) -> None:
    here.fake.faults.meanwhile("Snapshots/Prepare", lambda: here.cancel.cancel("enough"), after=True)
    with pytest.raises(OperationCancelledError):
        here.apply()
    assert here.fake.snapshots() == {}
    with pytest.raises(OperationCancelledError):
        here.apply()
