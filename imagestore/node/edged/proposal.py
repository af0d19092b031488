"""The seed design "CRI Support in edged": its parameters and their defaults.

Rules: ``runtimeType`` is ``docker`` unless it says ``remote``. Only for ``remote`` are the other defaults filled in;
the image endpoint then follows the *resolved* runtime endpoint. For ``docker`` what is given is kept and unused. An
empty text counts as not given.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from imagestore.errors import ConfigError
from imagestore.node.config_members import Members, endpoint_url, positive
from imagestore.node.edged.settings import (
    DOCKER,
    DOCKER_ENDPOINT,
    REMOTE,
    SEED_MEMORY_BYTES,
    SEED_RUNTIME_ENDPOINT,
    SEED_SANDBOX_IMAGE,
    SEED_TIMEOUT,
    EdgedSettings,
    Origin,
    checked_type,
)
from imagestore.node.kubelet_config import KubeletImageSettings
from imagestore.util.known_members import nearest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from imagestore.util.durations import Duration

# The design writes some names with a capital, the first release with hyphens below "edged."; both are read.
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


def is_seed(value: Mapping[str, object]) -> bool:
    """Whether an object has parameters of the design, or of the first release, at its top or below ``edged``."""
    inner = value.get("edged")
    names = {*value, *(inner if isinstance(inner, dict) else ())}
    return any(_plain(name) in _NAMES for name in names)


def resolve_seed(value: Mapping[str, object]) -> EdgedSettings:
    """Fill in the design's defaults.

    Args:
        value: decoded parameters, at the top or below ``edged``, each once; spelled as in the design or the release.

    Raises:
        UnsupportedRuntimeTypeError: the type is neither docker nor remote.
        ConfigError: a value can't be read.
    """
    given = Members(_named(value), "")
    kind = checked_type(given.text("runtimeType") or DOCKER)
    runtime, image = given.text("remoteRuntimeEndpoint"), given.text("remoteImageEndpoint")
    timeout, sandbox = given.duration("runtimeRequestTimeout"), given.text("podSandboxImage")
    memory = given.long_integer("memoryCapacity")
    if timeout is not None:
        positive(timeout, "runtimeRequestTimeout")
    if memory is not None and memory <= 0:
        raise ConfigError(f"memory capacity {memory}: expected more than zero")
    is_remote = kind == REMOTE
    for endpoint in (runtime, image) if is_remote else ():
        if endpoint is not None:
            endpoint_url(endpoint)
    resolved = runtime or (SEED_RUNTIME_ENDPOINT if is_remote else "")
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
        request_timeout=timeout or (SEED_TIMEOUT if is_remote else None),
        sandbox_image=sandbox or (SEED_SANDBOX_IMAGE if is_remote else ""),
        kubelet=KubeletImageSettings(runtime_request_timeout=timeout or SEED_TIMEOUT),
        memory_bytes=memory if memory is not None else (SEED_MEMORY_BYTES if is_remote else None),
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


def _origins(values: Mapping[str, str | Duration | int | None], *, is_remote: bool) -> dict[str, Origin]:
    found: dict[str, Origin] = {}
    for name, value in values.items():
        is_used = name not in (("dockerAddress",) if is_remote else ("remoteRuntimeEndpoint", "remoteImageEndpoint"))
        if value is not None:
            found[name] = Origin.GIVEN if is_used else Origin.UNUSED
        elif name in ("runtimeType", "dockerAddress"):
            found[name] = Origin.DEFAULT
        elif not is_remote:
            found[name] = Origin.ABSENT
        else:
            found[name] = Origin.FOLLOWS if name == "remoteImageEndpoint" else Origin.DEFAULT
    return found


def _named(value: Mapping[str, object]) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, each in (*value.items(), *Members(value, "").mapping("edged").items()):
        known = _NAMES.get(_plain(name))
        if known is None:
            continue
        if known in found:
            raise ConfigError(f"edged: {known} is given twice, in two spellings")
        found[known] = each
    return found


def _slips(value: Mapping[str, object]) -> Iterator[str]:
    """Of names that are none of ours. The first release's file has many of them, so only those like one of ours."""
    inner = Members(value, "").mapping("edged")
    for name in (*(name for name in value if name != "edged"), *inner):
        if _plain(name) not in _NAMES and (meant := nearest(_plain(name), _NAMES, likeness=_NEAR)):
            yield f"{name[:100]}: no such parameter, passed over; did you mean {_NAMES[meant]}?"


def _plain(name: str) -> str:
    return re.sub("[-_]", "", name).lower().removeprefix("edged.")
