"""Names and kinds of the keys that are read, or that containerd knows in the same tables.

From containerd's documentation (docs/cri/config.md, docs/man/containerd-config.toml.5.md) for versions 1.4 to 2.3,
and from the option messages of the runc, runhcs and Kata shims. Tables of other plugins aren't listed, and their
keys are kept unchecked. ``guest_platform`` is KEP-4216's.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Shape:
    """What is known of a table.

    Attributes:
        names: keys in the spelling wanted; with their kinds, if a reader checks these and reports unknown keys.
        inside: shapes of the tables under them.
        each: shape of the tables under every other key.
        is_login: it is a login, in which unknown keys may be secret.
    """

    names: Mapping[str, Kind] | tuple[str, ...] = ()
    inside: Mapping[str, Shape] = field(default_factory=dict)
    each: Shape | None = None
    is_login: bool = False

    def at(self, name: str) -> Shape:
        """The shape of the table under a key; an empty one if nothing is known of it."""
        return self.inside.get(name, self.each) or Shape()


RUNTIME_PLUGIN: Final = "io.containerd.cri.v1.runtime"
IMAGES_PLUGIN: Final = "io.containerd.cri.v1.images"
VERIFIER_PLUGIN: Final = "io.containerd.image-verifier.v1.bindir"
#: This project's own; containerd keeps tables of plugins that it doesn't know.
REGISTRY_PLUGIN: Final = "io.imagestore.registry.v1"
#: Version 2's one CRI plugin; from version 3 on it has only the streaming server's keys.
CRI_PLUGIN: Final = "io.containerd.grpc.v1.cri"
RUNHCS_TYPE: Final = "io.containerd.runhcs.v1"
RUNC_TYPE: Final = "io.containerd.runc.v2"

#: Operating systems that wasm images state.
WASM_SYSTEMS: Final = frozenset({"wasi", "wasip1", "wasip2", "js"})


class Kind(enum.Enum):
    """What a key's value has to be."""

    TEXT = "a text"
    INTEGER = "an integer"
    BOOLEAN = "true or false"
    TEXTS = "a list of texts"
    TABLE = "a table"


_TEXT, _INTEGER, _BOOLEAN, _TEXTS, _TABLE = Kind.TEXT, Kind.INTEGER, Kind.BOOLEAN, Kind.TEXTS, Kind.TABLE

TOP_LEVEL: Final = {
    "version": _INTEGER,
    "root": _TEXT,
    "state": _TEXT,
    "temp": _TEXT,
    "plugin_dir": _TEXT,
    "oom_score": _INTEGER,
    "imports": _TEXTS,
    "disabled_plugins": _TEXTS,
    "required_plugins": _TEXTS,
    "plugins": _TABLE,
    "proxy_plugins": _TABLE,
    "stream_processors": _TABLE,
    "timeouts": _TABLE,
    "cgroup": _TABLE,
    "debug": _TABLE,
    "grpc": _TABLE,
    "ttrpc": _TABLE,
    "metrics": _TABLE,
}

#: The daemon's own sections, for the spelling of their keys.
DAEMON_SECTIONS: Final = {
    "cgroup": ("path",),
    "debug": ("address", "uid", "gid", "level", "format"),
    "grpc": (
        *("address", "uid", "gid", "max_recv_message_size", "max_send_message_size"),
        *("tcp_address", "tcp_tls_ca", "tcp_tls_cert", "tcp_tls_key", "tcp_tls_common_name"),
    ),
    "ttrpc": ("address", "uid", "gid"),
    "metrics": ("address", "grpc_histogram"),
}

#: What stays in version 2's CRI plugin: the streaming server's keys.
SERVER_KEYS: Final = frozenset(
    {
        "disable_tcp_service",
        "stream_server_address",
        "stream_server_port",
        "stream_idle_timeout",
        "enable_tls_streaming",
        "x509_key_pair_streaming",
    }
)
#: What versions 1 and 2 have under ``containerd`` and version 3 in the images section.
IMAGES_KEYS_OF_CONTAINERD: Final = frozenset({"snapshotter", "disable_snapshot_annotations", "discard_unpacked_layers"})
#: What they have in the CRI plugin's own table and version 3 in the images section.
IMAGES_KEYS_OF_CRI: Final = frozenset(
    {
        "registry",
        "image_decryption",
        "max_concurrent_downloads",
        "image_pull_progress_timeout",
        "image_pull_with_sync_fs",
        "stats_collect_period",
    }
)
CNI_KEYS: Final = (
    *("bin_dir", "bin_dirs", "conf_dir", "conf_template", "ip_pref", "max_conf_num", "setup_serially"),
    "use_internal_loopback",
)

