"""The mirror beside nginx with the same file, its memory with many clients, and many nodes behind one slow link."""

from __future__ import annotations

import os
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import httpx

from benchmarks.suite.bench import Bench
from benchmarks.suite.cost import Cost, RunError, peak_mebibytes
from benchmarks.suite.figures import Findings, compare, count
from benchmarks.suite.series import alternate, table
from imagestore.testing import FaultRule, RegistryServer, Where, build_image, synthetic_layer
from imagestore.testing.faults import Drip

NODES = 20
CLIENTS = 200
OURS, THEIRS = "imagestore serve --mirror", "nginx"
_MIB = 1 << 20
_LARGE = 1024 * _MIB
_SHARED = 40 * _MIB
_LINK = 20 * _MIB
_NAME = "registry.example/bench/app:1"
# Throughput of nginx divided by ours; CPU seconds for a GiB; MiB; bytes from upstream divided by the image's.
_SPEED_GOAL, _CPU_GOAL, _MEMORY_GOAL, _BYTES_GOAL, _TIME_GOAL = 1 / 0.7, 0.4, 96, 1.01, 1.3
_SETTINGS = """
version = 3
[plugins."io.imagestore.mirror.v1"]
replicas = {replicas}
replica = "{replica}"
[plugins."io.imagestore.mirror.v1".upstreams."registry.example"]
endpoints = ["{upstream}"]
"""


def serving(bench: Bench) -> Findings:
    """One large blob from disk to one client, beside nginx; then many clients at once."""
    if shutil.which("nginx") is None:
        return Findings(notes=["MIRROR: left out; it needs nginx"])
    found, place = Findings(), bench.first_place
    image = build_image("linux/amd64", layers=[synthetic_layer("mirror", _LARGE)])
    layer = image.manifests[0].layers[0]
    with place.fresh() as folder, ExitStack() as stack:
        upstream = stack.enter_context(RegistryServer({_NAME: image}))
        ((url, process),) = stack.enter_context(_mirrors(bench, folder, upstream.url, 1))
        ours = f"{url}/v2/bench/app/blobs/{layer.digest}?ns=registry.example"
        _curl(ours)
        (blob,) = folder.glob(f"mirror-0/content/blobs/sha256/{layer.digest.encoded}")
        theirs, server = stack.enter_context(_nginx(folder, blob))
        contestants = {
            OURS: lambda: _curl(ours, process.pid),
            THEIRS: lambda: _curl(theirs, server.pid),
        }
        series = alternate(f"1 GiB from disk to one client, {place.name}", contestants, rounds=bench.rounds)
        found.details += table(series)
        found.figures.append(compare("MIRROR", series, OURS, THEIRS, goal=_SPEED_GOAL, is_drawn=True))
        for name, goal in ((OURS, _CPU_GOAL), (THEIRS, None)):
            processor = statistics.median(cost.processor for cost in series.costs[name])
            work = f"1 GiB from disk, {place.name}: {name}"
            found.figures.append(count("MIRROR", work, "CPU of the server", processor, goal=goal, unit="s"))
        with ThreadPoolExecutor(CLIENTS) as clients:
            ranges = (f"{start * _MIB}-{(start + 50) * _MIB - 1}" for start in range(CLIENTS))
            list(clients.map(lambda asked: _curl(ours, None, "--range", asked), ranges))
        peak = peak_mebibytes(process.pid)
        found.figures.append(
            count("MIRROR", f"{CLIENTS} clients at once", "peak memory", peak, goal=_MEMORY_GOAL, unit="MiB")
        )
    return found


def nodes(bench: Bench) -> Findings:
    """Twenty nodes pull one image through two replicas and a link of 20 MiB/s, cold and warm."""
    found, place = Findings(), bench.first_place
    image = build_image("linux/amd64", layers=[synthetic_layer("nodes", _SHARED)])
    pulled = [image.target, image.manifests[0].config, *image.manifests[0].layers]
    unique = sum(descriptor.size for descriptor in pulled)
    slow = FaultRule(Drip(bytes_per_second=_LINK), Where(kind="blob", method="GET"), times=0)
    with place.fresh() as folder, ExitStack() as stack:
        upstream = stack.enter_context(RegistryServer({_NAME: image}, faults=[slow]))
        mirrors = stack.enter_context(_mirrors(bench, folder, upstream.url, 2))
        cold = _pull_all(bench, folder, "cold", [url for url, _ in mirrors])
        sent = upstream.ledger.bytes_sent()
        warm = _pull_all(bench, folder, "warm", [url for url, _ in mirrors])
        again = upstream.ledger.bytes_sent() - sent
        peak = max(peak_mebibytes(process.pid) for _, process in mirrors)
    allowed = _TIME_GOAL * unique / _LINK + warm
    title = f"{NODES} nodes, 2 replicas, {unique // _MIB} MiB over 20 MiB/s"
    found.figures += [
        count("NODES", f"{title}: cold", "bytes from upstream", sent / unique, goal=_BYTES_GOAL, unit="x"),
        count("NODES", f"{title}: warm", "bytes from upstream", again / unique, goal=0, unit="x"),
        count("NODES", f"{title}: cold", "95th of 100 nodes is done after", cold, goal=allowed, unit="s"),
        count("NODES", f"{title}: warm", "95th of 100 nodes is done after", warm, goal=None, unit="s"),
        count("NODES", title, "peak memory of a replica", peak, goal=_MEMORY_GOAL, unit="MiB"),
    ]
    return found


