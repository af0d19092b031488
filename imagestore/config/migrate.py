"""Migrates older configurations, a version at a time, in memory only.

* 1 to 2: short plugin names become full ones (``cri`` becomes ``io.containerd.grpc.v1.cri``).
* 2 to 3: the CRI plugin is split; runtime handlers go to ``io.containerd.cri.v1.runtime``, images to
  ``io.containerd.cri.v1.images``, the streaming server stays. ``default_runtime`` and ``untrusted_workload_runtime``
  become the handlers ``default`` and ``untrusted``, as containerd 1.x reads them.

From 3 to 4 only the daemon's own sections move, which aren't read here.

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


def migrate(table: Table, version: int, findings: list[Finding]) -> Table:
    """Bring one file's keys to version 3; keys that a newer containerd doesn't read are warnings."""
    return _split_cri(_name_plugins(table, findings) if version < 2 else table, version, findings)


def _name_plugins(table: Table, findings: list[Finding]) -> Table:
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
    containerd = moved.get("containerd")
    if containerd is not None and isinstance(containerd.value, dict):
        kept = {name: entry for name, entry in containerd.value.items() if name not in IMAGES_KEYS_OF_CONTAINERD}
        moved["containerd"] = replace(containerd, value=_handlers(kept, findings))
    return moved


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
    if runtimes:
        first = next(iter(runtimes.values()))
        kept["runtimes"] = replace(kept.get("runtimes", first), value=runtimes)
    return kept


def _image_keys(old: Table) -> Table:
    moved = {name: entry for name, entry in old.items() if name in IMAGES_KEYS_OF_CRI}
    containerd = child(old, "containerd")
    moved.update({name: entry for name, entry in containerd.items() if name in IMAGES_KEYS_OF_CONTAINERD})
    pause = old.get("sandbox_image")
    if pause is not None:
        moved["pinned_images"] = replace(pause, value={"sandbox": pause})
    return moved
