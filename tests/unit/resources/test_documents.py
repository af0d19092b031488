"""What a document says of itself: its kind, its operating system, members and amounts that mean nothing."""

from __future__ import annotations

from typing import Any

import pytest

from imagestore.errors import InvalidResourcesError
from imagestore.resources import Target
from imagestore.resources.documents import pod_in
from imagestore.resources.node import Node
from imagestore.resources.pod_reading import faults, pod_from_json
from imagestore.resources.pod_resources import plan, refusal
from imagestore.resources.remarks import remarks

SPEC: dict[str, Any] = {"containers": [{"name": "a", "resources": {"limits": {"cpu": "1"}}}]}
TEMPLATE = {"metadata": {"name": "t"}, "spec": SPEC}
DEPLOYMENT = {"kind": "Deployment", "spec": {"replicas": 2, "template": TEMPLATE}}


REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def expression(operator: str, *values: str, label: str = "kubernetes.io/os") -> dict[str, Any]:
    return {"key": label, "operator": operator, **({"values": [*values]} if values else {})}


def affine(*terms: list[dict[str, Any]]) -> dict[str, Any]:
    """Members of a spec that require one of these terms of a node."""
    required = {"nodeSelectorTerms": [{"matchExpressions": term} for term in terms]}
    return {"affinity": {"nodeAffinity": {REQUIRED: required}}}


def said(document: dict[str, Any]) -> list[str]:
    return [*remarks(document, pod_from_json(document))]


def with_resources(resources: object) -> dict[str, Any]:
    return {"kind": "Pod", "spec": {"containers": [{"name": "a", "resources": resources}]}}


def pod_with(*, spec: dict[str, Any] | None = None, **members: object) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Pod", "spec": {**SPEC, **(spec or {})}, **members}


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
    found = pod_in(document)
    assert (found.path, found.values) in ((path, TEMPLATE), (path, {"kind": "Pod", **TEMPLATE}))
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
        ({"nodeSelector": {"beta.kubernetes.io/os": "windows"}}, "windows"),
        ({"os": {"name": "linux"}, "nodeSelector": {"kubernetes.io/os": "windows"}}, "linux"),
        ({"nodeSelector": {"kubernetes.io/os": "plan9"}}, ""),
        ({"nodeSelector": {"kubernetes.io/arch": "windows"}}, ""),
        ({"nodeSelector": {"kubernetes.io/os": "linux", "beta.kubernetes.io/os": "windows"}}, ""),
        ({"os": None}, ""),
        (affine([expression("In", "windows")]), "windows"),
        (affine([expression("In", "windows", label="beta.kubernetes.io/os")]), "windows"),
        (affine([expression("NotIn", "windows")]), "linux"),
        (affine([expression("In", "windows", "linux")]), ""),
        (affine([expression("Exists")]), ""),
        (affine([expression("DoesNotExist")]), ""),
        (affine([expression("In", "linux")], [expression("In", "windows")]), ""),
        (affine([expression("In", "windows"), expression("Exists", label="a")], []), "windows"),
        (affine([expression("In", "windows")], [expression("In", "x", label="disk")]), ""),
        (affine([expression("In", "windows"), expression("NotIn", "windows")], [expression("In", "linux")]), "linux"),
        ({"affinity": {"nodeAffinity": {PREFERRED: [{"preference": {}, "weight": 1}], REQUIRED: None}}}, ""),
        ({**affine([expression("In", "windows")]), "os": {"name": "linux"}}, "linux"),
    ],
)
def test_a_pod_says_for_which_system_it_is(spec: dict[str, Any], os: str) -> None:
    pod = pod_from_json({"spec": {**SPEC, **spec}})
    assert pod.os == os
    for target in (Target("linux"), Target("windows")):
        assert (f"the pod is for {os}: a kubelet on" in refusal(pod, target)) is (os not in ("", target.os))


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"os": {"name": "windows"}}, "PodOSNotSupported"),
        ({"nodeSelector": {"kubernetes.io/os": "windows"}}, "PodOSSelectorNodeLabelDoesNotMatch"),
        (affine([expression("In", "windows")]), "NodeAffinity"),
    ],
)
def test_a_kubelet_of_another_system_has_its_reason(spec: dict[str, Any], reason: str) -> None:
    assert refusal(pod_from_json({"spec": {**SPEC, **spec}}), Target("linux")).endswith(f"({reason})")


