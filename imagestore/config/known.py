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
    ANY = "anything"


def _unread(names: str) -> dict[str, Kind]:
    """Keys that containerd knows and nothing here reads."""
    return dict.fromkeys(names.split(), Kind.ANY)


_TEXT, _INTEGER, _BOOLEAN, _TEXTS, _TABLE = Kind.TEXT, Kind.INTEGER, Kind.BOOLEAN, Kind.TEXTS, Kind.TABLE

TOP_LEVEL: Final = {
    "version": _INTEGER,
    "imports": _TEXTS,
    "plugins": _TABLE,
    "proxy_plugins": _TABLE,
    **_unread(
        """
        root state temp plugin_dir oom_score disabled_plugins required_plugins stream_processors timeouts
        cgroup debug grpc ttrpc metrics
        """
    ),
}

#: The daemon's own sections, which nothing here reads; for dumps, and the spelling of their keys.
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

PROXY_PLUGIN: Final = ("type", "address", "platform", "exports", "capabilities")

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
    **_unread(
        """
        cni cdi_spec_dirs device_ownership_from_security_context disable_apparmor disable_cgroup
        disable_hugetlb_controller disable_proc_mount drain_exec_sync_io_timeout enable_cdi
        enable_checkpoint_restore enable_criu enable_experimental_restore_via_create enable_selinux
        enable_unprivileged_icmp enable_unprivileged_ports ignore_deprecation_warnings
        ignore_image_defined_volumes max_container_log_line_size netns_mounts_under_state_dir
        restrict_oom_score_adj selinux_category_range stats_collect_period stats_retention_period systemd_cgroup
        tolerate_missing_hugetlb_controller unset_seccomp_profile
        """
    ),
}

CONTAINERD_SECTION: Final = {
    "default_runtime_name": _TEXT,
    "runtimes": _TABLE,
    "default_runtime": _TABLE,
    "untrusted_workload_runtime": _TABLE,
    **_unread(
        """
        ignore_blockio_not_enabled_errors ignore_rdt_not_enabled_errors no_pivot
        """
    ),
}

HANDLER: Final = {
    "runtime_type": _TEXT,
    "runtime_path": _TEXT,
    "guest_platform": _TABLE,
    "options": _TABLE,
    "snapshotter": _TEXT,
    **_unread(
        """
        runtime_engine runtime_root base_runtime_spec cgroup_writable cni_conf_dir cni_max_conf_num
        container_annotations disable_pause_image_pull io_type pod_annotations privileged_without_host_devices
        privileged_without_host_devices_all_devices_allowed sandbox_mode sandboxer
        """
    ),
}

IMAGES_SECTION: Final = {
    "snapshotter": _TEXT,
    "pinned_images": _TABLE,
    "runtime_platforms": _TABLE,
    "runtime_platform": _TABLE,
    "registry": _TABLE,
    "image_pull_progress_timeout": _TEXT,
    "max_concurrent_downloads": _INTEGER,
    **_unread(
        """
        image_decryption concurrent_layer_fetch_buffer disable_image_pull_with_transfer_service
        disable_snapshot_annotations discard_unpacked_layers image_pull_with_sync_fs stats_collect_period
        use_local_image_pull
        """
    ),
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
    "SandboxImage": _TEXT,
    **_unread(
        """
        Debug DebugType RegistryRoot BootFilesRootPath VmProcessorCount VmMemorySizeInMb GPUVHDPath
        ScaleCpuLimitsToSandbox DefaultContainerScratchSizeInGb DefaultVmScratchSizeInGb ShareScratch NCProxyAddr
        LogLevel IoRetryTimeoutInSec DefaultContainerAnnotations NoInheritHostTimezone ScrubLogs
        """
    ),
}

RUNC_OPTIONS: Final = {
    "SystemdCgroup": _BOOLEAN,
    **_unread(
        """
        BinaryName CriuImagePath CriuPath CriuWorkPath IoGid IoUid NoNewKeyring NoPivotRoot Root ShimCgroup
        TaskApiAddress TaskApiVersion
        """
    ),
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
