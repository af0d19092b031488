"""Real servers on loopback: Debian's docker-registry, and a way to put built images into it."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.support.patience import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from imagestore.testing import Image

_CONFIG = """
version: 0.1
log: {{level: error, accesslog: {{disabled: true}}}}
storage:
  filesystem: {{rootdirectory: {data}}}
  delete: {{enabled: {deletes}}}
http:
  addr: 127.0.0.1:{port}
{more}
"""


@dataclass(frozen=True)
class DockerRegistry:
    """A running docker-registry; ``address`` is host:port, ``data`` its storage folder, ``process`` its number."""

    address: str
    data: Path
    process: int

    def push(self, repository: str, tag: str, image: Image) -> str:
        """Upload an image as a registry client would; return the reference."""
        base = f"http://{self.address}/v2/{repository}"
        with httpx.Client(timeout=120) as client:
            for digest, body in image.blobs.items():
                place = client.post(f"{base}/blobs/uploads/").raise_for_status().headers["Location"]
                url = httpx.URL(place).copy_merge_params({"digest": str(digest)})
                length = {"Content-Length": str(body.size)}
                client.put(url, content=body.chunks(), headers=length).raise_for_status()
            # An index may only name manifests the registry has, so the target comes last, and again under its tag.
            documents = [(digest, each) for digest, each in image.documents.items() if digest != image.target.digest]
            for name, document in [
                *((str(digest), each) for digest, each in documents),
                (tag, image.documents[image.target.digest]),
            ]:
                headers = {"Content-Type": document.media_type}
                client.put(f"{base}/manifests/{name}", content=document.data, headers=headers).raise_for_status()
        return f"{self.address}/{repository}:{tag}"

    def blob_path(self, hexadecimal: str) -> Path:
        """Where the registry keeps a blob, to damage it there."""
        return self.data / "docker/registry/v2/blobs/sha256" / hexadecimal[:2] / hexadecimal / "data"


def debian_root(target: Path, *options: str) -> None:
    """A Debian 12 by mmdebstrap: a folder, or a tar; the test is skipped where no mirror of Debian can be reached."""
    command = [need("mmdebstrap"), *options, "bookworm", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode and ("Could not" in done.stderr or "update failed" in done.stderr):
        pytest.skip(f"no mirror of Debian can be reached: {done.stderr[-300:]}")
    assert done.returncode == 0, done.stderr[-800:]


@contextlib.contextmanager
def docker_registry(
    folder: Path, *, more: str = "", data: Path | None = None, deletes: bool = True
) -> Iterator[DockerRegistry]:
    """Start docker-registry on a free port.

    ``more`` is appended to the configuration's http section; ``data`` is the storage of another one, to serve it too.
    """
    program = need("docker-registry")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    data = data or folder / "registry"
    config = folder / "registry.yml"
    config.write_text(_CONFIG.format(data=data, port=port, more=more, deletes=str(deletes).lower()))
    process = subprocess.Popen([program, "serve", str(config)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_for(port, process)
        yield DockerRegistry(f"127.0.0.1:{port}", data, process.pid)
    finally:
        process.terminate()
        process.wait(timeout=60)


def need(program: str) -> str:
    """The path of a peer; a missing one is a failure, never a skip."""
    path = shutil.which(program)
    assert path is not None, f"{program} is not installed; run tests/integration/install-peers"
    return path


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    def answers() -> bool:
        assert process.poll() is None, "docker-registry ended at once"
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=60):
            return True
        return False

    until(answers, "docker-registry takes connections")
