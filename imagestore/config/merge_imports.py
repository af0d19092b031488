"""Merging an imported file over what was read before it, by containerd's rules.

From containerd main (server config, mergeConfig) and the answers of its merge library: plugin tables are merged key by
key to any depth; what an import sets there counts, zeros and empty lists included, and a list replaces a list. Entries
of ``proxy_plugins`` are replaced whole. The daemon's other keys and sections (``root``, ``[grpc]``, ...) aren't read
here and stay as the first file wrote them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from imagestore.config.findings import Finding, Severity, dotted
from imagestore.config.tree import child

if TYPE_CHECKING:
    from imagestore.config.tree import Entry, Path, Table


def merge(base: Table, over: Table, findings: list[Finding]) -> Table:
    """Merge an import, ``over``, into the keys read before, of the same version."""
    merged = {**over, **base}
    if "plugins" in base and "plugins" in over:
        merged["plugins"] = deep(base["plugins"], over["plugins"], ("plugins",), findings)
    proxies = {**child(base, "proxy_plugins"), **child(over, "proxy_plugins")}
    if proxies:
        merged["proxy_plugins"] = replace(merged["proxy_plugins"], value=proxies)
    return merged


def deep(before: Entry, entry: Entry, path: Path, findings: list[Finding]) -> Entry:
    """Merge tables key by key; other values are replaced."""
    if not isinstance(before.value, dict) or not isinstance(entry.value, dict):
        _warn_of_spelling(before, entry, path, findings)
        return entry
    merged = dict(before.value)
    for name, inner in entry.value.items():
        held = merged.get(name)
        merged[name] = inner if held is None else deep(held, inner, (*path, name), findings)
    # The location is where the table was opened first, since users look for it there.
    return replace(before, value=merged)


def _warn_of_spelling(before: Entry, entry: Entry, path: Path, findings: list[Finding]) -> None:
    ours, theirs = entry.spelling or path[-1], before.spelling or path[-1]
    if ours != theirs:
        text = f"is spelled {theirs} at {before.location}; spelling doesn't tell keys apart, and this one is used"
        key = dotted(entry.path or (*path[:-1], ours))
        findings.append(Finding(Severity.WARNING, entry.location, key, text, f"spell it {path[-1]} in both places"))
