"""Names of plugins that a file of this version doesn't have: what containerd makes of them, and what was meant.

Version 1 names plugins by their last part (``cri``), version 2 by a URI of at least four parts, version 3 splits the
CRI plugin. containerd 1 compares names with those of the file's version (its V1DisabledFilter and Config.Decode) and
refuses short ones from version 2 on (ValidateV2). containerd 2 reads full names in every version, and no short ones
from version 2 on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from imagestore.config.findings import Finding, Severity, dotted, show
from imagestore.config.names import CRI_PLUGIN, IMAGES_PLUGIN, REGISTRY_PLUGIN, RUNTIME_PLUGIN
from imagestore.config.tree import child

if TYPE_CHECKING:
    from collections.abc import Iterator

    from imagestore.config.location import Location
    from imagestore.config.source import SourceFile

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


def foreign_names(source: SourceFile) -> Iterator[Finding]:
    """A finding for each name of a plugin that the file's version doesn't have, wherever it stands."""
    for name, entry in child(source.table, "plugins").items():
        # Unquoted dots: told where the tables are read.
        if name != "io":
            yield from _judge(name, source.version, entry.location, dotted(entry.path), "the table")
    for key in _LISTS:
        listed = source.table.get(key)
        if listed is None or not isinstance(listed.value, list):
            continue
        for item in listed.value:
            if isinstance(item, str):
                yield from _judge(item, source.version, listed.location, dotted(listed.path), "this entry")


def _judge(name: str, version: int, location: Location, key: str, what: str) -> Iterator[Finding]:
    since = next((later for start, later in _LATER if name.startswith(start)), 2 if "." in name else 1)
    if version == 1 and since > 1:
        if name == REGISTRY_PLUGIN:
            return
        text = f"{show(name)} is a name of version {since}, and the file has version 1: containerd 1 ignores {what}"
        mend = f"write version = {since}" if what == "the table" else f"write {show(name.rpartition('.')[2])}"
    elif since > version:
        text = f"{show(name)} is a name of version {since}, and the file has version {version}: an older containerd"
        text, mend = f"{text} ignores {what}", f"write version = {since}, or the name of version {version}"
    elif version > 1 and len(name.split(".")) < _PARTS_OF_A_FULL_NAME:
        text = f"{show(name)} is a name of version 1, and the file has version {version}: containerd 1 doesn't start, "
        text, mend = f"{text}containerd 2 ignores {what}", f"write {_meant(name, version, what)}"
    else:
        return
    yield Finding(Severity.WARNING, location, key, text, mend)


def _meant(name: str, version: int, what: str) -> str:
    if name == "cri" and version >= 3 and what == "the table":
        return f"{show(RUNTIME_PLUGIN)} for handlers, {show(IMAGES_PLUGIN)} for images and registries"
    return show(full_name(name))
