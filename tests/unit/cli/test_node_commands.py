"""``imagestore node ensure``, ``gc`` and ``edged-config``."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from imagestore.cli.main import main
from imagestore.errors import ImageServiceError
from imagestore.node import EmbeddedImageService
from tests.support.docker_engine import Engine, docker_engine, id_of
from tests.support.linux_node import APP
from tests.unit.cli.node_lines import KUBELET, run

if TYPE_CHECKING:
    from pathlib import Path

    from imagestore.cri import ImageSpec


def test_an_image_is_ensured_once_for_each_handler(image: str, capsys: pytest.CaptureFixture[str]) -> None:
    first = run(capsys, "ensure", image)
    again = run(capsys, "ensure", image)
    arm = run(capsys, "ensure", image, "--handler", "arm")
    assert [status for status, _ in (first, again, arm)] == [0, 0, 0]
    assert [told["pulled"] for _, told in (first, again, arm)] == [True, False, True]
    assert first[1]["imageRef"] == again[1]["imageRef"] != arm[1]["imageRef"]
    assert again[1]["message"].endswith("already present on machine and can be accessed by the pod")
    off = run(capsys, "ensure", image, "--handler", "arm", "--feature-gates", "RuntimeClassInImageCriApi=false")
    assert off[1]["imageRef"] == first[1]["imageRef"]
    assert "runtime handler arm is not sent: RuntimeClassInImageCriApi is off" in off[1]["steps"]


def test_a_runtime_class_is_a_handler(image: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    classes = tmp_path / "classes.yaml"
    classes.write_text("kind: RuntimeClass\nmetadata: {name: gold}\nhandler: arm\n")
    options = ("--runtime-classes", str(classes))
    status, told = run(capsys, "ensure", image, "--runtime-class", "gold", *options)
    assert (status, told["runtimeHandler"], told["pulled"]) == (0, "arm", True)
    assert main(["node", "ensure", image, "--runtime-class", "lead", *options]) == 3
    assert 'runtimeclass.node.k8s.io "lead" not found' in capsys.readouterr().err
    assert main(["node", "ensure", image, "--runtime-class", "gold"]) == 2
    assert main(["node", "ensure", image, "--runtime-class", "gold", "--handler", "arm", *options]) == 2


PODS = """
kind: Deployment
metadata: {name: web, namespace: shop}
spec:
  template:
    metadata: {annotations: {a: b}}
    spec:
      runtimeClassName: gold
      initContainers: [{name: first, image: IMAGE, imagePullPolicy: Always}]
      containers: [{name: main, image: IMAGE}]
      volumes: [{name: data, image: {reference: IMAGE, pullPolicy: Never}}, {name: other, emptyDir: {}}]
