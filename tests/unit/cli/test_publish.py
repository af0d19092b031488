"""``publish``, ``unpublish``, and what ``info`` and ``config check`` say of publishing."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from imagestore.cli.main import main
from imagestore.publish import ImageState, Publisher
from imagestore.publish.following import PublishFollower
from imagestore.publish.owner_lock import owners
from imagestore.testing import build_artifact, build_image
from imagestore.util.machine import MachineMark
from tests.support.commands import Commands
from tests.support.fake_containerd import FakeContainerd
from tests.support.patience import until
from tests.support.publishing import APP, ARM, CONFIG, OTHER, RUNC, PublishingNode, app, publishing_node

ARTIFACT: Final = "registry.example/artifact:1"


@pytest.fixture
def here(tmp_path: Path) -> Iterator[PublishingNode]:
    images = {APP: app(), OTHER: app("other"), ARTIFACT: build_artifact("application/x", {"file": b"data"})}
    with publishing_node(tmp_path, images) as opened:
        yield opened


@pytest.fixture
def fake(here: PublishingNode) -> FakeContainerd:
    return here.fake


@pytest.fixture
def line(tmp_path: Path, here: PublishingNode, capsys: pytest.CaptureFixture[str]) -> Commands:
    """Commands whose configuration names containerd."""
    config = tmp_path / "config.toml"
    config.write_text(f'{CONFIG}\n[plugins."io.imagestore.publish.v1"]\naddress = "{here.fake.address}"\n')
    return Commands(capsys, "--root", str(here.store.root), "--config", str(config))


@pytest.fixture
def bare(tmp_path: Path, here: PublishingNode, capsys: pytest.CaptureFixture[str]) -> Commands:
    """Commands whose configuration doesn't."""
    config = tmp_path / "bare.toml"
    config.write_text(CONFIG)
    return Commands(capsys, "--root", str(here.store.root), "--config", str(config))


@contextlib.contextmanager
def following(here: PublishingNode, publisher: Publisher) -> Iterator[None]:
    """A publisher that follows the store, as a server's does."""
    follower = PublishFollower(publisher, lambda: contextlib.nullcontext(here.store), repair_seconds=600)
    follower.start()
    try:
        until(lambda: follower.is_connected, "it is connected")
        yield
    finally:
        follower.close()


def failures(here: PublishingNode) -> list[str]:
    """The images that a running publisher says to have failed."""
    notes = [note for owner in owners(here.store.root) for note in owner.images.items()]
    return [image_id for image_id, note in notes if note.state is ImageState.FAILED]


def test_everything_is_published_once(line: Commands, here: PublishingNode) -> None:
    runc, arm = here.pull(APP, RUNC), here.pull(APP, ARM)
    shown = line("publish")
    assert f"published {runc} ({APP})" in shown
    assert f"published {arm} ({APP})" in shown
    assert shown.splitlines()[-1] == "2 published, 0 were already, 0 names removed, 0 failed"
    assert "published (2 of 2)" in line.error
    assert here.unmet() == []
    assert line("publish") == "0 published, 2 were already, 0 names removed, 0 failed\n"


def test_named_images_alone_are_published(line: Commands, here: PublishingNode, fake: FakeContainerd) -> None:
    runc, arm, other = here.pull(APP, RUNC), here.pull(APP, ARM), here.pull(OTHER)
    assert line.json("publish", APP, "--runtime-handler", ARM)["published"] == [arm]
    assert line.json("publish", APP, other)["published"] == sorted([runc, other])
    assert line.json("publish", OTHER)["unchanged"] == 1


def test_what_the_store_does_not_have_ends_with_status_3(line: Commands, here: PublishingNode) -> None:
    here.pull(APP)
    for words in (("publish",), ("publish", "--status"), ("publish", "-n"), ("unpublish",)):
        line(*words, APP, OTHER, status=3)
        assert f"image '{OTHER}' is not in the store" in line.error
    line("publish", APP, "--runtime-handler", ARM, status=3)
    assert here.fake.images() == {}


def test_a_dry_run_says_what_would_be_done(line: Commands, here: PublishingNode, fake: FakeContainerd) -> None:
    image_id = here.pull(APP)
    line("publish")
    here.store.remove(APP)
    other = here.pull(OTHER)
    shown = line("publish", "--dry-run")
    assert f"would publish {other} ({OTHER} for runc) for overlayfs" in shown
    assert f"would remove {APP}" in shown
    assert shown.splitlines()[-1].endswith("names to remove, 0 published; content: linked")
    planned = line.json("publish", "-n")
    assert ([each["id"] for each in planned["toPublish"]], planned["way"]) == ([other], "linked")
    assert image_id in planned["toRemove"]
    assert line.json("publish", "-n", OTHER)["toRemove"] == []
    assert image_id in fake.images()
    assert other not in fake.images()


