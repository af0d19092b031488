"""What edged is told about images, resolved: every value with where it came from."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from imagestore.errors import UnsupportedRuntimeTypeError
from imagestore.node.kubelet_config import KubeletImageSettings
from imagestore.util.durations import NANOSECONDS, Duration

if TYPE_CHECKING:
    from collections.abc import Mapping

DOCKER: Final = "docker"
REMOTE: Final = "remote"
#: The seed's text: a typing error for ``containerd.sock``, kept as its documented default.
SEED_RUNTIME_ENDPOINT: Final = "/var/run/containerd/container.sock"
SEED_SANDBOX_IMAGE: Final = "k8s.gcr.io/pause"
SEED_TIMEOUT: Final = Duration(120 * NANOSECONDS)
#: "2G" as a quantity; the first release used one byte less than 2 GiB.
SEED_MEMORY_BYTES: Final = 2_000_000_000
#: A pull that makes no progress for so long is given up (``imagePullProgressDeadline``).
STALL_LIMIT: Final = Duration(60 * NANOSECONDS)
DOCKER_ENDPOINT: Final = "unix:///var/run/docker.sock"


class Origin(enum.StrEnum):
    """Where a value came from."""

    GIVEN = "given"
    DEFAULT = "default"
    FOLLOWS = "follows remoteRuntimeEndpoint"
    UNUSED = "given, unused by this runtime type"
    ABSENT = "not set"


@dataclass(frozen=True, slots=True)
class EdgedSettings:
    """The resolved configuration.

    Attributes:
        profile: ``seed``, ``v1alpha1`` or ``v1alpha2``.
        runtime_type: ``docker`` or ``remote``.
        runtime_endpoint, image_endpoint: of CRI; empty where they are not set.
        docker_endpoint: of the Docker Engine; used by the type docker only.
        request_timeout: of every call but pulls; None where it isn't set.
        sandbox_image: of pods; empty where it isn't set.
        memory_bytes: capacity that the node tells; None where it isn't set.
        stall_limit: a pull without progress for so long is given up.
        kubelet: the kubelet's settings below it.
        origins: where each value came from, by the name in the file.
        warnings: what is doubtful about the file.
    """

    profile: str
    runtime_type: str
    runtime_endpoint: str = ""
    image_endpoint: str = ""
    docker_endpoint: str = DOCKER_ENDPOINT
    request_timeout: Duration | None = None
    sandbox_image: str = ""
    memory_bytes: int | None = None
    stall_limit: Duration = STALL_LIMIT
    kubelet: KubeletImageSettings = field(default_factory=KubeletImageSettings)
    origins: Mapping[str, Origin] = field(default_factory=dict, hash=False)
    warnings: tuple[str, ...] = ()


def checked_type(runtime_type: str) -> str:
    """The runtime type, compared exactly.

    Raises:
        UnsupportedRuntimeTypeError: it is neither docker nor remote.
    """
    if runtime_type not in (DOCKER, REMOTE):
        raise UnsupportedRuntimeTypeError(runtime_type)
    return runtime_type
