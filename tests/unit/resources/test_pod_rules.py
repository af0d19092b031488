"""Defaults, totals, QoS class, OOM score and the pod's own control group."""

from __future__ import annotations

import pytest

from imagestore.errors import InvalidResourcesError
from imagestore.resources import pod_reading
from imagestore.resources.linux import PodCgroup, pod_cgroup
from imagestore.resources.node import CgroupVersion, KubeletSettings, MemoryReservationPolicy, Node
from imagestore.resources.pod import Pod, Requirements, pod_limits, pod_requests, with_defaults
from imagestore.resources.qos import QosClass, oom_score_adjust, qos_class
from imagestore.util.quantity import Quantity
from tests.unit.resources.pods import container, init, needs, pod

GUARANTEED, BURSTABLE, BEST_EFFORT = QosClass.GUARANTEED, QosClass.BURSTABLE, QosClass.BEST_EFFORT
EQUAL = container("cpu=1 memory=1Gi", "cpu=1 memory=1Gi")

CLASSES = {
    "nothing": (pod(container()), BEST_EFFORT),
    "no containers": (pod(), BEST_EFFORT),
    "zeros count for nothing": (pod(container("cpu=0 memory=0", "cpu=0")), BEST_EFFORT),
    "other resources count for nothing": (pod(container("ephemeral-storage=1Gi", "hugepages-2Mi=2Mi")), BEST_EFFORT),
    "equal": (pod(EQUAL), GUARANTEED),
    "equal in other words": (pod(container("cpu=1000m memory=1024Mi", "cpu=1 memory=1Gi")), GUARANTEED),
    "equal with others": (pod(container("cpu=1 memory=1Gi x/y=1", "cpu=1 memory=1Gi x/y=1")), GUARANTEED),
    "two equal": (pod(EQUAL, EQUAL), GUARANTEED),
    "equal sums but not alike": (
        pod(
            container("cpu=1 memory=1Gi", "cpu=2 memory=1Gi"),
            container("cpu=2 memory=1Gi", "cpu=1 memory=1Gi"),
        ),
        GUARANTEED,
    ),
    "one without limits": (pod(EQUAL, container()), BURSTABLE),
    "limits only, before defaults": (pod(container("", "cpu=1 memory=1Gi")), BURSTABLE),
    "memory only": (pod(container("memory=1Gi", "memory=1Gi")), BURSTABLE),
    "cpu only": (pod(container("cpu=1", "cpu=1")), BURSTABLE),
    "request below limit": (pod(container("cpu=1 memory=1Gi", "cpu=2 memory=1Gi")), BURSTABLE),
    "request only": (pod(container("cpu=1")), BURSTABLE),
    "zero limit of memory": (pod(container("cpu=1 memory=0", "cpu=1 memory=0")), BURSTABLE),
    "init container without": (pod(EQUAL, init_containers=(init(),)), BURSTABLE),
    "init container equal": (pod(EQUAL, init_containers=(init("cpu=2 memory=1Gi", "cpu=2 memory=1Gi"),)), GUARANTEED),
    "only an init container": (pod(container(), init_containers=(init("cpu=1"),)), BURSTABLE),
    "the pod's own, equal": (pod(container(), resources=needs("cpu=1 memory=1Gi", "cpu=1 memory=1Gi")), GUARANTEED),
    "the pod's own, requests": (pod(EQUAL, resources=needs("cpu=1 memory=1Gi")), BURSTABLE),
    "the pod's own, one limit": (pod(EQUAL, resources=needs("cpu=1", "cpu=1")), BURSTABLE),
    "the pod's own, empty": (pod(EQUAL, resources=needs()), BEST_EFFORT),
}


@pytest.mark.parametrize(("given", "expected"), CLASSES.values(), ids=CLASSES)
def test_the_class_is_decided_by_cpu_and_memory_of_all_containers(given: Pod, expected: QosClass) -> None:
    assert qos_class(given) is expected


def test_missing_requests_take_the_limits_and_explicit_ones_stay() -> None:
    given = pod(container("cpu=0", "cpu=1 memory=1Gi hugepages-2Mi=4Mi"), init_containers=(init("", "cpu=2"),))
    filled = with_defaults(given)
    assert filled.containers[0].resources.requests == needs("cpu=0 memory=1Gi hugepages-2Mi=4Mi").requests
    assert filled.init_containers[0].resources.requests == needs("cpu=2").requests
    assert qos_class(with_defaults(pod(container("", "cpu=1 memory=1Gi")))) is GUARANTEED


