"""Bringing older configurations to one shape, a version at a time, in memory only.

* 1 to 2: short plugin names become full ones (``cri`` becomes ``io.containerd.grpc.v1.cri``).
* 2 to 3: the CRI plugin is split; runtime handlers go to ``io.containerd.cri.v1.runtime``, images to
  ``io.containerd.cri.v1.images``, the streaming server stays. ``default_runtime`` and ``untrusted_workload_runtime``
  become the handlers ``default`` and ``untrusted``, as containerd 1.x reads them.
* 3 to 4: ``[grpc]``, ``[ttrpc]``, ``[debug]`` and ``[metrics]`` become server plugins.

The rules are containerd's own migrations (its server config and CRI plugins), without their known defects: a
handler's snapshotter isn't lost, and ``runtime_platform`` (the name that containerd's migration writes but doesn't
read) is understood.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from imagestore.config.findings import Finding, Severity, dotted
from imagestore.config.known import (
    IMAGES_KEYS_OF_CONTAINERD,
    SERVER_KEYS,
)
from imagestore.config.merge import merge
from imagestore.config.names import CRI_PLUGIN, IMAGES_PLUGIN, RUNTIME_PLUGIN
from imagestore.config.tree import Entry, Table, child

if TYPE_CHECKING:
    from imagestore.config.location import Location

_V1_NAMES: Final = {
    "cri": CRI_PLUGIN,
    "cgroups": "io.containerd.monitor.v1.cgroups",
    "linux": "io.containerd.runtime.v1.linux",
    "scheduler": "io.containerd.gc.v1.scheduler",
    "bolt": "io.containerd.metadata.v1.bolt",
    "task": "io.containerd.runtime.v2.task",
    "opt": "io.containerd.internal.v1.opt",
    "restart": "io.containerd.internal.v1.restart",
    "tracing": "io.containerd.internal.v1.tracing",
    "otlp": "io.containerd.tracing.processor.v1.otlp",
    **{
        name: f"io.containerd.snapshotter.v1.{name}"
        for name in ("aufs", "btrfs", "devmapper", "native", "overlayfs", "zfs", "windows", "windows-lcow")
    },
}
_IMAGES_KEYS: Final = frozenset(
    {
        "registry",
        "image_decryption",
        "max_concurrent_downloads",
        "image_pull_progress_timeout",
        "image_pull_with_sync_fs",
        "stats_collect_period",
    }
)
_OLD_HANDLERS: Final = {"default_runtime": "default", "untrusted_workload_runtime": "untrusted"}
_SOCKET_KEYS: Final = {"address": "address", "uid": "uid", "gid": "gid"}
_MESSAGE_SIZES: Final = {
    "max_recv_message_size": "max_recv_message_size",
    "max_send_message_size": "max_send_message_size",
}
_TCP_KEYS: Final = {
    "tcp_address": "address",
    "tcp_tls_ca": "tls_ca",
    "tcp_tls_cert": "tls_cert",
    "tcp_tls_key": "tls_key",
    "tcp_tls_common_name": "tls_common_name",
}
#: Section, plugin of version 4, the key without which nothing moves, and the keys' old and new names.
_MOVED_SECTIONS: Final = (
    ("debug", "io.containerd.server.v1.debug", "address", _SOCKET_KEYS),
    ("grpc", "io.containerd.server.v1.grpc-tcp", "tcp_address", _TCP_KEYS),
    ("grpc", "io.containerd.server.v1.grpc", "address", {**_SOCKET_KEYS, **_MESSAGE_SIZES}),
    ("ttrpc", "io.containerd.server.v1.ttrpc", "address", _SOCKET_KEYS),
    ("metrics", "io.containerd.metrics.v1.grpc-prometheus", "grpc_histogram", {"grpc_histogram": "grpc_histogram"}),
    ("metrics", "io.containerd.server.v1.metrics", "address", {"address": "address"}),
)


def migrate(table: Table, version: int, target: int, findings: list[Finding]) -> Table:
    """Bring one file's keys to a later version.

    Args:
        table: as read; left as it is.
        version: the file's.
        target: 3 or 4.
        findings: gets warnings about keys that a newer containerd no longer reads.
    """
    if version < 2:
        table = _name_plugins(table)
    table = _split_cri(table, version, findings)
    return _move_server(table) if target >= 4 > version else table


def full_name(plugin: str) -> str:
    """Version 2's name of a plugin of version 1; names with a dot are full already.

    >>> full_name("cri"), full_name("x-service"), full_name("io.containerd.grpc.v1.cri")
    ('io.containerd.grpc.v1.cri', 'io.containerd.service.v1.x-service', 'io.containerd.grpc.v1.cri')
    """
    if "." in plugin:
        return plugin
    kind = "service" if plugin.endswith("-service") else "grpc"
    return _V1_NAMES.get(plugin, f"io.containerd.{kind}.v1.{plugin}")


def _name_plugins(table: Table) -> Table:
    table = dict(table)
    for name in ("disabled_plugins", "required_plugins"):
        entry = table.get(name)
        if entry is not None and isinstance(entry.value, list):
            names = [full_name(item) if isinstance(item, str) else item for item in entry.value]
            table[name] = replace(entry, value=list(names))
    return _with_plugins(table, {full_name(name): entry for name, entry in child(table, "plugins").items()})


def _with_plugins(table: Table, plugins: Table) -> Table:
    entry = table.get("plugins")
    if entry is None or not isinstance(entry.value, dict):
        return table  # nothing to migrate, or something that the reader will refuse
    return {**table, "plugins": replace(entry, value=plugins)}


def _split_cri(table: Table, version: int, findings: list[Finding]) -> Table:
    plugins = child(table, "plugins")
    entry = plugins.get(CRI_PLUGIN)
    if entry is None or not isinstance(entry.value, dict):
        return table
    old = entry.value
    if version >= 3 and not old.keys() <= SERVER_KEYS:
        text = f"has keys of version 2 in a file of version {version}; containerd before 2.3 ignores them"
        mend = f"move them to {RUNTIME_PLUGIN} and {IMAGES_PLUGIN}"
        findings.append(Finding(Severity.WARNING, entry.location, dotted(["plugins", CRI_PLUGIN]), text, mend))
    runtime, images = _runtime_keys(old, findings), _image_keys(old)
    split = {name: value for name, value in plugins.items() if name != CRI_PLUGIN}
    server = {name: value for name, value in old.items() if name in SERVER_KEYS}
    for name, moved in ((CRI_PLUGIN, server), (RUNTIME_PLUGIN, runtime), (IMAGES_PLUGIN, images)):
        if moved:
            split[name] = _under(moved, split.get(name), entry.location)
    return _with_plugins(table, split)


def _under(moved: Table, existing: Entry | None, location: Location) -> Entry:
    """Moved keys, below those that are in their new place already."""
    if existing is None or not isinstance(existing.value, dict):
        return Entry(moved, location) if existing is None else existing
    return Entry(merge(moved, existing.value, []), existing.location)


def _runtime_keys(old: Table, findings: list[Finding]) -> Table:
    elsewhere = SERVER_KEYS | _IMAGES_KEYS | {"sandbox_image"}
    moved = {name: entry for name, entry in old.items() if name not in elsewhere}
    cni = moved.get("cni")
    if cni is not None and isinstance(cni.value, dict):
        moved["cni"] = replace(cni, value=_plural_bin_dir(cni.value))
    containerd = moved.get("containerd")
    if containerd is not None and isinstance(containerd.value, dict):
        kept = {name: entry for name, entry in containerd.value.items() if name not in IMAGES_KEYS_OF_CONTAINERD}
        moved["containerd"] = replace(containerd, value=_handlers(kept, findings))
    return moved


def _plural_bin_dir(cni: Table) -> Table:
    single = cni.get("bin_dir")
    if single is None or not isinstance(single.value, str):
        return cni
    rest = {name: entry for name, entry in cni.items() if name != "bin_dir"}
    return {"bin_dirs": replace(single, value=[single.value]), **rest}


def _handlers(containerd: Table, findings: list[Finding]) -> Table:
    runtimes = dict(child(containerd, "runtimes"))
    kept = dict(containerd)
    for old_name, handler in _OLD_HANDLERS.items():
        entry = kept.pop(old_name, None)
        if entry is None or not isinstance(entry.value, dict):
            continue
        kind = entry.value.get("runtime_type")
        if kind is None or not kind.value:
            continue  # what containerd 1.x prints when nothing is set
        text = f"is read as the runtime handler {handler!r}; containerd 2 no longer reads it"
        mend = f"write it as runtimes.{handler}"
        findings.append(Finding(Severity.WARNING, entry.location, old_name, text, mend))
        if handler not in runtimes:
            runtimes[handler] = entry
        if old_name == "default_runtime":
            kept["default_runtime_name"] = Entry(handler, entry.location)
    for name, entry in runtimes.items():
        if isinstance(entry.value, dict):
            runtimes[name] = replace(entry, value=_sandboxer(entry.value))
    if runtimes:
        first = next(iter(runtimes.values())).location
        kept["runtimes"] = Entry(runtimes, kept["runtimes"].location if "runtimes" in kept else first)
    return kept


def _sandboxer(handler: Table) -> Table:
    mode = handler.get("sandbox_mode")
    if mode is None or "sandboxer" in handler:
        return handler
    return {**{name: entry for name, entry in handler.items() if name != "sandbox_mode"}, "sandboxer": mode}


def _image_keys(old: Table) -> Table:
    moved = {name: entry for name, entry in old.items() if name in _IMAGES_KEYS}
    containerd = child(old, "containerd")
    moved.update({name: entry for name, entry in containerd.items() if name in IMAGES_KEYS_OF_CONTAINERD})
    pause = old.get("sandbox_image")
    if pause is not None:
        moved["pinned_images"] = Entry({"sandbox": pause}, pause.location)
    return moved


def _move_server(table: Table) -> Table:
    plugins = dict(child(table, "plugins"))
    changed = dict(table)
    listens = child(table, "grpc").get("address")
    if (
        listens is not None
        and isinstance(listens.value, str)
        and listens.value
        and "address" not in child(table, "ttrpc")
    ):
        ttrpc = Entry(f"{listens.value}.ttrpc", listens.location)
        changed["ttrpc"] = Entry({"address": ttrpc, **child(table, "ttrpc")}, listens.location)
    for section, plugin, needed, names in _MOVED_SECTIONS:
        held = child(changed, section)
        first = held.get(needed)
        if first is None or not first.value or plugin in plugins:
            continue
        moved = {new: held[old] for old, new in names.items() if old in held}
        plugins[plugin] = Entry(moved, first.location)
        changed[section] = Entry({name: entry for name, entry in held.items() if name not in names}, first.location)
    for section in {section for section, *_ in _MOVED_SECTIONS}:
        if section in changed and not changed[section].value:
            del changed[section]
    return _with_plugins(changed, plugins) if "plugins" in changed or not plugins else _first_plugins(changed, plugins)


def _first_plugins(table: Table, plugins: Table) -> Table:
    return {**table, "plugins": Entry(plugins, next(iter(plugins.values())).location)}
