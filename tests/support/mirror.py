"""A mirror in this process: its event loop in a thread, its store in a folder."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import httpx

from imagestore import Digest, ImageStore, config, platforms
from imagestore.mirror.listener import Listener
from imagestore.mirror.service import Mirror
from imagestore.oci.media_types import OCI_INDEX, OCI_MANIFEST
from imagestore.store import StoreWorkers
from imagestore.testing.builders.bodies import BytesBody
from imagestore.testing.engine.distribution import StoredDocument
from tests.support.patience import until
from tests.support.plain_http import PLAIN

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Sequence
    from pathlib import Path

    from imagestore import Descriptor
    from imagestore.mirror.backing import Backing
    from imagestore.testing import Image, RegistryServer

HOST: Final = platforms.parse("linux/amd64")
#: A handler for containers, and one whose guests have another architecture.
HANDLERS: Final = """
version = 3
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.arm]
runtime_type = "io.containerd.kata.v2"
guest_platform = {os = "linux", architecture = "arm64"}
"""


@dataclass
class RunningMirror:
    """A mirror that listens.

    Attributes:
        url: of it.
        mirror: for its numbers.
        workers: lends its store.
        call: runs something on its event loop.
    """

    url: str
    mirror: Mirror
    workers: StoreWorkers
    call: Callable[[Coroutine[Any, Any, Any]], Any]

    def get(self, path: str, method: str = "GET", **headers: str) -> httpx.Response:
        """Ask it."""
        return httpx.request(method, f"{self.url}{path}", headers=headers, timeout=60, verify=PLAIN)

    def serve_whole(self, path: str, digest: Digest) -> None:
        """Ask until a blob comes whole; a client that reads wrong bytes while they are judged is cut off."""

        def comes_whole() -> bool:
            try:
                answer = self.get(path)
            except httpx.RemoteProtocolError:
                return False
            assert answer.status_code != 200 or Digest.of(answer.content) == digest
            return answer.status_code == 200

        until(comes_whole, f"{path} comes whole")

    def results(self, kind: str) -> dict[str, int]:
        """How often clients were answered how."""
        found: dict[str, int] = {}
        for (_, asked, result), count in self.mirror.counters.requests().items():
            if asked == kind:
                found[result] = found.get(result, 0) + count
        return found


def push_naming(
    server: RegistryServer,
    path: str,
    image: Image,
    *,
    layers: Sequence[Descriptor] = (),
    manifests: Sequence[Descriptor] = (),
    **changed: int,
) -> Digest:
    """Push a manifest, or with ``manifests`` an index, that names content of others; tag 1 leads to it.

    Args:
        server: whose repository of ``registry.example`` it is.
        path: of the repository.
        image: whose manifest has the layers added; it is pushed, too.
        layers: added to those of the image.
        manifests: of the index.
        changed: members of the first layer.
    """
    server.library.add(f"registry.example/{path}:1", image)
    repository = server.library.open("registry.example", path)
    if manifests:
        entries = [dict(each.members()) for each in manifests]
        document = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": entries}
    else:
        document = json.loads(image.documents[image.target.digest].data)
        document["layers"][0].update(changed)
        document["layers"] += [dict(each.members()) for each in layers]
    raw = json.dumps(document).encode()
    media_type = OCI_INDEX if manifests else OCI_MANIFEST
    repository.documents[Digest.of(raw)] = StoredDocument(media_type, BytesBody(raw))
    repository.tags["1"] = Digest.of(raw)
    return Digest.of(raw)


def mirror_table(upstreams: dict[str, str], **settings: str) -> str:
    """A configuration whose mirror serves upstreams; values are TOML.

    Args:
        upstreams: a registry's host to the members of its table.
        settings: members of the mirror's table.
    """
    lines = [HANDLERS, '[plugins."io.imagestore.mirror.v1"]', *(f"{key} = {value}" for key, value in settings.items())]
    for name, members in upstreams.items():
        lines += [f'[plugins."io.imagestore.mirror.v1".upstreams."{name}"]', members]
    return "\n".join(lines)


@contextlib.contextmanager
def running_mirror(
    root: Path, text: str, *, port: int = 0, opener: Callable[..., Backing] | None = None
) -> Iterator[RunningMirror]:
    """Serve a configuration from a store, with what Mirror's ``opener`` opens."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def call(work: Coroutine[Any, Any, Any]) -> Any:
        future: Future[Any] = asyncio.run_coroutine_threadsafe(work, loop)
        return future.result(60)

    try:
        loaded = config.loads(text, filename="mirror.toml", host=HOST)
        workers = StoreWorkers(ImageStore(root, config=loaded, host=HOST))
        try:
            mirror, listener = call(_start(workers, port, opener))
            try:
                yield RunningMirror(f"http://127.0.0.1:{listener.port}", mirror, workers, call)
            finally:
                call(listener.stop())
                call(mirror.close())
        finally:
            workers.close()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _start(workers: StoreWorkers, port: int, opener: Callable[..., Backing] | None) -> tuple[Mirror, Listener]:
    mirror = Mirror(workers, opener=opener)
    await mirror.start()
    listener = Listener(mirror, "127.0.0.1", port)
    await listener.start(drain_seconds=1.0)
    return mirror, listener
