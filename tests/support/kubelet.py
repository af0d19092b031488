"""What a kubelet does with images and pods, as sequences of CRI calls that a process of its own makes."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.support.patience import PATIENCE_SECONDS, until

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from types import TracebackType
    from typing import Self

#: The pod's annotations, which go with every image call but the one for the image's user.
ANNOTATIONS: Final = {"kubernetes.io/config.source": "api", "kubernetes.io/config.seen": "2026-01-01T00:00:00Z"}
#: No network plugin is needed for the node's own network.
_SECURITY: Final = {"namespace_options": {"network": "NODE"}}


class CallError(Exception):
    """A call failed.

    Attributes:
        code: gRPC's name of it, for example ``UNAVAILABLE``.
        details: the server's text.
    """

    def __init__(self, method: str, code: str, details: str) -> None:
        super().__init__(f"{method}: {code}: {details}")
        self.code = code
        self.details = details


@dataclass(frozen=True)
class Call:
    """One CRI call.

    Attributes:
        method: of the image service or the runtime service.
        request: in protobuf's JSON form, with the names of the .proto file.
        seconds: the caller's deadline.
    """

    method: str
    request: Mapping[str, object] = field(default_factory=dict)
    seconds: float = PATIENCE_SECONDS


@dataclass(frozen=True)
class Container:
    """A started container in a pod of its own.

    Attributes:
        pod: id of its sandbox.
        id: its own.
        image_id: what it was made from.
        line: the first that it wrote.
    """

    pod: str
    id: str
    image_id: str
    line: str


class Kubelet:
    """One node's; for one thread.

    Args:
        images: endpoint of the image service.
        runtime: endpoint of the runtime service; the same one if not given.
    """

    def __init__(self, images: str, runtime: str = "") -> None:
        self._logs = tempfile.TemporaryDirectory(prefix="pods-")
        self._numbers = itertools.count()
        command = [sys.executable, "-m", "tests.support.kubelet_standin", images, runtime or images]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None, /
    ) -> None:
        with self._logs:
            self._process.communicate(timeout=PATIENCE_SECONDS)

    def at_once(self, calls: Iterable[Call]) -> list[dict[str, Any] | CallError]:
        """Make calls at the same time; their answers in the same order."""
        made = list(calls)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([vars(call) for call in made]) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the kubelet's stand-in ended"
        return [
            each["answer"] if "answer" in each else CallError(call.method, each["code"], each["details"])
            for call, each in zip(made, json.loads(line), strict=True)
        ]

    def call(
        self, method: str, request: Mapping[str, object] | None = None, *, seconds: float = PATIENCE_SECONDS
    ) -> dict[str, Any]:
        """Make one call.

        Raises:
            CallError: it failed.
        """
        (answer,) = self.at_once([Call(method, request or {}, seconds)])
        if isinstance(answer, CallError):
            raise answer
        return answer

    # Images.

    def pull(self, image: str, handler: str = "") -> str:
        """Pull for a pod of a handler; the image id."""
        return str(self.call("PullImage", self.pull_request(image, handler))["image_ref"])

    def pull_request(self, image: str, handler: str = "") -> dict[str, object]:
        """What a pull for a pod asks."""
        return {"image": _spec(image, handler), "sandbox_config": self._pod("pull")}

    def status(self, image: str, handler: str = "") -> dict[str, Any] | None:
        """Whether a pod of a handler has its image; the image or None."""
        return self.call("ImageStatus", {"image": _spec(image, handler)}).get("image")

    def user(self, image: str) -> dict[str, object]:
        """A container's user: the image is asked for by name, without handler and annotations; absent means root."""
        found = self.call("ImageStatus", {"image": {"image": image}}).get("image", {})
        if found.get("username"):
            return {"run_as_username": found["username"]}
        return {"run_as_user": {"value": found.get("uid", {}).get("value", "0")}}

    def images(self) -> dict[str, dict[str, Any]]:
        """The list, by id."""
        return {each["id"]: each for each in self.call("ListImages").get("images", [])}

    def remove(self, image: str, handler: str = "") -> None:
        """Remove an image by name or id."""
        self.call("RemoveImage", {"image": {"image": image, "runtime_handler": handler}})

    def collect_images(self) -> list[str]:
        """Image collection with a full disk: remove all that no container uses and that isn't pinned; their ids."""
        containers = self.call("ListContainers").get("containers", [])
        used = {_image_key(each.get("image_id") or each["image_ref"], each["image"]) for each in containers}
        listed = self.call("ListImages").get("images", [])
        unused = [each for each in listed if _image_key(each["id"], each.get("spec", {})) not in used]
        removed = [str(each["id"]) for each in unused if not each.get("pinned")]
        for each in removed:
            self.remove(each)
        return removed

    # Pods.

    def run(self, image: str, handler: str = "", *, policy: str = "IfNotPresent") -> Container:
        """A pod with one container, up to its first line: sandbox, image, user, container.

        Args:
            image: as the pod names it.
            handler: of its runtime class.
            policy: of pulling: ``Always``, ``IfNotPresent`` or ``Never``.
        """
        pod, config = self.sandbox(handler)
        present = self.status(image, handler) if policy != "Always" else None
        assert present is not None or policy != "Never", f"{image} isn't present for {handler!r}"
        image_id = str(present["id"]) if present is not None else self.pull(image, handler)
        return self.start(image, image_id, pod, config)

    def sandbox(self, handler: str = "") -> tuple[str, dict[str, Any]]:
        """A sandbox for a pod of a handler: its id and its configuration."""
        config = self._pod(f"pod-{next(self._numbers)}")
        return str(self.call("RunPodSandbox", {"config": config, "runtime_handler": handler})["pod_sandbox_id"]), config

    def start(self, image: str, image_id: str, pod: str, config: Mapping[str, Any]) -> Container:
        """A container in a sandbox."""
        wanted = {
            "metadata": {"name": "app"},
            "image": {"image": image_id, "user_specified_image": image, "annotations": ANNOTATIONS},
            "log_path": "app.log",
            "linux": {"security_context": {**_SECURITY, **self.user(image)}},
        }
        request = {"pod_sandbox_id": pod, "config": wanted, "sandbox_config": config}
        container = self.call("CreateContainer", request)["container_id"]
        self.call("StartContainer", {"container_id": container})
        log = Path(config["log_directory"], "app.log")
        until(lambda: log.exists() and log.read_text().endswith("\n"), f"container of {image} writes a line")
        # Time, stream, whether the line is whole, and the line.
        return Container(pod, container, image_id, log.read_text().splitlines()[0].split(" ", 3)[3])

    def state(self, container: Container) -> str:
        """A container's state, for example ``CONTAINER_RUNNING``."""
        status = self.call("ContainerStatus", {"container_id": container.id})["status"]
        return str(status.get("state", "CONTAINER_CREATED"))

    def uid(self, container: Container) -> int:
        """The user that a running container runs as."""
        request = {"container_id": container.id, "verbose": True}
        process = json.loads(self.call("ContainerStatus", request)["info"]["info"])["pid"]
        fields = dict(line.split(":", 1) for line in Path(f"/proc/{process}/status").read_text().splitlines())
        return int(fields["Uid"].split()[0])

    def pods(self) -> Sequence[str]:
        """Ids of all sandboxes."""
        return [each["id"] for each in self.call("ListPodSandbox").get("items", [])]

    def remove_pods(self, *pods: str) -> None:
        """End and remove sandboxes with their containers; all of them if none is named."""
        requests = [{"pod_sandbox_id": pod} for pod in pods or self.pods()]
        for method in ("StopPodSandbox", "RemovePodSandbox"):
            for answer in self.at_once(Call(method, request) for request in requests):
                if isinstance(answer, CallError):
                    raise answer

    def _pod(self, name: str) -> dict[str, Any]:
        folder = Path(self._logs.name, name)
        folder.mkdir(exist_ok=True)
        return {
            "metadata": {"name": name, "uid": f"{name}-{next(self._numbers)}", "namespace": "tests"},
            "log_directory": str(folder),
            "annotations": ANNOTATIONS,
            "linux": {"security_context": _SECURITY},
        }


def _spec(image: str, handler: str) -> dict[str, object]:
    return {"image": image, "runtime_handler": handler, "annotations": ANNOTATIONS}


def _image_key(image_id: str, spec: Mapping[str, Any]) -> tuple[str, str]:
    """How image collection compares an image in use with one of the list."""
    return image_id, str(spec.get("runtime_handler", ""))


def remove_all_pods(endpoint: str) -> None:
    """Remove every sandbox of a container runtime."""
    with Kubelet(endpoint) as kubelet:
        kubelet.remove_pods()
