"""What a document says of itself: its kind, its operating system, members and amounts that mean nothing."""

from __future__ import annotations

from typing import Any

import pytest

from imagestore.errors import InvalidResourcesError
from imagestore.node.resources import Target, plan, refusal
from imagestore.resources.node import Node
from imagestore.resources.reading import faults, pod_from_json
from imagestore.resources.remarks import remarks
from imagestore.resources.workloads import pod_in

SPEC: dict[str, Any] = {"containers": [{"name": "a", "resources": {"limits": {"cpu": "1"}}}]}
TEMPLATE = {"metadata": {"name": "t"}, "spec": SPEC}
DEPLOYMENT = {"kind": "Deployment", "spec": {"replicas": 2, "template": TEMPLATE}}


def said(document: dict[str, Any]) -> list[str]:
    return [*remarks(document, pod_from_json(document))]


def with_resources(resources: object) -> dict[str, Any]:
    return {"kind": "Pod", "spec": {"containers": [{"name": "a", "resources": resources}]}}


@pytest.mark.parametrize(
    ("document", "path"),
    [
        (DEPLOYMENT, "$.spec.template"),
        ({**DEPLOYMENT, "kind": "StatefulSet"}, "$.spec.template"),
        (
            {"kind": "CronJob", "spec": {"jobTemplate": {"spec": {"template": TEMPLATE}}}},
            "$.spec.jobTemplate.spec.template",
        ),
        ({"kind": "PodTemplate", "template": TEMPLATE}, "$.template"),
        ({"kind": "List", "items": [DEPLOYMENT]}, "$.items[0].spec.template"),
        ({"kind": "PodList", "items": [{"kind": "Pod", **TEMPLATE}]}, "$.items[0]"),
        ({"spec": {"template": TEMPLATE}}, "$.spec.template"),
    ],
)
def test_the_pod_of_a_workload_is_taken(document: dict[str, Any], path: str) -> None:
    assert pod_in(document) == (TEMPLATE, path) or pod_in(document) == ({"kind": "Pod", **TEMPLATE}, path)
    pod = pod_from_json(document)
    assert (pod.name, pod.containers[0].resources.limit("cpu").value()) == ("t", 1)
    (remark,) = said(document)
    assert f"the numbers are those of one pod of it, {path}" in remark


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"kind": "Service", "spec": {"ports": []}}, "kind 'Service' is no pod, and has no pod template"),
        ({"kind": "LimitRange", "spec": {"limits": []}}, "kind 'LimitRange' is no pod"),
        ({"kind": "Deployment", "spec": {}}, "kind 'Deployment' is no pod"),
        ({"kind": "List", "items": [DEPLOYMENT, DEPLOYMENT]}, "List: expected one object, found 2"),
        ({"kind": "PodList", "items": []}, "PodList: expected one object, found 0"),
        ({"kind": 5}, "kind '5' is no pod"),
    ],
)
def test_another_kind_is_named(document: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidResourcesError, match=words) as caught:
        pod_from_json(document)
    assert "Deployment" in caught.value.hint


def test_a_fault_in_a_template_has_its_path() -> None:
    broken = {"kind": "Job", "spec": {"template": {"spec": {"containers": [{"resources": []}]}}}}
    with pytest.raises(InvalidResourcesError, match=r"^\$\.spec\.template\.spec\.containers\[0\]\.resources: expected"):
        pod_from_json(broken)


@pytest.mark.parametrize(
    ("spec", "os"),
    [
        ({"os": {"name": "windows"}}, "windows"),
        ({"nodeSelector": {"kubernetes.io/os": "windows"}}, "windows"),
        ({"os": {"name": "linux"}, "nodeSelector": {"kubernetes.io/os": "windows"}}, "linux"),
        ({"nodeSelector": {"kubernetes.io/os": "plan9"}}, ""),
        ({"os": None}, ""),
    ],
)
def test_a_pod_says_for_which_system_it_is(spec: dict[str, Any], os: str) -> None:
    pod = pod_from_json({"spec": {**SPEC, **spec}})
    assert pod.os == os
    for target in (Target("linux"), Target("windows")):
        assert ("PodOSNotSupported" in refusal(pod, target)) is (os not in ("", target.os))


