"""The image settings of a KubeletConfiguration (kubelet.config.k8s.io/v1beta1), and members that no kubelet knows.

Rules: the kubelet's defaulting (zero counts as not given for durations and the burst), and its validation with its
texts and in its order. A kubelet first decodes its file strictly. If that fails because of an unknown or misspelled
member (names are case-sensitive), it logs the member and ignores it, so the mistake silently costs the setting.

The table has the members of Kubernetes 1.36 and of the releases before it. Maps with free keys, such as
``featureGates``, are leaves. Some maps allow certain keys only, and a kubelet doesn't start with others; those keys are
reported too.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from imagestore.errors import ConfigError
from imagestore.node.config_members import ConfigMembers, or_default, positive
from imagestore.node.eviction import CollectionPolicy
from imagestore.node.feature_gates import ENSURE_SECRET_PULLED_IMAGES, IMAGE_MAXIMUM_GC_AGE, FeatureGates
from imagestore.node.kubelet_messages import aggregate, quoted
from imagestore.node.pull_verification import CredentialVerification, VerificationPolicy, pattern_fault
from imagestore.node.puller import Puller
from imagestore.util.durations import NANOSECONDS, Duration
from imagestore.util.known_members import Table, did_you_mean, leaves, nearest, unknown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Self

    from imagestore.node.image_service import ImageService


DEFAULT_RUNTIME_ENDPOINT: Final = "unix:///run/containerd/containerd.sock"
_TWO_MINUTES: Final = Duration(120 * NANOSECONDS)
_ZERO: Final = Duration(0)
_INVALID: Final = "invalid configuration: "
_HIGH: Final = "imageGCHighThresholdPercent (--image-gc-high-threshold)"
_LOW: Final = "imageGCLowThresholdPercent (--image-gc-low-threshold)"
_AGE_UNGATED: Final = (
    f"{IMAGE_MAXIMUM_GC_AGE} feature gate is required for Kubelet configuration option imageMaximumGCAge"
)
_OLDER: Final = "imageMaximumGCAge {} must be greater than imageMinimumGCAge {}"
_STATUS: Final = "nodeStatusMaxImages (--node-status-max-images) {} must be -1 or greater"
_NEGATIVE: Final = "must not be a negative number"
_SERIAL: Final = (
    "maxParallelImagePulls cannot be larger than 1 unless SerializeImagePulls (--serialize-image-pulls) is set to false"
)
_DEFAULT_POLICY: Final = VerificationPolicy.NEVER_VERIFY_PRELOADED.value
_TIMEOUT: Final = "runtimeRequestTimeout"
_POLICY: Final = "imagePullCredentialsVerificationPolicy"
_ALLOWLIST: Final = "preloadedImagesVerificationAllowlist"
_UNGATED: Final = f"must not be set if {ENSURE_SECRET_PULLED_IMAGES} feature gate is not enabled"
# The misspelling is the kubelet's.
_NO_ALLOWLIST: Final = (
    f"can't set `{_ALLOWLIST}` if `imagePullCredentialsVertificationPolicy` is not"
    f' "{VerificationPolicy.NEVER_VERIFY_ALLOWLISTED}"'
)


@dataclass(frozen=True, slots=True)
class KubeletImageSettings:
    """A kubelet's settings for images; the attributes are the configuration's members.

    Attributes:
        image_gc_high_threshold_percent, image_gc_low_threshold_percent: 0 to 100, low below high.
        image_minimum_gc_age, image_maximum_gc_age: a maximum of zero means no limit.
        serialize_image_pulls, max_parallel_image_pulls: one pull at a time, or this many (None: any number).
        registry_pull_qps, registry_burst: of the token bucket; 0 per second means no limit.
        runtime_request_timeout: of every call except pulls.
        container_runtime_endpoint: of CRI.
        image_service_endpoint: of CRI's image service; never empty once parsed.
        node_status_max_images: listed in the node status; -1 means all.
        verification_policy, verification_allowlist: which present images need verified credentials; both must be empty
            without the gate KubeletEnsureSecretPulledImages.
        gates: feature gates.
    """

    image_gc_high_threshold_percent: int = 85
    image_gc_low_threshold_percent: int = 80
    image_minimum_gc_age: Duration = _TWO_MINUTES
    image_maximum_gc_age: Duration = _ZERO
    serialize_image_pulls: bool = True
    max_parallel_image_pulls: int | None = None
    registry_pull_qps: int = 5
    registry_burst: int = 10
    runtime_request_timeout: Duration = _TWO_MINUTES
    container_runtime_endpoint: str = DEFAULT_RUNTIME_ENDPOINT
    image_service_endpoint: str = DEFAULT_RUNTIME_ENDPOINT
    node_status_max_images: int = 50
    verification_policy: str = _DEFAULT_POLICY
    verification_allowlist: tuple[str, ...] = ()
    gates: FeatureGates = field(default_factory=FeatureGates)

    @classmethod
    def parse(
        cls,
        value: Mapping[str, object],
        *,
        path: str = "",
        spelling: Mapping[str, str] | None = None,
        is_zero_given: bool = False,
    ) -> Self:
        """Read a decoded KubeletConfiguration; members that are not about images are ignored.

        Args:
            value: the object.
            path: of the object in its file, for errors.
            spelling: see ConfigMembers.
            is_zero_given: a zero is a value even where the kubelet replaces it by the default.

        Raises:
            ConfigError: a member has the wrong type, or the request timeout isn't positive. faults() checks the rest.
        """
        given = ConfigMembers(value, path, spelling)
        is_default = not is_zero_given
        timeout = or_default(given.duration(_TIMEOUT), _TWO_MINUTES, is_zero_default=is_default)
        minimum = or_default(given.duration("imageMinimumGCAge"), _TWO_MINUTES, is_zero_default=is_default)
        runtime = given.text("containerRuntimeEndpoint") or DEFAULT_RUNTIME_ENDPOINT
        parallel = given.integer("maxParallelImagePulls")
        serialize = given.flag("serializeImagePulls")
        gates = FeatureGates.parse(given.mapping("featureGates"))
        return cls(
            image_gc_high_threshold_percent=or_default(given.integer("imageGCHighThresholdPercent"), 85),
            image_gc_low_threshold_percent=or_default(given.integer("imageGCLowThresholdPercent"), 80),
            image_minimum_gc_age=minimum,
            image_maximum_gc_age=given.duration("imageMaximumGCAge") or _ZERO,
            serialize_image_pulls=serialize if serialize is not None else parallel is None or parallel < 2,
            max_parallel_image_pulls=parallel,
            registry_pull_qps=or_default(given.integer("registryPullQPS"), 5),
            registry_burst=or_default(given.integer("registryBurst"), 10, is_zero_default=is_default),
            runtime_request_timeout=positive(timeout, given.at(_TIMEOUT)),
            container_runtime_endpoint=runtime,
            image_service_endpoint=given.text("imageServiceEndpoint") or runtime,
            node_status_max_images=or_default(given.integer("nodeStatusMaxImages"), 50),
            verification_policy=given.text(_POLICY) or _default_policy(gates),
            verification_allowlist=tuple(given.texts(_ALLOWLIST)),
            gates=gates,
        )

    def with_gates(self, gates: FeatureGates) -> Self:
        """The same settings with other gates; the default verification policy follows them."""
        policy = self.verification_policy
        if policy in ("", _DEFAULT_POLICY):
            policy = _default_policy(gates)
        return replace(self, gates=gates, verification_policy=policy)

    def faults(self) -> tuple[str, ...]:
        """The faults of the values, in the kubelet's words and order."""
        high, low = self.image_gc_high_threshold_percent, self.image_gc_low_threshold_percent
        maximum, minimum = self.image_maximum_gc_age, self.image_minimum_gc_age
        parallel = self.max_parallel_image_pulls
        checks = (
            (not 0 <= high <= 100, f"{_HIGH} {high} must be between 0 and 100, inclusive"),
            (not 0 <= low <= 100, f"{_LOW} {low} must be between 0 and 100, inclusive"),
            (low >= high, f"{_LOW} {low} must be less than {_HIGH} {high}"),
            (maximum != _ZERO and not self.gates.image_maximum_gc_age, _AGE_UNGATED),
            (minimum < _ZERO, f"imageMinimumGCAge {minimum} must not be negative"),
            (maximum < _ZERO, f"imageMaximumGCAge {maximum} must not be negative"),
            (_ZERO < maximum <= minimum, _OLDER.format(maximum, minimum)),
            (self.node_status_max_images < -1, _STATUS.format(self.node_status_max_images)),
            (self.registry_burst < 0, f"registryBurst (--registry-burst) {self.registry_burst} {_NEGATIVE}"),
            (self.registry_pull_qps < 0, f"registryPullQPS (--registry-qps) {self.registry_pull_qps} {_NEGATIVE}"),
            (parallel is not None and parallel < 1, f"maxParallelImagePulls {parallel} must be a positive number"),
            (self.serialize_image_pulls and parallel is not None and parallel > 1, _SERIAL),
        )
        return tuple(_INVALID + text for is_wrong, text in checks if is_wrong) + tuple(self._verification_faults())

    def _verification_faults(self) -> Iterator[str]:
        policy, allowlist = self.verification_policy, self.verification_allowlist
        if not self.gates.ensure_secret_pulled_images:
            yield from (f"{_INVALID}`{_POLICY}` {_UNGATED}",) if policy else ()
            yield from (f"{_INVALID}`{_ALLOWLIST}` {_UNGATED}",) if allowlist else ()
            return
        if policy not in tuple(VerificationPolicy):
            *most, last = (quoted(known) for known in VerificationPolicy)
            options = f"{', '.join(most)} or {last}"
            yield f"{_INVALID}option {quoted(policy[:100])} specified for {_POLICY}. Valid options are {options}"
        if allowlist and policy != VerificationPolicy.NEVER_VERIFY_ALLOWLISTED:
            yield _INVALID + _NO_ALLOWLIST
            return
        fault = next((fault for fault in map(pattern_fault, allowlist) if fault), "")
        if fault:
            yield f"{_INVALID}invalid image pattern in `{_ALLOWLIST}`: {fault}"

    def check(self) -> None:
        """Raise ConfigError with all faults()."""
        faults = self.faults()
        if faults:
            raise ConfigError(aggregate(faults))

    def collection_policy(self) -> CollectionPolicy:
        """The policy of image collection."""
        return CollectionPolicy(
            self.image_gc_high_threshold_percent,
            self.image_gc_low_threshold_percent,
            self.image_minimum_gc_age,
            self.image_maximum_gc_age,
        )

    def puller(self, service: ImageService) -> Puller:
        """Pulls images of a service within these limits."""
        parallel = 1 if self.serialize_image_pulls else self.max_parallel_image_pulls
        return Puller(service, parallel_pulls=parallel, qps=self.registry_pull_qps, burst=self.registry_burst)

    def verification(self) -> CredentialVerification:
        """Which present images need verified credentials."""
        return CredentialVerification.parse(self.verification_policy, self.verification_allowlist)


def _default_policy(gates: FeatureGates) -> str:
    return _DEFAULT_POLICY if gates.ensure_secret_pulled_images else ""


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

#: Eviction signals.
_SIGNALS: Final = (
    *("memory.available", "nodefs.available", "nodefs.inodesFree", "imagefs.available", "imagefs.inodesFree"),
    *("containerfs.available", "containerfs.inodesFree", "allocatableMemory.available", "pid.available"),
)
_RESERVED: Final = ("cpu", "memory", "ephemeral-storage", "pid")
_EVICTIONS: Final = ("evictionHard", "evictionSoft", "evictionSoftGracePeriod", "evictionMinimumReclaim")
#: Maps that allow certain keys only: the word for a key, and the allowed ones.
_KEYS: Final = {
    **dict.fromkeys(_EVICTIONS, ("eviction signal", _SIGNALS)),
    **dict.fromkeys(("kubeReserved", "systemReserved"), ("resource", _RESERVED)),
}


def unknown_members(value: Mapping[str, object], *, path: str = "") -> Iterator[str]:
    """A warning for each member that no kubelet knows, on every level, and for each key that prevents its start.

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