def test_the_pods_own_requests_default_to_its_containers_then_to_its_limits() -> None:
    given = pod(
        container("cpu=1 ephemeral-storage=1Gi", "cpu=1"),
        container("cpu=500m"),
        resources=needs("", "cpu=4 memory=8Gi"),
    )
    own = with_defaults(given).resources
    assert own is not None
    assert own.requests == needs("cpu=1500m memory=8Gi").requests
    asked = with_defaults(pod(container("cpu=1"), resources=needs("cpu=3", "cpu=4"))).resources
    assert asked is not None
    assert asked.requests == needs("cpu=3").requests
    assert with_defaults(pod(container("cpu=1"), resources=needs("memory=1Gi"))).resources == needs("memory=1Gi")


@pytest.mark.parametrize(
    ("own", "requests", "limits"),
    [
        (needs("", "cpu=2"), "cpu=1 hugepages-2Mi=4Mi", "cpu=2 hugepages-2Mi=4Mi"),
        (needs("", "cpu=2 hugepages-2Mi=8Mi"), "cpu=1 hugepages-2Mi=8Mi", "cpu=2 hugepages-2Mi=8Mi"),
        (needs("cpu=2"), "cpu=2 hugepages-2Mi=4Mi", "hugepages-2Mi=4Mi"),
    ],
)
def test_the_pods_own_huge_pages_default_to_what_its_containers_may_have(
    own: Requirements, requests: str, limits: str
) -> None:
    given = with_defaults(pod(container("cpu=1", "hugepages-2Mi=4Mi"), container(), resources=own))
    assert given.resources == needs(requests, limits)
    assert list(pod_reading.faults(given)) == []


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        (
            pod(container("memory=1Gi"), container("memory=2Gi"), resources=needs("memory=1Gi")),
            "pod: requests.memory is 1Gi, less than its containers' 3Gi",
        ),
        (
            pod(container("memory=1Mi", "memory=2Gi"), resources=needs("", "memory=1Gi")),
            "container c: limits.memory is 2Gi, more than its pod's 1Gi",
        ),
    ],
)
def test_a_pod_has_what_its_containers_ask_for(given: Pod, fault: str) -> None:
    assert list(pod_reading.faults(given)) == [fault]


@pytest.mark.parametrize(
    ("given", "cpu"),
    [
        (pod(container("cpu=1"), container("cpu=2")), "3"),
        (pod(container("cpu=1"), init_containers=(init("cpu=5"), init("cpu=4"))), "5"),
        (pod(container("cpu=7"), init_containers=(init("cpu=5"),)), "7"),
        (pod(container("cpu=1"), init_containers=(init("cpu=2", is_sidecar=True),)), "3"),
        (pod(container("cpu=1"), init_containers=(init("cpu=2", is_sidecar=True), init("cpu=9"))), "11"),
        (pod(container("cpu=1"), init_containers=(init("cpu=9"), init("cpu=2", is_sidecar=True))), "9"),
        (pod(container("cpu=1"), overhead="cpu=250m"), "1250m"),
        (pod(container("cpu=1"), resources=needs("cpu=8")), "8"),
        (pod(container("cpu=1"), resources=needs("cpu=8"), overhead="cpu=1"), "9"),
        (pod(container("cpu=1"), resources=needs("memory=1Gi")), "1"),
    ],
)
def test_requests_of_a_pod(given: Pod, cpu: str) -> None:
    assert pod_requests(given)["cpu"] == Quantity.parse(cpu)


def test_overhead_is_added_to_limits_only_where_there_is_one() -> None:
    assert pod_limits(pod(container("", "cpu=1 memory=0"), overhead="cpu=1 memory=1Gi x/y=1")) == {
        "cpu": Quantity.parse("2"),
        "memory": Quantity.parse("0"),
    }
    assert pod_limits(pod(container("", "cpu=1"), resources=needs("", "cpu=3"))) == {"cpu": Quantity.parse("3")}


