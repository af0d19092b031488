"""Layers unpacked into a plain folder: the contract, and that the trees are those of ``unpack``, in less space."""

from __future__ import annotations

import fcntl
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from imagestore import Digest, Image, ImageStore, UnpackLimits
from imagestore.errors import (
    DocumentError,
    InvalidDigestError,
    InvalidInputError,
    NotFoundError,
    OperationCancelledError,
    PreconditionError,
    StoreError,
)
from imagestore.publish.folder_snapshots import FolderSnapshots
from imagestore.publish.snapshots import SnapshotTarget
from imagestore.store import StackedUnpacker
from imagestore.util.cancel import CancelToken
from imagestore.util.file_calls import sync_file_system
from tests.contracts.snapshots import SnapshotContract, Step, Trees, steps_of
from tests.support.patience import until
from tests.unit.store.unpack.making import (
    IS_ROOTLESS,
    REFERENCE,
    entry,
    folder,
    hard_link,
    link,
    listed,
    made,
    stored,
)

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="owners and devices need root")
needs_no_root = pytest.mark.skipif(os.geteuid() == 0, reason="root may read and write everything")

LOWER = made(
    *(folder("etc", mode=0o555, mtime=11), entry("etc/a", data=b"1", mtime=12), entry("etc/b", data=b"1", mode=0o444)),
    *(hard_link("etc/c", "etc/b"), link("etc/link", "a"), folder("var", mode=0o1777, mtime=13), folder("var/deep")),
)
UPPER = made(entry("etc/a", data=b"2", mode=0o600), entry("var/deep/new", data=b"2"), entry("etc/.wh.b"))
TOP = made(folder(".", mode=0o711, mtime=14), folder("var", mode=0o700, mtime=15), entry("last", data=b"3"))


class TestContract(SnapshotContract):
    """A folder keeps the contract."""

    @pytest.fixture
    def target(self, tmp_path: Path, store: ImageStore) -> Iterator[SnapshotTarget]:
        target = FolderSnapshots(tmp_path / "snapshots", store.content)
        yield target
        target.close()

    @pytest.fixture
    def trees(self) -> Trees:
        def show(target: SnapshotTarget, chain: str) -> dict[str, str]:
            assert isinstance(target, FolderSnapshots)
            return listed(target.path(chain))

        return show


def whole(root: Path) -> dict[str, tuple[object, ...]]:
    """All that a tree has: kind, mode, owner, time of change, content, and how many names of the tree a file has."""
    paths = [root, *sorted(root.rglob("*"))]
    numbers = [each.lstat().st_ino for each in paths]
    found: dict[str, tuple[object, ...]] = {}
    for path, number in zip(paths, numbers, strict=True):
        status = path.lstat()
        content = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else b""
        plain = (status.st_mode, status.st_uid, status.st_gid, status.st_mtime_ns, content)
        found[str(path.relative_to(root))] = (*plain, numbers.count(number))
    return found


@pytest.fixture
def steps(request: pytest.FixtureRequest) -> list[Step]:
    return steps_of(request.getfixturevalue("image"))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ImageStore]:
    with stored(tmp_path, LOWER, UPPER, TOP) as store:
        yield store


@pytest.fixture
def image(store: ImageStore) -> Image:
    return store.get(REFERENCE)


@pytest.fixture
def target(tmp_path: Path, store: ImageStore) -> FolderSnapshots:
    return FolderSnapshots(tmp_path / "snapshots", store.content)


def left(target: FolderSnapshots) -> list[str]:
    """What is in the folder besides the chains that are there."""
    names = [each for folder in target.root.iterdir() for each in folder.iterdir()]
    return [each.name for each in names if not target.has(f"{each.parent.name}:{each.name}") or each.suffix]


@pytest.mark.parametrize("height", [1, 2, 3])
def test_a_tree_is_that_of_unpack(tmp_path: Path, height: int) -> None:
    with stored(tmp_path, *(LOWER, UPPER, TOP)[:height]) as store:
        target, steps = FolderSnapshots(tmp_path / "snapshots", store.content), steps_of(store.get(REFERENCE))
        for step in steps:
            step.apply_to(target)
        store.unpack(REFERENCE, tmp_path / "root", rootless=IS_ROOTLESS)
        assert whole(target.path(steps[-1].chain)) == whole(tmp_path / "root")