NOWHERE = "matches no node, neither of linux nor of windows: no node can run this pod"


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        (
            {"os": {"name": "linux"}, "nodeSelector": {"kubernetes.io/os": "windows"}},
            "os.name linux and nodeSelector kubernetes.io/os: windows contradict each other: no node can run this pod",
        ),
        (
            {"os": {"name": "linux"}, **affine([expression("In", "windows")])},
            "os.name linux and required nodeAffinity (windows) contradict each other: no node can run this pod",
        ),
        (
            {"nodeSelector": {"kubernetes.io/os": "linux", "beta.kubernetes.io/os": "windows"}},
            "nodeSelector kubernetes.io/os: linux and nodeSelector beta.kubernetes.io/os: windows contradict each",
        ),
        ({"nodeSelector": {"kubernetes.io/os": "Windows"}}, f"nodeSelector kubernetes.io/os: Windows {NOWHERE}"),
        (affine([expression("In", "darwin")]), f"required nodeAffinity {NOWHERE}"),
    ],
)
def test_a_pod_that_no_node_can_run_is_named(spec: dict[str, Any], told: str) -> None:
    (found,) = said({"spec": {**SPEC, **spec}})
    assert found.startswith(told)


def test_what_agrees_is_taken_without_a_word() -> None:
    agreed = {"os": {"name": "windows"}, "nodeSelector": {"kubernetes.io/os": "windows"}}
    assert said({"spec": {**SPEC, **agreed, **affine([expression("In", "windows")])}}) == []
    # The API server refuses that, and so do we.
    assert said({"spec": {**SPEC, "os": {"name": "darwin"}}}) == []


@pytest.mark.parametrize(
    ("affinity", "path"),
    [
        ([], "$.spec.affinity: expected an object, got a list"),
        ({"nodeAffinity": "x"}, "$.spec.affinity.nodeAffinity: expected an object, got a text"),
        ({"nodeAffinity": {REQUIRED: []}}, f"$.spec.affinity.nodeAffinity.{REQUIRED}: expected an object"),
        (
            {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [1]}}},
            f"$.spec.affinity.nodeAffinity.{REQUIRED}.nodeSelectorTerms[0]: expected an object, got an integer",
        ),
    ],
)
def test_an_affinity_of_another_type_is_named(affinity: object, path: str) -> None:
    with pytest.raises(InvalidResourcesError) as caught:
        pod_from_json({"spec": {**SPEC, "affinity": affinity}})
    assert str(caught.value).startswith(path)


def test_a_system_that_no_pod_can_have_is_refused() -> None:
    with pytest.raises(InvalidResourcesError, match=r"pod: os.name is 'darwin', expected linux or windows"):
        plan(
            pod_from_json({"spec": {**SPEC, "os": {"name": "darwin"}}}), Target("linux"), node=Node(memory_bytes=2**30)
        )


