"""A containerd in this process, on a unix socket, as a publisher sees it: for tests without root, and without waiting.

It keeps what the real one keeps, with its folder for content on disk (fake_containerd_state), does what the real one
does at each call (fake_containerd_services), and fails when it is told to:

>>> fake.faults.refuse("Images/Create", grpc.StatusCode.UNAVAILABLE)
>>> fake.faults.meanwhile("Leases/Create", fake.wipe, after=True)
"""

from __future__ import annotations

import contextlib
import json
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc

from imagestore.protos.containerd import content_pb2
from imagestore.protos.containerd.types_pb2 import Descriptor, Envelope
from imagestore.testing import Image
from imagestore.util.rpc import MESSAGE_BYTES
from tests.support.fake_containerd_services import SERVICES, CriPlugin, Listener
from tests.support.fake_containerd_state import (
    Blob,
    Container,
    Namespace,
    RefusedError,
    Rules,
    Snapshot,
    State,
    chain_id,
    not_found,
)

NAMESPACE: Final = "k8s.io"
#: More calls than a publisher has at once, and the streams of its events.
_THREADS: Final = 48
_OPTIONS: Final = [("grpc.max_receive_message_length", MESSAGE_BYTES), ("grpc.max_send_message_length", MESSAGE_BYTES)]


@dataclass
class Fault:
    """What happens at some calls of a method, before or after they have an effect."""

    call: str
    act: Callable[[], object]
    is_after: bool
    skip: int
    count: int


class Faults:
    """The faults to come, by method (``Images/Create``; ``*`` for any), and the calls that were made."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._faults: list[Fault] = []
        self.calls: Counter[str] = Counter()

    def refuse(
        self,
        call: str,
        code: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE,
        *,
        text: str = "it is told to",
        after: bool = False,
        skip: int = 0,
        count: int = 1,
    ) -> None:
        """Let calls fail, after they had their effect or before; after ``skip`` that don't."""

        def _raise() -> None:
            raise RefusedError(code, text)

        self.meanwhile(call, _raise, after=after, skip=skip, count=count)

    def meanwhile(
        self, call: str, act: Callable[[], object], *, after: bool = False, skip: int = 0, count: int = 1
    ) -> None:
        """Let something happen at calls."""
        with self._lock:
            self._faults.append(Fault(call, act, after, skip, count))

    @property
    def is_any_left(self) -> bool:
        """Whether one is to come."""
        with self._lock:
            return any(each.count for each in self._faults)

    def clear(self) -> None:
        """No fault is to come, and no call was made."""
        with self._lock:
            self._faults.clear()
            self.calls.clear()

    def reach(self, call: str, *, is_after: bool) -> None:
        """A call is made, or was."""
        due = []
        with self._lock:
            if not is_after:
                self.calls[call] += 1
            for fault in self._faults:
                if fault.call not in (call, "*") or fault.is_after is not is_after:
                    continue
                if fault.skip:
                    fault.skip -= 1
                elif fault.count:
                    fault.count -= 1
                    due.append(fault)
        for fault in due:
            fault.act()


