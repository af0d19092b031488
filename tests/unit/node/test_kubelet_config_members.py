"""Members that no kubelet knows are named, on every level; known ones are taken without a word."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

import pytest

from imagestore.cli.main import main
from imagestore.node.edged.config import interpret
from imagestore.node.kubelet_config import MEMBERS, KubeletImageSettings, unknown_members
from imagestore.util.yaml_documents import parse_documents

if TYPE_CHECKING:
    from pathlib import Path

BEGINNING = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
# As kubeadm writes it, with what administrators add.
USUAL = b"""
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication:
  anonymous: {enabled: false}
  webhook: {cacheTTL: 0s, enabled: true}
  x509: {clientCAFile: /etc/kubernetes/pki/ca.crt}
authorization:
  mode: Webhook
  webhook: {cacheAuthorizedTTL: 0s, cacheUnauthorizedTTL: 0s}
cgroupDriver: systemd
clusterDNS: [10.96.0.10]
evictionHard: {memory.available: 200Mi, imagefs.inodesFree: 5%}
kubeReserved: {cpu: 100m, ephemeral-storage: 1Gi, pid: "100"}
featureGates: {RuntimeClassInImageCriApi: true}
imageGCHighThresholdPercent: 85
imageMinimumGCAge: 0s
logging:
  flushFrequency: 0
  options: {json: {infoBufferSize: "0"}, text: {infoBufferSize: "0"}}
  verbosity: 0
  vmodule: [{filePattern: gc, verbosity: 5}]
memorySwap: {}
registerWithTaints: [{key: a, effect: NoSchedule}]
reservedMemory: [{numaNode: 0, limits: {memory: 1Gi}}]
resolvConf: /run/systemd/resolve/resolv.conf
shutdownGracePeriodByPodPriority: [{priority: 0, shutdownGracePeriodSeconds: 30}]
staticPodPath: /etc/kubernetes/manifests
"""


def test_a_usual_file_has_no_unknown_member() -> None:
    (document,) = parse_documents(USUAL, "usual")
    assert [*unknown_members(document)] == []


def test_every_setting_of_ours_is_known() -> None:
    ours = {field.name for field in fields(KubeletImageSettings)} - {"gates"}
    known = {name.lower() for name in MEMBERS}
    renamed = {
        "verification_policy": "imagepullcredentialsverificationpolicy",
        "verification_allowlist": "preloadedimagesverificationallowlist",
    }
    assert {renamed.get(name, name.replace("_", "")) for name in ours} <= known


@pytest.mark.parametrize(
    ("document", "told"),
    [
        ({"imageGCHighThreshold": 50}, "unknown member imageGCHighThreshold: no kubelet reads it; did you mean image"),
        ({"ImageMinimumGCAge": "1m"}, "unknown member ImageMinimumGCAge: no kubelet reads it; did you mean imageMini"),
        ({"evictionHrd": None}, "unknown member evictionHrd: no kubelet reads it; did you mean evictionHard?"),
        ({"whatever": {"a": 1}}, "unknown member whatever: no kubelet reads it"),
        ({"authentication": {"x509": {"clientCaFile": ""}}}, "unknown member authentication.x509.clientCaFile: "),
        ({"logging": {"options": {"json": {"a": 1}}}}, "unknown member logging.options.json.a: "),
        (
            {"shutdownGracePeriodByPodPriority": [{"priority": 1}, {"seconds": 2}]},
            "unknown member shutdownGracePeriodByPodPriority[1].seconds: ",
        ),
        ({"registerWithTaints": [{"name": "a"}]}, "unknown member registerWithTaints[0].name: "),
    ],
)
def test_an_unknown_member_is_named_with_its_place(document: dict[str, Any], told: str) -> None:
    (found,) = unknown_members(document)
    assert found.startswith(told)


@pytest.mark.parametrize(
    ("document", "told"),
    [
        (
            {"evictionHard": {"imagefs.avaliable": "5%"}},
            "unknown eviction signal evictionHard['imagefs.avaliable']: no kubelet starts with it; did you mean image",
        ),
        ({"evictionSoft": {"Memory.available": "5%"}}, "unknown eviction signal evictionSoft['Memory.available']: no "),
        ({"evictionSoftGracePeriod": {"a": "5s"}}, "unknown eviction signal evictionSoftGracePeriod['a']: no kubelet "),
        ({"evictionMinimumReclaim": {"a": "5"}}, "unknown eviction signal evictionMinimumReclaim['a']: no kubelet st"),
        (
            {"kubeReserved": {"memroy": "1Gi"}},
            "unknown resource kubeReserved['memroy']: no kubelet starts with it; did",
        ),
        ({"systemReserved": {"gpu": 1}}, "unknown resource systemReserved['gpu']: no kubelet starts with it"),
    ],
)
def test_a_key_that_no_kubelet_starts_with_is_named(document: dict[str, Any], told: str) -> None:
    (found,) = unknown_members(document)
    assert found.startswith(told)


def test_a_value_of_another_type_has_no_members() -> None:
    assert [*unknown_members({"evictionHard": "memory.available<5%", "kubeReserved": None})] == []
    assert [*unknown_members({"logging": [], "registerWithTaints": {"a": 1}, "reservedMemory": [1]})] == []


def test_edgeds_configuration_of_the_kubelet_is_checked_too() -> None:
    edged = {"tailoredKubeletConfig": {"remoteImageEndpoint": "unix:///i"}}
    found = interpret({"apiVersion": "edgecore.config.kubeedge.io/v1alpha2", "modules": {"edged": edged}})
    (warning,) = found.warnings
    assert warning.startswith("unknown member modules.edged.tailoredKubeletConfig.remoteImageEndpoint: no kubelet")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("runtimeType", "containerRuntime"),
        ("imageGCHighThreshold", "tailoredKubeletConfig.imageGCHighThresholdPercent"),
        ("imageServiceEndpoint", "tailoredKubeletConfig.imageServiceEndpoint"),
    ],
)
def test_a_member_in_the_wrong_place_of_edgeds_file_is_named(name: str, meant: str) -> None:
    value = {"apiVersion": "edgecore.config.kubeedge.io/v1alpha2", "modules": {"edged": {name: "x"}}}
    (warning,) = interpret(value).warnings
    assert warning == f"modules.edged.{name}: v1alpha2 has no such member; write modules.edged.{meant}"


def test_commands_name_unknown_members_and_go_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "kubelet.yaml"
    path.write_text(f'{BEGINNING}imageGCHigh: 50\n"a\\u001b[0m": 1\n---\nkind: Other\n')
    words = ["node", "ensure", "x.example/a:1", "--policy", "Never", "--kubelet-config", str(path)]
    assert main(["--root", str(tmp_path / "store"), *words]) == 3
    err = capsys.readouterr().err
    assert f"imagestore: warning: {path}: unknown member imageGCHigh: no kubelet reads it" in err
    assert f"imagestore: warning: {path}: holds 2 documents; a kubelet reads the first one only" in err
    assert "\x1b" not in err
