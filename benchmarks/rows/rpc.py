"""Our server over its socket: CRI calls beside Debian's containerd with the same images, and many pulls at once."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import grpc

from benchmarks import tiny_layout
from benchmarks.suite import containerd, warm
from benchmarks.suite.bench import Bench
from benchmarks.suite.cost import Cost, peak_mebibytes
from benchmarks.suite.figures import Figure, Findings, compare, count
from benchmarks.suite.images import TITLES
from benchmarks.suite.series import Series, alternate, digits, table
from imagestore.protos.cri import api_pb2, api_pb2_grpc
from imagestore.testing import RegistryServer, build_image, synthetic_layer
from tests.support.containerd_cri import containerd_cri

IMAGES = 1_000
AT_ONCE = 100
_STATUS_CALLS, _LIST_CALLS = 50, 5
_STATUS_GOAL, _LIST_GOAL, _MEMORY_GOAL = 2.0, 1.5, 80
_TIME_GOAL, _BYTES_GOAL = 3.0, 1.5
_COUNTED_BYTES = 32 << 20
_MESSAGE_BYTES = 64 << 20
_WAIT_SECONDS = 60
_MIB = 1 << 20
OURS, THEIRS = "imagestore", "containerd"


def cri(bench: Bench) -> Findings:
    """Status of one image and the list of 1,000, by one client in turn; and the server's memory."""
    if not containerd.is_possible():
        return Findings(notes=["CRI: left out; it needs containerd, and root"])
    found, place = Findings(), bench.first_place
    with place.fresh() as folder, ExitStack() as stack:
        layout, root = folder / "layout", folder / "store"
        tiny_layout.write_layout(layout, IMAGES)
        bench.imagestore(root, "import", str(layout), "--platform", "linux/amd64")
        endpoint, process = stack.enter_context(warm.server(bench, root))
        stubs = {
            OURS: stack.enter_context(_stub(endpoint)),
            THEIRS: stack.enter_context(_stub(_containerd_with(layout, folder, stack))),
        }
        for stub in stubs.values():
            _wait_for(stub)
        series = [
            _calls("status of one image", stubs, _status, _STATUS_CALLS * bench.rounds),
            _calls(f"list of {IMAGES:,} images", stubs, _list, _LIST_CALLS * bench.rounds),
        ]
        peak = peak_mebibytes(process)
    for each, goal in zip(series, (_STATUS_GOAL, _LIST_GOAL), strict=True):
        found.details += table(each)
        found.figures.append(compare("CRI", each, OURS, THEIRS, goal=goal, is_drawn=True))
    found.figures.append(
        count("CRI", f"server with {IMAGES:,} images", "peak memory", peak, goal=_MEMORY_GOAL, unit="MiB")
    )
    return found


def together(bench: Bench) -> Findings:
    """A hundred pulls of one image at once through the server, and one."""
    found, place = Findings(), bench.first_place
    reference = bench.reference("M")
    with place.fresh() as folder, ExitStack() as stack:
        root = folder / "store"
        endpoint, _ = stack.enter_context(warm.server(bench, root))
        stub = stack.enter_context(_stub(endpoint))
        ways = {"one pull": 1, f"{AT_ONCE} pulls at once": AT_ONCE}

        def way(pulls: int) -> Callable[[], Cost]:
            return lambda: _pull(bench, root, stub, reference, pulls)

        title = f"{TITLES['M']}, through the server, {place.name}"
        series = alternate(title, {name: way(pulls) for name, pulls in ways.items()}, rounds=bench.rounds)
        one, many = _bytes_of(bench, root, stub)
    found.details += table(series)
    single, several = ways
    found.figures.append(compare("TOGETHER", series, several, single, goal=_TIME_GOAL, is_drawn=True))
    texts = f"{digits(many / _MIB)} MiB", single, f"{digits(one / _MIB)} MiB"
    found.figures.append(Figure("TOGETHER", several, "bytes sent", *texts, many / one, goal=_BYTES_GOAL))
    return found


def _bytes_of(bench: Bench, root: Path, stub: api_pb2_grpc.ImageServiceStub) -> tuple[int, int]:
    """What a registry sends for one pull, and for many at once."""
    name = "registry.example/bench/counted:1"
    image = build_image("linux/amd64", layers=[synthetic_layer("counted", _COUNTED_BYTES)])
    with RegistryServer({name: image}) as server:
        reference, sent = server.server.reference(name), []
        for pulls in (1, AT_ONCE):
            before = server.ledger.bytes_sent()
            _pull(bench, root, stub, reference, pulls)
            sent.append(server.ledger.bytes_sent() - before)
    return sent[0], sent[1]


def _pull(bench: Bench, root: Path, stub: api_pb2_grpc.ImageServiceStub, reference: str, pulls: int) -> Cost:
    """Wall time until the last is done; the image is removed afterwards."""
    request = api_pb2.PullImageRequest(image=api_pb2.ImageSpec(image=reference))
    with ThreadPoolExecutor(pulls) as pool:
        started = time.perf_counter()
        list(pool.map(lambda _: stub.PullImage(request), range(pulls)))
        wall = time.perf_counter() - started
    bench.imagestore(root, "rmi", "--gc", reference)
    return Cost(wall, 0.0)


@contextmanager
def _stub(endpoint: str) -> Iterator[api_pb2_grpc.ImageServiceStub]:
    with grpc.insecure_channel(endpoint, [("grpc.max_receive_message_length", _MESSAGE_BYTES)]) as channel:
        yield api_pb2_grpc.ImageServiceStub(channel)


def _containerd_with(layout: Path, folder: Path, stack: ExitStack) -> str:
    """The endpoint of a containerd that has imported a layout."""
    archive = folder / "layout.tar"
    subprocess.run(["tar", "-C", layout, "-cf", archive, "."], check=True)
    endpoint = stack.enter_context(containerd_cri())
    ctr = ["ctr", "--address", endpoint.removeprefix("unix://"), "-n", "k8s.io", "images", "import", "--no-unpack"]
    subprocess.run([*ctr, str(archive)], check=True, capture_output=True)
    return endpoint


def _wait_for(stub: api_pb2_grpc.ImageServiceStub) -> None:
    """containerd's CRI face hears of new images by and by."""
    end = time.monotonic() + _WAIT_SECONDS
    while (listed := len(stub.ListImages(api_pb2.ListImagesRequest()).images)) < IMAGES:
        if time.monotonic() > end:
            raise RuntimeError(f"a server lists {listed} images, expected {IMAGES}")
        time.sleep(0.2)


def _status(stub: api_pb2_grpc.ImageServiceStub) -> None:
    image = api_pb2.ImageSpec(image=tiny_layout.name(IMAGES // 2))
    assert stub.ImageStatus(api_pb2.ImageStatusRequest(image=image)).HasField("image")


def _list(stub: api_pb2_grpc.ImageServiceStub) -> None:
    assert len(stub.ListImages(api_pb2.ListImagesRequest()).images) == IMAGES


def _calls(
    title: str,
    stubs: dict[str, api_pb2_grpc.ImageServiceStub],
    call: Callable[[api_pb2_grpc.ImageServiceStub], None],
    rounds: int,
) -> Series:
    def way(stub: api_pb2_grpc.ImageServiceStub) -> Callable[[], Cost]:
        def run() -> Cost:
            started = time.perf_counter()
            call(stub)
            return Cost(time.perf_counter() - started, 0.0)

        return run

    return alternate(title, {name: way(stub) for name, stub in stubs.items()}, rounds=rounds, warm_up=5)