class FakeContainerd(grpc.ServerInterceptor):
    """One containerd; thread-safe.

    Args:
        folder: of its own, empty.
        rules: how it behaves; may be changed at any time.
        clock: seconds since 1970.
    """

    def __init__(self, folder: Path, rules: Rules | None = None, clock: Callable[[], float] = time.time) -> None:
        self.folder = folder
        self.root = folder / "content"
        self.root.mkdir(parents=True)
        self.address = f"unix://{folder}/containerd.sock"
        self.rules = rules or Rules()
        self.lock = threading.RLock()
        self.faults = Faults()
        self.listeners: list[Listener] = []
        #: Exceptions that are faults of this module, or of what calls it.
        self.broken: list[BaseException] = []
        self.is_dead = False
        self._life = 0
        self._clock = clock
        self.state = self._new_state()
        self.cri = CriPlugin(self)
        self._server: grpc.Server | None = None

    def _new_state(self) -> State:
        return State(self.root, self.rules, self._clock, self.publish)

    # Its life.

    def start(self) -> None:
        """Listen on the socket, or live again."""
        with self.lock:
            self.cri.start()
            self.is_dead = False
        if self._server is None:
            pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="fake-containerd")
            self._server = grpc.server(pool, interceptors=[self], options=_OPTIONS)
            for service, add in SERVICES:
                add(service(self), self._server)
            self._server.add_insecure_port(self.address)
            self._server.start()

    def stop(self) -> None:
        """Close the socket; no handler may call this."""
        self.kill()
        if self._server is not None:
            self._server.stop(0).wait()
            self._server = None

    def kill(self) -> None:
        """Lose every call and stream, and refuse others, until it is started; a handler may call this."""
        with self.lock:
            self.is_dead = True
            self._life += 1
            listeners = list(self.listeners)
            for here in self.state.namespaces.values():
                for ingest in here.ingests.values():
                    ingest.is_locked = False
        for each in listeners:
            each.cut()

    def restart(self) -> None:
        """Kill and start."""
        self.kill()
        self.start()

    def wipe(self) -> None:
        """Kill it, remove its folders, and start it."""
        self.kill()
        with self.lock:
            self.state = self._new_state()
            shutil.rmtree(self.root, ignore_errors=True)
            self.root.mkdir()
        self.start()

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], grpc.RpcMethodHandler[Any, Any] | None],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """See ServerInterceptor: counts each call, and lets it fail if it is to."""
        handler: Any = continuation(handler_call_details)
        service, _, method = handler_call_details.method.rpartition("/")
        name = f"{service.rpartition('.')[2]}/{method}"
        if handler is None:
            return None
        coders = {
            "request_deserializer": handler.request_deserializer,
            "response_serializer": handler.response_serializer,
        }

        def _one(request: Any, context: grpc.ServicerContext) -> Any:
            with self._judged(context) as reach:
                reach(name, False)
                answer = handler.unary_unary(request, context)
                reach(name, True)
            return answer

        def _several(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
            with self._judged(context) as reach:
                reach(name, False)
                for answer in (handler.unary_stream or handler.stream_stream)(request, context):
                    if isinstance(answer, content_pb2.WriteContentResponse):
                        reach(f"{name}/{content_pb2.WriteAction.Name(answer.action)}", True)
                    yield answer
                if handler.unary_stream is not None:
                    reach(name, True)

        if handler.unary_unary is not None:
            return grpc.unary_unary_rpc_method_handler(_one, **coders)
        if handler.unary_stream is not None:
            return grpc.unary_stream_rpc_method_handler(_several, **coders)
        return grpc.stream_stream_rpc_method_handler(_several, **coders)

    @contextlib.contextmanager
    def _judged(self, context: grpc.ServicerContext) -> Iterator[Callable[[str, bool], None]]:
        """Exceptions to statuses; gives a function that says that a place is reached, before or after the effect."""
        life = self._life

        def _reach(name: str, is_after: bool) -> None:
            self._check_life(life)
            self.faults.reach(name, is_after=is_after)
            self._check_life(life)

        refused: RefusedError
        try:
            yield _reach
            return
        except RefusedError as error:
            refused = error
        except grpc.RpcError:  # the client has died
            raise
        except Exception as error:
            self.broken.append(error)
            raise
        context.abort(refused.code, str(refused))

    def _check_life(self, life: int) -> None:
        if self.is_dead or life != self._life:
            raise RefusedError(grpc.StatusCode.UNAVAILABLE, "containerd was killed")

    def publish(self, namespace: str, topic: str, name: str) -> None:
        if namespace == CriPlugin.NAMESPACE:
            self.cri.event(name)
        for listener in list(self.listeners):
            listener.hear(Envelope(namespace=namespace, topic=topic))

    # What tests look at.

    @property
    def here(self) -> Namespace:
        """CRI's namespace."""
        return self.state.namespace(NAMESPACE)

    def images(self) -> dict[str, str]:
        """The target's digest by name."""
        with self.lock:
            return {name: image.target.digest for name, image in self.here.images.items()}

    def labels(self, name: str) -> dict[str, str]:
        """A record's."""
        with self.lock:
            return dict(self.state.image(NAMESPACE, name).labels)

    def blobs(self) -> set[str]:
        """Digests of content records."""
        with self.lock:
            return set(self.here.blobs)

    def files(self) -> set[str]:
        """Digests of the files in its folder."""
        folder = self.root / "blobs" / "sha256"
        return {f"sha256:{each.name}" for each in folder.iterdir()} if folder.exists() else set()

    def snapshots(self, snapshotter: str = "overlayfs") -> dict[str, Snapshot]:
        """A snapshotter's."""
        with self.lock:
            return dict(self.here.snapshots.get(snapshotter, {}))

    def committed(self, snapshotter: str = "overlayfs") -> set[str]:
        """The chain ids that are unpacked."""
        return {name for name, each in self.snapshots(snapshotter).items() if each.is_committed}

    def leases(self) -> set[str]:
        """The ids of all leases."""
        with self.lock:
            return set(self.here.leases)

    def faults_of_state(self) -> list[str]:
        """What no sequence of calls may lead to, in words."""
        found = [f"this module failed: {each!r}" for each in self.broken]
        with self.lock:
            if self.state.stopped_sweeps:
                found.append("a name that is no digest stopped the sweep of the content folder")
            for snapshotter, there in self.here.snapshots.items():
                for name, each in there.items():
                    made = [chain_id(each.parent, applied) for applied in each.applied]
                    if each.is_committed and name not in self.rules.remote and made != [name]:
                        found.append(
                            f"{snapshotter}: {name} was made from {each.applied} on {each.parent or 'nothing'}"
                        )
        return found

    def start_container(self, container: str, image: str, snapshotter: str = "overlayfs") -> None:
        """Make a container of an id or a name, as CreateContainer does.

        Raises:
            RefusedError: it can't run.
        """
        with self.lock:
            image_id = self.cri.resolve(image)
            if not image_id:
                raise not_found(f"image {image}")
            record = next(name for name, found in self.cri.known() if found == image_id)
            target = self.state.image(NAMESPACE, record).target
            chains = self.state.chains(NAMESPACE, image_id)
            self._unpack(target, chains, snapshotter)
            parent = chains[-1] if chains else ""
            self.state.prepare(NAMESPACE, snapshotter, container, parent, {}, "")
            self.here.containers[container] = Container(image_id, snapshotter)

    def _unpack(self, target: Descriptor, chains: list[str], snapshotter: str) -> None:
        """As an unpack on demand does: the layers have to be there."""
        manifest = self.state.manifest(NAMESPACE, target.digest)
        there = self.state.snapshots_of(NAMESPACE, snapshotter)
        if not chains or chains[-1] in there or not self.rules.unpacks_on_demand:
            return
        parent = ""
        for chain, layer in zip(chains, manifest["layers"], strict=True):
            if chain not in there:
                self.state.prepare(NAMESPACE, snapshotter, "on demand", parent, {}, "")
                try:
                    self.state.apply(NAMESPACE, layer["digest"], snapshotter, "on demand")
                except RefusedError:
                    self.state.remove_snapshot(NAMESPACE, snapshotter, "on demand")
                    raise
                self.state.commit_snapshot(NAMESPACE, snapshotter, chain, "on demand", "")
            parent = chain

    def runs(self, image: str, snapshotter: str = "overlayfs") -> bool:
        """Whether a container can be made of an id or a name; it is removed again."""
        with self.lock:
            try:
                self.start_container("trial", image, snapshotter)
            except RefusedError:
                return False
            self.remove_container("trial")
            return True

    def remove_container(self, container: str) -> None:
        """Remove one with its snapshot."""
        with self.lock:
            gone = self.here.containers.pop(container)
            self.state.remove_snapshot(NAMESPACE, gone.snapshotter, container)

    # What others do.

    def collect(self) -> None:
        """Run the collector."""
        with self.lock:
            self.state.collect()

    def remove_image(self, name: str) -> None:
        """As ``ctr images rm --sync``."""
        with self.lock:
            self.state.delete_image(NAMESPACE, name)
            self.state.collect()

    def tag(self, source: str, name: str) -> None:
        """As ``ctr images tag`` of 1.6, which copies the labels."""
        with self.lock:
            found = self.state.image(NAMESPACE, source)
            self.state.namespace(NAMESPACE).images.pop(name, None)
            self.state.create_image(NAMESPACE, name, found.target, dict(found.labels))

    def pull(self, name: str, image: Image, labels: dict[str, str] | None = None) -> None:
        """As ``ctr images pull`` without unpacking: content, and a record that leads to the image's target."""
        with self.lock:
            for digest, document in image.documents.items():
                self._put(str(digest), document.data)
            for digest, body in image.blobs.items():
                self._put(str(digest), b"".join(body.chunks()))
            target = Descriptor(
                media_type=image.target.media_type, digest=str(image.target.digest), size=image.target.size
            )
            self.here.images.pop(name, None)
            self.state.create_image(NAMESPACE, name, target, labels or {})

    def _put(self, digest: str, data: bytes) -> None:
        path = self.state.path(digest)
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.write_bytes(data)
        self.record_content(digest, len(data), _references_of(data))

    def record_content(self, digest: str, size: int, labels: dict[str, str]) -> None:
        """Let a blob be content of the namespace."""
        with self.lock:
            self.here.blobs.setdefault(digest, Blob(size, dict(labels)))

    def remove_content(self, digest: str) -> None:
        """As ``ctr content rm``."""
        with self.lock:
            self.here.blobs.pop(digest, None)
            self.state.path(digest).unlink(missing_ok=True)


def _references_of(data: bytes) -> dict[str, str]:
    """The labels by which a document keeps what it points at."""
    try:
        document = json.loads(data)
    except ValueError:
        return {}
    parts = [*document.get("manifests", ()), *document.get("layers", ())]
    found = {f"containerd.io/gc.ref.content.{number}": str(part["digest"]) for number, part in enumerate(parts)}
    config = document.get("config")
    if isinstance(config, dict) and "digest" in config:
        found["containerd.io/gc.ref.content.config"] = str(config["digest"])
    return found


@contextlib.contextmanager
def fake_containerd(
    folder: Path, rules: Rules | None = None, clock: Callable[[], float] = time.time
) -> Iterator[FakeContainerd]:
    """A running one; at the end it must have been used rightly."""
    fake = FakeContainerd(folder, rules, clock)
    fake.start()
    try:
        yield fake
    finally:
        fake.stop()
    found = fake.faults_of_state()
    assert found == [], found
