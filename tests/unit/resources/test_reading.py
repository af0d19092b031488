"""Pods from JSON, and what the API server would refuse; the package's imports."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from imagestore.errors import InvalidInputError, InvalidQuantityError, InvalidResourcesError
from imagestore.resources import pod_reading
from imagestore.resources.pod import Pod, container_requests, with_defaults
from imagestore.util.quantity import ZERO, Quantity
from tests.unit.resources.pods import container, init, needs, pod

POD = {
    "metadata": {"name": "web", "annotations": {"kubernetes.io/config.source": "file"}},
    "spec": {
        "priority": 7,
        "priorityClassName": "high",
        "overhead": {"cpu": "10m"},
        "resources": {"limits": {"cpu": 2}},
        "initContainers": [{"name": "i", "restartPolicy": "Always", "resources": {"requests": {"memory": "1Gi"}}}],
        "containers": [{"name": "c", "image": "x", "resources": {"requests": {"cpu": 0.5}, "limits": {"cpu": " 1 "}}}],
    },
}


def test_a_pod_is_read_whole() -> None:
    found = pod_reading.pod_from_json(POD)
    assert (found.name, found.priority, found.priority_class, found.is_critical) == ("web", 7, "high", True)
    assert found.overhead == {"cpu": Quantity.parse("10m")}
    assert found.resources == needs("", "cpu=2")
    assert found.containers[0].resources == needs("cpu=500m", "cpu=1")
    sidecar = found.init_containers[0]
    assert (sidecar.name, sidecar.is_sidecar, sidecar.resources) == ("i", True, needs("memory=1Gi"))


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (POD["spec"], needs("cpu=500m", "cpu=1")),
        ({"name": "c", "image": "x"}, needs()),
        ({"resources": {"limits": {"cpu": "1"}}}, needs("", "cpu=1")),
        ({"requests": {"cpu": "1"}}, needs("cpu=1")),
        ({"limits": {}}, needs()),
        ({"spec": {"containers": [{"resources": None}]}, "metadata": None}, needs()),
    ],
)
def test_a_spec_a_container_or_its_resources_will_do(document: dict[str, object], expected: object) -> None:
    assert pod_reading.pod_from_json(document).containers[0].resources == expected


def test_a_quantity_of_null_is_there_and_is_zero_as_for_the_api_server() -> None:
    document = {
        "initContainers": [{"resources": {"limits": {"cpu": None}}}],
        "containers": [{"resources": {"requests": {"cpu": None}, "limits": {"cpu": "1", "memory": None}}}],
        "overhead": {"cpu": None},
    }
    found = pod_reading.pod_from_json(document)
    assert found.overhead == {"cpu": ZERO}
    pod_reading.check(found)
    stored = with_defaults(found)
    assert stored.containers[0].resources == needs("memory=0 cpu=0", "cpu=1 memory=0")
    assert stored.init_containers[0].resources == needs("cpu=0", "cpu=0")


def test_a_limit_of_null_is_below_any_request() -> None:
    given = pod_reading.pod_from_json({"requests": {"memory": "1Gi"}, "limits": {"memory": None}})
    assert list(pod_reading.faults(given)) == ["container 0: requests.memory is 1Gi, more than its limit 0"]


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({}, "expected a pod"),
        ({"kind": "Pod"}, "expected a pod"),
        ({"spec": 5}, r"\$.spec: expected an object, got an integer"),
        ({"containers": {}, "spec": []}, r"\$.spec: expected an object"),
        ({"containers": {"a": 1}}, r"\$.containers: expected a list"),
        ({"containers": ["x"]}, r"\$.containers\[0\]: expected an object"),
        ({"containers": [{"name": 5}]}, r"\$.containers\[0\].name: expected a text"),
        ({"containers": [{"resources": []}] * 2}, r"resources: expected an object, got a list"),
        ({"limits": {"cpu": True}}, r"\$.limits.cpu: expected a quantity, got true or false"),
        ({"limits": {"cpu": []}}, r"\$.limits.cpu: expected a quantity, got a list"),
        ({"limits": {"cpu": "1x"}}, r"quantity '1x': \$.limits.cpu: expected a number"),
        ({"containers": [], "priority": True}, "priority: expected an integer"),
        ({"containers": [], "priority": "1"}, "priority: expected an integer"),
        ({"containers": [{}] * 1001}, "at most 1000 are allowed"),
        ({"spec": {}, "metadata": {"annotations": {"a": 1}}}, "annotations.a: expected a text"),
    ],
)
def test_documents_of_another_shape_are_refused_with_the_path(document: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidInputError, match=said) as caught:
        pod_reading.pod_from_json(document)
    assert isinstance(caught.value, InvalidResourcesError | InvalidQuantityError)


@pytest.mark.parametrize(
    ("given", "faults"),
    [
        (pod(container("cpu=1 memory=1Gi", "cpu=1 memory=1Gi")), []),
        (pod(container("cpu=2", "cpu=1")), ["container c: requests.cpu is 2, more than its limit 1"]),
        (pod(container("cpu=-1")), ["container c: requests.cpu is -1, expected 0 or more"]),
        (pod(container("", "memory=-1n")), ["container c: limits.memory is -1n, expected 0 or more"]),
        (
            pod(container("cpu=1 hugepages-2Mi=2Mi", "hugepages-2Mi=4Mi")),
            ["container c: requests.hugepages-2Mi is 2Mi, expected the limit, 4Mi"],
        ),
        (
            pod(container("cpu=1 hugepages-2Mi=2Mi")),
            ["container c: requests.hugepages-2Mi is 2Mi, expected the limit, which is missing"],
        ),
        (
            pod(container(), resources=needs("cpu=2 x/y=1", "cpu=1")),
            [
                "pod: requests.cpu is 2, more than its limit 1",
                "pod: x/y can't be a resource of the pod itself, only of its containers",
            ],
        ),
    ],
)
def test_what_the_api_server_would_refuse(given: Pod, faults: list[str]) -> None:
    assert list(pod_reading.faults(given)) == faults
    if faults:
        with pytest.raises(InvalidResourcesError, match=re.escape(faults[0])):
            pod_reading.check(given)
    else:
        pod_reading.check(given)


NO_SIZE = "expected a page size in its name that is a whole number of bytes above 0, such as 2Mi"
ALONE = "has neither cpu nor memory next to it, expected one of them too"


@pytest.mark.parametrize(
    ("given", "faults"),
    [
        (pod(container("", "memory=1Gi hugepages-2Mi=4Mi hugepages-1Gi=0")), []),
        (pod(container("cpu=1", "hugepages-2Mi=4194303500m")), []),
        (pod(container("cpu=0 hugepages-2Mi=2Mi", "hugepages-2Mi=2Mi")), []),
        (
            pod(container("", "memory=1Gi hugepages-2Mi=3Mi")),
            ["container c: limits.hugepages-2Mi is 3Mi, expected a multiple of the page size, such as 4Mi"],
        ),
        (
            pod(container(), init_containers=(init("", "memory=1Gi hugepages-1M=1"),)),
            ["init container i: limits.hugepages-1M is 1, expected a multiple of the page size, such as 1M"],
        ),
        (
            pod(container("", "memory=1Gi hugepages-2Mi=1e400")),
            [f"container c: limits.hugepages-2Mi is 10e399, expected at most {2**63 - 1}"],
        ),
        (
            pod(container("", "memory=1Gi hugepages-2Mi=-2Mi")),
            ["container c: limits.hugepages-2Mi is -2Mi, expected 0 or more"],
        ),
        *(
            (
                pod(container("", f"memory=1Gi hugepages-{size}=0")),
                [f"container c: limits.hugepages-{size} is 0, {NO_SIZE}"],
            )
            for size in ("0", "-2Mi", "", "x", "1500m", "0.5", "1e400", "1n")
        ),
        (
            pod(container("hugepages-2Mi=4Mi x/y=1", "hugepages-2Mi=4Mi x/y=1")),
            [f"container c: requests.hugepages-2Mi {ALONE}"],
        ),
        (pod(container("", "hugepages-2Mi=4Mi")), [f"container c: limits.hugepages-2Mi {ALONE}"]),
        (
            pod(container("cpu=1", "hugepages-2Mi=4Mi"), resources=needs("", "hugepages-2Mi=4Mi")),
            [f"pod: limits.hugepages-2Mi {ALONE}"],
        ),
    ],
)
def test_huge_pages_that_the_api_server_would_refuse(given: Pod, faults: list[str]) -> None:
    assert list(pod_reading.faults(given)) == faults


@pytest.mark.parametrize(
    ("overhead", "faults"),
    [
        ("cpu=250m memory=120Mi hugepages-2Mi=2Mi x/y=1", []),
        (
            "memory=-2Gi cpu=-3",
            ["pod: overhead.memory is -2Gi, expected 0 or more", "pod: overhead.cpu is -3, expected 0 or more"],
        ),
        ("x/y=-1", ["pod: overhead.x/y is -1, expected 0 or more"]),
        (
            "cpu=1 hugepages-2Mi=1Mi",
            ["pod: overhead.hugepages-2Mi is 1Mi, expected a multiple of the page size, such as 2Mi"],
        ),
        ("hugepages-2Mi=2Mi", [f"pod: overhead.hugepages-2Mi {ALONE}"]),
    ],
)
def test_overhead_is_checked_as_limits_are(overhead: str, faults: list[str]) -> None:
    assert list(pod_reading.faults(pod(container(), overhead=overhead))) == faults


def test_the_package_needs_the_standard_library_alone() -> None:
    code = (
        "import sys, pkgutil, imagestore.resources as package\nfrom importlib import import_module\n"
        "for each in pkgutil.iter_modules(package.__path__): import_module(f'{package.__name__}.{each.name}')\n"
        "own = {name for name in sys.modules if name.partition('.')[0] == 'imagestore'}\n"
        "strangers = {name.partition('.')[0] for name in sys.modules} - set(sys.stdlib_module_names) - {'imagestore'}\n"
        "print(sorted(name for name in own if not name.startswith('imagestore.resources')))\n"
        "print(sorted(strangers & {'httpx', 'jsonschema', 'click', 'rich', 'sqlite3', 'grpc', 'google'}))\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert ran.stdout.splitlines() == [
        str(
            [
                "imagestore",
                *(
                    f"imagestore.{name}"
                    for name in (
                        "errors",
                        "util",
                        "util.known_members",
                        "util.logins",
                        "util.members",
                        "util.quantity",
                        "util.text",
                    )
                ),
            ]
        ),
        "[]",
    ]


def test_amounts_are_rounded_up_to_a_thousandth_each_before_they_are_added() -> None:
    containers = [{"resources": {"requests": {"cpu": "0.5m"}, "limits": {"cpu": "500001n"}}}] * 10
    pod = pod_reading.pod_from_json({"containers": containers})
    assert [str(each.resources.requests["cpu"]) for each in pod.containers] == ["1m"] * 10
    assert [str(each.resources.limits["cpu"]) for each in pod.containers] == ["1m"] * 10
    assert str(container_requests(pod)["cpu"]) == "10m"
