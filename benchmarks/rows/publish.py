"""From PullImage to a started container: what imagestore pulls and publishes, beside containerd's own pull.

The same containerd runs all containers, and the same stand-in of a kubelet makes all calls. Each way by which layers
come into containerd has a server and a store of its own, one after the other; what a server sees of containerd's
folder decides its way.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

from benchmarks.suite import containerd
from benchmarks.suite.bench import Bench
from benchmarks.suite.cost import Cost, RunError, peak_mebibytes
from benchmarks.suite.figures import Findings, compare, count, over
from benchmarks.suite.images import packed_layer
from benchmarks.suite.places import file_system
from benchmarks.suite.series import alternate, table
from imagestore import platforms
from imagestore.publish import ContentWay
from imagestore.testing import Image, build_image, program_layer
from tests.support.containerd_cri import HOST_HANDLER
from tests.support.kubelet import Kubelet
from tests.support.patience import until
from tests.support.peers import docker_registry, need
from tests.support.pod_node import PodNode, pod_node
from tests.support.runnable_images import PAUSE
from tests.support.server import serving, short_folder

THEIRS = "containerd's own pull"
#: As parts of what containerd takes; bytes that are sent are reported only.
_GOALS = {ContentWay.LINKED: 1.25, ContentWay.OWN_FILE: 1.5, ContentWay.SENT: None}
#: Mebibytes and layers.
_SHAPES = {
    "64 MiB in one layer": (64, 1),
    "64 MiB in eight layers": (64, 8),
    "256 MiB in one layer": (256, 1),
    "256 MiB in eight layers": (256, 8),
}
_AGAIN, _ALONE = "again, published", "again, a store alone"
_AGAIN_MILLISECONDS = 10.0
_MORE_MEBIBYTES = 64.0
_MORE_ROUNDS = 10


def measure(bench: Bench) -> Findings:
    """PullImage to a started container through containerd's own pull, and through imagestore by each way of layers."""
    architecture = platforms.host.detect().architecture
    if not containerd.is_possible() or architecture not in ("amd64", "arm64"):
        return Findings(notes=["PUBLISH: left out; it needs containerd and runc on amd64 or arm64, and root"])
    need("runc")
    found = Findings()
    with ExitStack() as stack:
        folder = stack.enter_context(bench.first_place.fresh())
        registry = stack.enter_context(docker_registry(folder))
        registry.push("pause", "1", PAUSE)
        images = {
            title: registry.push(f"app-{mebibytes}", str(layers), _image(architecture, mebibytes, layers))
            for title, (mebibytes, layers) in _SHAPES.items()
        }
        first = stack.enter_context(pod_node(registry))
        for way in _GOALS:
            with _node(first, way) as node:
                for title, image in images.items():
                    _measure_shape(bench, found, node, image, title)
                _measure_alone(bench, found, node, image)
        place = file_system(first.folder)
    found.notes.append(f"PUBLISH: stores and containerd's root are on {place}")
    return found


@contextlib.contextmanager
def _node(first: PodNode, way: ContentWay) -> Iterator[PodNode]:
    """A server for one way; no other one works with containerd, as on a node."""
    with ExitStack() as stack:
        node = first
        if way is not ContentWay.LINKED:
            node = PodNode(stack.enter_context(short_folder()), first.containerd, first.registry, way)
            stack.enter_context(node.kubelet)
            stack.enter_context(node.direct)
        stack.callback(node.close)
        node.start()
        # The sandbox image stays.
        node.kubelet.pull(node.pause)
        yield node


def _image(architecture: str, mebibytes: int, layers: int) -> Image:
    """Layers of random bytes below a program."""
    parts = [packed_layer(f"publish {mebibytes} {layers} {number}", mebibytes // layers) for number in range(layers)]
    config = {"config": {"Entrypoint": ["/run"]}}
    return build_image(f"linux/{architecture}", layers=[*parts, program_layer(architecture, "ready")], config=config)


def _measure_shape(bench: Bench, found: Findings, node: PodNode, image: str, title: str) -> None:
    ours = f"imagestore, layers {node.way.value}"
    ways = {THEIRS: partial(_start, node, node.direct, image), ours: partial(_start, node, node.kubelet, image)}
    series = alternate(f"PullImage to a started container, {title}", ways, rounds=bench.rounds)
    took = {name for line in node.log("published") for name in line["bytes"]}
    if took != {node.way.value}:
        raise RunError(f"expected layers {node.way.value}, they came {', '.join(sorted(took))}")
    found.details += table(series)
    goal = _GOALS[node.way]
    found.figures.append(compare("PUBLISH", series, ours, THEIRS, goal=goal, is_drawn=goal is not None))


def _start(node: PodNode, kubelet: Kubelet, image: str) -> Cost:
    """Pull and start in a sandbox that is there; afterwards containerd has nothing of the image."""
    pod, config = kubelet.sandbox(HOST_HANDLER)
    before = _kept(node)
    started = time.perf_counter()
    image_id = kubelet.pull(image, HOST_HANDLER)
    kubelet.start(image, image_id, pod, config)
    wall = time.perf_counter() - started
    kubelet.remove_pods(pod)
    kubelet.remove(image_id)
    until(lambda: _kept(node) <= before, "what the image had in containerd is collected")
    return Cost(wall, 0.0)


def _kept(node: PodNode) -> set[str]:
    return {*node.containerd.images(), *node.containerd.blobs(), *node.snapshots()}


def _measure_alone(bench: Bench, found: Findings, node: PodNode, image: str) -> None:
    """Against a server that only pulls: a pull of what is there, of the last and largest image, and memory."""
    with (
        short_folder() as folder,
        serving(folder, config=node.containerd.config) as alone,
        Kubelet(alone.endpoint) as store,
    ):
        ways = {_AGAIN: partial(_pull, node.kubelet, image), _ALONE: partial(_pull, store, image)}
        title = f"A pull of what is there, layers {node.way.value}"
        series = alternate(title, ways, rounds=bench.rounds * _MORE_ROUNDS)
        found.details += table(series)
        found.figures.append(over("PUBLISH", series, _AGAIN, _ALONE, goal=_AGAIN_MILLISECONDS))
        grown = peak_mebibytes(node.server.process.pid) - peak_mebibytes(alone.process.pid)
        work = f"server, layers {node.way.value}, over one that only pulled"
        found.figures.append(count("PUBLISH", work, "peak memory", grown, goal=_MORE_MEBIBYTES, unit="MiB"))
    node.kubelet.remove(image)


def _pull(kubelet: Kubelet, image: str) -> Cost:
    started = time.perf_counter()
    kubelet.pull(image, HOST_HANDLER)
    return Cost(time.perf_counter() - started, 0.0)
