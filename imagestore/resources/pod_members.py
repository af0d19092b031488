"""The members of a pod (core/v1), in the objects that are read here: what others there are, the API server prunes.

The tables have the members of Kubernetes 1.36 and of the releases before it. Volumes, probes, security contexts and
whatever else changes no number are leaves.
"""

from __future__ import annotations

from typing import Final

from imagestore.util.known_members import Table, leaves

RESOURCES: Final[Table] = {**leaves("limits requests"), "claims": [leaves("name request")]}
CONTAINER: Final[Table] = {
    **leaves(
        """
        args command env envFrom image imagePullPolicy lifecycle livenessProbe name ports readinessProbe resizePolicy
        restartPolicy restartPolicyRules securityContext startupProbe stdin stdinOnce terminationMessagePath
        terminationMessagePolicy tty volumeDevices volumeMounts workingDir
        """
    ),
    "resources": RESOURCES,
}
_REQUIREMENT: Final = leaves("key operator values")
_TERM: Final[Table] = {"matchExpressions": [_REQUIREMENT], "matchFields": [_REQUIREMENT]}
_NODE_AFFINITY: Final[Table] = {
    "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [_TERM]},
    "preferredDuringSchedulingIgnoredDuringExecution": [{"preference": _TERM, "weight": None}],
}
SPEC: Final[Table] = {
    **leaves(
        """
        activeDeadlineSeconds automountServiceAccountToken dnsConfig dnsPolicy enableServiceLinks hostAliases hostIPC
        hostNetwork hostPID hostUsers hostname hostnameOverride imagePullSecrets nodeName nodeSelector overhead
        preemptionPolicy priority priorityClassName readinessGates resourceClaims restartPolicy runtimeClassName
        schedulerName schedulingGates schedulingGroup securityContext serviceAccount serviceAccountName
        setHostnameAsFQDN shareProcessNamespace subdomain terminationGracePeriodSeconds tolerations
        topologySpreadConstraints volumes workloadRef
        """
    ),
    "affinity": {**leaves("podAffinity podAntiAffinity"), "nodeAffinity": _NODE_AFFINITY},
    "containers": [CONTAINER],
    "ephemeralContainers": [{**CONTAINER, "targetContainerName": None}],
    "initContainers": [CONTAINER],
    "os": leaves("name"),
    "resources": RESOURCES,
}
_METADATA: Final = leaves(
    """
    annotations clusterName creationTimestamp deletionGracePeriodSeconds deletionTimestamp finalizers generateName
    generation labels managedFields name namespace ownerReferences resourceVersion selfLink uid
    """
)
POD: Final[Table] = {**leaves("apiVersion kind status"), "metadata": _METADATA, "spec": SPEC}
