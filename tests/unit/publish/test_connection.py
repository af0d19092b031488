"""What a containerd is, and the way by which layers come into it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from examples.adapters import MemoryContent
from imagestore import ImageStore
from imagestore.errors import ImageStoreError, PreconditionError, UnsupportedError
from imagestore.publish import ContentWay, ImageState
from imagestore.publish.connection import Connection
from imagestore.publish.publisher import Publisher
from imagestore.registry import connect
from imagestore.util.machine import MachineMark
from tests.support.fake_containerd import FakeContainerd
from tests.support.fake_containerd_state import Rules
from tests.support.publishing import APP, HOST, KATA, OTHER, RUNC, PublishingNode


def connected(publisher: Publisher) -> Connection:
    publisher.reconcile()
    found = publisher.known_connection
    assert found is not None
    return found


def test_the_cheapest_way_that_works(publisher: Publisher, fake: FakeContainerd) -> None:
    found = connected(publisher)
    assert (found.way, found.way_reason) == (ContentWay.LINKED, "")
    assert found.version == "1.6.20"
    assert found.plugins.snapshotters == {"overlayfs", "native"}
    assert fake.leases() == set()
    assert fake.files() == set()
    assert not fake.here.ingests


def test_where_links_are_forbidden_files_are_written(
    publisher: Publisher, here: PublishingNode, fake: FakeContainerd, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = os.link

    def only_nameless(source: str | Path, target: str | Path, **how: object) -> None:
        if not str(source).startswith("/proc/"):
            raise PermissionError(1, "Operation not permitted")
        link(source, target, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "link", only_nameless)
    found = connected(publisher)
    assert found.way is ContentWay.OWN_FILE
    assert "linked" in found.way_reason
    assert "not permitted" in found.way_reason
    image_id = here.pull()
    publisher.reconcile()
    assert publisher.states.entry(image_id).ways is not None
    assert set(publisher.states.entry(image_id).ways or ()) == {ContentWay.OWN_FILE}
    assert here.unmet() == []


def _isolated(rules: Rules, _: FakeContainerd) -> None:
    rules.is_sharing = False


def _no_root(rules: Rules, _: FakeContainerd) -> None:
    rules.shows_root = False


def _no_folder(_: Rules, fake: FakeContainerd) -> None:
    fake.root.rmdir()


@pytest.mark.parametrize(
    ("how", "reason"),
    [(_isolated, "doesn't take"), (_no_root, "doesn't say where"), (_no_folder, "No such file")],
    ids=["isolated", "no root", "no folder"],
)
def test_where_nothing_can_be_placed_layers_are_sent(
    publisher: Publisher,
    here: PublishingNode,
    fake: FakeContainerd,
    how: Callable[[Rules, FakeContainerd], None],
    reason: str,
) -> None:
    how(fake.rules, fake)
    found = connected(publisher)
    assert found.way is ContentWay.SENT
    assert reason in found.way_reason
    assert fake.leases() == set()
    here.pull()
    publisher.reconcile()
    assert here.unmet() == []


def test_a_store_without_files_sends_its_layers(here: PublishingNode, fake: FakeContainerd, tmp_path: Path) -> None:
    (tmp_path / "scratch").mkdir()
    content = MemoryContent(tmp_path / "scratch")
    with (
        connect(transport=here.node.registry.transport) as client,
        ImageStore(tmp_path / "second", host=HOST, registry=client, content=content) as store,
        Publisher(store, fake.address) as publisher,
    ):
        found = connected(publisher)
        assert found.way is ContentWay.SENT
        assert "memory" in found.way_reason
        image_id = str(store.pull(APP).id)
        assert publisher.reconcile().published == (image_id,)
        assert fake.runs(image_id)


def test_copying_never_links(here: PublishingNode) -> None:
    with here.publisher(content="copy") as publisher:
        assert connected(publisher).way is ContentWay.OWN_FILE


def test_a_probe_that_is_cut_off_leaves_nothing_for_long(here: PublishingNode, fake: FakeContainerd) -> None:
    fake.faults.refuse("Content/Write", grpc.StatusCode.UNKNOWN)
    fake.faults.refuse("Leases/Delete", grpc.StatusCode.UNKNOWN)
    with here.publisher() as publisher, pytest.raises(ImageStoreError):
        publisher.reconcile()
    assert fake.files() == set()
    assert len(fake.leases()) == 1
    here.reconcile()
    assert fake.leases() == set()


def test_another_connection_is_looked_at_anew(publisher: Publisher, here: PublishingNode, fake: FakeContainerd) -> None:
    assert connected(publisher).way is ContentWay.LINKED
    fake.rules.is_sharing = False
    fake.rules.version = "2.0.0"
    fake.restart()
    publisher.disconnected()
    assert publisher.known_connection is None
    found = connected(publisher)
    assert (found.way, found.version) == (ContentWay.SENT, "2.0.0")


def test_what_a_killed_publisher_left_is_cleared(here: PublishingNode, fake: FakeContainerd) -> None:
    fake.state.create_lease("k8s.io", f"imagestore-{here.store.id}-{'1' * 32}", {})
    fake.state.create_lease("k8s.io", "imagestore-another-1", {})
    left = fake.root / f"imagestore-{here.store.id}-{'1' * 16}"
    left.write_bytes(b"")
    here.reconcile()
    assert fake.leases() == {"imagestore-another-1"}
    assert not left.exists()


def test_a_containerd_that_lacks_a_service(here: PublishingNode, fake: FakeContainerd) -> None:
    here.pull()
    for call in ("Version/Version", "Leases/List", "ImageService/ListImages"):
        fake.faults.refuse(call, grpc.StatusCode.UNIMPLEMENTED, text="unknown service")
        with here.publisher() as publisher, pytest.raises(UnsupportedError, match="unknown service"):
            publisher.reconcile()


def test_a_snapshotter_that_is_not_there_stops_only_its_images(
    here: PublishingNode, publisher: Publisher, fake: FakeContainerd
) -> None:
    fake.rules.snapshotters = ("overlayfs",)
    good, bad = here.pull(APP, RUNC), here.pull(OTHER, KATA)
    report = publisher.reconcile()
    assert report.published == (good,)
    assert "native" in report.failed[bad]
    assert publisher.states.entry(bad).state is ImageState.FAILED
    assert fake.runs(good)
    assert fake.leases() == set()
    # It is loaded after a restart.
    fake.rules.snapshotters = ("overlayfs", "native")
    fake.restart()
    publisher.disconnected()
    assert publisher.reconcile().published == (bad,)
    assert here.unmet() == []


def test_records_of_a_copied_store_are_refused_before_anything_is_done(
    here: PublishingNode, fake: FakeContainerd, monkeypatch: pytest.MonkeyPatch
) -> None:
    here.pull()
    monkeypatch.setattr("imagestore.publish.publisher.machine_mark", lambda _: MachineMark("1" * 32))
    here.reconcile()
    monkeypatch.setattr("imagestore.publish.publisher.machine_mark", lambda _: MachineMark("2" * 32))
    fake.faults.clear()
    with here.publisher() as publisher, pytest.raises(PreconditionError, match="another machine"):
        publisher.reconcile()
    assert fake.faults.calls.keys() == {"Version/Version", "Introspection/Plugins", "Images/List"}
