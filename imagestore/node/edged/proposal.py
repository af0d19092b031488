"""The parameters of KubeEdge's design proposal "CRI Support in edged", profile ``seed``, with their defaults.

Rules: ``runtimeType`` defaults to ``docker``. The other defaults apply to ``remote`` only; the image endpoint then
defaults to the *resolved* runtime endpoint. For ``docker`` given values are kept but unused. An empty text counts as
not given.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from imagestore.errors import ConfigError
from imagestore.node.config_members import ConfigMembers, positive
from imagestore.node.edged.settings import (
    DOCKER,
    DOCKER_ENDPOINT,
    REMOTE,
    EdgedSettings,
    Origin,
    checked_type,
    places_of_services,
)
from imagestore.node.kubelet_config import KubeletImageSettings
from imagestore.util.durations import NANOSECONDS, Duration
from imagestore.util.known_members import nearest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

#: The proposal's default, with its typing error for ``containerd.sock``.
_RUNTIME_ENDPOINT: Final = "/var/run/containerd/container.sock"
_SANDBOX_IMAGE: Final = "k8s.gcr.io/pause"
_TIMEOUT: Final = Duration(120 * NANOSECONDS)
#: "2G" as a quantity; the first release used one byte less than 2 GiB.
_MEMORY_BYTES: Final = 2_000_000_000
# The proposal capitalizes some names, the first release uses hyphens and "edged."; both are read.
_NAMES: Final = {
    "runtimetype": "runtimeType",
    "remoteruntimeendpoint": "remoteRuntimeEndpoint",
    "remoteimageendpoint": "remoteImageEndpoint",
    "runtimerequesttimeout": "runtimeRequestTimeout",
    "podsandboximage": "podSandboxImage",
    "memorycapacity": "memoryCapacity",
    "edgedmemorycapacity": "memoryCapacity",
    "edgedmemorycapacitybytes": "memoryCapacity",
    "dockeraddress": "dockerAddress",
}
_NEAR: Final = 0.85


def is_proposal(value: Mapping[str, object]) -> bool:
    """Whether an object has parameters of the proposal or the first release, at its top or in ``edged``."""
    inner = value.get("edged")
    names = {*value, *(inner if isinstance(inner, dict) else ())}
    return any(_plain(name) in _NAMES for name in names)


def resolve_proposal(value: Mapping[str, object]) -> EdgedSettings:
    """The settings of decoded parameters, with the proposal's defaults."""
    spelling: dict[str, str] = {}
    given = ConfigMembers(_named(value, spelling), "", spelling)
    kind = checked_type(given, "runtimeType", DOCKER)
    runtime, image = given.text("remoteRuntimeEndpoint"), given.text("remoteImageEndpoint")
    timeout, sandbox = _timeout(given), given.reference("podSandboxImage")
    memory = given.long_integer("memoryCapacity")
    if timeout is not None:
        positive(timeout, given.at("runtimeRequestTimeout"))
    if memory is not None and memory <= 0:
        raise ConfigError(f"{given.at('memoryCapacity')}: memory capacity {memory}: expected more than zero")
    is_remote = kind == REMOTE
    for name, endpoint in (("remoteRuntimeEndpoint", runtime), ("remoteImageEndpoint", image)) if is_remote else ():
        if endpoint:
            given.endpoint(name, endpoint)
    resolved = runtime or (_RUNTIME_ENDPOINT if is_remote else "")
    warnings = [*_slips(value)]
    if not is_remote and (runtime or image):
        warnings.append("runtimeType docker leaves the remote endpoints unused")
    docker = given.text("dockerAddress")
    return EdgedSettings(
        profile="seed",
        runtime_type=kind,
        runtime_endpoint=resolved,
        image_endpoint=image or (resolved if is_remote else ""),
        docker_endpoint=docker or DOCKER_ENDPOINT,
        request_timeout=timeout or (_TIMEOUT if is_remote else None),
        sandbox_image=sandbox or (_SANDBOX_IMAGE if is_remote else ""),
        kubelet=KubeletImageSettings(runtime_request_timeout=timeout or _TIMEOUT),
        memory_bytes=memory if memory is not None else (_MEMORY_BYTES if is_remote else None),
        places=places_of_services(given, "dockerAddress"),
        origins=_origins(
            {
                "runtimeType": given.text("runtimeType"),
                "remoteRuntimeEndpoint": runtime,
                "remoteImageEndpoint": image,
                "runtimeRequestTimeout": timeout,
                "podSandboxImage": sandbox,
                "memoryCapacity": memory,
                "dockerAddress": docker,
            },
            is_remote=is_remote,
        ),
        warnings=tuple(warnings),
    )


def _timeout(given: ConfigMembers) -> Duration | None:
    """A duration; the first release, which has hyphens in its names, counts minutes."""
    name = "runtimeRequestTimeout"
    if "-" not in given.at(name) or isinstance(given.values.get(name), str):
        return given.duration(name)
    minutes = given.integer(name)
    return None if minutes is None else Duration(minutes * 60 * NANOSECONDS)


def _origins(values: Mapping[str, str | Duration | int | None], *, is_remote: bool) -> dict[str, Origin]:
    found: dict[str, Origin] = {}
    for name, value in values.items():
        is_used = name not in (("dockerAddress",) if is_remote else ("remoteRuntimeEndpoint", "remoteImageEndpoint"))
        if value not in (None, ""):
            found[name] = Origin.GIVEN if is_used else Origin.UNUSED
        elif name in ("runtimeType", "dockerAddress"):
            found[name] = Origin.DEFAULT
        elif not is_remote:
            found[name] = Origin.ABSENT
        else:
            found[name] = Origin.FOLLOWS if name == "remoteImageEndpoint" else Origin.DEFAULT
    return found


def _named(value: Mapping[str, object], spelling: dict[str, str]) -> dict[str, object]:
    """The parameters by their names in the proposal, and their paths as written."""
    found: dict[str, object] = {}
    inner = ConfigMembers(value).mapping("edged")
    for path, name, each in (*(("", *item) for item in value.items()), *(("edged.", *item) for item in inner.items())):
        known = _NAMES.get(_plain(name))
        if known is None:
            continue
        written = f"{path}{name}"[:200]
        if known in found:
            raise ConfigError(f"{written}: {known} is given twice, the other time as {spelling[known]}")
        found[known], spelling[known] = each, written
    return found


def _slips(value: Mapping[str, object]) -> Iterator[str]:
    """A warning for each unknown name that is similar to a parameter; the first release's file has other names too."""
    inner = ConfigMembers(value).mapping("edged")
    for name in (*(name for name in value if name != "edged"), *inner):
        if _plain(name) not in _NAMES and (meant := nearest(_plain(name), _NAMES, likeness=_NEAR)):
            yield f"{name[:100]}: no such parameter, ignored; did you mean {_NAMES[meant]}?"


def _plain(name: str) -> str:
    return re.sub("[-_]", "", name).lower().removeprefix("edged.")
