"""The members of a KubeletConfiguration (kubelet.config.k8s.io/v1beta1), to name those that no kubelet knows.

Rule: a kubelet decodes its file strictly first. Where that fails on an unknown or misspelled member (upper and lower
case count), it logs the member and goes on without it. So a slip costs the setting, and should be said.

The table has the members of Kubernetes 1.36 and of the releases before it. Maps whose keys are free, such as
``featureGates``, are leaves here; what is wrong inside them is not a matter of decoding.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

#: Members by name: None for a leaf, a table for an object, a list of one table for a list of objects.
_Table: TypeAlias = "dict[str, _Table | list[_Table] | None]"


def _leaves(names: str) -> _Table:
    return dict.fromkeys(names.split())


_OUTPUT: Final = _leaves("infoBufferSize splitStream")
MEMBERS: Final[_Table] = {
    **_leaves(
        """
        address allowedUnsafeSysctls apiVersion cgroupDriver cgroupRoot cgroupsPerQOS clusterDNS clusterDomain
        configMapAndSecretChangeDetectionStrategy containerLogMaxFiles containerLogMaxSize containerLogMaxWorkers
        containerLogMonitorInterval containerRuntimeEndpoint contentType cpuCFSQuota cpuCFSQuotaPeriod cpuManagerPolicy
        cpuManagerPolicyOptions cpuManagerReconcilePeriod draManagerReconcilePeriod enableContentionProfiling
        enableControllerAttachDetach enableDebugFlagsHandler enableDebuggingHandlers enableProfilingHandler
        enableServer enableSystemLogHandler enableSystemLogQuery enforceNodeAllocatable eventBurst eventRecordQPS
        evictionHard evictionMaxPodGracePeriod evictionMinimumReclaim evictionPressureTransitionPeriod evictionSoft
        evictionSoftGracePeriod failCgroupV1 failSwapOn featureGates fileCheckFrequency hairpinMode healthzBindAddress
        healthzPort httpCheckFrequency imageGCHighThresholdPercent imageGCLowThresholdPercent imageMaximumGCAge
        imageMinimumGCAge imagePullCredentialsVerificationPolicy imageServiceEndpoint iptablesDropBit
        iptablesMasqueradeBit kernelMemcgNotification kind kubeAPIBurst kubeAPIQPS kubeReserved kubeReservedCgroup
        kubeletCgroups localStorageCapacityIsolation makeIPTablesUtilChains maxOpenFiles maxParallelImagePulls maxPods
        memoryManagerPolicy memoryReservationPolicy memoryThrottlingFactor mergeDefaultEvictionSettings
        nodeLeaseDurationSeconds nodeStatusMaxImages nodeStatusReportFrequency nodeStatusUpdateFrequency oomScoreAdj
        podCIDR podLogsDir podPidsLimit podsPerCore port preloadedImagesVerificationAllowlist protectKernelDefaults
        providerID qosReserved readOnlyPort registerNode registryBurst registryPullQPS reservedSystemCPUs resolvConf
        rotateCertificates runOnce runtimeRequestTimeout seccompDefault serializeImagePulls serverTLSBootstrap
        showHiddenMetricsForVersion shutdownGracePeriod shutdownGracePeriodCriticalPods singleProcessOOMKill
        staticPodPath staticPodURL staticPodURLHeader streamingConnectionIdleTimeout syncFrequency systemCgroups
        systemReserved systemReservedCgroup tlsCertFile tlsCipherSuites tlsCurvePreferences tlsMinVersion
        tlsPrivateKeyFile topologyManagerPolicy topologyManagerPolicyOptions topologyManagerScope volumePluginDir
        volumeStatsAggPeriod
        """
    ),
    "authentication": {
        "anonymous": _leaves("enabled"),
        "webhook": _leaves("cacheTTL enabled"),
        "x509": _leaves("clientCAFile"),
    },
    "authorization": {"mode": None, "webhook": _leaves("cacheAuthorizedTTL cacheUnauthorizedTTL")},
    "crashLoopBackOff": _leaves("maxContainerRestartPeriod"),
    "logging": {
        **_leaves("flushFrequency format sanitization verbosity"),
        "options": {"json": _OUTPUT, "text": _OUTPUT},
        "vmodule": [_leaves("filePattern verbosity")],
    },
    "memorySwap": _leaves("swapBehavior"),
    "registerWithTaints": [_leaves("effect key timeAdded value")],
    "reservedMemory": [_leaves("limits numaNode")],
    "shutdownGracePeriodByPodPriority": [_leaves("priority shutdownGracePeriodSeconds")],
    "tracing": _leaves("endpoint samplingRatePerMillion"),
    "userNamespaces": _leaves("idsPerPod"),
}


def unknown_members(value: Mapping[str, object], *, path: str = "") -> Iterator[str]:
    """What to say of each member that no kubelet knows, on every level, in the order of the file.

    Args:
        value: a decoded KubeletConfiguration.
        path: of the object in its file.

    >>> [*unknown_members({"imageGCHighThreshold": 50})]
    ['unknown member imageGCHighThreshold: no kubelet reads it; did you mean imageGCHighThresholdPercent?']
    """
    yield from _unknown(value, MEMBERS, path)


def _unknown(value: Mapping[str, object], table: _Table, path: str) -> Iterator[str]:
    for name, inner in value.items():
        here = f"{path}.{name}" if path else name
        if name not in table:
            similar = {each.lower(): each for each in table}
            found = difflib.get_close_matches(name.lower(), similar, n=1, cutoff=0.75)
            meant = f"; did you mean {similar[found[0]]}?" if found else ""
            yield f"unknown member {here[:200]}: no kubelet reads it{meant}"
            continue
        known = table[name]
        if isinstance(known, dict) and isinstance(inner, dict):
            yield from _unknown(inner, known, here)
        elif isinstance(known, list) and isinstance(inner, list):
            for number, each in enumerate(inner):
                if isinstance(each, dict):
                    yield from _unknown(each, known[0], f"{here}[{number}]")