@pytest.mark.parametrize(
    ("amounts", "place", "rest"),
    [
        ({"limits": {"memory": "128m"}}, "limits.memory is 128m", " (m is a thousandth); did you mean 128Mi?"),
        ({"requests": {"memory": "100m"}}, "requests.memory is 100m", " (m is a thousandth); did you mean 100Mi?"),
        ({"limits": {"ephemeral-storage": "1500m"}}, "limits.ephemeral-storage is 1500m", " (m is a thousandth); did"),
        ({"requests": {"memory": 0.5}}, "requests.memory is 0.5", ""),
        ({"limits": {"memory": " 0.5 "}}, "limits.memory is 0.5", ""),
        ({"limits": {"memory": "0.3Ki"}}, "limits.memory is 0.3Ki", ""),
        ({"limits": {"memory": "128u"}}, "limits.memory is 128u", " (u is a millionth)"),
        ({"limits": {"memory": "5n"}}, "limits.memory is 5n", " (n is a billionth)"),
        ({"limits": {"memory": "1.5m"}}, "limits.memory is 1.5m", " (m is a thousandth)"),
    ],
)
def test_a_fraction_of_a_byte_is_reported_as_written(amounts: dict[str, Any], place: str, rest: str) -> None:
    (found,) = said(with_resources(amounts))
    assert found.startswith(f"container a: {place}, which has a fraction of a byte{rest}")
    assert ("did you mean" in found) is ("did" in rest)


def test_what_is_refused_is_told_as_written() -> None:
    told = [*faults(pod_from_json(with_resources({"limits": {"cpu": "1.0"}, "requests": {"cpu": "1.50"}})))]
    assert told == ["container a: requests.cpu is 1.50, more than its limit 1.0"]
    (told_of_long,) = faults(pod_from_json(with_resources({"limits": {"cpu": f"-{'0' * 500}1"}})))
    assert len(told_of_long) < 200


def test_fractions_of_a_pods_own_amounts_are_reported() -> None:
    spec = {**SPEC, "resources": {"limits": {"memory": "1m"}}, "overhead": {"memory": "2m"}}
    assert [remark.partition(" is ")[0] for remark in said({"spec": spec})] == [
        "pod: limits.memory",
        "pod: overhead.memory",
    ]


@pytest.mark.parametrize("memory", ["128Mi", "1e3", "0.5Ki", "2000m", 0, None])
def test_whole_bytes_have_no_fraction(memory: object) -> None:
    told = said(with_resources({"limits": {"cpu": "1m", "memory": memory}}))
    assert not any("fraction" in each for each in told)


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


@pytest.mark.parametrize(
    ("document", "remark"),
    [
        (pod_with(spec={"hostPid": True}), "$.spec.hostPid: unknown member, passed over; did you mean hostPID?"),
        (pod_with(sepc={}), "$.sepc: unknown member, passed over; did you mean spec?"),
        (pod_with(containers=[]), "$.containers: unknown member, passed over; did you mean spec.containers?"),
        (pod_with(whatever=1), "$.whatever: unknown member, passed over"),
        (
            pod_with(metadata={"annotation": {}}),
            "$.metadata.annotation: unknown member, passed over; did you mean anno",
        ),
        (pod_with(spec={"os": {"nmae": "windows"}}), "$.spec.os.nmae: unknown member, passed over; did you mean name?"),
        (pod_with(spec={"nodeselector": {}}), "$.spec.nodeselector: unknown member, passed over; did you mean nodeSel"),
        (
            pod_with(spec={"affinity": {"nodeAffinity": {"requiredDuringScheduling": {}}}}),
            "$.spec.affinity.nodeAffinity.requiredDuringScheduling: unknown member, passed over",
        ),
        (
            pod_with(spec={"containers": [{"Image": "x"}]}),
            "$.spec.containers[0].Image: unknown member, passed over; did",
        ),
        (pod_with(spec={"limits": {}}), "$.spec.limits: unknown member, passed over; did you mean resources.limits?"),
        (pod_with(apiVersion="v2"), "$.apiVersion is 'v2': Kubernetes has Pod in v1"),
        (pod_with(apiVersion=1), "$.apiVersion is '1': Kubernetes has Pod in v1"),
        ({**pod_with(), "kind": "Pod", "apiVersion": "apps/v1"}, "$.apiVersion is 'apps/v1': Kubernetes has Pod in v1"),
    ],
)
def test_a_word_that_no_kubernetes_knows_is_named(document: dict[str, Any], remark: str) -> None:
    (found,) = said(document)
    assert found.startswith(remark)


