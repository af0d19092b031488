"""The members of edgecore's file, to report misplaced members, members of the other version, and unknown ones.

Rules: edgecore decodes its file as Go does JSON: names are not case-sensitive, and unknown members are ignored. Because
its defaults are applied first, a mistake silently costs the setting. The tables have the members of all releases of a
version, in the objects that are read here; other modules are leaves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from imagestore.errors import ConfigError
from imagestore.node.kubelet_config import MEMBERS
from imagestore.util.known_members import Table, did_you_mean, leaves, nearest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

CONFIG: Final = "tailoredKubeletConfig"
#: Name of a struct in KubeEdge's sources, without a meaning in files.
_NO_OBJECT: Final = "tailoredKubeletFlag"

_ALPHA1_EDGED: Final = leaves(
    """
    annotations cgroupDriver cgroupRoot cgroupsPerQOS clusterDNS clusterDomain cniBinDir cniCacheDirs cniConfDir
    concurrentConsumers customInterfaceName devicePluginEnabled dockerAddress edgeCoreCgroups edgedMemoryCapacity enable
    enableMetrics gpuPluginEnabled hostnameOverride imageGCHighThreshold imageGCLowThreshold imagePullProgressDeadline
    interfaceName labels maximumDeadContainersPerPod networkPluginMTU networkPluginName nodeIP nodeStatusUpdateFrequency
    podSandboxImage registerNode registerNodeNamespace remoteImageEndpoint remoteRuntimeEndpoint runtimeRequestTimeout
    runtimeType systemCgroups taints volumeStatsAggPeriod
    """
)
_ALPHA2_EDGED: Final[Table] = {
    **leaves(
        """
        bandwidthManager certDirectory cniBinDir cniCacheDir cniConfDir containerRuntime customInterfaceName
        dockerEndpoint dockershimRootDirectory enable exitOnLockContention experimentalCheckNodeCapabilitiesBeforeMount
        experimentalMounterPath experimentalNodeAllocatableIgnoreEvictionThreshold hostnameOverride
        imageCredentialProviderBinDir imageCredentialProviderConfigFile imagePullProgressDeadline
        keepTerminatedPodVolumes kubeConfig kubeletConfigFile lockFilePath masterServiceNamespace maxContainerCount
        maxPerPodContainerCount minimumGCAge networkPluginMTU networkPluginName nodeIP nodeLabels nonMasqueradeCidr
        podSandboxImage registerNode registerNodeNamespace registerSchedulable registerWithTaints remoteImageEndpoint
        remoteRuntimeEndpoint reportEvent rootDirectory runtimeCgroups seccompDefault seccompProfileRoot
        windowsPriorityClass windowsService
        """
    ),
    CONFIG: MEMBERS,
}
_MODULES: Final = leaves("dbTest deviceTwin edgeHub edgeMesh edgeStream eventBus metaManager serviceBus taskManager")
_TOP: Final = leaves("apiVersion database edgecoreVersion featureGates kind")
_EDGED: Final = {"v1alpha1": _ALPHA1_EDGED, "v1alpha2": _ALPHA2_EDGED}
#: Names of v1alpha2 by those of v1alpha1.
_RENAMED: Final = {
    "runtimeType": "containerRuntime",
    "dockerAddress": "dockerEndpoint",
    "imageGCHighThreshold": f"{CONFIG}.imageGCHighThresholdPercent",
    "imageGCLowThreshold": f"{CONFIG}.imageGCLowThresholdPercent",
}
#: Names of v1alpha1 by those of v1alpha2.
_FORMERLY: Final = {new.removeprefix(f"{CONFIG}."): old for old, new in _RENAMED.items()}
_EDGED_PATH: Final = "modules.edged"


def respelled(
    value: Mapping[str, object], version: str = "", spelling: dict[str, str] | None = None
) -> dict[str, object]:
    """An object with its names in KubeEdge's spelling; without a version only the topmost names.

    Args:
        value: the object.
        version: of its form.
        spelling: gets the paths of members as they are written, by those whose last name has KubeEdge's spelling.
    """
    edged = _EDGED.get(version)
    modules: Table = {**_MODULES, "edged": edged}
    table: Table = {**_TOP, "modules": modules if edged is not None else None}
    return _respelled(value, table, "", {} if spelling is None else spelling)


def _respelled(value: Mapping[str, object], table: Table, path: str, spelling: dict[str, str]) -> dict[str, object]:
    by_lower = {name.lower(): name for name in table}
    found: dict[str, object] = {}
    for given, inner in value.items():
        name = by_lower.get(given.lower(), given)
        here, written = (f"{path}.{each}" if path else each for each in (name, given))
        if here != written:
            spelling[here] = written
        if name in found:
            raise ConfigError(f"{here[:200]} is given twice, in two spellings", hint="remove one of them")
        below = table.get(name)
        if isinstance(below, dict) and isinstance(inner, dict):
            found[name] = _respelled(inner, below, written, spelling)
        else:
            found[name] = inner
    return found


def check_placement(value: Mapping[str, object], what: str) -> None:
    """Refuse a file with ``edged`` only at the top, where KubeEdge ignores it: every member would have its default."""
    modules = value.get("modules")
    misplaced = next((name for name in value if name.lower() == "edged"), None)
    if misplaced is not None and not (isinstance(modules, dict) and modules.get("edged") is not None):
        raise ConfigError(
            f"{what}: {misplaced} is at the top, where KubeEdge ignores it, and there is no {_EDGED_PATH}",
            hint=f"move it into modules, as {_EDGED_PATH}",
        )


def unknown_edged_members(value: Mapping[str, object], version: str) -> Iterator[str]:
    """A warning for each member that edgecore ignores, except in the kubelet's configuration."""
    modules = value.get("modules")
    edged = modules.get("edged") if isinstance(modules, dict) else None
    levels: tuple[tuple[object, str, Table], ...] = (
        (value, "", {**_TOP, "modules": None}),
        (modules, "modules", {**_MODULES, "edged": None}),
        (edged, _EDGED_PATH, _EDGED[version]),
    )
    for found, path, table in levels:
        for name in found if isinstance(found, dict) else ():
            if name not in table:
                yield _warning(f"{path}.{name}" if path else name, name, table, version)


def _warning(path: str, name: str, table: Table, version: str) -> str:
    shown = path[:200]
    if name == _NO_OBJECT:
        return f"{shown}: KubeEdge has no such member and ignores it; write its members directly in {_EDGED_PATH}"
    place = _place(name, version)
    if place and place != path:
        return f"{shown}: {version} has no such member; write {place}"
    if version == "v1alpha1" and name == CONFIG:
        return f"{shown}: v1alpha1 has no such member and ignores it; its members are v1alpha2's"
    if version == "v1alpha1" and (later := _place(name, "v1alpha2")):
        return f"{shown}: v1alpha1 has no such member and ignores it; v1alpha2 has it, as {later}"
    return f"{shown}: {version} has no such member and ignores it{did_you_mean(nearest(name, table))}"


def _place(name: str, version: str) -> str:
    """The path of a member with this name, or with its name in the other version; empty if there is none."""
    edged = _EDGED[version]
    meant = (_FORMERLY if version == "v1alpha1" else _RENAMED).get(name, name)
    if meant == "edged":
        return _EDGED_PATH
    if meant in edged or meant.startswith(f"{CONFIG}."):
        return f"{_EDGED_PATH}.{meant}"
    if meant in _MODULES:
        return f"modules.{meant}"
    return f"{_EDGED_PATH}.{CONFIG}.{meant}" if CONFIG in edged and meant in MEMBERS else ""