RUNTIME_SECTION: Final = {
    "containerd": _TABLE,
    "cni": _TABLE,
    "cdi_spec_dirs": _TEXTS,
    "device_ownership_from_security_context": _BOOLEAN,
    "disable_apparmor": _BOOLEAN,
    "disable_cgroup": _BOOLEAN,
    "disable_hugetlb_controller": _BOOLEAN,
    "disable_proc_mount": _BOOLEAN,
    "drain_exec_sync_io_timeout": _TEXT,
    "enable_cdi": _BOOLEAN,
    "enable_checkpoint_restore": _BOOLEAN,
    "enable_criu": _BOOLEAN,
    "enable_experimental_restore_via_create": _BOOLEAN,
    "enable_selinux": _BOOLEAN,
    "enable_unprivileged_icmp": _BOOLEAN,
    "enable_unprivileged_ports": _BOOLEAN,
    "ignore_deprecation_warnings": _TEXTS,
    "ignore_image_defined_volumes": _BOOLEAN,
    "max_container_log_line_size": _INTEGER,
    "netns_mounts_under_state_dir": _BOOLEAN,
    "restrict_oom_score_adj": _BOOLEAN,
    "selinux_category_range": _INTEGER,
    "stats_collect_period": _TEXT,
    "stats_retention_period": _TEXT,
    "systemd_cgroup": _BOOLEAN,
    "tolerate_missing_hugetlb_controller": _BOOLEAN,
    "unset_seccomp_profile": _TEXT,
}

CONTAINERD_SECTION: Final = {
    "default_runtime_name": _TEXT,
    "runtimes": _TABLE,
    "default_runtime": _TABLE,
    "untrusted_workload_runtime": _TABLE,
    "ignore_blockio_not_enabled_errors": _BOOLEAN,
    "ignore_rdt_not_enabled_errors": _BOOLEAN,
    "no_pivot": _BOOLEAN,
}

HANDLER: Final = {
    "runtime_type": _TEXT,
    "runtime_path": _TEXT,
    "runtime_engine": _TEXT,
    "runtime_root": _TEXT,
    "base_runtime_spec": _TEXT,
    "cgroup_writable": _BOOLEAN,
    "cni_conf_dir": _TEXT,
    "cni_max_conf_num": _INTEGER,
    "container_annotations": _TEXTS,
    "disable_pause_image_pull": _BOOLEAN,
    "guest_platform": _TABLE,
    "io_type": _TEXT,
    "options": _TABLE,
    "pod_annotations": _TEXTS,
    "privileged_without_host_devices": _BOOLEAN,
    "privileged_without_host_devices_all_devices_allowed": _BOOLEAN,
    "sandbox_mode": _TEXT,
    "sandboxer": _TEXT,
    "snapshotter": _TEXT,
}

IMAGES_SECTION: Final = {
    "snapshotter": _TEXT,
    "pinned_images": _TABLE,
    "runtime_platforms": _TABLE,
    "runtime_platform": _TABLE,
    "registry": _TABLE,
    "image_decryption": _TABLE,
    "concurrent_layer_fetch_buffer": _INTEGER,
    "disable_image_pull_with_transfer_service": _BOOLEAN,
    "disable_snapshot_annotations": _BOOLEAN,
    "discard_unpacked_layers": _BOOLEAN,
    "image_pull_progress_timeout": _TEXT,
    "image_pull_with_sync_fs": _BOOLEAN,
    "max_concurrent_downloads": _INTEGER,
    "stats_collect_period": _INTEGER,
    "use_local_image_pull": _BOOLEAN,
}

