"""Migrates older configurations, a version at a time, in memory only.

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
from typing import Final

from imagestore.config.findings import Finding, Severity, dotted, show
from imagestore.config.known import (
    CRI_PLUGIN,
    IMAGES_KEYS_OF_CONTAINERD,
    IMAGES_KEYS_OF_CRI,
    IMAGES_PLUGIN,
    RUNTIME_PLUGIN,
    SERVER_KEYS,
)
from imagestore.config.merge_imports import deep
from imagestore.config.plugin_names import full_name
from imagestore.config.tree import Entry, Table, child, plain_value

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
    """Bring one file's keys to version 3 or 4; keys that a newer containerd doesn't read are warnings."""
    if version < 2:
        table = _name_plugins(table, findings)
    table = _split_cri(table, version, findings)
    return _move_server(table) if target >= 4 > version else table


def _name_plugins(table: Table, findings: list[Finding]) -> Table:
    table = dict(table)
    for name in ("disabled_plugins", "required_plugins"):
        entry = table.get(name)
        if entry is not None and isinstance(entry.value, list):
            names = [full_name(item) if isinstance(item, str) else item for item in entry.value]
            table[name] = replace(entry, value=list(names))
    plugins = child(table, "plugins")
    named: Table = {}
    # Of a plugin under both names all is read; where they differ the short one counts: version 1 has no other.
    for name in sorted(plugins, key=lambda name: "." not in name):
        full = full_name(name)
        before = named.get(full)
        named[full] = plugins[name] if before is None else deep(before, plugins[name], ("plugins", full), findings)
    return _with_plugins(table, named)


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
        hint = f"move them to {RUNTIME_PLUGIN} and {IMAGES_PLUGIN}"
        findings.append(Finding(Severity.WARNING, entry.location, dotted(["plugins", CRI_PLUGIN]), text, hint))
    split = {name: value for name, value in plugins.items() if name != CRI_PLUGIN}
    server = {name: value for name, value in old.items() if name in SERVER_KEYS}
    if server:
        split[CRI_PLUGIN] = replace(entry, value=server)
    runtime, images = _runtime_keys(old, findings), _image_keys(old)
    if runtime:
        split[RUNTIME_PLUGIN] = _beneath(runtime, split.get(RUNTIME_PLUGIN), entry, findings)
    if images:
        split[IMAGES_PLUGIN] = _above(images, split.get(IMAGES_PLUGIN), entry, findings)
    return _with_plugins(table, split)


def _beneath(moved: Table, existing: Entry | None, entry: Entry, findings: list[Finding]) -> Entry:
    """Handlers' keys of version 2 and those of version 3 in one file: the later ones count, as in containerd 2.

    Only the tables ``containerd`` and ``cni`` are joined key by key, so one table of handlers replaces the other.
    """
    if existing is None or not isinstance(existing.value, dict):
        return existing or replace(entry, value=moved)
    joined = dict(existing.value)
    for name, held in moved.items():
        before = joined.get(name)
        if before is None:
            joined[name] = held
        elif name in ("containerd", "cni") and isinstance(before.value, dict) and isinstance(held.value, dict):
            joined[name] = replace(before, value={**held.value, **before.value})
            for key, inner in held.value.items():
                if key in before.value:
                    _report_unused(inner, before.value[key], findings)
        else:
            _report_unused(held, before, findings)
    return replace(existing, value=joined)


def _above(moved: Table, existing: Entry | None, entry: Entry, findings: list[Finding]) -> Entry:
    """Images' keys of version 2, which count more than those of version 3 in one file: containerd 2 moves them over."""
    if existing is None or not isinstance(existing.value, dict):
        return existing or replace(entry, value=moved)
    joined = dict(existing.value)
    for name, held in moved.items():
        before = joined.get(name)
        joined[name] = held
        if before is None:
            continue
        if name == "pinned_images" and isinstance(before.value, dict) and isinstance(held.value, dict):
            joined[name] = replace(before, value={**before.value, **held.value})
            for use, inner in held.value.items():
                if use in before.value:
                    _report_unused(before.value[use], inner, findings)
        else:
            _report_unused(before, held, findings)
    return replace(existing, value=joined)


def _report_unused(unused: Entry, used: Entry, findings: list[Finding]) -> None:
    if plain_value(unused) == plain_value(used):
        return
    lost = ""
    if isinstance(unused.value, dict) and isinstance(used.value, dict):
        names = [name for name in unused.value if name not in used.value]
        lost = f", and so {', '.join(map(show, names))} isn't there" if names else ""
    counts = f"{dotted(used.path)} ({used.location}) counts where a file has both generations of tables{lost}"
    hint = "keep one of the two"
    findings.append(Finding(Severity.WARNING, unused.location, dotted(unused.path), f"isn't used: {counts}", hint))


def _runtime_keys(old: Table, findings: list[Finding]) -> Table:
    elsewhere = SERVER_KEYS | IMAGES_KEYS_OF_CRI | {"sandbox_image"}
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
        hint = f"write it as runtimes.{handler}"
        findings.append(Finding(Severity.WARNING, entry.location, old_name, text, hint))
        if handler not in runtimes:
            runtimes[handler] = entry
        if old_name == "default_runtime":
            kept["default_runtime_name"] = replace(entry, value=handler)
    for name, entry in runtimes.items():
        if isinstance(entry.value, dict):
            runtimes[name] = replace(entry, value=_sandboxer(entry.value))
    if runtimes:
        first = next(iter(runtimes.values()))
        kept["runtimes"] = replace(kept.get("runtimes", first), value=runtimes)
    return kept


def _sandboxer(handler: Table) -> Table:
    mode = handler.get("sandbox_mode")
    if mode is None or "sandboxer" in handler:
        return handler
    return {**{name: entry for name, entry in handler.items() if name != "sandbox_mode"}, "sandboxer": mode}


def _image_keys(old: Table) -> Table:
    moved = {name: entry for name, entry in old.items() if name in IMAGES_KEYS_OF_CRI}
    containerd = child(old, "containerd")
    moved.update({name: entry for name, entry in containerd.items() if name in IMAGES_KEYS_OF_CONTAINERD})
    pause = old.get("sandbox_image")
    if pause is not None:
        moved["pinned_images"] = replace(pause, value={"sandbox": pause})
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