GIGABYTE = 10**9
SCORES = [
    ("best effort", pod(container()), 1000),
    ("guaranteed", pod(EQUAL), -997),
    ("node critical", pod(container("cpu=1"), priority_class="system-node-critical"), -997),
    ("cluster critical is ordinary", pod(container("cpu=1"), priority_class="system-cluster-critical"), 999),
    ("cpu only", pod(container("cpu=1")), 999),
    ("a tenth", pod(container("memory=800M")), 900),
    ("half", pod(container("memory=4G", "memory=5G")), 500),
    ("less than a thousandth", pod(container("memory=7M")), 999),
    ("all but one byte", pod(container("memory=7999999999")), 3),
    ("more than all", pod(container("memory=80G")), 3),
    ("pod-level", pod(container("memory=1G"), container(), resources=needs("memory=5G")), 625),
    (
        "pod-level counts init containers",
        pod(container("memory=1G"), init_containers=(init(),), resources=needs("memory=5G")),
        625,
    ),
    ("pod-level without memory", pod(container("memory=1G"), resources=needs("cpu=1")), 875),
    ("pod-level below the containers", pod(container("memory=4G"), resources=needs("memory=2G")), 750),
]


@pytest.mark.parametrize(("given", "score"), [row[1:] for row in SCORES], ids=[row[0] for row in SCORES])
def test_the_score_falls_with_the_memory_request(given: Pod, score: int) -> None:
    assert oom_score_adjust(given, given.containers[0], node_memory_bytes=8 * GIGABYTE) == score


@pytest.mark.parametrize(
    ("sidecar", "regular", "score"),
    [("memory=1G", ("memory=4G", "memory=2G"), 750), ("memory=4G", ("memory=2G",), 500), ("", ("memory=1G", ""), 999)],
)
def test_a_sidecar_is_killed_no_sooner_than_the_smallest_container(
    sidecar: str, regular: tuple[str, ...], score: int
) -> None:
    helper = init(sidecar, is_sidecar=True)
    given = pod(*(container(each) for each in regular), init_containers=(helper,))
    assert oom_score_adjust(given, helper, node_memory_bytes=8 * GIGABYTE) == score


def test_an_ordinary_init_container_has_its_own_score() -> None:
    first = init("memory=1G")
    given = pod(container("memory=4G"), init_containers=(first,))
    assert oom_score_adjust(given, first, node_memory_bytes=8 * GIGABYTE) == 875


def test_a_burstable_score_needs_the_nodes_memory() -> None:
    given = pod(container("memory=1G"))
    with pytest.raises(InvalidResourcesError, match="node memory 0"):
        oom_score_adjust(given, given.containers[0], node_memory_bytes=0)


@pytest.mark.parametrize(
    ("given", "is_critical"),
    [
        (pod(), False),
        (pod(priority=2 * 10**9), True),
        (pod(priority=2 * 10**9 - 1), False),
        (pod(priority_class="system-cluster-critical"), True),
        (pod(annotations={"kubernetes.io/config.source": "file"}), True),
        (pod(annotations={"kubernetes.io/config.source": "api"}), False),
        (pod(annotations={"kubernetes.io/config.mirror": "x"}), True),
    ],
)
def test_critical_pods(given: Pod, is_critical: bool) -> None:
    assert given.is_critical is is_critical


