"""edgecore's configuration file: v1alpha1 (KubeEdge 1.2 to 1.11), v1alpha2 (since 1.12), or the proposal's parameters.

Both versions are read as edged reads them, with warnings where that surprises:

- v1alpha1 has all members directly in ``modules.edged``. Its runtimeRequestTimeout is in minutes, unlike its comment.
- v1alpha2 embeds a kubelet: its configuration is ``tailoredKubeletConfig``; its flags are directly in
  ``modules.edged``, because Go's JSON form of the embedded struct TailoredKubeletFlag has no object of its own.
- v1alpha2 applies defaults first. If a file changes only the runtime endpoint, images stay on containerd, although the
  comment says otherwise. An empty image endpoint means the runtime's, zeros are values, and parallel pulls need
  ``serializeImagePulls: false``.
"""

from __future__ import annotations

import platform
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from imagestore.errors import ConfigError, UnsupportedRuntimeTypeError
from imagestore.node.config_members import ConfigMembers, or_default, positive
from imagestore.node.edged.member_names import CONFIG, check_placement, respelled, unknown_edged_members
from imagestore.node.edged.proposal import is_proposal, resolve_proposal
from imagestore.node.edged.settings import (
    DOCKER,
    DOCKER_ENDPOINT,
    FLAGS_OF_ENDPOINTS,
    REMOTE,
    STALL_LIMIT,
    EdgedSettings,
    Origin,
    checked_type,
    places_of_services,
)
from imagestore.node.kubelet_config import DEFAULT_RUNTIME_ENDPOINT, KubeletImageSettings, unknown_members
from imagestore.util.durations import NANOSECONDS, Duration
from imagestore.util.yaml_documents import read_documents

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

_GROUP: Final = "edgecore.config.kubeedge.io"
_KIND: Final = "EdgeCore"
_DOCKERSHIM: Final = "unix:///var/run/dockershim.sock"
_WINDOWS_ENDPOINT: Final = "npipe://./pipe/containerd-containerd"
_ALPHA1_SANDBOX: Final = {
    "x86_64": "kubeedge/pause:3.1",
    "aarch64": "kubeedge/pause-arm64:3.1",
    "armv7l": "kubeedge/pause-arm:3.1",
}
_ALPHA1_MEMORY: Final = 7_852_396_000
_ALPHA2_SANDBOX: Final = "kubeedge/pause:3.6"
#: Defaults that differ from the kubelet's, or that a kubelet derives from other values.
_ALPHA2_DEFAULTS: Final = {"nodeStatusMaxImages": 0, "serializeImagePulls": True}


def load(path: Path) -> EdgedSettings:
    """Read an edged configuration in any of the three forms.

    Raises:
        ConfigError: the file or a value can't be read.
        UnsupportedRuntimeTypeError: the runtime type is neither docker nor remote.
    """
    documents = read_documents(path)
    if len(documents) != 1:
        raise ConfigError(f"{path}: expected one document, found {len(documents)}")
    try:
        return interpret(documents[0], what=str(path))
    except UnsupportedRuntimeTypeError as error:
        raise UnsupportedRuntimeTypeError(error.runtime_type, member=error.member, file=str(path)) from error
    except ConfigError as error:
        if str(error).startswith(f"{path}: "):
            raise
        raise ConfigError(f"{path}: {error}", hint=error.hint) from error


def interpret(value: Mapping[str, object], *, what: str = "edged configuration") -> EdgedSettings:
    """Interpret a decoded configuration.

    Args:
        value: the object.
        what: names it in errors.
    """
    top = respelled(value)
    kind, version = top.get("kind"), top.get("apiVersion")
    # edgecore ignores the kind, but with another component's file every member would have its default.
    if kind not in (None, "") and str(kind).lower() != _KIND.lower():
        raise ConfigError(
            f"{what}: kind {str(kind)[:100]!r}: expected {_KIND}",
            hint="give edgecore's file, which is usually /etc/kubeedge/config/edgecore.yaml",
        )
    if version is None:
        if "modules" not in top and (is_proposal(value) or not value):
            return resolve_proposal(value)
        raise ConfigError(f"{what}: expected apiVersion {_GROUP}/v1alpha1 or v1alpha2")
    read = _READERS.get(version) if isinstance(version, str) else None
    if not isinstance(version, str) or read is None:
        raise ConfigError(f"{what}: apiVersion {str(version)[:100]!r}: expected {_GROUP}/v1alpha1 or v1alpha2")
    short = version.rpartition("/")[2]
    spelling: dict[str, str] = {}
    whole = respelled(value, short, spelling)
    check_placement(whole, what)
    settings = read(ConfigMembers(whole, "", spelling).object("modules").object("edged"))
    return replace(settings, warnings=(*unknown_edged_members(whole, short), *settings.warnings))


