"""The configuration of a bundle (OCI runtime-spec, config.md) for an unpacked image: what a runtime starts, and how.

What the image says nothing of is as containerd's default for Linux has it: namespaces of its own, 14 capabilities, the
usual mounts, nothing of the host writable.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from imagestore.errors import DocumentError, InvalidInputError
from imagestore.store.unpack.accounts import process_user
from imagestore.store.unpack.entry import shown
from imagestore.store.unpack.paths import joined, parts_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from imagestore.oci.image_config import ImageConfig
    from imagestore.store.unpack.paths import Parts
    from imagestore.store.unpack.tree import Tree

OCI_VERSION: Final = "1.0.2"
_PATH: Final = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_CAPABILITIES: Final = (
    *("CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FSETID", "CAP_FOWNER", "CAP_MKNOD", "CAP_NET_RAW", "CAP_SETGID"),
    *("CAP_SETUID", "CAP_SETFCAP", "CAP_SETPCAP", "CAP_NET_BIND_SERVICE", "CAP_SYS_CHROOT", "CAP_KILL"),
    "CAP_AUDIT_WRITE",
)
_MASKED: Final = (
    *("/proc/acpi", "/proc/asound", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list"),
    *("/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware", "/sys/devices/virtual/powercap"),
)
_READ_ONLY: Final = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")
_SAFE: Final = ("nosuid", "noexec", "nodev")


@dataclass(frozen=True, slots=True)
class BundleOptions:
    """What a pod, or a caller, sets for the container instead of the image.

    Attributes:
        name: of the container; its host name, and the last part of its control group.
        command: instead of the image's entry point, which its arguments go with.
        args: instead of the image's arguments.
        env: further variables; they replace those of the image.
        cwd: instead of the image's working directory.
        linux_resources: ``linux.resources`` of the configuration.
        oom_score_adj: ``process.oomScoreAdj``.
        cgroups_path: instead of ``/imagestore/<name>``.
        mount_volumes: mount an empty tmpfs at each volume that the image declares.
    """

    name: str = "container"
    command: Sequence[str] = ()
    args: Sequence[str] | None = None
    env: Mapping[str, str] | None = None
    cwd: str = ""
    linux_resources: Mapping[str, Any] | None = None
    oom_score_adj: int | None = None
    cgroups_path: str = ""
    mount_volumes: bool = True


def runtime_config(image: ImageConfig, tree: Tree, options: BundleOptions, *, what: str) -> dict[str, Any]:
    """The document ``config.json``.

    Args:
        tree: the unpacked image, where names of users are looked up.

    Raises:
        DocumentError: the image starts nothing, names a user that it doesn't have, or has what no process can have.
        InvalidInputError: the options' working directory is relative.
    """
    settings = image.settings
    process: dict[str, Any] = {
        "terminal": False,
        "user": process_user(settings.get("User") or "", tree, what=what),
        "args": _args(settings, options, what),
        "env": _env(settings.get("Env") or [], options.env or {}, what),
        "cwd": _cwd(settings, options, what),
        "capabilities": {kind: list(_CAPABILITIES) for kind in ("bounding", "effective", "permitted")},
        "rlimits": [{"type": "RLIMIT_NOFILE", "hard": 1024, "soft": 1024}],
        "noNewPrivileges": True,
    }
    if options.oom_score_adj is not None:
        process["oomScoreAdj"] = options.oom_score_adj
    resources = {"devices": [{"allow": False, "access": "rwm"}], **(options.linux_resources or {})}
    config = {
        "ociVersion": OCI_VERSION,
        "process": process,
        "root": {"path": "rootfs", "readonly": False},
        "hostname": options.name,
        "mounts": [*_mounts(), *(_volume_mounts(image, what) if options.mount_volumes else ())],
        "linux": {
            "resources": resources,
            "cgroupsPath": options.cgroups_path or f"/imagestore/{options.name}",
            "namespaces": [{"type": each} for each in ("pid", "ipc", "uts", "mount", "network")],
            "maskedPaths": list(_MASKED),
            "readonlyPaths": list(_READ_ONLY),
        },
    }
    for path in _with_nul(config, ""):
        raise DocumentError(what, [f"would start with a NUL character in {path[1:]}, which the system can't be given"])
    return config


def _args(settings: Mapping[str, Any], options: BundleOptions, what: str) -> list[str]:
    """As Kubernetes has it: a command replaces entry point and arguments, arguments replace those of the image."""
    command = list(options.command or settings.get("Entrypoint") or [])
    own = [] if options.command else list(settings.get("Cmd") or [])
    args = command + (own if options.args is None else list(options.args))
    if not args or not args[0]:
        raise DocumentError(what, ["has neither entry point nor command; say what to start"])
    return args


def _env(given: Sequence[str], more: Mapping[str, str], what: str) -> list[str]:
    variables = dict(each.partition("=")[::2] for each in (_PATH, *given)) | dict(more)
    if "" in variables:
        raise DocumentError(what, [f"has a variable without a name, of the value {shown(variables[''])}"])
    return [f"{name}={value}" for name, value in variables.items()]


def _cwd(settings: Mapping[str, Any], options: BundleOptions, what: str) -> str:
    own = settings.get("WorkingDir") or "/"
    if options.cwd and not options.cwd.startswith("/"):
        raise InvalidInputError(f"working directory {shown(options.cwd)}: expected an absolute path")
    if not own.startswith("/") and not options.cwd:
        raise DocumentError(what, [f"starts in {shown(own)}; expected an absolute path"])
    return options.cwd or own


def _with_nul(value: object, path: str) -> Iterator[str]:
    """Where a document has a NUL character."""
    if isinstance(value, str):
        if "\0" in value:
            yield path
    elif isinstance(value, dict):
        for name, each in value.items():
            yield from _with_nul(name, f"{path}: a name")
            yield from _with_nul(each, f"{path}.{name}")
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from _with_nul(each, f"{path}[{number}]")


def _volumes(image: ImageConfig) -> list[Parts]:
    """Where the image declares volumes; those above others come first."""
    return sorted({parts_of(name) for name in image.settings.get("Volumes") or {}})


def hidden_volumes(image: ImageConfig, tree: Tree) -> list[str]:
    """The volumes at which the unpacked image has something, which an empty mount hides."""
    return [f"/{joined(parts)}" for parts in _volumes(image) if _has_content(tree, parts)]


def _has_content(tree: Tree, parts: Parts) -> bool:
    """Whether a name, links resolved within the tree, is that of something but an empty folder."""
    try:
        with os.scandir(tree.folder(parts, is_making=False)) as found:
            return next(found, None) is not None
    except NotADirectoryError:
        return True
    except OSError:  # missing, or no name that a file can have
        return False


def _volume_mounts(image: ImageConfig, what: str) -> Iterator[dict[str, Any]]:
    """A tmpfs for each volume, as umoci has it, where the container has no other mount."""
    taken = {mount["destination"] for mount in _mounts()}
    for parts in _volumes(image):
        place = f"/{joined(parts)}"
        if not parts:
            fault = "has a volume in the place of its root folder"
            raise DocumentError(what, [fault], hint="make the bundle without volumes: --no-volumes")
        if place not in taken:
            yield _mount(place, "tmpfs", "tmpfs", "rw", *_SAFE, "relatime")


def _mount(place: str, kind: str, source: str, *options: str) -> dict[str, Any]:
    return {"destination": place, "type": kind, "source": source, "options": list(options)}


def _mounts() -> Iterator[dict[str, Any]]:
    yield _mount("/proc", "proc", "proc", *_SAFE)
    yield _mount("/dev", "tmpfs", "tmpfs", "nosuid", "strictatime", "mode=755", "size=65536k")
    pts = ("nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5")
    yield _mount("/dev/pts", "devpts", "devpts", *pts)
    yield _mount("/dev/shm", "tmpfs", "shm", *_SAFE, "mode=1777", "size=65536k")  # noqa: S108 - a container's own
    yield _mount("/dev/mqueue", "mqueue", "mqueue", *_SAFE)
    yield _mount("/sys", "sysfs", "sysfs", *_SAFE, "ro")
    yield _mount("/sys/fs/cgroup", "cgroup", "cgroup", *_SAFE, "relatime", "ro")
    yield _mount("/run", "tmpfs", "tmpfs", "nosuid", "strictatime", "mode=755", "size=65536k")
