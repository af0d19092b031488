"""Which services, folders and values the node commands mean."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from click import BadParameter

from imagestore.cli.main import main
from imagestore.cli.node.settings import settings_of
from imagestore.errors import StoreFullError
from imagestore.node.gate_change import GateMarker
from imagestore.node.pull_record_files import PullRecordFiles
from tests.support.docker_engine import Engine, docker_engine, id_of
from tests.support.linux_node import APP
from tests.unit.cli.node_lines import KUBELET, run

if TYPE_CHECKING:
    from pathlib import Path

EDGED = """apiVersion: edgecore.config.kubeedge.io/v1alpha2
modules: {edged: {tailoredKubeletConfig: {imageGCLowThresholdPercent: 90}}}
"""


def test_a_collection_of_one_service_forgets_nothing_of_another(
    image: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    verified = tmp_path / "kubelet.yaml"
    verified.write_text(KUBELET + "imagePullCredentialsVerificationPolicy: AlwaysVerify\n")
    config = ("--kubelet-config", str(verified))
    run(capsys, "ensure", image, *config)
    files = PullRecordFiles(tmp_path / "store" / "node")
    files.write(replace(files.records()[0][0], updated_at=1))
    with docker_engine(tmp_path / "d", Engine({"registry.example/team/app": {"1": "content"}})):
        for socket in (str(tmp_path / "d"), f"unix://{tmp_path / 'd'}"):
            run(capsys, "ensure", APP, "--docker", socket, *config)
        assert run(capsys, "gc", "--all", "--docker", str(tmp_path / "d"), *config)[0] == 0
    _, again = run(capsys, "ensure", image, *config)
    assert "credential check: credentialRecordFound" in again["steps"]
    assert len([*(tmp_path / "store" / "node").glob("*/image_manager")]) == 1


@pytest.mark.parametrize(
    ("text", "origins"),
    [
        ("runtimeType: docker\ndockerAddress: unix:///d\n", ["given", "given", "default"]),
        ("runtimeType: remote\ndockerAddress: unix:///d\n", ["given", "given, unused by this runtime type", "default"]),
        ("{}", ["default", "default", "default"]),
        (
            """apiVersion: edgecore.config.kubeedge.io/v1alpha2
modules:
  edged:
    containerRuntime: docker
    dockerEndpoint: "unix:///d"
    imagePullProgressDeadline: 5s
""",
            ["given", "given", "given"],
        ),
        ("apiVersion: edgecore.config.kubeedge.io/v1alpha2\n", ["default", "default", "default"]),
        (
            "apiVersion: edgecore.config.kubeedge.io/v1alpha1\nmodules: {edged: {dockerAddress: 'unix:///d'}}\n",
            ["default", "given", "default"],
        ),
    ],
)
def test_every_value_is_shown_with_its_origin(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, origins: list[str]
) -> None:
    path = tmp_path / "edged.yaml"
    path.write_text(text)
    status, told = run(capsys, "edged-config", str(path))
    assert status == 0
    names = ("runtimeType", "dockerEndpoint", "imagePullProgressDeadline")
    assert [told[name]["origin"] for name in names] == origins


def test_an_engine_knows_the_default_handler_by_its_name(
    image: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with docker_engine(tmp_path / "d", Engine({"registry.example/team/app": {"1": "content"}})):
        options = ("--docker", str(tmp_path / "d"))
        _, told = run(capsys, "ensure", APP, *options)
        assert told["imageRef"] == id_of("content", "linux/amd64")
        _, named = run(capsys, "ensure", APP, "--handler", "runc", "--policy", "Never", *options)
        assert named["imageRef"] == told["imageRef"]


def test_a_full_disk_keeps_no_image(
    image: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise StoreFullError("no space left")

    run(capsys, "ensure", image)
    monkeypatch.setattr(GateMarker, "note", full)
    monkeypatch.setattr(PullRecordFiles, "__init__", full)
    status, told = run(capsys, "gc", "--all", "--min-age", "0")
    assert (status, [each["names"][0] for each in told["removed"]]) == (0, [image])


@pytest.mark.parametrize(
    ("option", "text", "command"),
    [
        ("--kubelet-config", KUBELET + "imageMaximumGCAge: 7d\n", ("gc", "--dry-run")),
        ("--kubelet-config", KUBELET + "imageGCLowThresholdPercent: 90\n", ("gc", "--dry-run")),
        ("--edged", EDGED, ("gc", "--dry-run")),
        ("--runtime-classes", "kind: Pod\n", ("ensure", "app:1", "--runtime-class", "gold")),
    ],
)
def test_what_is_wrong_with_a_file_names_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str, text: str, command: tuple[str, ...]
) -> None:
    path = tmp_path / "given.yaml"
    path.write_text(text)
    assert main(["--root", str(tmp_path / "store"), "node", *command, option, str(path)]) == 9
    assert f"imagestore: {path}: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("word", "value"),
    [("1", True), ("t", True), ("TRUE", True), (" true ", True), ("0", False), ("F", False), ("False", False)],
)
def test_gates_are_switched_with_the_kubelets_words(word: str, value: bool) -> None:
    text = f"A=true, RuntimeClassInImageCriApi ={word},"
    assert settings_of(None, text).gates.runtime_class_in_image_cri is value


@pytest.mark.parametrize("text", ["RuntimeClassInImageCriApi=yes", "RuntimeClassInImageCriApi=tRUE", "A=", "A"])
def test_other_words_switch_no_gate(text: str) -> None:
    with pytest.raises(BadParameter, match="expected NAME=true or NAME=false"):
        settings_of(None, text)


ALPHA2 = """apiVersion: edgecore.config.kubeedge.io/v1alpha2
kind: EdgeCore
modules:
  edged:
    containerRuntime: {runtime}
    dockerEndpoint: unix://{folder}/docker.sock
    remoteRuntimeEndpoint: unix://{folder}/runtime.sock
    remoteImageEndpoint: unix://{folder}/images.sock
"""


@pytest.mark.parametrize(
    ("runtime", "asked", "warning"),
    [("remote", "images.sock", ""), ("docker", "docker.sock", "containerRuntime docker: KubeEdge 1.14")],
)
@pytest.mark.parametrize("command", [("gc", "--dry-run"), ("ensure", APP, "--policy", "Never")])
def test_edgeds_flags_choose_the_service_of_every_command(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    command: tuple[str, ...],
    runtime: str,
    asked: str,
    warning: str,
) -> None:
    path = tmp_path / "edgecore.yaml"
    path.write_text(ALPHA2.format(runtime=runtime, folder=tmp_path))
    assert main(["--root", str(tmp_path / "store"), "node", *command, "--edged", str(path)]) == 6
    err = capsys.readouterr().err
    assert f"{tmp_path}/{asked}" in err
    assert (f"imagestore: warning: {path}: {warning}" in err) is bool(warning)
