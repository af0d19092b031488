"""A client built with Go's gRPC library, the kubelet's and crictl's, against our CRI face."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from imagestore import platforms
from imagestore.testing import RegistryServer, build_index
from tests.support.peers import need
from tests.support.server import serving

pytestmark = pytest.mark.integration

IMAGE = "registry.example/library/python:3"
CONFIG = """
version = 3
[plugins."io.containerd.cri.v1.runtime".containerd]
default_runtime_name = "runc"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.kata]
runtime_type = "io.containerd.kata.v2"
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The client, built from Debian's packages of Go libraries without any download."""
    folder = tmp_path_factory.mktemp("go")
    environment = {
        **os.environ,
        "GO111MODULE": "off",
        "GOPATH": "/usr/share/gocode",
        "GOCACHE": str(folder / "cache"),
        "GOFLAGS": "",
        "CGO_ENABLED": "0",
    }
    command = [need("go"), "build", "-o", str(folder / "client"), str(Path(__file__).parent / "go_client" / "main.go")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "client"


def test_go_client_pulls_for_a_handler_lists_streams_and_removes(program: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(CONFIG)
    image = build_index([platforms.host.detect()])
    with RegistryServer({IMAGE: image}) as source, serving(tmp_path / "root", config=config) as server:
        name = source.server.reference(IMAGE)
        done = subprocess.run(
            [str(program), str(server.socket), name, "kata"], capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        said = dict(line.split(": ", 1) for line in done.stdout.splitlines())
        image_id = said.pop("pulled")
        assert image_id == str(image.manifests[0].config.digest)
        assert said == {
            "version": "0.1.0 imagestore v1",
            "too late": "true",
            "unknown handler": "InvalidArgument",
            "status": f"{image_id} {name} kata",
            "listed": "1",
            "streamed": "1 1",
            "gone": "true",
            "no sandbox": "Unimplemented",
        }