def test_a_failure_ends_with_status_1_and_is_named(line: Commands, here: PublishingNode, fake: FakeContainerd) -> None:
    image_id, other = here.pull(APP), here.pull(OTHER)
    fake.faults.refuse("Images/Create", text="no space left on device")
    shown = line("publish", status=1)
    assert shown.splitlines()[-1] == "1 published, 0 were already, 0 names removed, 1 failed"
    assert "no space left on device" in shown
    failed = {image_id, other} & set(fake.images()) ^ {image_id, other}
    fake.faults.refuse("Images/Create", text="no space left on device")
    assert [each["id"] for each in line.json("publish", status=1)["failed"]] == list(failed)
    line("publish")


def test_what_cannot_run_is_no_failure(line: Commands, here: PublishingNode) -> None:
    image_id = here.pull(ARTIFACT)
    (found,) = line.json("publish")["notRunnable"]
    assert found["id"] == image_id
    assert "artifact" in found["reason"]
    assert f"not runnable {image_id} ({ARTIFACT}): " in line("publish")
    assert "not runnable" in line("publish", "--status")


def test_containerd_away_ends_with_status_6(line: Commands, here: PublishingNode, fake: FakeContainerd) -> None:
    here.pull(APP)
    fake.stop()
    for words in (("publish",), ("publish", "--status"), ("publish", "-n"), ("publish", "--status", APP), ("info",)):
        line(*words, status=6)
    assert line.json("publish", "--status", status=6)["connected"] is False
    line("unpublish", "--all", status=6)


def test_the_status_of_everything(line: Commands, here: PublishingNode, fake: FakeContainerd) -> None:
    here.pull(APP)
    here.pull(OTHER)
    line("publish", APP)
    fake.pull("registry.example/left:1", build_image("linux/amd64"))
    rows = dict(row.split(maxsplit=1) for row in line("publish", "--status").splitlines()[1:])
    assert rows["containerd"] == f"1.6.20 at {fake.address}"
    assert (rows["publisher"], rows["content"], rows["images"]) == ("none runs", "linked", "1 wanted, 1 published")
    shown = line("info")
    assert "1 wanted, 1 published" in shown
    handlers = [row.split()[-1] for row in shown.splitlines() if row.startswith("runtime handler")]
    assert handlers == ["runc", "arm", "kata"]
    assert line.json("info")["containerd"]["version"] == "1.6.20"


def test_the_trace_of_an_image(line: Commands, here: PublishingNode, fake: FakeContainerd) -> None:
    image_id, arm = here.pull(APP, RUNC), here.pull(APP, ARM)
    line("publish", APP, "--runtime-handler", RUNC)
    fake.start_container("c1", image_id)
    text = line("publish", "--status", APP)
    assert text.count("FIELD") == 2
    assert " -> sha256:" in text
    (found,) = line.json("publish", "--status", APP, "--runtime-handler", RUNC)["images"]
    assert (found["state"], found["containers"], found["missingNames"]) == ("published", ["c1"], [])
    (found,) = line.json("publish", "--status", arm)["images"]
    assert (found["state"], found["missingSnapshotters"]) == ("wanted", ["overlayfs"])
    assert "(missing)" in text
    assert "(not unpacked)" in text


def test_a_server_is_waited_for_and_named(line: Commands, here: PublishingNode) -> None:
    with here.publisher() as publisher, following(here, publisher):
        image_id = here.pull(APP)
        found = line.json("publish")
        assert "publishes this store already; waiting" in line.error
        assert found["processId"] is not None
        assert found["published"] + [image_id] * found["unchanged"] == [image_id]
        assert "process " in line("publish", "--status")
        assert line.json("publish", "--status", APP)["images"][0]["state"] == "published"


def test_a_servers_failure_is_visible(line: Commands, here: PublishingNode, fake: FakeContainerd) -> None:
    fake.faults.refuse("Diff/Apply", text="no space left on device", count=1000)
    with here.publisher() as publisher, following(here, publisher):
        image_id = here.pull(APP)
        until(lambda: failures(here), "it says that it failed")
        shown = line("publish", "--status", status=1)
        assert f"{image_id} ({APP} for runc): " in shown
        assert "no space left on device" in shown
        assert "; next try in " in shown
        assert line.json("publish", "--deadline", "0s", status=1)["failed"][0]["id"] == image_id


def test_a_server_that_is_late_ends_with_status_124(line: Commands, here: PublishingNode, fake: FakeContainerd) -> None:
    go_on = threading.Event()
    fake.faults.meanwhile("Diff/Apply", go_on.wait)
    with here.publisher() as publisher, following(here, publisher):
        here.pull(APP)
        until(lambda: fake.faults.calls["Diff/Apply"], "it publishes")
        line("publish", "--deadline", "0s", status=124)
        assert "publishes this store and isn't done yet with sha256:" in line.error
        go_on.set()


def test_nothing_is_unpublished_beside_a_server(line: Commands, here: PublishingNode, fake: FakeContainerd) -> None:
    here.pull(APP)
    with here.publisher() as publisher, following(here, publisher):
        line("publish")
        for words in ((APP,), ("--all",)):
            line("unpublish", *words, status=8)
            assert "publishes this store already, and would bring the images back" in line.error
            assert "'imagestore rmi'" in line.error
        assert APP in fake.images()