def test_a_system_that_no_pod_can_have_is_refused() -> None:
    with pytest.raises(InvalidResourcesError, match=r"pod: os.name is 'darwin', expected linux or windows"):
        plan(
            pod_from_json({"spec": {**SPEC, "os": {"name": "darwin"}}}), Target("linux"), node=Node(memory_bytes=2**30)
        )


@pytest.mark.parametrize(
    ("amounts", "remark"),
    [
        ({"limits": {"memory": "128m"}}, "container a: limits.memory is 128m, which has a fraction of a byte"),
        ({"requests": {"memory": "100m"}}, "did you mean 100Mi?"),
        ({"requests": {"memory": 0.5}}, "container a: requests.memory is 500m"),
        ({"limits": {"ephemeral-storage": "1500m"}}, "container a: limits.ephemeral-storage is 1500m"),
    ],
)
def test_a_fraction_of_a_byte_is_reported(amounts: dict[str, Any], remark: str) -> None:
    (found,) = said(with_resources(amounts))
    assert remark in found


def test_fractions_of_a_pods_own_amounts_are_reported() -> None:
    spec = {**SPEC, "resources": {"limits": {"memory": "1m"}}, "overhead": {"memory": "2m"}}
    assert [remark.partition(" is ")[0] for remark in said({"spec": spec})] == [
        "pod: limits.memory",
        "pod: overhead.memory",
    ]


@pytest.mark.parametrize("memory", ["128Mi", "1e3", "0.5Ki", "2000m", 0, None])
def test_whole_bytes_are_not_reported(memory: object) -> None:
    assert said(with_resources({"limits": {"cpu": "1m", "memory": memory}})) == []


@pytest.mark.parametrize(
    ("document", "remark"),
    [
        (
            with_resources({"limit": {"cpu": "1"}}),
            "$.spec.containers[0].resources.limit: unknown member, passed over; did you mean limits?",
        ),
        (with_resources({"Requests": {}}), "did you mean requests?"),
        (with_resources({"cpu": "1"}), "$.spec.containers[0].resources.cpu: unknown member, passed over"),
        ({"limits": {}, "request": {}}, "$.request: unknown member, passed over; did you mean requests?"),
        ({"image": "x", "resource": {}}, "$.resource: unknown member, passed over; did you mean resources?"),
        ({"image": "x", "limits": {}}, "$.limits: unknown member, passed over; did you mean resources.limits?"),
        (
            {"containers": [{}], "initContainer": [{}]},
            "$.initContainer: unknown member, passed over; did you mean init",
        ),
        ({"containers": [{"resources": {}}], "resources": {"limit": {}}}, "$.resources.limit: "),
        ({"spec": {"containers": [{}], "runtimeClass": "x"}}, "did you mean runtimeClassName?"),
        ({"spec": {"containers": [{}], "initContainers": [{"Resources": {}}]}}, "$.spec.initContainers[0].Resources: "),
    ],
)
def test_a_member_that_means_nothing_is_named(document: dict[str, Any], remark: str) -> None:
    (found,) = said(document)
    assert remark in found


def test_members_of_usual_pods_are_taken_without_a_word() -> None:
    container = dict.fromkeys(
        (
            "args",
            "command",
            "env",
            "image",
            "lifecycle",
            "livenessProbe",
            "name",
            "ports",
            "resizePolicy",
            "restartPolicyRules",
        )
    )
    spec = dict.fromkeys(
        (
            *(
                "affinity",
                "dnsPolicy",
                "ephemeralContainers",
                "hostname",
                "hostNetwork",
                "imagePullSecrets",
                "nodeName",
            ),
            *("preemptionPolicy", "resourceClaims", "restartPolicy", "schedulerName", "securityContext", "tolerations"),
            *("terminationGracePeriodSeconds", "topologySpreadConstraints", "volumes"),
        )
    )
    resources = {"limits": {"nvidia.com/gpu": 1, "hugepages-2Mi": "2Mi", "memory": "1Mi"}, "claims": []}
    pod = {"apiVersion": "v1", "kind": "Pod", "spec": {**spec, "containers": [{**container, "resources": resources}]}}
    assert said(pod) == []


@pytest.mark.parametrize("name", ["cpus", "Memory", "gpu"])
def test_a_resource_without_a_definition_is_refused(name: str) -> None:
    (found,) = faults(pod_from_json(with_resources({"limits": {name: 1}})))
    assert found.startswith(f"container a: '{name}' is no resource, expected cpu, memory,")
