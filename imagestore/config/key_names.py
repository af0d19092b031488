"""The known tables of a file, and its key names brought to one spelling before anything is merged.

containerd decodes tables into records whose keys compare without case, so ``Snapshotter`` of an import overrides the
main file's ``snapshotter``. Names that users choose (plugins, handlers, hosts) differ by case and stay as they are,
and so do unknown keys.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import imagestore.config.known as known
from imagestore.config.findings import Finding, Severity, dotted
from imagestore.config.known import Shape
from imagestore.config.merge_imports import deep

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from imagestore.config.tree import Path, Table


GUEST: Final = Shape(known.GUEST_MEMBERS)
_OPTIONS: Final = Shape((*known.RUNHCS_OPTIONS, *known.RUNC_OPTIONS, "ConfigPath"))
_HANDLER: Final = Shape(known.HANDLER, {"guest_platform": GUEST, "options": _OPTIONS})
_HANDLERS: Final = {
    "runtimes": Shape(each=_HANDLER),
    "default_runtime": _HANDLER,
    "untrusted_workload_runtime": _HANDLER,
}
_CNI: Final = Shape(known.CNI_KEYS)
#: Names that users choose, with values of their own.
_NAMED: Final = Shape(each=Shape())
RUNTIME_PLATFORMS: Final = Shape(each=Shape(known.RUNTIME_PLATFORM))
_LOGIN: Final = Shape(known.REGISTRY_LOGIN, is_login=True)
REGISTRY: Final = Shape(
    known.REGISTRY_SECTION,
    {
        "mirrors": Shape(each=Shape(known.REGISTRY_MIRROR)),
        "configs": Shape(each=Shape(known.REGISTRY_CONFIG, {"tls": Shape(known.REGISTRY_TLS), "auth": _LOGIN})),
        "auths": Shape(each=_LOGIN),
    },
)
_IMAGES_INSIDE: Final = {
    "registry": REGISTRY,
    "pinned_images": _NAMED,
    "image_decryption": Shape(("key_model",)),
    "runtime_platforms": RUNTIME_PLATFORMS,
    "runtime_platform": RUNTIME_PLATFORMS,
}
#: Version 1 and 2: all in one table.
_CRI: Final = Shape(
    (*known.RUNTIME_SECTION, *known.IMAGES_SECTION, *known.SERVER_KEYS, "sandbox_image"),
    {
        "containerd": Shape((*known.CONTAINERD_SECTION, *known.IMAGES_KEYS_OF_CONTAINERD), _HANDLERS),
        "cni": _CNI,
        **_IMAGES_INSIDE,
    },
)
_PLUGINS: Final = {
    "cri": _CRI,
    known.CRI_PLUGIN: _CRI,
    known.RUNTIME_PLUGIN: Shape(
        known.RUNTIME_SECTION, {"containerd": Shape(known.CONTAINERD_SECTION, _HANDLERS), "cni": _CNI}
    ),
    known.IMAGES_PLUGIN: Shape(known.IMAGES_SECTION, _IMAGES_INSIDE),
    known.VERIFIER_PLUGIN: Shape(known.VERIFIER_SECTION),
    known.REGISTRY_PLUGIN: Shape(
        known.REGISTRY_PLUGIN_SECTION, {"mirror_credentials": _NAMED, "trusted_realms": _NAMED}
    ),
}
_FILE: Final = Shape(
    known.TOP_LEVEL,
    {
        "proxy_plugins": Shape(each=Shape(known.PROXY_PLUGIN)),
        "timeouts": _NAMED,
        **{name: Shape(keys) for name, keys in known.DAEMON_SECTIONS.items()},
    },
)


def file_shape(plugins: Mapping[str, Shape]) -> Shape:
    """The shape of a whole file, with that of other packages' plugin tables."""
    return replace(_FILE, inside={**_FILE.inside, "plugins": Shape(inside={**_PLUGINS, **plugins})})


def fold_file(table: Table, shape: Shape, findings: list[Finding]) -> Table:
    """Bring all names of one file to the known spelling; a key given in two spellings is a warning."""
    return _fold(table, shape, (), findings)


def fold_names(table: Table, names: Iterable[str], path: Path, findings: list[Finding]) -> Table:
    """Rename keys that differ from one of ``names`` only by case.

    Of a key given in two spellings, which is a warning, the exact one is used, else the last one. Tables in two
    spellings are joined.
    """
    wanted = {name.lower(): name for name in names}
    folded: Table = {}
    for name, entry in table.items():
        target = wanted.get(name.lower(), name)
        spelled = entry if name == target else replace(entry, spelling=name)
        before = folded.get(target)
        if before is None:
            folded[target] = spelled
            continue
        is_joined = isinstance(before.value, dict) and isinstance(entry.value, dict)
        is_used = is_joined or name == target or target not in table
        if is_joined:
            folded[target] = deep(before, entry, (*path, target), findings)
        elif is_used:
            folded[target] = spelled
        what = "both are read, and this one counts where they differ" if is_joined else "this one is used"
        text = f"is set twice in different case, the other time at {before.location}; "
        text += what if is_used else "that one is used"
        hint = f"keep one, spelled {target}"
        findings.append(Finding(Severity.WARNING, entry.location, dotted((*path, name)), text, hint))
    return folded


def _fold(table: Table, shape: Shape, path: Path, findings: list[Finding]) -> Table:
    if shape is GUEST:
        return _fold_guest(table)
    inside = {name.lower(): inner for name, inner in shape.inside.items()} if shape.names else shape.inside
    folded: Table = {}
    for name, entry in table.items():
        inner = inside.get(name.lower() if shape.names else name, shape.each)
        if inner is _OPTIONS:
            inner = _options(table)
        if inner is not None and isinstance(entry.value, dict):
            entry = replace(entry, value=_fold(entry.value, inner, (*path, name), findings))
        folded[name] = entry
    return fold_names(folded, shape.names, path, findings)


def _options(handler: Table) -> Shape | None:
    """The options of a handler's shim; of both known shims if this file doesn't name one."""
    kind = next((entry.value for name, entry in handler.items() if name.lower() == "runtime_type"), "")
    options = (
        known.options_of(kind) if isinstance(kind, str) and kind else {**known.RUNHCS_OPTIONS, **known.RUNC_OPTIONS}
    )
    return None if options is None else Shape(options)


def _fold_guest(table: Table) -> Table:
    """Members in the KEP's spelling. One that is given twice stays: the reader checks whether both agree."""
    folded: Table = {}
    for name, entry in table.items():
        target = known.normal_member(name)
        if target != name and target not in table and target not in folded:
            folded[target] = replace(entry, spelling=name)
        else:
            folded[name] = entry
    return folded