---
kind: DaemonSet
metadata: {name: for-windows}
spec: {template: {spec: {nodeSelector: {kubernetes.io/os: windows}, containers: [{name: w, image: IMAGE}]}}}
---
kind: Service
metadata: {name: web}
---
kind: RuntimeClass
metadata: {name: gold}
handler: arm
"""


def test_all_images_of_a_files_pods_are_ensured(image: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "pods.yaml"
    file.write_text(PODS.replace("IMAGE", image))
    status, told = run(capsys, "ensure", "-f", str(file))
    assert status == 0
    assert [(each["pod"], each["container"], each["runtimeHandler"], each["pulled"]) for each in told["items"]] == [
        ("shop/web", "first", "arm", True),
        ("shop/web", "main", "arm", False),
        ("shop/web", "volume data", "arm", False),
    ]
    assert [each["steps"][0] for each in told["items"]] == [
        "policy Always",
        "policy IfNotPresent (the default for this image)",
        "policy Never",
    ]
    assert told["warnings"] == ["Service web: has no pod, passed over"]
    assert main(["node", "ensure", "-f", str(file)]) == 0
    printed = capsys.readouterr()
    assert f"\n\npod shop/web, container main, image {image}\nservice: " in printed.out
    assert "DaemonSet for-windows: the pod is for windows: a kubelet on linux refuses it" in printed.err
    assert "; passed over" in printed.err
    file.write_text(f"kind: Pod\nspec: {{runtimeClasName: gold, containers: [{{image: {image}}}]}}")
    assert main(["node", "ensure", "-f", str(file)]) == 0
    assert (
        "$.spec.runtimeClasName: unknown member, passed over; did you mean runtimeClassName?" in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("text", "arguments", "status", "reason"),
    [
        ("kind: Service", (), 2, "is no pod"),
        ("kind: Pod\nspec: {containers: [{name: a}]}", (), 2, "$.spec.containers[0].image: expected the name"),
        ("kind: Pod\nspec: {containers: [{image: a, imagePullPolicy: never}]}", (), 2, "'never': expected Always"),
        ("kind: Pod\nspec: {os: {name: windows}, containers: [{image: a}]}", (), 2, "no image for this node"),
        ("kind: Pod\nspec: {runtimeClassName: g, containers: [{image: a}]}", (), 2, "with --runtime-classes"),
        ("kind: Pod\nspec: {containers: [{image: User/Bad}, {image: busybox}]}", ("--policy", "Never"), 2, "User/Bad"),
        ("kind: Pod\nspec: {containers: [{image: a}]}", ("--pod", "a/b"), 2, "are for an IMAGE"),
        ("kind: Pod\nspec: {containers: [{image: a}]}", ("busybox",), 2, "either an IMAGE or --filename"),
    ],
)
def test_a_file_that_gives_no_image_says_why(
    image: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    text: str,
    arguments: tuple[str, ...],
    status: int,
    reason: str,
) -> None:
    file = tmp_path / "pods.yaml"
    file.write_text(text)
    assert main(["node", "ensure", "-f", str(file), *arguments]) == status
    assert reason in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "status", "reason"),
    [
        (("User/Bad",), 2, "InvalidImageName"),
        (("busybox:1", "--policy", "Never"), 3, "ErrImageNeverPull"),
        (("127.0.0.1:1/x:1",), 6, "RegistryUnavailable"),
        (("127.0.0.1:1/x:1", "--handler", "nobody"), 9, "ImageInspectError"),
        (("busybox:1", "--endpoint", "unix:///none.sock"), 6, "ImageInspectError"),
    ],
)
def test_failures_have_their_exit_status(
    image: str, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], status: int, reason: str
) -> None:
    found, told = run(capsys, "ensure", *arguments)
    assert (found, told["reason"], told["imageRef"]) == (status, reason, "")
    assert told["events"][-1] == {"type": "Warning", "reason": "Failed", "message": f"Error: {reason}"}
    assert main(["node", "ensure", *arguments]) == status
    printed = capsys.readouterr()
    assert f"event: Warning Failed: Error: {reason}" in printed.out
    assert printed.err.startswith(f"imagestore: {reason}: ")


def test_people_read_steps_and_events(image: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    metrics = tmp_path / "metrics.prom"
    assert main(["node", "ensure", image, "--metrics", str(metrics), "--annotation", "a=b"]) == 0
    out = capsys.readouterr().out
    assert "step: policy IfNotPresent (the default for this image)\n" in out
    assert "event: Normal Pulled: Successfully pulled image" in out
    assert 'present_locally="false",pull_policy="ifnotpresent",pull_required="true"} 1.0' in metrics.read_text()
    assert "kubelet_imagemanager_ondisk_pullintents 0" in metrics.read_text()


@pytest.mark.parametrize(
    "options",
    [
        ("--pod", "nameless"),
        ("--annotation", "novalue"),
        ("--endpoint", "unix:///x", "--docker", "/y"),
        ("--feature-gates", "X"),
        ("--image-endpoint", "unix:///x"),
    ],
)
def test_wrong_usage_has_its_status(image: str, options: tuple[str, ...]) -> None:
    assert main(["node", "ensure", image, *options]) == 2


def test_a_server_is_named_once(image: str) -> None:
    assert main(["--endpoint", "unix:///x", "node", "ensure", image, "--docker"]) == 2


def test_handlers_are_named_as_in_other_commands(image: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "ensure", image, "--runtime-handler", "arm")[1]["runtimeHandler"] == "arm"


def test_collection_remembers_from_run_to_run(image: str, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "ensure", image)
    limits = ("--high", "0")
    _, young = run(capsys, "gc", *limits, "--dry-run")
    assert [each["reason"] for each in young["spared"]] == ["younger than the minimum age"]
    image_id = young["spared"][0]["id"]
    _, used = run(capsys, "gc", "--all", "--min-age", "0", "--in-use", image_id)
    assert [each["reason"] for each in used["spared"]] == ["in use"]
    _, plan = run(capsys, "gc", "--all", "--min-age", "0", "--dry-run")
    status, done = run(capsys, "gc", "--all", "--min-age", "0")
    assert status == 0
    assert plan["removed"] == done["removed"] != []
    assert (plan["dryRun"], done["dryRun"], done["images"]) == (True, False, 0)


def test_a_plan_says_what_would_be_left(image: str, capsys: pytest.CaptureFixture[str]) -> None:
    for handler in ("", "arm"):
        run(capsys, "ensure", image, "--handler", handler)
    everything = ("gc", "--all", "--min-age", "0")
    spared = (*everything, "--in-use", f"{image},arm")

    def last_line(*words: str) -> str:
        main(["node", *words])
        return capsys.readouterr().out.splitlines()[-1]

    assert last_line(*everything, "--dry-run") == "0 images would be left, 0 in use, 0 pinned"
    assert last_line(*spared, "--dry-run") == "1 image would be left, 1 in use, 0 pinned; by handler: arm 1"
    _, planned = run(capsys, *spared, "--dry-run")
    assert (planned["images"], planned["inUse"], planned["byHandler"]) == (1, 1, {"arm": 1})
    assert last_line("gc").startswith("2 images are left, 0 in use")
    assert last_line(*spared) == "1 image is left, 1 in use, 0 pinned; by handler: arm 1"
    assert last_line(*everything) == "0 images are left, 0 in use, 0 pinned"


def test_too_little_space_is_an_error_status(image: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["leases", "create"]) == 0
    capsys.readouterr()
    status, told = run(capsys, "gc", "--high", "0")
    assert status == 1
    assert told["events"][0]["reason"] == "FreeDiskSpaceFailed"
    assert told["error"].startswith("Insufficient free disk space on the node's image filesystem (")


def test_a_collection_that_fails_tells_what_it_did(image: str, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "ensure", image)
    status, told = run(capsys, "gc", "--high", "0", "--min-age", "0")
    assert status == 1
    assert told["error"].startswith("Insufficient free disk space")
    assert ([each["names"][0] for each in told["removed"]], told["failed"]) == ([image], [])
    assert 0 < told["freedBytes"] < told["targetBytes"]


def test_a_state_that_cannot_be_written_is_reported_after_the_removals(
    image: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run(capsys, "ensure", image)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("imagestore.node.state_file.replace", full)
    status, told = run(capsys, "gc", "--all", "--min-age", "0")
    assert status == 8
    assert [each["names"][0] for each in told["removed"]] == [image]
    assert "can't write the uses of images" in told["error"]


def test_metrics_that_cannot_be_written_do_not_cost_the_answer(
    image: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for words in (["ensure", image], ["gc", "--dry-run"]):
        status, told = run(capsys, *words, "--metrics", str(tmp_path / "none" / "metrics"))
        assert (status, told["service"]) == (1, f"store in {tmp_path / 'store'}")


def test_metrics_are_replaced_and_never_half_written(
    image: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = tmp_path / "metrics"
    folder.mkdir()
    for words in (["ensure", image], ["gc"]):
        (folder / "node.prom").write_text("old 1\n")
        with (folder / "node.prom").open() as reader:
            run(capsys, *words, "--metrics", str(folder / "node.prom"))
            assert reader.read() == "old 1\n"
        assert "kubelet_" in (folder / "node.prom").read_text()
        assert os.listdir(folder) == ["node.prom"]


def test_failed_removals_are_reported(
    image: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_service: EmbeddedImageService, _spec: ImageSpec) -> None:
        raise ImageServiceError("image is being used")

    run(capsys, "ensure", image)
    monkeypatch.setattr(EmbeddedImageService, "remove", refuse)
    status, told = run(capsys, "gc", "--all", "--min-age", "0")
    assert (status, [each["error"] for each in told["failed"]]) == (1, ["image is being used"])
    assert main(["node", "gc", "--all", "--min-age", "0"]) == 1
    assert "failed to remove sha256:" in capsys.readouterr().out


def test_a_changed_gate_is_reported_and_cleaned_up(image: str, capsys: pytest.CaptureFixture[str]) -> None:
    off = ("--feature-gates", "RuntimeClassInImageCriApi=false")
    run(capsys, "ensure", image, "--handler", "arm")
    run(capsys, "gc", "--dry-run")
    status, told = run(capsys, "gc", "--dry-run", *off)
    assert (status, len(told["gateChange"])) == (0, 4)
    image_id = next(each["id"] for each in told["spared"])
    status, told = run(capsys, "gc", "--after-gate-change", "--in-use", image_id, *off)
    assert (status, [each["id"] for each in told["left"]], len(told["gateChange"])) == (1, [image_id], 4)
    status, told = run(capsys, "gc", "--after-gate-change", *off)
    assert (status, told["left"], told["gateChange"], told["images"]) == (0, [], [], 0)
    assert main(["node", "gc", "--dry-run", *off]) == 0
    assert "gate:" not in capsys.readouterr().out


def test_an_image_in_use_may_be_named_in_any_way(image: str, capsys: pytest.CaptureFixture[str]) -> None:
    image_id = run(capsys, "ensure", image)[1]["imageRef"]
    everything = ("gc", "--all", "--min-age", "0")
    for name in (image, f"{image},runc", image_id, image_id.removeprefix("sha256:")[:12], f"{image_id},runc"):
        _, told = run(capsys, *everything, "--in-use", name)
        assert [each["reason"] for each in told["spared"]] == ["in use"], name
    assert main(["node", *everything, "--in-use", "mistyped"]) == 3
    assert main(["node", *everything, "--in-use", image, "--docker", "/none"]) == 2
    # A container may outlive its image.
    status, told = run(capsys, *everything, "--in-use", f"sha256:{'0' * 64}")
    assert (status, len(told["removed"])) == (0, 1)


def test_a_gate_that_was_not_turned_costs_no_image(image: str, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "ensure", image)
    run(capsys, "gc", "--dry-run")
    status, told = run(capsys, "gc", "--after-gate-change")
    assert (status, told["images"], told["gateChange"]) == (0, 1, [])
    assert main(["node", "gc", "--after-gate-change"]) == 0
    assert "gate: as it was when images were pulled" in capsys.readouterr().out
    # It is remembered as in any other run.
    assert len(run(capsys, "gc", "--dry-run")[1]["spared"]) == 1


def test_a_file_of_another_kind_is_no_kubelets_configuration(
    image: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "class.yaml"
    for text in ("kind: RuntimeClass\n", "kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1\n"):
        path.write_text(text)
        assert main(["node", "gc", "--kubelet-config", str(path)]) == 9
        assert "expected KubeletConfiguration of kubelet.config.k8s.io/v1beta1" in capsys.readouterr().err
    for text, told in (
        ("", "is empty, and a kubelet refuses that"),
        ("# nothing\n", "is empty, and a kubelet refuses that"),
        ("imageGCHighThresholdPercent: 90\n", "apiVersion and kind are missing, and a kubelet refuses that"),
        ("kind: KubeletConfiguration\n", "apiVersion is missing, and a kubelet refuses that"),
        ("apiVersion: kubelet.config.k8s.io/v1beta1\n", "kind is missing, and a kubelet refuses that"),
    ):
        path.write_text(text)
        assert main(["node", "gc", "--kubelet-config", str(path)]) == 9
        err = capsys.readouterr().err
        assert f"{path}: {told}\n" in err
        assert "hint: begin it with 'apiVersion: kubelet.config.k8s.io/v1beta1' and 'kind: Kubelet" in err
    assert main(["node", "gc", "--kubelet-config", str(tmp_path / "none.yaml")]) == 9
    assert f"{tmp_path}/none.yaml: can't be read: No such file or directory\n" in capsys.readouterr().err


def test_a_kubelets_configuration_is_gone_by(image: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "kubelet.yaml"
    path.write_text(KUBELET + "imageGCHighThresholdPercent: 100\nimageMinimumGCAge: 1s\n")
    assert main(["leases", "create"]) == 0
    capsys.readouterr()
    _, told = run(capsys, "gc", "--kubelet-config", str(path))
    assert told["targetBytes"] is None
    path.write_text(KUBELET + "imageGCHighThresholdPercent: 101\n")
    assert main(["node", "gc", "--kubelet-config", str(path)]) == 9
    assert "imageGCHighThresholdPercent (--image-gc-high-threshold) 101 must be between" in capsys.readouterr().err


def test_docker_is_a_service_too(image: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    engine = Engine({"registry.example/team/app": {"1": "content"}})
    with docker_engine(tmp_path / "d", engine):
        options = ("--docker", str(tmp_path / "d"), "--state", str(tmp_path / "state"))
        _, told = run(capsys, "ensure", APP, *options)
        assert told["imageRef"] == id_of("content", "linux/amd64")
        _, arm = run(capsys, "ensure", APP, "--handler", "arm", *options)
        assert arm["imageRef"] == id_of("content", "linux/arm64")
        file = tmp_path / "edged.yaml"
        file.write_text(f"runtimeType: docker\ndockerAddress: unix://{tmp_path / 'd'}\n")
        _, by_file = run(capsys, "ensure", APP, "--edged", str(file), "--state", str(tmp_path / "state"))
        assert by_file["pulled"] is False


SEED_TABLE = """\
VALUE                       IS                                   FROM
profile                     seed                                 the file's form
runtimeType                 remote                               given
remoteRuntimeEndpoint       /var/run/containerd/container.sock   default
remoteImageEndpoint         /var/run/containerd/container.sock   follows remoteRuntimeEndpoint
"""


def test_the_seeds_file_is_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "seed.yaml"
    path.write_text("runtimeType: remote\n")
    assert main(["node", "edged-config", str(path)]) == 0
    assert capsys.readouterr().out.startswith(SEED_TABLE)
    status, told = run(capsys, "edged-config", str(path))
    assert (status, told["memoryCapacity"]) == (0, {"value": 2_000_000_000, "origin": "default"})
    path.write_text("runtimeType: rkt\n")
    assert main(["node", "edged-config", str(path)]) == 9
    assert 'unsupported CRI runtime: "rkt"' in capsys.readouterr().err


def test_todays_file_is_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "edgecore.yaml"
    path.write_text(
        "apiVersion: edgecore.config.kubeedge.io/v1alpha2\nkind: EdgeCore\nmodules:\n  edged:\n"
        "    tailoredKubeletConfig:\n      containerRuntimeEndpoint: unix:///run/crio/crio.sock\n"
        "      imageGCLowThresholdPercent: 90\n"
    )
    assert main(["node", "edged-config", str(path)]) == 9
    out = capsys.readouterr().out
    assert "warning: only the runtime endpoint is changed" in out
    assert "fault: invalid configuration: imageGCLowThresholdPercent (--image-gc-low-threshold) 90 must be less" in out