VERIFIER_SECTION: Final = {
    "bin_dir": _TEXT,
    "max_verifiers": _INTEGER,
    "per_verifier_timeout": _TEXT,
}

REGISTRY_PLUGIN_SECTION: Final = {
    "mirror_credentials": _TABLE,
    "foreign_layer_hosts": _TEXTS,
    "trusted_realms": _TABLE,
    "realm_trust": _TEXT,
    "bytes_per_second": _INTEGER,
    "parallel_ranges": _INTEGER,
    "connections_per_host": _INTEGER,
}

REGISTRY_SECTION: Final = {
    "config_path": _TEXT,
    "mirrors": _TABLE,
    "configs": _TABLE,
    "auths": _TABLE,
    "headers": _TABLE,
}

REGISTRY_MIRROR: Final = {"endpoint": _TEXTS}
REGISTRY_CONFIG: Final = {"auth": _TABLE, "tls": _TABLE}
REGISTRY_TLS: Final = {
    "insecure_skip_verify": _BOOLEAN,
    "ca_file": _TEXT,
    "cert_file": _TEXT,
    "key_file": _TEXT,
}
REGISTRY_LOGIN: Final = {"username": _TEXT, "password": _TEXT, "auth": _TEXT, "identitytoken": _TEXT}

RUNTIME_PLATFORM: Final = {"platform": _TEXT, "snapshotter": _TEXT}

#: The KEP's member names; ``normal_member`` tells which other spellings mean the same.
GUEST_MEMBERS: Final = {
    "OS": _TEXT,
    "Architecture": _TEXT,
    "Variant": _TEXT,
    "OSVersion": _TEXT,
    "OSFeatures": _TEXTS,
}

RUNHCS_OPTIONS: Final = {
    "SandboxIsolation": _INTEGER,
    "SandboxPlatform": _TEXT,
    "Debug": _BOOLEAN,
    "DebugType": _INTEGER,
    "RegistryRoot": _TEXT,
    "SandboxImage": _TEXT,
    "BootFilesRootPath": _TEXT,
    "VmProcessorCount": _INTEGER,
    "VmMemorySizeInMb": _INTEGER,
    "GPUVHDPath": _TEXT,
    "ScaleCpuLimitsToSandbox": _BOOLEAN,
    "DefaultContainerScratchSizeInGb": _INTEGER,
    "DefaultVmScratchSizeInGb": _INTEGER,
    "ShareScratch": _BOOLEAN,
    "NCProxyAddr": _TEXT,
    "LogLevel": _TEXT,
    "IoRetryTimeoutInSec": _INTEGER,
    "DefaultContainerAnnotations": _TABLE,
    "NoInheritHostTimezone": _BOOLEAN,
    "ScrubLogs": _BOOLEAN,
}

RUNC_OPTIONS: Final = {
    "BinaryName": _TEXT,
    "CriuImagePath": _TEXT,
    "CriuPath": _TEXT,
    "CriuWorkPath": _TEXT,
    "IoGid": _INTEGER,
    "IoUid": _INTEGER,
    "NoNewKeyring": _BOOLEAN,
    "NoPivotRoot": _BOOLEAN,
    "Root": _TEXT,
    "ShimCgroup": _TEXT,
    "SystemdCgroup": _BOOLEAN,
    "TaskApiAddress": _TEXT,
    "TaskApiVersion": _INTEGER,
}


def normal_member(name: str) -> str:
    """The KEP's spelling of a guest_platform member: case, ``-``, ``_`` and ``.`` don't count.

    >>> normal_member("os.version"), normal_member("OS_FEATURES"), normal_member("colour")
    ('OSVersion', 'OSFeatures', 'colour')
    """
    bare = name.translate({ord(mark): None for mark in "-_."}).lower()
    return next((known for known in GUEST_MEMBERS if known.lower() == bare), name)


def options_of(runtime_type: str) -> dict[str, Kind] | None:
    """The option keys of a shim, or None when they aren't known."""
    if runtime_type == RUNHCS_TYPE:
        return RUNHCS_OPTIONS
    return RUNC_OPTIONS if runtime_type == RUNC_TYPE else None