NODE = Node(memory_bytes=8 * GIGABYTE)
LIMITED = container("cpu=100m memory=100Mi", "cpu=200m memory=200Mi")
SIDECAR = init("cpu=50m memory=50Mi", "cpu=100m memory=50Mi", is_sidecar=True)
GROUPS = {
    "best effort": (pod(container()), PodCgroup(2)),
    "guaranteed": (pod(EQUAL), PodCgroup(1024, 100_000, 100_000, 2**30)),
    "burstable with all limits": (pod(LIMITED), PodCgroup(102, 20_000, 100_000, 200 * 2**20)),
    "burstable, one without limits": (pod(LIMITED, container("cpu=100m")), PodCgroup(204)),
    "burstable, one without a memory limit": (
        pod(LIMITED, container("cpu=100m", "cpu=100m")),
        PodCgroup(204, 30_000, 100_000),
    ),
    "an init container without limits": (pod(LIMITED, init_containers=(init("cpu=50m"),)), PodCgroup(102)),
    "an init container without limits after a sidecar with them": (
        pod(LIMITED, init_containers=(SIDECAR, init())),
        PodCgroup(153, 30_000, 100_000, 250 * 2**20),
    ),
    "an init container without limits before a sidecar with them": (
        pod(LIMITED, init_containers=(init(), SIDECAR)),
        PodCgroup(153),
    ),
    "a sidecar without limits after one with them": (
        pod(LIMITED, init_containers=(SIDECAR, init(is_sidecar=True))),
        PodCgroup(153, 30_000, 100_000, 250 * 2**20),
    ),
    "a sidecar without limits before one with them": (
        pod(LIMITED, init_containers=(init(is_sidecar=True), SIDECAR)),
        PodCgroup(153),
    ),
    "an init container without limits after a sidecar with one of cpu": (
        pod(LIMITED, init_containers=(init("cpu=50m", "cpu=100m", is_sidecar=True), init())),
        PodCgroup(153, 30_000, 100_000),
    ),
    "sidecars with limits beside a container without": (
        pod(container("cpu=100m"), init_containers=(SIDECAR, init())),
        PodCgroup(153),
    ),
    "limits of the pod itself": (
        pod(container("cpu=100m"), resources=needs("cpu=100m", "cpu=1 memory=1Gi")),
        PodCgroup(102, 100_000, 100_000, 2**30),
    ),
    "huge pages are summed by size": (
        pod(container("cpu=1 hugepages-2Mi=4Mi hugepages-2048Ki=2Mi", ""), container("hugepages-1Gi=1Gi")),
        PodCgroup(1024, huge_page_limits={2 * 2**20: 6 * 2**20, 2**30: 2**30}),
    ),
}


@pytest.mark.parametrize(("given", "expected"), GROUPS.values(), ids=GROUPS)
def test_the_pods_own_group(given: Pod, expected: PodCgroup) -> None:
    assert pod_cgroup(given, node=NODE, settings=KubeletSettings()) == expected


def test_what_is_written_for_a_pod_is_shown_by_name_and_what_is_not_set_is_left_out() -> None:
    whole = PodCgroup(1024, 50_000, 100_000, 7, {2 * 2**20: 3}, {"memory.min": "7"})
    assert whole.to_json() == {
        "cpu_shares": 1024,
        "cpu_quota": 50_000,
        "cpu_period": 100_000,
        "memory_bytes": 7,
        "huge_page_limits": {"2MB": 3},
        "unified": {"memory.min": "7"},
    }
    assert PodCgroup(2).to_json() == {"cpu_shares": 2, "huge_page_limits": {}, "unified": {}}


def test_without_quotas_the_pods_group_has_no_limit_of_cpu() -> None:
    found = pod_cgroup(pod(EQUAL), node=NODE, settings=KubeletSettings(has_cpu_quota=False))
    assert (found.cpu_quota, found.cpu_period) == (-1, 100_000)


@pytest.mark.parametrize(
    ("given", "policy", "unified"),
    [
        (pod(EQUAL), MemoryReservationPolicy.TIERED, {"memory.min": str(2**30)}),
        (pod(LIMITED), MemoryReservationPolicy.TIERED, {"memory.low": str(100 * 2**20)}),
        (pod(LIMITED), MemoryReservationPolicy.REQUEST, {"memory.min": str(100 * 2**20)}),
        (pod(LIMITED), MemoryReservationPolicy.NONE, {}),
        (pod(container("cpu=1")), MemoryReservationPolicy.TIERED, {}),
    ],
)
def test_memory_of_a_pod_is_protected_by_its_class(
    given: Pod, policy: MemoryReservationPolicy, unified: dict[str, str]
) -> None:
    settings = KubeletSettings(has_memory_qos=True, memory_reservation=policy)
    assert pod_cgroup(given, node=NODE, settings=settings).unified == unified
    older = Node(memory_bytes=8 * GIGABYTE, cgroup=CgroupVersion.V1)
    assert pod_cgroup(given, node=older, settings=settings).unified == {}


def test_with_the_gate_off_the_pods_own_resources_are_not_seen() -> None:
    given = pod(LIMITED, resources=needs("cpu=4", "cpu=4"))
    settings = KubeletSettings(has_pod_level_resources=False)
    assert pod_cgroup(given, node=NODE, settings=settings) == PodCgroup(102, 20_000, 100_000, 200 * 2**20)
