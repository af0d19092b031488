"""Plugin names of other versions: what containerd makes of them, and what was meant.

Version 1 names plugins by their last part (``cri``), version 2 by a URI of at least four parts, version 3 splits the
CRI plugin. containerd 1 compares names with those of the file's version (its V1DisabledFilter and Config.Decode) and
refuses short ones from version 2 on (ValidateV2). containerd 2 reads full names in every version, and no short ones
from version 2 on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import imagestore.config.known as known
from imagestore.config.findings import Finding, Severity, dotted, show
from imagestore.config.known import (
    CRI_PLUGIN,
    IMAGES_PLUGIN,
    RUNTIME_PLUGIN,
)
from imagestore.config.tree import child

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from imagestore.config.tree import Entry, Path, Table


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
_LISTS: Final = ("disabled_plugins", "required_plugins")
_PARTS_OF_A_FULL_NAME: Final = 4
#: How names of this project begin, which no containerd reads.
_OURS: Final = "io.imagestore."
#: Names that came with a later version, by their beginning.
_LATER: Final = (("io.containerd.cri.v1.", 3), ("io.containerd.server.v1.", 4))


def full_name(plugin: str) -> str:
    """Version 2's name of a plugin of version 1; names with a dot are full already.

    >>> full_name("cri"), full_name("x-service"), full_name("io.containerd.grpc.v1.cri")
    ('io.containerd.grpc.v1.cri', 'io.containerd.service.v1.x-service', 'io.containerd.grpc.v1.cri')
    """
    if "." in plugin:
        return plugin
    kind = "service" if plugin.endswith("-service") else "grpc"
    return _V1_NAMES.get(plugin, f"io.containerd.{kind}.v1.{plugin}")


def foreign_names(table: Table, version: int) -> Iterator[Finding]:
    """A finding for each name of a plugin in a file that the file's version doesn't have."""
    plugins = child(table, "plugins")
    for name, entry in plugins.items():
        # Unquoted dots are reported where the tables are read.
        if name != "io":
            yield from _judge(name, version, entry, "the table", _raises_version(plugins, version))
    for key in _LISTS:
        listed = table.get(key)
        if listed is None or not isinstance(listed.value, list):
            continue
        for item in listed.value:
            if isinstance(item, str):
                yield from _judge(item, version, listed, "this entry", False)


def _raises_version(plugins: Table, version: int) -> bool:
    """Whether the file may say a later version: no table in it would lose its meaning."""
    own = CRI_PLUGIN in plugins if version > 1 else any("." not in name for name in plugins)
    return not own


def _judge(name: str, version: int, entry: Entry, what: str, may_raise: bool) -> Iterator[Finding]:
    since = next((later for start, later in _LATER if name.startswith(start)), 2 if "." in name else 1)
    has = f"{show(name)} is a name of version {since}, and the file has version {version}: "
    if since > version:
        if name.startswith(_OURS):
            return
        reader = "containerd 1" if version == 1 else "a containerd that doesn't know it"
        text = f"{has}{reader} ignores {what}"
        hint = f"write version = {since}" if may_raise else f"write {_older(name, version)}"
    elif version > 1 and len(name.split(".")) < _PARTS_OF_A_FULL_NAME:
        text = f"{has}containerd 1 doesn't start, containerd 2 ignores {what}"
        hint = f"write {_newer(name, version, what)}" if full_name(name) != name else ""
    else:
        return
    yield Finding(Severity.WARNING, entry.location, dotted(entry.path), text, hint)


def _older(name: str, version: int) -> str:
    """The name that an older version has for the same."""
    if name.startswith(_LATER[0][0]) or name == CRI_PLUGIN:
        return show("cri" if version == 1 else CRI_PLUGIN)
    short = next((short for short, full in _V1_NAMES.items() if full == name), name.rpartition(".")[2])
    return show(short) if version == 1 else f"the name of version {version}"


def _newer(name: str, version: int, what: str) -> str:
    if name == "cri" and version >= 3 and what == "the table":
        return f"{show(RUNTIME_PLUGIN)} for handlers, {show(IMAGES_PLUGIN)} for images and registries"
    return show(full_name(name))


#: The CRI plugin's names, and the version that each came with.
_GENERATIONS: Final = {"cri": 1, CRI_PLUGIN: 2, RUNTIME_PLUGIN: 3, IMAGES_PLUGIN: 3}
_RUNTIME: Final = ("plugins", RUNTIME_PLUGIN)
_IMAGES: Final = ("plugins", IMAGES_PLUGIN)
_SERVER: Final = ("plugins", CRI_PLUGIN)
#: Tables of version 3 and later, with their keys.
_TABLES: Final[tuple[tuple[Path, Iterable[str]], ...]] = (
    (_RUNTIME, known.RUNTIME_SECTION),
    (_IMAGES, known.IMAGES_SECTION),
    ((*_RUNTIME, "containerd"), known.CONTAINERD_SECTION),
    (_SERVER, known.SERVER_KEYS),
    ((*_IMAGES, "registry"), known.REGISTRY_SECTION),
    ((*_RUNTIME, "cni"), known.CNI_KEYS),
    ((), known.TOP_LEVEL),
)
#: What version 2 calls otherwise.
_RENAMED: Final = {"sandbox_image": (*_IMAGES, "pinned_images", "sandbox")}
#: The images section's keys that versions 1 and 2 have.
_OLD_IMAGES_KEYS: Final = known.IMAGES_KEYS_OF_CRI | known.IMAGES_KEYS_OF_CONTAINERD


def generation(path: Path, version: int) -> int:
    """The version whose names a key's path has; the file's own if the path doesn't tell.

    >>> generation(("plugins", "cri", "containerd"), 1), generation(("plugins", "io.containerd.cri.v1.images"), 2)
    (1, 3)
    """
    return _GENERATIONS.get(_plugin_of(path), version)


def _plugin_of(path: Path) -> str:
    return path[1] if len(path) > 1 and path[0] == "plugins" else ""


def place_of(name: str, here: Path, version: int) -> Path:
    """The key path under which containerd reads a key of this name; empty if it reads none.

    Args:
        name: the key, in any case.
        here: path of its table, as in its file or from ``runtimes`` on.
        version: of the file.

    >>> place_of("SystemdCgroup", ("runtimes", "runc"), 2)
    ('runtimes', 'runc', 'options', 'SystemdCgroup')
    >>> place_of("runtimes", ("plugins", "cri"), 1)
    ('plugins', 'cri', 'containerd', 'runtimes')
    """
    plugin = _plugin_of(here)
    if plugin and plugin not in _GENERATIONS:  # another plugin's keys have other meanings
        return ()
    version = generation(here, version)
    for table, keys in (*_around(here), *_TABLES):
        key = next((each for each in keys if each.lower() == name.lower()), "")
        if key and table != here:
            return (*_in_version(table, key, version), key)
    return _RENAMED.get(name.lower(), ()) if version >= 3 else ()


def _around(here: Path) -> Iterable[tuple[Path, Iterable[str]]]:
    """Tables that belong to the same handler, or to the same registry host."""
    if "runtimes" in here[:-1]:
        handler = here[: here.index("runtimes") + 2]
        yield handler, known.HANDLER
        yield (*handler, "options"), {**known.RUNC_OPTIONS, **known.RUNHCS_OPTIONS}
        yield (*handler, "guest_platform"), known.GUEST_MEMBERS
    if "registry" in here[:-2]:
        registry = here.index("registry") + 1
        host = here[registry + 1]
        yield (*here[:registry], "configs", host, "tls"), known.REGISTRY_TLS
        yield (*here[:registry], "configs", host, "auth"), known.REGISTRY_LOGIN
        yield (*here[:registry], "configs", host), known.REGISTRY_CONFIG
        yield (*here[:registry], "mirrors", host), known.REGISTRY_MIRROR


def _in_version(table: Path, key: str, version: int) -> Path:
    """The same table in a file of an older version, where that has the key."""
    if version >= 3 or table[:1] != ("plugins",) or table[1] not in (RUNTIME_PLUGIN, IMAGES_PLUGIN):
        return table
    if table == _IMAGES and key not in _OLD_IMAGES_KEYS:
        return table
    inside = ("containerd",) if table == _IMAGES and key in known.IMAGES_KEYS_OF_CONTAINERD else table[2:]
    return ("plugins", "cri" if version == 1 else CRI_PLUGIN, *inside)
