"""A container started by runc with our OCI resources has our numbers in its control group files."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from imagestore.resources import (
    CgroupVersion,
    ContainerPlan,
    LinuxContainerResources,
    Node,
    Target,
    WeightFormula,
    oci_spec,
    pod_from_json,
)
from imagestore.resources.cgroup import shares_to_weight
from imagestore.resources.pod_resources import plan
from tests.support.peers import need

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.integration

GIBIBYTE = 2**30

CONTAINERS = {
    "guaranteed": {"limits": {"cpu": "250m", "memory": "64Mi"}},
    "burstable": {"requests": {"cpu": "1500m", "memory": "16Mi"}, "limits": {"cpu": "1.7", "memory": "48Mi"}},
    "request of one thousandth": {"requests": {"cpu": "1m"}},
    "limit below the kernel's smallest quota": {"limits": {"cpu": "1m", "memory": "20M"}},
    "best effort": {"limits": {"nvidia.com/gpu": "0"}},
    "more than the largest shares": {"requests": {"cpu": "300"}},
}


def groups_of_machine() -> CgroupVersion:
    """Which version the machine has mounted where runtimes look."""
    return CgroupVersion.V2 if Path("/sys/fs/cgroup/cgroup.controllers").exists() else CgroupVersion.V1


def has_swap_files() -> bool:
    """Whether the memory controller of version 1 counts swap; on version 2 a runtime copes by itself."""
    return groups_of_machine() is CgroupVersion.V2 or Path("/sys/fs/cgroup/memory/memory.memsw.usage_in_bytes").exists()


def possible_oom_score(wanted: int) -> int:
    """The wanted score, or this process's own where the machine doesn't let us go below it."""
    own = Path("/proc/self/oom_score_adj").read_text()
    lower = ["sh", "-c", f"echo {wanted} > /proc/self/oom_score_adj"]
    is_allowed = subprocess.run(lower, check=False, capture_output=True).returncode == 0
    return wanted if is_allowed else max(wanted, int(own))


def planned(requirements: dict[str, Any]) -> ContainerPlan:
    node = Node(
        memory_bytes=4 * GIBIBYTE, processors=4, cgroup=groups_of_machine(), has_swap_controller=has_swap_files()
    )
    return plan(pod_from_json(requirements), Target("linux"), node=node).containers[0]


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A bundle whose root holds one static program, and the configuration that runc itself proposes."""
    folder = tmp_path / "bundle"
    (folder / "rootfs").mkdir(parents=True)
    program = Path(need("busybox"))
    is_static = b"/ld-linux" not in program.read_bytes()
    assert is_static, f"{program} needs a loader that the container lacks; install busybox-static"
    shutil.copy(program, folder / "rootfs" / "sleep")
    subprocess.run([need("runc"), "spec"], cwd=folder, check=True)
    return folder


def configure(bundle: Path, name: str, wanted: ContainerPlan | None) -> dict[str, Any]:
    """Put a program and, if given, our resources into the bundle's configuration."""
    path = bundle / "config.json"
    config: dict[str, Any] = json.loads(path.read_text())
    config["process"].update(args=["/sleep", "300"], terminal=False)
    config["linux"]["cgroupsPath"] = f"/{name}"
    if wanted is not None:
        assert isinstance(wanted.cri, LinuxContainerResources)
        base = config["linux"]["resources"]
        config["linux"]["resources"] = oci_spec.linux_resources(
            wanted.cri, base=base, has_swap_controller=has_swap_files(), hugetlb=oci_spec.HugetlbController.DISABLED
        )
        config["process"]["oomScoreAdj"] = possible_oom_score(wanted.cri.oom_score_adj)
    path.write_text(json.dumps(config))
    return config


@contextlib.contextmanager
def started(bundle: Path, name: str) -> Iterator[int]:
    """A detached container's process id; raises CalledProcessError where no container can be started."""
    base = [need("runc"), "--root", str(bundle.parent / "state")]
    try:
        with (bundle.parent / "output").open("wb") as output:
            subprocess.run(
                [*base, "run", "--detach", "--bundle", str(bundle), name],
                check=True,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                timeout=60,
            )
        state = subprocess.run([*base, "state", name], check=True, capture_output=True, timeout=60)
        yield int(json.loads(state.stdout)["pid"])
    finally:
        subprocess.run([*base, "delete", "--force", name], check=False, capture_output=True, timeout=60)


def group_folder(pid: int, controller: str) -> Path:
    """Where the kernel keeps a process's control group of one controller (version 2 has one for all)."""
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return Path(f"/sys/fs/cgroup/{controllers}{path}")
        if controllers == "" and groups_of_machine() is CgroupVersion.V2:
            return Path(f"/sys/fs/cgroup{path}")
    raise AssertionError(f"process {pid} is in no control group of {controller}")


@pytest.fixture
def start(bundle: Path) -> Callable[[str], contextlib.AbstractContextManager[int]]:
    """Starts the bundle; where even a bundle without resources can't be started, the test has nothing to say."""
    if os.geteuid() != 0:
        pytest.skip("starting containers with control groups needs root")
    name = f"imagestore-probe-{uuid.uuid4().hex}"
    configure(bundle, name, None)
    try:
        with started(bundle, name):
            pass
    except subprocess.CalledProcessError:
        said = (bundle.parent / "output").read_text()[-300:]
        pytest.skip(f"runc can't start any container here: {said}")
    return lambda name: started(bundle, name)


@pytest.mark.parametrize("requirements", CONTAINERS.values(), ids=CONTAINERS)
def test_a_started_container_has_our_numbers(
    start: Callable[[str], contextlib.AbstractContextManager[int]], bundle: Path, requirements: dict[str, Any]
) -> None:
    wanted = planned(requirements)
    name = f"imagestore-{uuid.uuid4().hex}"
    score = configure(bundle, name, wanted)["process"]["oomScoreAdj"]
    assert "cpu.shares" in wanted.cgroup_files or "cpu.weight" in wanted.cgroup_files
    with start(name) as pid:
        assert int(Path(f"/proc/{pid}/oom_score_adj").read_text()) == score
        for file, content in wanted.cgroup_files.items():
            folder = group_folder(pid, file.partition(".")[0])
            if file == "cpu.weight":
                assert isinstance(wanted.cri, LinuxContainerResources)
                either = {str(shares_to_weight(wanted.cri.cpu_shares, formula)) for formula in WeightFormula}
                assert (folder / file).read_text().strip() in either
            else:
                assert (folder / file).read_text().strip() == _as_kept(file, content), file


def _as_kept(file: str, content: str) -> str:
    """Memory is counted in whole pages, so the kernel cuts a limit down to them."""
    is_memory = file.startswith("memory.") and content.isdigit() and file != "memory.oom.group"
    page = os.sysconf("SC_PAGE_SIZE")
    return str(int(content) // page * page) if is_memory else content


@pytest.mark.parametrize("requirements", CONTAINERS.values(), ids=CONTAINERS)
def test_the_specification_that_runc_proposes_takes_our_resources_and_keeps_its_own(
    bundle: Path, requirements: dict[str, Any]
) -> None:
    wanted = planned(requirements)
    own = json.loads((bundle / "config.json").read_text())["linux"]["resources"]
    written = configure(bundle, "any", wanted)["linux"]["resources"]
    assert written["devices"] == own["devices"]
    linux = wanted.oci["linux"]
    assert isinstance(linux, dict)
    assert {name: value for name, value in written.items() if name != "devices"} == linux["resources"]