def test_a_layer_on_top_changes_no_tree_below(target: FolderSnapshots, steps: list[Step]) -> None:
    steps[0].apply_to(target)
    before = whole(target.path(steps[0].chain))
    for step in steps[1:]:
        step.apply_to(target)
    assert whole(target.path(steps[0].chain)) == before


def test_what_a_layer_leaves_alone_takes_no_space_again(target: FolderSnapshots, steps: list[Step]) -> None:
    for step in steps:
        step.apply_to(target)
    lower, upper, top = (target.path(step.chain) for step in steps)
    assert (lower / "etc/c").lstat().st_ino == (top / "etc/c").lstat().st_ino
    assert (lower / "etc/link").lstat().st_ino == (upper / "etc/link").lstat().st_ino
    assert (lower / "etc/a").lstat().st_ino != (upper / "etc/a").lstat().st_ino


def test_a_chain_stays_whole_when_those_below_are_removed(target: FolderSnapshots, steps: list[Step]) -> None:
    for step in steps:
        step.apply_to(target)
    before = whole(target.path(steps[-1].chain))
    for step in steps[:-1]:
        target.remove(step.chain)
    assert {name: each[:-1] for name, each in whole(target.path(steps[-1].chain)).items()} == {
        name: each[:-1] for name, each in before.items()
    }
    assert left(target) == []


def test_others_reach_no_program_of_an_image(target: FolderSnapshots, steps: list[Step]) -> None:
    """It may have the set-user-id bit, and be known for a flaw."""
    steps[0].apply_to(target)
    assert stat.S_IMODE(target.root.stat().st_mode) == 0o700
    assert stat.S_IMODE(target.path(steps[0].chain).parent.stat().st_mode) == 0o700


def test_a_chain_id_that_is_not_the_layers_is_refused(target: FolderSnapshots, steps: list[Step]) -> None:
    """What lies under a name is trusted by all who find it there."""
    wrong = str(Digest.of(b"wrong"))
    with pytest.raises(InvalidInputError, match="expected chain id"):
        target.apply("", wrong, steps[0].layer)
    steps[0].apply_to(target)
    with pytest.raises(InvalidInputError, match="expected chain id"):
        target.apply(steps[0].chain, steps[1].layer.diff_id.encoded, steps[1].layer)
    assert left(target) == []


@pytest.mark.parametrize("text", ["", "../../etc", "sha256:../x", f"sha256:{'A' * 64}", f"md5:{'0' * 32}"])
def test_a_text_that_is_no_chain_id_names_no_folder(target: FolderSnapshots, text: str) -> None:
    for ask in (target.has, target.remove, target.path):
        with pytest.raises((InvalidDigestError, InvalidInputError)):
            ask(text)


def test_a_chain_that_is_not_there_has_no_path_and_bears_no_layer(target: FolderSnapshots, steps: list[Step]) -> None:
    with pytest.raises(NotFoundError, match="isn't unpacked"):
        target.path(steps[0].chain)
    with pytest.raises(NotFoundError, match="isn't unpacked") as caught:
        steps[1].apply_to(target)
    assert "lowest first" in caught.value.hint
    assert left(target) == []


def test_a_layer_that_takes_more_than_it_may_leaves_nothing(tmp_path: Path, store: ImageStore, image: Image) -> None:
    target = FolderSnapshots(tmp_path / "snapshots", store.content, limits=UnpackLimits(entries=2))
    step = steps_of(image)[0]
    with pytest.raises(DocumentError, match="more than 2 entries"):
        step.apply_to(target)
    assert left(target) == []
    assert not target.has(step.chain)


def test_a_cancelled_work_leaves_nothing(tmp_path: Path, store: ImageStore, image: Image) -> None:
    cancel, steps = CancelToken(), steps_of(image)
    target = FolderSnapshots(tmp_path / "snapshots", store.content, cancel=cancel)
    steps[0].apply_to(target)
    cancel.cancel("the test")
    with pytest.raises(OperationCancelledError):
        steps[1].apply_to(target)
    assert left(target) == []


