"""Unmodified clients pull through the mirror: containerd's ctr, dockerd, skopeo; cold, warm, and with parts killed."""

from __future__ import annotations

import functools
import itertools
import json
import os
import signal
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final

import httpx
import pytest

from imagestore import Digest, ImageStore, config, platforms
from imagestore.testing import FaultRule, RegistryServer, Where, build_image, build_index, layer, synthetic_layer
from imagestore.testing.faults import Drip
from tests.support.dockerd import dockerd
from tests.support.mirror import mirror_table
from tests.support.patience import until
from tests.support.peers import docker_registry, need
from tests.support.plain_http import PLAIN
from tests.support.private_containerd import private_containerd
from tests.support.replicas import certs_d, free_ports, made, replicas
from tests.support.server import serving

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.peers import DockerRegistry

pytestmark = pytest.mark.integration

IMAGE: Final = build_index(
    ["linux/amd64", "linux/arm64"], seed="mirror", shared=[layer("base", files={"etc/x": b"x" * 200_000})]
)
LINUX: Final = platforms.parse("linux/amd64")
KILLS: Final = int(os.environ.get("MIRROR_KILLS", "8"))


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[DockerRegistry]:
    (tmp_path / "upstream").mkdir()
    with docker_registry(tmp_path / "upstream") as running:
        running.push("team/app", "1", IMAGE)
        running.push("library/app", "1", IMAGE)
        yield running


def test_ctr_pulls_through_two_replicas(tmp_path: Path, registry: DockerRegistry) -> None:
    members = f'endpoints = ["http://{registry.address}"]'
    with (
        replicas(tmp_path, {"registry.test": members}) as mirrors,
        private_containerd(made(tmp_path / "containerd")) as containerd,
    ):
        hosts = certs_d(tmp_path, "registry.test", mirrors.urls, f"http://{registry.address}")
        fetch = ("content", "fetch", "--all-platforms", "--hosts-dir", hosts, "registry.test/team/app:1")
        containerd.ctr(*fetch)
        assert containerd.images() == {"registry.test/team/app:1": str(IMAGE.target.digest)}
        assert set(map(str, IMAGE.blobs)) <= containerd.blobs()
        # Warm, and with nothing behind it.
        os.kill(registry.process, signal.SIGSTOP)
        try:
            containerd.clear()
            containerd.ctr(*fetch)
        finally:
            os.kill(registry.process, signal.SIGCONT)
        assert set(map(str, IMAGE.blobs)) <= containerd.blobs()


def test_dockerd_pulls_what_its_default_upstream_has(tmp_path: Path, registry: DockerRegistry) -> None:
    members = f'endpoints = ["http://{registry.address}"]'
    with (
        replicas(tmp_path, {"docker.io": members}, count=1, default_upstream='"docker.io"') as mirrors,
        dockerd(f"--registry-mirror={mirrors.urls[0]}") as engine,
    ):
        with httpx.Client(transport=httpx.HTTPTransport(uds=engine), timeout=120) as client:
            pulled = client.post("http://docker/images/create", params={"fromImage": "app", "tag": "1"})
            assert '"error"' not in pulled.text, pulled.text
            found = client.get("http://docker/images/app:1/json").json()
        assert found["Id"] == str(IMAGE.manifests[0].config.digest)
        assert mirrors.metric("imagestore_mirror_served_bytes_total") > 0


def test_skopeo_pulls_by_a_path_that_names_the_upstream(tmp_path: Path, registry: DockerRegistry) -> None:
    members = f'endpoints = ["http://{registry.address}"]'
    with replicas(tmp_path, {"registry.test": members}, count=1) as mirrors:
        address = mirrors.urls[0].removeprefix("http://")
        conf = tmp_path / "registries.conf"
        conf.write_text(
            f"""
[[registry]]
prefix = "registry.test"
location = "registry.test"
[[registry.mirror]]
location = "{address}/registry.test"
insecure = true
"""
        )
        source, destination = "docker://registry.test/team/app:1", f"oci:{tmp_path / 'out'}:1"
        command = [need("skopeo"), "--registries-conf", str(conf), "copy", "--all", source, destination]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        index = json.loads((tmp_path / "out/index.json").read_text())
        assert index["manifests"][0]["digest"] == str(IMAGE.target.digest)


