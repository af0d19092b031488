"""``imagestore node gc``: what a clean-up remembers, errors of a full or read-only disk, and whose state it uses."""

from __future__ import annotations

import shlex
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from imagestore.cli.app import App
from imagestore.cli.main import main
from imagestore.cli.node.services import ServiceChoice, clean_up_command
from imagestore.errors import StoreError
from imagestore.node.eviction import DiskUsage
from imagestore.node.gate_change import GateMarker
from imagestore.node.image_uses import CollectorState
from imagestore.node.pull_record_files import PullRecordFiles
from imagestore.testing import RegistryServer, build_index
from tests.support.linux_node import APP
from tests.unit.cli.node_lines import KUBELET, run

if TYPE_CHECKING:
    from collections.abc import Iterator

OFF = ("--feature-gates", "RuntimeClassInImageCriApi=false")


@pytest.fixture
def reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Of an image at a registry."""
    monkeypatch.setenv("IMAGESTORE_ROOT", str(tmp_path / "store"))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setattr("imagestore.node.image_gc.disk_of_images", lambda _service: DiskUsage(10**12, 10**12 // 2))
    with RegistryServer({APP: build_index(("linux/amd64", "linux/arm64"), seed="app")}) as running:
        yield running.server.reference(APP)


@pytest.fixture
def image(reference: str, capsys: pytest.CaptureFixture[str]) -> str:
    """The id of an image that was pulled."""
    return str(run(capsys, "ensure", reference)[1]["imageRef"])


@pytest.fixture
def unknown(image: str, tmp_path: Path) -> str:
    """The id of an image that came before anybody noted the gate."""
    (marker,) = tmp_path.rglob("image-handler-gate.json")
    marker.unlink()
    return image


def refuse(*_: object, **__: object) -> None:
    raise StoreError("read-only file system")


def test_a_clean_up_that_was_planned_or_is_incomplete_can_be_done(
    unknown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    image = unknown
    clean_up = ("gc", "--after-gate-change")
    forced = (*clean_up, "--force")
    _, planned = run(capsys, *forced, "--dry-run")
    assert [each["id"] for each in planned["removed"]] == [image]
    status, told = run(capsys, *forced, "--in-use", image)
    assert (status, [each["id"] for each in told["left"]]) == (1, [image])
    status, told = run(capsys, *forced)
    assert (status, [each["id"] for each in told["removed"]]) == (0, [image])
    assert run(capsys, *clean_up)[1]["gateChange"] == []
    assert main(["node", *clean_up]) == 0
    assert "gate: as it was when images were pulled" in capsys.readouterr().out


def test_a_clean_up_of_what_may_not_have_changed_removes_nothing(
    unknown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    clean_up = ("gc", "--after-gate-change")
    for options in (("--dry-run",), ()):
        status, told = run(capsys, *clean_up, *options)
        assert (status, told["images"], told.get("removed")) == (0, 1, None)
        assert "its value when these images were pulled is unknown" in told["gateNote"]
    assert "as it was" in run(capsys, *clean_up)[1]["gateNote"]
    assert run(capsys, *clean_up, *OFF)[1]["images"] == 0
    assert main(["node", "gc", "--force"]) == 2


@pytest.mark.parametrize("command", [("gc",), ("ensure", "REFERENCE", "--policy", "IfNotPresent")])
def test_the_command_that_is_named_after_a_change_cleans_up(
    image: str, reference: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    state = ("--state", str(tmp_path / "a state"))
    words = [word.replace("REFERENCE", reference) for word in command]
    run(capsys, *words, *state)
    _, told = run(capsys, *words, *state, *OFF)
    named = next(step for step in told["gateChange"] if "--after-gate-change" in step)
    line = named.partition("nothing is left: ")[2]
    assert main(shlex.split(line)[1:]) == 0
    assert "removed sha256:" in capsys.readouterr().out
    assert run(capsys, *words, *state, *OFF)[1]["gateChange"] == []


def test_the_command_after_a_change_names_the_service_it_is_for() -> None:
    app = App(Path("/a b"), Path("/c.toml"), ())
    choice = ServiceChoice("unix:///run/c.sock", "", "", None, Path("/k.yaml"), "A=true", None)
    assert clean_up_command(app, choice) == (
        "imagestore --root '/a b' --config /c.toml node gc --after-gate-change --endpoint unix:///run/c.sock "
        "--kubelet-config /k.yaml --feature-gates A=true"
    )
    assert clean_up_command(app, choice, sandbox_image="pause:3").endswith(" --sandbox-image pause:3")


def test_a_gate_that_cannot_be_recorded_is_reported_after_the_removals(
    image: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GateMarker, "note", refuse)
    status, told = run(capsys, "gc", "--after-gate-change", *OFF)
    assert (status, [each["id"] for each in told["removed"]], told["error"]) == (8, [image], "read-only file system")


def test_failures_are_reported_also_if_metrics_cannot_be_written(
    image: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CollectorState, "save", refuse)
    assert main(["node", "gc", "--metrics", str(tmp_path / "none" / "metrics")]) == 8
    told = capsys.readouterr().err
    assert "read-only file system" in told
    assert "metrics: can't be written: No such file or directory" in told


def plan(capsys: pytest.CaptureFixture[str], *options: str) -> list[str]:
    return [each["reason"] for each in run(capsys, "gc", "--dry-run", "--max-age", "1h", *options)[1]["removed"]]


def test_a_clock_that_cannot_be_right_makes_no_image_old(
    image: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run(capsys, "gc", "--in-use", image)
    with monkeypatch.context() as patched:
        patched.setattr(time, "time_ns", lambda: 5 * 10**9)
        assert plan(capsys) == []
        assert run(capsys, "gc")[0] == 0
    assert plan(capsys) == []
    with monkeypatch.context() as patched:
        later = time.time_ns() + 2 * 3600 * 10**9
        patched.setattr(time, "time_ns", lambda: later)
        assert plan(capsys) == ["age"]


def test_a_clock_that_was_ahead_is_forgotten(
    image: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time_ns()
    hour = 3600 * 10**9
    for moment, expected in ((now + 10_000 * hour, []), (now, []), (now + 2 * hour, ["age"])):
        with monkeypatch.context() as patched:
            patched.setattr(time, "time_ns", lambda moment=moment: moment)
            assert plan(capsys) == expected
            if not expected:
                run(capsys, "gc")


def test_a_plan_leaves_no_trace_in_what_is_remembered(
    image: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(capsys, "gc")
    (uses,) = tmp_path.rglob("image-uses.json")
    before = uses.read_bytes()
    for options in (("--in-use", image), ("--feature-gates", "RuntimeClassInImageCriApi=false")):
        run(capsys, "gc", "--dry-run", *options)
        assert uses.read_bytes() == before


def test_a_plan_notes_no_gate_and_leaves_records_alone(
    unknown: str, reference: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "store" / "node"
    PullRecordFiles(folder).begin(reference).release()
    shutil.rmtree(folder / "image_manager" / "pulled")
    (folder / "image_manager" / "pulled").mkdir()
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert run(capsys, "gc", "--dry-run", *OFF)[1]["gateChange"] == []
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert run(capsys, "gc")[1]["gateChange"] == []
    status, told = run(capsys, "gc", "--dry-run", *OFF)
    assert (status, len(told["gateChange"])) == (0, 4)


def test_a_pull_notes_the_gate_and_tells_when_it_was_turned(
    image: str, reference: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _, told = run(capsys, "gc", "--after-gate-change", "--dry-run", *OFF)
    assert ([each["id"] for each in told["removed"]], len(told["gateChange"])) == ([image], 4)
    assert len(run(capsys, "ensure", reference, "--policy", "IfNotPresent", *OFF)[1]["gateChange"]) == 4
    main(["node", "ensure", reference, "--policy", "IfNotPresent", *OFF])
    assert "gate: RuntimeClassInImageCriApi went from on to off" in capsys.readouterr().out
    assert run(capsys, "ensure", reference, "--policy", "IfNotPresent")[1]["gateChange"] == []


def test_gates_of_the_command_line_leave_the_others_of_the_file(
    image: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "kubelet.yaml"
    path.write_text(KUBELET + "featureGates: {RuntimeClassInImageCriApi: true, AllBeta: false}\n")
    more = ("--kubelet-config", str(path), "--feature-gates", "KubeletEnsureSecretPulledImages=true")
    assert run(capsys, "gc", *more)[1]["gateChange"] == []
    path.write_text(KUBELET + "featureGates: {RuntimeClassInImageCriApi: false}\n")
    assert len(run(capsys, "gc", *more)[1]["gateChange"]) == 4
    assert run(capsys, "gc", *more[:2], "--feature-gates", "RuntimeClassInImageCriApi=true")[1]["gateChange"] == []


@pytest.mark.parametrize(
    ("options", "status"),
    [
        (("--all", "--after-gate-change"), 2),
        (("--max-age", "1s", "--min-age", "2s"), 2),
        (("--max-age", "1s"), 2),
        (("--max-age", "2m"), 2),
        (("--max-age", "2m", "--min-age", "2m"), 2),
        (("--max-age", "1s", "--min-age", "0"), 0),
        (("--max-age", "0", "--min-age", "9h"), 0),
        (("--max-age", "121s"), 0),
        (("--high", "80", "--low", "80"), 2),
        (("--high", "79", "--low", "80"), 2),
        (("--high", "80", "--low", "79"), 0),
        (("--high", "70"), 0),
        (("--sandbox-image", "BAD::"), 2),
        (("--feature-gates", "RuntimeClassInImageCriAPI=true"), 9),
    ],
)
def test_words_that_cannot_be_meant_so_are_refused(image: str, options: tuple[str, ...], status: int) -> None:
    assert main(["node", "gc", "--dry-run", *options]) == status


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--max-age", "90s"), "the maximum age 1m30s must be greater than the minimum age 2m0s; a lower --min-age"),
        (("--max-age", "5m", "--min-age", "10m"), "the maximum age 5m0s must be greater than the minimum age 10m0s"),
        (("--kubelet-config", "FILE", "--min-age", "1h"), "the maximum age 30m0s must be greater than the minimum"),
        (("--kubelet-config", "FILE", "--max-age", "15m"), "the maximum age 15m0s must be greater than the minimum"),
    ],
)
def test_ages_are_refused_as_in_the_kubelets_file(
    image: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], message: str
) -> None:
    path = tmp_path / "kubelet.yaml"
    path.write_text(KUBELET + "imageMinimumGCAge: 20m\nimageMaximumGCAge: 30m\n")
    assert main(["node", "gc", "--dry-run", *(word.replace("FILE", str(path)) for word in options)]) == 2
    assert message in capsys.readouterr().err


def test_a_service_has_one_state_whatever_link_leads_to_its_socket(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "var").symlink_to(tmp_path / "run")
    choice, app = ServiceChoice("", "", "", None, None, None, None), App(tmp_path / "store", None, ())
    folders = {choice.folder(app, f"{tmp_path}/{name}/docker.sock") for name in ("run", "var", "var/../run")}
    assert len(folders) == 1
    assert choice.folder(app, f"{tmp_path}/run/other.sock") not in folders
