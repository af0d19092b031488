"""What is near an image archive and isn't one that is read: named by its first bytes, or by the names of its files."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from imagestore.store.archive import layout

if TYPE_CHECKING:
    from collections.abc import Collection

#: By the first bytes.
_HEADS: Final = {
    "a zip file": re.compile(rb"PK(?:\x03\x04|\x05\x06)"),
    "a 7z file": re.compile(rb"7z\xbc\xaf\x27\x1c"),
    "compressed with lz4, which isn't read": re.compile(rb"\x04\x22\x4d\x18"),
    "compressed with lzip, which isn't read": re.compile(rb"LZIP"),
    "compressed with compress, which isn't read": re.compile(rb"\x1f[\x9d\xa0]"),
    "compressed with lzma, which isn't read": re.compile(rb"\x5d\x00\x00[\x00-\xff]{2}"),
    "a squashfs file system": re.compile(rb"hsqs"),
    "a Singularity image": re.compile(rb"#!/usr/bin/env "),
    "a disk image of QEMU": re.compile(rb"QFI\xfb"),
    "a cpio archive": re.compile(rb"07070[0127]"),
    "an rpm package": re.compile(rb"\xed\xab\xee\xdb"),
    "an ar archive": re.compile(rb"!<arch>\n"),
    "JSON and no archive; 'imagestore match --index' reads an index": re.compile(rb"\s*[\[{]\s*[\]}\"{\[]"),
}
_SYSTEM_FOLDERS: Final = frozenset({"bin", "dev", "etc", "lib", "proc", "root", "sbin", "sys", "usr", "var"})
#: Folders at the top that make a file system of it.
_ENOUGH: Final = 2
_LAYER_OF_OLD: Final = re.compile(r"[a-f0-9]{64}/layer\.tar")
_SHOWN: Final = 100


def of_head(head: bytes) -> str:
    """What a file that begins with these bytes is; empty when that isn't known.

    >>> of_head(b"PK\\x03\\x04")
    'a zip file'
    """
    return next((name for name, pattern in _HEADS.items() if pattern.match(head)), "")


def of_names(names: Collection[str]) -> str:
    """What an archive with these files is, that is no image archive; empty when that isn't known.

    >>> of_names(["image/oci-layout", "image/index.json"])
    "it has an OCI layout in its folder 'image': import that one"
    """
    if not names:
        return "it has no files"
    for name in names:
        above, _, last = name.rpartition("/")
        if above and last in (layout.MARK, layout.DOCKER_MANIFEST):
            form = "an OCI layout" if last == layout.MARK else "a docker-archive"
            return f"it has {form} in its folder {above[:_SHOWN]!r}: import that one"
    if any(_LAYER_OF_OLD.fullmatch(name) for name in names):
        return "it is what Docker before 1.10 saved, a form without digests: save the image again with today's tools"
    if layout.INDEX in names:
        return f"it is like an OCI layout, but for the missing {layout.MARK!r}"
    if any(name.startswith(f"{layout.BLOBS}/") for name in names):
        return f"it has blobs, and no {layout.INDEX!r} that says which images they are"
    tops = {name.partition("/")[0] for name in names}
    if "config.json" in names and "rootfs" in tops:
        return "it is a runtime's bundle, with a file system and no image"
    if any(name == "Chart.yaml" or name.endswith("/Chart.yaml") for name in names):
        return "it is a Helm chart"
    if len(tops & _SYSTEM_FOLDERS) >= _ENOUGH:
        return "it is a file system, as 'docker export' and layers are, and no image: use 'docker save'"
    return ""
