"""Merging an imported file over what was read before it, by containerd's rules.

From containerd main (server config, mergeConfig) and the answers of its merge library:

* in the daemon's own keys and sections (``root``, ``oom_score``, ``[grpc]``, ``[debug]``, ...) false, 0 and "" never
  override: there a zero can't be told from a key that isn't set;
* its lists (``disabled_plugins``, ``required_plugins``, ``imports``) are joined, without doubles;
* entries of ``proxy_plugins``, ``stream_processors`` and ``timeouts`` are replaced whole;
* plugin tables are merged key by key to any depth; what an import sets there counts, zeros and empty lists included,
  and a list replaces a list.

The first rule surprises people, so a zero that was dropped is reported.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from imagestore.config.findings import Finding, Severity, dotted, show_at
from imagestore.config.tree import Entry, is_zero

if TYPE_CHECKING:
    from imagestore.config.tree import Path, Table

_FIXED_KEYS: Final = frozenset({"root", "state", "temp", "plugin_dir", "oom_score"})
_FIXED_SECTIONS: Final = frozenset({"cgroup", "debug", "grpc", "ttrpc", "metrics"})
_JOINED_LISTS: Final = frozenset({"disabled_plugins", "required_plugins", "imports"})
_REPLACED_ENTRIES: Final = frozenset({"proxy_plugins", "stream_processors", "timeouts"})


def merge(base: Table, over: Table, findings: list[Finding]) -> Table:
    """Merge an import, ``over``, into the keys read before, of the same version."""
    merged = dict(base)
    for name, entry in over.items():
        before = merged.get(name)
        if before is None:
            merged[name] = entry
        elif name in _FIXED_KEYS:
            merged[name] = _fixed(before, entry, (name,), findings)
        elif name in _FIXED_SECTIONS:
            merged[name] = _fixed_section(before, entry, (name,), findings)
        elif name in _JOINED_LISTS:
            merged[name] = _joined(before, entry)
        elif name in _REPLACED_ENTRIES:
            merged[name] = deep(before, entry, (name,), findings, depth=1)
        else:
            merged[name] = deep(before, entry, (name,), findings)
    return merged


def _fixed(before: Entry, entry: Entry, path: Path, findings: list[Finding]) -> Entry:
    if not is_zero(entry.value):
        return entry
    if not is_zero(before.value) and not isinstance(entry.value, dict):
        ours, theirs = show_at(path, entry.value), show_at(path, before.value)
        text = f"{ours} doesn't override {theirs} from {before.location}: a zero counts as unset"
        hint = f"change the key at {before.location} instead"
        findings.append(Finding(Severity.WARNING, entry.location, dotted(path), text, hint))
    return before


def _fixed_section(before: Entry, entry: Entry, path: Path, findings: list[Finding]) -> Entry:
    if not isinstance(before.value, dict) or not isinstance(entry.value, dict):
        return entry
    merged = dict(before.value)
    for name, inner in entry.value.items():
        held = merged.get(name)
        merged[name] = inner if held is None else _fixed(held, inner, (*path, name), findings)
    return Entry(merged, before.location)


def _joined(before: Entry, entry: Entry) -> Entry:
    if not isinstance(before.value, list) or not isinstance(entry.value, list):
        return entry
    return Entry([*before.value, *(item for item in entry.value if item not in before.value)], before.location)


def deep(before: Entry, entry: Entry, path: Path, findings: list[Finding], *, depth: int | None = None) -> Entry:
    """Merge tables key by key, ``depth`` levels deep (None: all); other values are replaced."""
    if depth == 0 or not isinstance(before.value, dict) or not isinstance(entry.value, dict):
        _warn_of_spelling(before, entry, path, findings)
        return entry
    merged = dict(before.value)
    for name, inner in entry.value.items():
        held = merged.get(name)
        lower = None if depth is None else depth - 1
        merged[name] = inner if held is None else deep(held, inner, (*path, name), findings, depth=lower)
    # The location is where the table was opened first, since users look for it there.
    return replace(before, value=merged)


def _warn_of_spelling(before: Entry, entry: Entry, path: Path, findings: list[Finding]) -> None:
    ours, theirs = entry.spelling or path[-1], before.spelling or path[-1]
    if ours != theirs:
        text = f"is spelled {theirs} at {before.location}; spelling doesn't tell keys apart, and this one is used"
        key = dotted(entry.path or (*path[:-1], ours))
        findings.append(Finding(Severity.WARNING, entry.location, key, text, f"spell it {path[-1]} in both places"))