def test_a_chain_appears_only_when_its_files_outlast_a_loss_of_power(
    target: FolderSnapshots, steps: list[Step], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def synced(descriptor: int) -> None:
        seen.append((target.has(steps[0].chain), os.listdir(descriptor)))
        sync_file_system(descriptor)

    monkeypatch.setattr("imagestore.store.unpack.stacked.sync_file_system", synced)
    steps[0].apply_to(target)
    assert seen == [(False, ["fs"])]
    assert target.has(steps[0].chain)


def test_a_failed_sync_is_a_failure(
    target: FolderSnapshots, steps: list[Step], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("imagestore.store.unpack.stacked.sync_file_system", fail)
    with pytest.raises(PreconditionError, match="Input/output error"):
        steps[0].apply_to(target)
    assert left(target) == []
    assert not target.has(steps[0].chain)


def test_what_a_killed_process_left_is_removed_at_the_next_start(
    tmp_path: Path, target: FolderSnapshots, store: ImageStore, steps: list[Step]
) -> None:
    steps[0].apply_to(target)
    algorithm = target.root / "sha256"
    dead = algorithm / f"{'0' * 64}.0123456789ab.partial"
    (dead / "fs" / "closed").mkdir(parents=True)
    (dead / "fs" / "closed").chmod(0o555)
    os.utime(dead, (1, 1))
    again = FolderSnapshots(target.root, store.content)
    assert not dead.exists()
    assert again.has(steps[0].chain)


def test_a_chain_is_not_taken_away_from_under_who_reads_it(
    target: FolderSnapshots, steps: list[Step], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The removal waits; the chain above is whole."""
    steps[0].apply_to(target)
    removal = threading.Thread(target=target.remove, args=[steps[0].chain])

    unpack = StackedUnpacker.unpack

    def removed_meanwhile(unpacker: StackedUnpacker, *given: Any) -> None:
        removal.start()
        until(lambda: not target.has(steps[0].chain), "the chain has lost its name")
        unpack(unpacker, *given)

    with monkeypatch.context() as patch:
        patch.setattr(StackedUnpacker, "unpack", removed_meanwhile)
        steps[1].apply_to(target)
    removal.join()
    assert "etc/c" in listed(target.path(steps[1].chain))
    assert not target.has(steps[0].chain)
    assert left(target) == []


@needs_root
def test_as_root_files_have_their_owners_and_devices_are_there(tmp_path: Path) -> None:
    lower = made(folder("d", uid=7, gid=8), entry("d/a", uid=9, gid=10), entry("d/null", b"3", devmajor=1, devminor=3))
    with stored(tmp_path, lower, made(entry("d/b", uid=11))) as store:
        target, steps = FolderSnapshots(tmp_path / "snapshots", store.content), steps_of(store.get(REFERENCE))
        for step in steps:
            step.apply_to(target)
        tree = target.path(steps[-1].chain)
        owners = {name: ((tree / name).lstat().st_uid, (tree / name).lstat().st_gid) for name in ("d", "d/a", "d/b")}
        assert owners == {"d": (7, 8), "d/a": (9, 10), "d/b": (11, 0)}
        assert stat.S_ISCHR((tree / "d/null").lstat().st_mode)


@needs_no_root
def test_without_root_a_folder_that_can_not_be_read_is_named(tmp_path: Path) -> None:
    with stored(tmp_path, made(folder("closed", mode=0)), made(entry("a"))) as store:
        target, steps = FolderSnapshots(tmp_path / "snapshots", store.content), steps_of(store.get(REFERENCE))
        steps[0].apply_to(target)
        with pytest.raises(InvalidInputError, match="closed"):
            steps[1].apply_to(target)
        assert left(target) == []
        target.remove(steps[0].chain)
        assert left(target) == []


@needs_no_root
def test_as_root_would_is_refused_to_others(tmp_path: Path, store: ImageStore) -> None:
    with pytest.raises(PreconditionError, match="only root"):
        FolderSnapshots(tmp_path / "snapshots", store.content, rootless=False)


def test_a_folder_that_others_may_write_is_refused(tmp_path: Path, store: ImageStore) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o777)
    with pytest.raises(StoreError, match="all users may write"):
        FolderSnapshots(tmp_path / "shared", store.content)


def test_a_file_in_the_place_of_the_folder_is_named(tmp_path: Path, store: ImageStore) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises((InvalidInputError, StoreError), match="file"):
        FolderSnapshots(tmp_path / "file", store.content)


@pytest.mark.parametrize(
    "place", ["partial-make:1", "partial-open:1", "snapshot-sync:1", "partial-rename:1", "partial-renamed:1"]
)
def test_a_process_that_is_killed_leaves_a_chain_whole_or_not_there(
    target: FolderSnapshots, store: ImageStore, steps: list[Step], place: str
) -> None:
    steps[0].apply_to(target)
    script = (
        "import sys\n"
        "from imagestore import ImageStore\n"
        "from imagestore.publish.folder_snapshots import FolderSnapshots\n"
        "from tests.contracts.snapshots import steps_of\n"
        "with ImageStore(sys.argv[1]) as store:\n"
        "    target = FolderSnapshots(sys.argv[2], store.content)\n"
        "    steps_of(store.get(sys.argv[3]))[1].apply_to(target)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, store.root, target.root, REFERENCE],
        env={**os.environ, "IMAGESTORE_FAILPOINT": place, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    assert target.has(steps[1].chain) == (place == "partial-renamed:1")
    for step in steps[1:]:
        step.apply_to(target)
    assert listed(target.path(steps[-1].chain))["etc/a"] == "2"


def test_a_removal_that_is_killed_leaves_no_chain(
    target: FolderSnapshots, store: ImageStore, steps: list[Step]
) -> None:
    steps[0].apply_to(target)
    script = (
        "import sys\n"
        "from imagestore import ImageStore\n"
        "from imagestore.publish.folder_snapshots import FolderSnapshots\n"
        "with ImageStore(sys.argv[1]) as store:\n"
        "    FolderSnapshots(sys.argv[2], store.content).remove(sys.argv[3])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, store.root, target.root, steps[0].chain],
        env={**os.environ, "IMAGESTORE_FAILPOINT": "partial-remove:1"},
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    assert not target.has(steps[0].chain)
    steps[0].apply_to(target)
    assert listed(target.path(steps[0].chain))["etc/a"] == "1"


def test_a_chain_that_cannot_be_read_is_named(target: FolderSnapshots, steps: list[Step]) -> None:
    steps[0].apply_to(target)
    tree = target.path(steps[0].chain)
    tree.rename(tree.with_name("away"))
    tree.symlink_to("away")
    with pytest.raises(PreconditionError, match=f"chain {steps[0].chain}: .* can't be read"):
        steps[1].apply_to(target)


def test_a_removal_that_waits_can_be_cancelled(
    tmp_path: Path,
    store: ImageStore,
    steps: list[Step],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody finds the chain any more; the log says who is waited for."""
    monkeypatch.setattr("imagestore.util.long_waits.LONG_WAIT_SECONDS", 0.0)
    cancel = CancelToken()
    target = FolderSnapshots(tmp_path / "snapshots", store.content, cancel=cancel)
    steps[0].apply_to(target)
    chain = target.path(steps[0].chain).parent
    reader = os.open(chain, os.O_RDONLY)
    try:
        fcntl.flock(reader, fcntl.LOCK_SH)
        ended: list[type[BaseException]] = []

        def _remove() -> None:
            try:
                target.remove(steps[0].chain)
            except BaseException as error:  # noqa: BLE001 - judged below
                ended.append(type(error))

        removal = threading.Thread(target=_remove)
        removal.start()
        until(lambda: "waiting for a lock" in caplog.text, "it waits")
        cancel.cancel("the test")
        removal.join(60)
        assert ended == [OperationCancelledError]
        assert not target.has(steps[0].chain)
    finally:
        os.close(reader)
