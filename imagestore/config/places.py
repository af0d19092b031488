"""Where containerd reads a key, for advice about one that stands in another table.

From version 3 on the keys of handlers and of images are in two plugins; versions 1 and 2 have both in one table. A key
that only newer versions know is named by its place there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from imagestore.config import known
from imagestore.config.names import CRI_PLUGIN, IMAGES_PLUGIN, RUNTIME_PLUGIN

if TYPE_CHECKING:
    from collections.abc import Iterable

    from imagestore.config.tree import Path

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
    """The version whose names a key's path has; the file's own where the path doesn't tell.

    >>> generation(("plugins", "cri", "containerd"), 1), generation(("plugins", "io.containerd.cri.v1.images"), 2)
    (1, 3)
    """
    plugin = path[1] if len(path) > 1 and path[0] == "plugins" else ""
    return {"cri": 1, CRI_PLUGIN: 2, RUNTIME_PLUGIN: 3, IMAGES_PLUGIN: 3}.get(plugin, version)


def place_of(name: str, here: Path, version: int) -> Path:
    """The key path under which containerd reads a key of this name; empty when it reads none.

    Args:
        name: the key, in any case.
        here: path of the table where it stands, as in its file or from ``runtimes`` on.
        version: of the file.

    >>> place_of("SystemdCgroup", ("runtimes", "runc"), 2)
    ('runtimes', 'runc', 'options', 'SystemdCgroup')
    >>> place_of("runtimes", ("plugins", "cri"), 1)
    ('plugins', 'cri', 'containerd', 'runtimes')
    """
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