def _pull_all(bench: Bench, folder: Path, when: str, urls: list[str]) -> float:
    """Every node pulls into an empty store; seconds after which 95 in 100 of them are through."""

    def pull(number: int) -> float:
        node = folder / f"{when}-{number}"
        hosts = node / "certs.d/registry.example"
        hosts.mkdir(parents=True)
        order = urls[number % len(urls) :] + urls[: number % len(urls)]
        (hosts / "hosts.toml").write_text(
            "\n".join(f'[host."{url}"]\ncapabilities = ["pull", "resolve"]' for url in order)
        )
        config = node / "config.toml"
        section = 'version = 3\n[plugins."io.containerd.cri.v1.images".registry]\n'
        config.write_text(f'{section}config_path = "{node / "certs.d"}"\n')
        words = ("--config", str(config), "--root", str(node / "store"), "pull", "--quiet", _NAME)
        subprocess.run(
            [sys.executable, "-m", "imagestore", *words],
            check=True,
            env=bench.environment,
            stdout=subprocess.DEVNULL,
        )
        return time.monotonic() - started

    started = time.monotonic()
    with ThreadPoolExecutor(NODES) as executor:
        ends = sorted(executor.map(pull, range(NODES)))
    return ends[round(0.95 * NODES) - 1]


def _curl(url: str, server: int | None = None, *options: str) -> Cost:
    """Fetch and throw away; CPU is the server's."""
    before, started = _processor(server), time.monotonic()
    subprocess.run(["curl", "--silent", "--fail", "--output", "/dev/null", *options, url], check=True)
    return Cost(time.monotonic() - started, _processor(server) - before)


def _processor(process: int | None) -> float:
    if process is None:
        return 0.0
    total = 0.0
    # nginx works in children.
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    for each in (str(process), *children):
        fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


@contextmanager
def _mirrors(
    bench: Bench, folder: Path, upstream: str, how_many: int
) -> Iterator[list[tuple[str, subprocess.Popen[bytes]]]]:
    """Mirrors with stores of their own: URL and process of each."""
    ports = [_free_port() for _ in range(how_many)]
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    with ExitStack() as stack:
        running = []
        for number, (port, url) in enumerate(zip(ports, urls, strict=True)):
            config = folder / f"mirror-{number}.toml"
            config.write_text(_SETTINGS.format(replicas=urls, replica=url, upstream=upstream))
            words = ("--config", str(config), "--root", str(folder / f"mirror-{number}"), "serve")
            command = [sys.executable, "-m", "imagestore", *words, "--mirror", f"127.0.0.1:{port}"]
            process = stack.enter_context(subprocess.Popen(command, env=bench.environment, stderr=subprocess.DEVNULL))
            stack.callback(process.terminate)
            running.append((url, process))
        for url in urls:
            _wait_for(f"{url}/healthz")
        yield running


@contextmanager
def _nginx(folder: Path, blob: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """nginx with sendfile and one file: its URL, and the process."""
    place, port = folder / "nginx", _free_port()
    place.mkdir(mode=0o755)
    os.link(blob, place / "blob")
    config = place / "nginx.conf"
    server = f"server {{ listen 127.0.0.1:{port}; root {place}; }}"
    paths = "".join(
        f"{name}_temp_path {place}/{name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    http = f"http {{ sendfile on; access_log off; {paths} {server} }}"
    config.write_text(f"user root; worker_processes 1; pid {place}/pid; error_log {place}/log; events {{}} {http}")
    command = ["nginx", "-c", str(config), "-e", str(place / "log"), "-g", "daemon off;"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            url = f"http://127.0.0.1:{port}/blob"
            _wait_for(url)
            yield url, process
        finally:
            process.terminate()


def _wait_for(url: str) -> None:
    for _ in range(400):
        with suppress(httpx.TransportError):
            if httpx.head(url).is_success:
                return
        time.sleep(0.05)
    raise RunError(f"{url} doesn't answer")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