def test_a_replica_killed_in_the_middle_fails_no_pull(tmp_path: Path) -> None:
    big = build_index(
        ["linux/amd64"], seed="kill", shared=[synthetic_layer(f"k{number}", 4 << 20) for number in range(4)]
    )
    slow = FaultRule(Drip(bytes_per_second=4 << 20), Where(kind="blob", method="GET"), times=0)
    with (
        RegistryServer({"registry.test/team/app:1": big}, faults=[slow]) as upstream,
        replicas(tmp_path, {"registry.test": f'endpoints = ["{upstream.url}"]'}) as mirrors,
        private_containerd(made(tmp_path / "containerd")) as containerd,
    ):
        hosts = certs_d(tmp_path, "registry.test", mirrors.urls, upstream.url)

        def kill() -> None:
            until(lambda: upstream.ledger.count(kind="blob", method="GET"), "blobs are fetched")
            mirrors.servers[0].process.kill()

        killer = threading.Thread(target=kill)
        killer.start()
        containerd.ctr("content", "fetch", "--hosts-dir", hosts, "registry.test/team/app:1")
        killer.join()
        mirrors.servers[0].process.wait()
        assert set(map(str, big.blobs)) <= containerd.blobs()


def test_twenty_nodes_fetch_once(tmp_path: Path) -> None:
    image = build_index(
        ["linux/amd64"], seed="nodes", shared=[synthetic_layer(f"n{number}", 4 << 20) for number in range(3)]
    )
    unique = sum(body.size for body in image.blobs.values())
    with (
        RegistryServer({"registry.test/team/app:1": image}) as upstream,
        replicas(tmp_path, {"registry.test": f'endpoints = ["{upstream.url}"]'}, answer_timeout='"60s"') as mirrors,
    ):
        nodes = 20

        def pull(number: int) -> None:
            # Half of the nodes ask the other replica first.
            order = mirrors.urls if number % 2 else mirrors.urls[::-1]
            certs = certs_d(made(tmp_path / f"node-{number}"), "registry.test", order, upstream.url)
            text = f'version = 3\n[plugins."io.containerd.cri.v1.images".registry]\nconfig_path = "{certs}"'
            loaded = config.loads(text, filename="config.toml", host=LINUX)
            with ImageStore(tmp_path / f"node-{number}/store", config=loaded, host=LINUX) as store:
                assert store.pull("registry.test/team/app:1").id == image.manifests[0].config.digest

        with ThreadPoolExecutor(nodes) as executor:
            for done in [executor.submit(pull, number) for number in range(nodes)]:
                done.result()
        sent = sum(upstream.ledger.bytes_sent(digest) for digest in image.blobs)
        assert sent <= 1.01 * unique
        served = mirrors.metric("imagestore_mirror_served_bytes_total")
        assert served >= nodes * unique


def test_a_mirror_killed_again_and_again(tmp_path: Path) -> None:
    """Whatever moment it dies at: no client gets a whole body that is wrong, and the store and its leases are right."""
    layers = [synthetic_layer(f"again{number}", 1 << 20) for number in range(12)]
    image = build_image("linux/amd64", layers=layers)
    blobs = image.manifests[0].layers
    slow = FaultRule(Drip(bytes_per_second=8 << 20), Where(kind="blob", method="GET"), times=0)
    (port,) = free_ports(1)
    root, settings = tmp_path / "root", tmp_path / "mirror.toml"
    is_over, came = threading.Event(), list[bool]()

    def comes_whole(digest: Digest) -> bool:
        """Ask for a blob; what comes whole has to be right."""
        url = f"http://127.0.0.1:{port}/v2/team/app/blobs/{digest}?ns=registry.test"
        try:
            answer = httpx.get(url, timeout=60, verify=PLAIN)
        except httpx.TransportError:
            return False
        assert answer.status_code != 200 or Digest.of(answer.content) == digest
        return answer.status_code == 200

    def pull(seed: int) -> None:
        """Ask for blobs until told to stop."""
        for number in itertools.count():
            if is_over.wait(0.01):
                return
            came.extend([True] if comes_whole(blobs[(seed + number * 5) % len(blobs)].digest) else [])

    with RegistryServer({"registry.test/team/app:1": image}, faults=[slow]) as upstream:
        settings.write_text(mirror_table({"registry.test": f'endpoints = ["{upstream.url}"]'}))
        with ThreadPoolExecutor(4) as clients:
            pulls = [clients.submit(pull, seed) for seed in range(4)]
            try:
                for number in range(KILLS):
                    with serving(root, "--mirror", f"127.0.0.1:{port}", config=settings) as server:
                        httpx.get(f"http://127.0.0.1:{port}/v2/team/app/manifests/1?ns=registry.test", timeout=60)
                        time.sleep(0.05 + 0.08 * (number % 12))
                        server.process.kill()
                with serving(root, "--mirror", f"127.0.0.1:{port}", config=settings):
                    until(lambda: came, "a client has a whole blob")
            finally:
                is_over.set()
            for done in pulls:
                done.result()
        with serving(root, "--mirror", f"127.0.0.1:{port}", config=settings):
            for blob in blobs[:4]:
                until(functools.partial(comes_whole, blob.digest), "a whole blob comes")
    with ImageStore(root) as store:
        assert not store.check().faults
        here = {info.digest for info in store.content.walk()}
        held = set(store.metadata.leases.content("mirror/registry.test"))
        assert here <= held
        assert not store.collect_garbage().digests