def _alpha1(given: ConfigMembers) -> EdgedSettings:
    kind = checked_type(given, "runtimeType", DOCKER)
    runtime = given.text("remoteRuntimeEndpoint")
    image = given.text("remoteImageEndpoint")
    memory, deadline = given.long_integer("edgedMemoryCapacity"), given.integer("imagePullProgressDeadline")
    minutes = or_default(given.integer("runtimeRequestTimeout"), 2)
    timeout = positive(Duration(minutes * 60 * NANOSECONDS), given.at("runtimeRequestTimeout"))
    kubelet = replace(
        KubeletImageSettings(),
        image_gc_high_threshold_percent=or_default(given.integer("imageGCHighThreshold"), 80),
        image_gc_low_threshold_percent=or_default(given.integer("imageGCLowThreshold"), 40),
        runtime_request_timeout=timeout,
        container_runtime_endpoint=runtime or _DOCKERSHIM,
        image_service_endpoint=image or _DOCKERSHIM,
    )
    names = ("runtimeType", "dockerAddress", "remoteRuntimeEndpoint", "remoteImageEndpoint", "runtimeRequestTimeout")
    more = ("podSandboxImage", "edgedMemoryCapacity", "imagePullProgressDeadline")
    warnings = ["runtimeRequestTimeout counts minutes here"] if "runtimeRequestTimeout" in given else []
    if kind == REMOTE and runtime and not image and runtime != _DOCKERSHIM:
        warnings.append(f"only the runtime endpoint is changed: images stay on {_DOCKERSHIM}; set the other as well")
    return EdgedSettings(
        profile="v1alpha1",
        runtime_type=kind,
        runtime_endpoint=given.endpoint("remoteRuntimeEndpoint", runtime or _DOCKERSHIM),
        image_endpoint=given.endpoint("remoteImageEndpoint", image or _DOCKERSHIM),
        docker_endpoint=given.text("dockerAddress") or DOCKER_ENDPOINT,
        request_timeout=timeout,
        sandbox_image=given.reference("podSandboxImage")
        or _ALPHA1_SANDBOX.get(platform.machine(), "kubeedge/pause:3.1"),
        memory_bytes=or_default(memory, _ALPHA1_MEMORY),
        stall_limit=positive(Duration(or_default(deadline, 60) * NANOSECONDS), given.at("imagePullProgressDeadline")),
        kubelet=kubelet,
        places={
            **{f"{name}Percent": given.at(name) for name in ("imageGCHighThreshold", "imageGCLowThreshold")},
            **places_of_services(given, "dockerAddress"),
        },
        origins={name: _origin(given, name) for name in (*names, *more)},
        warnings=tuple(warnings),
    )


def _alpha2(given: ConfigMembers) -> EdgedSettings:
    config = given.object(CONFIG)
    default = _WINDOWS_ENDPOINT if sys.platform == "win32" else DEFAULT_RUNTIME_ENDPOINT
    # The flags are those of 1.12 and 1.13; later the endpoints moved into the configuration.
    runtime = config.text("containerRuntimeEndpoint") or given.text("remoteRuntimeEndpoint")
    image = config.text("imageServiceEndpoint") or given.text("remoteImageEndpoint")
    # An empty text removes the default, and the kubelet then uses the runtime's endpoint.
    is_following = not image and ("imageServiceEndpoint" in config or "remoteImageEndpoint" in given)
    kind = checked_type(given, "containerRuntime", REMOTE)
    warnings = [*unknown_members(given.mapping(CONFIG), path=config.path)]
    if kind == DOCKER:
        warnings.append(
            "containerRuntime docker: KubeEdge 1.14 and later refuse it; use remote with cri-dockerd or containerd, and"
            " set the endpoints"
        )
    if runtime and not image and runtime != default and not is_following:
        warnings.append(
            f"only the runtime endpoint is changed: images stay on {default}, whatever the comment of"
            " imageServiceEndpoint says; set it as well"
        )
    kubelet = KubeletImageSettings.parse(
        {
            **_ALPHA2_DEFAULTS,
            **{name: each for name, each in given.mapping(CONFIG).items() if each is not None},
            "containerRuntimeEndpoint": runtime or default,
            "imageServiceEndpoint": "" if is_following else image or default,
        },
        path=config.path,
        spelling=config.spelling,
        is_zero_given=True,
    )
    deadline = given.duration("imagePullProgressDeadline") or STALL_LIMIT
    return EdgedSettings(
        profile="v1alpha2",
        runtime_type=kind,
        runtime_endpoint=_endpoint(kubelet.container_runtime_endpoint, "containerRuntimeEndpoint", given),
        image_endpoint=_endpoint(kubelet.image_service_endpoint, "imageServiceEndpoint", given),
        docker_endpoint=given.text("dockerEndpoint") or DOCKER_ENDPOINT,
        request_timeout=kubelet.runtime_request_timeout,
        sandbox_image=given.reference("podSandboxImage") or _ALPHA2_SANDBOX,
        stall_limit=positive(deadline, given.at("imagePullProgressDeadline")),
        kubelet=kubelet,
        places={
            **places_of_services(given, "dockerEndpoint"),
            **{name: config.at(name) for name in given.mapping(CONFIG)},
        },
        origins={
            "containerRuntime": _origin(given, "containerRuntime"),
            "dockerEndpoint": _origin(given, "dockerEndpoint"),
            "imagePullProgressDeadline": _origin(given, "imagePullProgressDeadline"),
            "containerRuntimeEndpoint": Origin.GIVEN if runtime else Origin.DEFAULT,
            "imageServiceEndpoint": (Origin.FOLLOWS if is_following else Origin.GIVEN if image else Origin.DEFAULT),
            "runtimeRequestTimeout": _origin(config, "runtimeRequestTimeout"),
            "podSandboxImage": _origin(given, "podSandboxImage"),
            "featureGates": _origin(config, "featureGates"),
        },
        warnings=tuple(warnings),
    )


_READERS: Final[Mapping[str, Callable[[ConfigMembers], EdgedSettings]]] = {
    f"{_GROUP}/v1alpha1": _alpha1,
    f"{_GROUP}/v1alpha2": _alpha2,
}


def _origin(given: ConfigMembers, name: str) -> Origin:
    return Origin.GIVEN if name in given else Origin.DEFAULT


def _endpoint(text: str, name: str, given: ConfigMembers) -> str:
    """An endpoint of v1alpha2, whichever of two members gave it."""
    config = given.object(CONFIG)
    return config.endpoint(name, text) if name in config else given.endpoint(FLAGS_OF_ENDPOINTS[name], text)