def test_images_are_unpublished(line: Commands, here: PublishingNode, fake: FakeContainerd) -> None:
    here.pull(APP, RUNC)
    arm, other = here.pull(APP, ARM), here.pull(OTHER)
    line("publish")
    assert arm in line.json("unpublish", APP, "--runtime-handler", ARM)["removed"]
    assert APP in fake.images()
    assert f"removed {APP}" in line("unpublish", APP)
    assert {arm, APP}.isdisjoint(fake.images())
    assert other in line.json("unpublish", "--all")["removed"]
    assert (fake.images(), fake.snapshots()) == ({}, {})


def test_what_another_machine_published_is_taken_over_on_demand(
    line: Commands, here: PublishingNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    here.pull(APP)
    line("publish")
    monkeypatch.setattr("imagestore.publish.publisher.machine_mark", lambda _purpose: MachineMark("another"))
    line("publish", status=1)
    assert "on another machine" in line.error
    assert "--take-over" in line.error
    line("publish", "--take-over")
    assert here.unmet() == []


def test_without_an_address_that_of_the_running_server_is_used(bare: Commands, here: PublishingNode) -> None:
    here.pull(APP)
    bare("publish", status=2)
    assert "no containerd is named" in bare.error
    bare("info", status=2)
    with here.publisher() as publisher:
        publisher.reconcile()
        assert bare.json("publish", "--status")["address"] == here.fake.address
        bare("info")
    bare("publish", "--address", here.fake.address)


@pytest.mark.parametrize(
    "words",
    [
        ["publish", "--dry-run", "--status"],
        ["publish", "--runtime-handler", "runc"],
        ["unpublish"],
        ["unpublish", "--all", "x:1"],
        ["unpublish", "--all", "--runtime-handler", "runc"],
        ["publish", "--address", "tcp://127.0.0.1:1"],
    ],
)
def test_what_cannot_be_meant_is_wrong_usage(line: Commands, words: list[str]) -> None:
    line(*words, status=2)


def test_a_store_that_machines_share_is_refused_before_it_is_opened(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["publish"], ["unpublish", "--all"]):
        assert main(["--root", "postgresql://nobody@db.invalid/images", *words, "--address", "/run/c.sock"]) == 1
        assert "shared store" in capsys.readouterr().err


def test_a_store_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["--root", str(tmp_path / "none"), "publish", "--address", "/run/c.sock"]) == 8
    assert not (tmp_path / "none").exists()


def test_the_check_of_a_configuration_prints_the_kubelets_settings(line: Commands, here: PublishingNode) -> None:
    config = line.options[-1]
    other = Path(config).with_name("containerd.toml")
    other.write_text("version = 2\n")
    shown = line("config", "check", "--containerd-config", str(other))
    assert "  imageServiceEndpoint: unix:///run/imagestore/kubelet.sock" in shown
    assert f"  containerRuntimeEndpoint: {here.fake.address}" in shown
    assert f"--container-runtime-endpoint={here.fake.address}" in shown
    assert "containerd's own file has no runtime handler 'kata'" in shown
    line("config", "check", "--strict", "--containerd-config", str(other), status=9)
    found = line.json("config", "check", "--containerd-config", config)
    assert found["kubelet"]["containerRuntimeEndpoint"] == here.fake.address
    assert found["findings"] == []
    line("config", "check", "--containerd-config", str(other.with_name("none.toml")), status=9)


def test_the_check_looks_at_the_images_of_the_store(
    tmp_path: Path, here: PublishingNode, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "pinned.toml"
    config.write_text(
        f'version = 3\n[plugins."io.containerd.cri.v1.images".pinned_images]\nsandbox = "{OTHER}"\n'
        f'[plugins."io.imagestore.publish.v1"]\naddress = "{here.fake.address}"\n'
    )
    line = Commands(capsys, "--root", str(here.store.root))
    words = ("config", "check", str(config), "--containerd-config", str(config))
    assert f"{OTHER}: the sandbox image isn't in the store" in line(*words)
    here.pull(OTHER)
    assert "sandbox image" not in line(*words)
    (here.store.root / "metadata.db").rename(tmp_path / "away")
    (here.store.root / "metadata.db").mkdir()
    assert "passed over: the store: " in line(*words)


def test_without_publishing_the_check_says_nothing_of_it(bare: Commands) -> None:
    assert "kubelet" not in bare("config", "check")
    assert bare.json("config", "check")["kubelet"] is None


def test_a_table_that_can_not_be_read_is_refused_by_what_needs_it(
    tmp_path: Path, here: PublishingNode, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "broken.toml"
    config.write_text('version = 3\n[plugins."io.imagestore.publish.v1"]\ncontent = "move"\n')
    line = ["--root", str(here.store.root), "--config", str(config)]
    address = here.fake.address
    listen = f"unix://{tmp_path}/cri.sock"
    for words in (["publish", "--address", address], ["info"], ["serve", "--listen", listen, "--publish", address]):
        assert main([*line, *words]) == 9
        assert f'{config}:3: plugins."io.imagestore.publish.v1".content: expected one of' in capsys.readouterr().err
    assert main([*line, "images"]) == 0
