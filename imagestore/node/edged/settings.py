"""edged's resolved settings for images, each with its origin."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from imagestore.errors import ConfigError, UnsupportedRuntimeTypeError
from imagestore.node.config_members import socket_path
from imagestore.node.kubelet_config import KubeletImageSettings
from imagestore.util.durations import NANOSECONDS, Duration

if TYPE_CHECKING:
    from collections.abc import Mapping

    from imagestore.node.config_members import ConfigMembers

DOCKER: Final = "docker"
REMOTE: Final = "remote"
#: A pull without progress for this long is cancelled (``imagePullProgressDeadline``).
STALL_LIMIT: Final = Duration(60 * NANOSECONDS)
DOCKER_ENDPOINT: Final = "unix:///var/run/docker.sock"
#: What edged calls the kubelet's members for endpoints.
FLAGS_OF_ENDPOINTS: Final = {
    "containerRuntimeEndpoint": "remoteRuntimeEndpoint",
    "imageServiceEndpoint": "remoteImageEndpoint",
}
_DOCKER_MEMBER: Final = "dockerEndpoint"


class Origin(enum.StrEnum):
    """The origin of a value."""

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
        runtime_endpoint, image_endpoint: of CRI; empty if not set.
        docker_endpoint: of the Docker Engine; used by the type docker only.
        request_timeout: of every call except pulls; None if not set.
        sandbox_image: of pods; empty if not set.
        memory_bytes: capacity that the node reports; None if not set.
        stall_limit: a pull without progress for this long is cancelled.
        kubelet: settings of the kubelet that edged embeds.
        places: paths in the file by the kubelet's names of members, and ``dockerEndpoint``.
        origins: origin of each value by its name in the file.
        warnings: about the file.
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
    places: Mapping[str, str] = field(default_factory=dict, hash=False)
    origins: Mapping[str, Origin] = field(default_factory=dict, hash=False)
    warnings: tuple[str, ...] = ()

    def located(self, fault: str) -> str:
        """A fault of the kubelet's settings, with the members that it names as the file has them."""
        named = [place for name, place in self.places.items() if re.search(rf"\b{re.escape(name)}\b", fault)]
        return f"{fault} ({', '.join(named)})" if named else fault

    def check_services(self) -> None:
        """Check that clients can use the endpoints of the runtime type.

        Raises:
            ConfigError: one can't be used; it is named as in the file.
        """
        used = {
            "containerRuntimeEndpoint": self.runtime_endpoint,
            "imageServiceEndpoint": self.image_endpoint or self.runtime_endpoint,
        }
        for name, text in ({_DOCKER_MEMBER: self.docker_endpoint} if self.runtime_type == DOCKER else used).items():
            try:
                socket_path(text)
            except ConfigError as error:
                raise ConfigError(f"{self.places.get(name, name)}: {error}", hint=error.hint) from error


def places_of_services(given: ConfigMembers, docker: str) -> dict[str, str]:
    """Places of the members that name services.

    Args:
        docker: the member for the Docker Engine.
    """
    return {**{name: given.at(flag) for name, flag in FLAGS_OF_ENDPOINTS.items()}, _DOCKER_MEMBER: given.at(docker)}


def checked_type(given: ConfigMembers, name: str, default: str) -> str:
    """The runtime type; UnsupportedRuntimeTypeError if it isn't exactly docker or remote."""
    runtime_type = given.text(name) or default
    if runtime_type not in (DOCKER, REMOTE):
        raise UnsupportedRuntimeTypeError(runtime_type, member=given.at(name))
    return runtime_type