@pytest.mark.parametrize(
    ("document", "told"),
    [
        ({**DEPLOYMENT, "apiVersion": "v1"}, ["$.apiVersion is 'v1': Kubernetes has Deployment in apps/v1"]),
        ({**DEPLOYMENT, "apiVersion": "apps/v1"}, []),
        ({"kind": "Rollout", "apiVersion": "argoproj.io/v1alpha1", "spec": {"template": TEMPLATE}}, []),
        (
            {"kind": "List", "apiVersion": "v2", "items": [{**DEPLOYMENT, "apiVersion": "extensions/v1beta1"}]},
            [
                "$.apiVersion is 'v2': Kubernetes has List in v1",
                "$.items[0].apiVersion is 'extensions/v1beta1': Kubernetes has Deployment in apps/v1",
            ],
        ),
    ],
)
def test_a_version_without_the_kind_is_named(document: dict[str, Any], told: list[str]) -> None:
    assert [remark for remark in said(document) if "the numbers are those of" not in remark] == told


@pytest.mark.parametrize(
    ("document", "told"),
    [
        ({"kind": "Pod", "sepc": SPEC}, "or its resources; 'sepc' is none; did you mean spec?"),
        ({"contianers": []}, "'contianers' is none; did you mean containers?"),
        ({"kind": "pod", "spec": SPEC}, "kind 'pod' is no pod, and has no pod template; did you mean Pod?"),
        ({"kind": "Deployment", "sepc": {}}, "has no pod template; unknown member $.sepc; did you mean spec?"),
        (
            {"kind": "Deployment", "spec": {"tempalte": TEMPLATE}},
            "has no pod template; unknown member $.spec.tempalte; did you mean template?",
        ),
        ({"kind": "Service", "spec": {}}, "kind 'Service' is no pod, and has no pod template"),
    ],
)
def test_a_slip_that_hides_the_pod_is_named(document: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidResourcesError) as caught:
        pod_from_json(document)
    assert str(caught.value).endswith(told)


@pytest.mark.parametrize("name", ["cpus", "Memory", "gpu"])
def test_a_resource_without_a_definition_is_refused(name: str) -> None:
    (found,) = faults(pod_from_json(with_resources({"limits": {name: 1}})))
    assert found.startswith(f"container a: '{name}' is no resource, expected cpu, memory,")


@pytest.mark.parametrize(
    ("name", "amount", "told"),
    [
        ("memory", "128m", "which has a fraction of a byte (m is a thousandth); did you mean 128Mi?"),
        ("memory", "2000m", "less than 1Mi; did you mean 2000Mi?"),
        ("memory", 1, "which is bytes without a unit; did you mean 1Gi?"),
        ("memory", "512", "which is bytes without a unit; did you mean 512Mi?"),
        ("memory", "64k", "less than 1Mi; did you mean 64Mi?"),
        ("memory", "1e3", "less than 1Mi"),
        ("memory", "2Pi", "more than any machine has"),
        ("ephemeral-storage", "10", "which is bytes without a unit; did you mean 10Gi?"),
        ("cpu", 500, "which is whole processors without a unit; did you mean 500m?"),
        ("cpu", "500M", "more than a container can use; did you mean 500m?"),
        ("cpu", "1k", "more than a container can use"),
    ],
)
def test_absurd_amounts_are_reported_with_what_was_probably_meant(name: str, amount: object, told: str) -> None:
    assert said(with_resources({"limits": {name: amount}})) == [f"container a: limits.{name} is {amount}, {told}"]


@pytest.mark.parametrize(
    ("name", "amount"), [("memory", "1Mi"), ("memory", 0), ("memory", "1048576"), ("cpu", 99), ("cpu", "99999m")]
)
def test_small_and_large_amounts_that_may_be_meant_are_not_reported(name: str, amount: object) -> None:
    assert said(with_resources({"limits": {name: amount}})) == []
