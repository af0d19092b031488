"""The members of a KubeletConfiguration (kubelet.config.k8s.io/v1beta1), to name those that no kubelet knows.

Rule: a kubelet decodes its file strictly first. Where that fails on an unknown or misspelled member (upper and lower
case count), it logs the member and goes on without it. So a slip costs the setting, and should be said.

The table has the members of Kubernetes 1.36 and of the releases before it. Maps with free keys, such as
``featureGates``, are leaves here. Some maps take certain keys only, and a kubelet with another one doesn't start: those
are named as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from imagestore.util.known_members import Table, did_you_mean, leaves, nearest, unknown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_OUTPUT: Final = leaves("infoBufferSize splitStream")
MEMBERS: Final[Table] = {
    **leaves(
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
        "anonymous": leaves("enabled"),
        "webhook": leaves("cacheTTL enabled"),
        "x509": leaves("clientCAFile"),
    },
    "authorization": {"mode": None, "webhook": leaves("cacheAuthorizedTTL cacheUnauthorizedTTL")},
    "crashLoopBackOff": leaves("maxContainerRestartPeriod"),
    "logging": {
        **leaves("flushFrequency format sanitization verbosity"),
        "options": {"json": _OUTPUT, "text": _OUTPUT},
        "vmodule": [leaves("filePattern verbosity")],
    },
    "memorySwap": leaves("swapBehavior"),
    "registerWithTaints": [leaves("effect key timeAdded value")],
    "reservedMemory": [leaves("limits numaNode")],
    "shutdownGracePeriodByPodPriority": [leaves("priority shutdownGracePeriodSeconds")],
    "tracing": leaves("endpoint samplingRatePerMillion"),
    "userNamespaces": leaves("idsPerPod"),
}

#: What an eviction threshold can be for.
_SIGNALS: Final = (
    *("memory.available", "nodefs.available", "nodefs.inodesFree", "imagefs.available", "imagefs.inodesFree"),
    *("containerfs.available", "containerfs.inodesFree", "allocatableMemory.available", "pid.available"),
)
_RESERVED: Final = ("cpu", "memory", "ephemeral-storage", "pid")
_EVICTIONS: Final = ("evictionHard", "evictionSoft", "evictionSoftGracePeriod", "evictionMinimumReclaim")
#: Maps that take certain keys only: what a key is, and which there are.
_KEYS: Final = {
    **dict.fromkeys(_EVICTIONS, ("eviction signal", _SIGNALS)),
    **dict.fromkeys(("kubeReserved", "systemReserved"), ("resource", _RESERVED)),
}


def unknown_members(value: Mapping[str, object], *, path: str = "") -> Iterator[str]:
    """What to say of each member that no kubelet knows, on every level, and of keys that none starts with.

    Args:
        value: a decoded KubeletConfiguration.
        path: of the object in its file.

    >>> [*unknown_members({"imageGCHighThreshold": 50})]
    ['unknown member imageGCHighThreshold: no kubelet reads it; did you mean imageGCHighThresholdPercent?']
    >>> [*unknown_members({"kubeReserved": {"ram": "1Gi"}})]
    ["unknown resource kubeReserved['ram']: no kubelet starts with it"]
    """
    for each in unknown(value, MEMBERS, path):
        yield f"unknown member {each.path[:200]}: no kubelet reads it{did_you_mean(each.meant)}"
    for name, (what, known) in _KEYS.items():
        given = value.get(name)
        for key in given if isinstance(given, dict) else ():
            if key not in known:
                here = f"{path}.{name}" if path else name
                meant = did_you_mean(nearest(key, known))
                yield f"unknown {what} {here}[{key[:100]!r}]: no kubelet starts with it{meant}"
