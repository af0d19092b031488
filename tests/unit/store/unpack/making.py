"""Layers made entry by entry, pulled into a store and unpacked."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from imagestore import ImageStore, platforms
from imagestore.store.unpack.unpack import UnpackReport
from imagestore.testing import Layer, RegistryServer, build_image
from imagestore.testing.builders.layers import layer_from_tar

REFERENCE = "registry.example/app:1"
#: Owners need root.
IS_ROOTLESS = os.geteuid() != 0


def entry(name: str, kind: bytes = tarfile.REGTYPE, data: bytes = b"", **given: Any) -> tuple[tarfile.TarInfo, bytes]:
    """One entry; ``given`` are members of its header."""
    info = tarfile.TarInfo(name)
    info.type, info.size, info.mtime = kind, len(data), 1_600_000_000
    info.mode = 0o755 if kind == tarfile.DIRTYPE else 0o644
    for member, value in given.items():
        setattr(info, member, value)
    return info, data


def folder(name: str, **given: Any) -> tuple[tarfile.TarInfo, bytes]:
    return entry(name, tarfile.DIRTYPE, **given)


def link(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    return entry(name, tarfile.SYMTYPE, linkname=target)


def hard_link(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    return entry(name, tarfile.LNKTYPE, linkname=target)


def archive(entries: Iterable[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for info, data in entries:
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def made(*entries: tuple[tarfile.TarInfo, bytes]) -> Layer:
    return layer_from_tar(archive(entries))


@contextmanager
def stored(path: Path, *layers: Layer, **config: Any) -> Iterator[ImageStore]:
    """A store with one image of these layers."""
    image = build_image("linux/amd64", layers=layers, **config)
    with (
        RegistryServer({REFERENCE: image}) as server,
        ImageStore(path / "store", host=platforms.parse("linux/amd64")) as store,
    ):
        reference = server.server.reference(REFERENCE)
        store.pull(reference)
        store.tag(reference, REFERENCE)
        yield store


def unpacked(path: Path, *layers: Layer, **given: Any) -> UnpackReport:
    """What came of unpacking an image of these layers into ``root`` below a folder."""
    given.setdefault("is_rootless", IS_ROOTLESS)
    with stored(path, *layers) as store:
        return store.unpack(REFERENCE, path / "root", **given)


def listed(root: Path) -> dict[str, str]:
    """Each path below a folder with what it is."""
    found = {}
    for each in sorted(root.rglob("*")):
        name = str(each.relative_to(root))
        if each.is_symlink():
            found[name] = f"-> {os.readlink(each)}"
        else:
            found[name] = "folder" if each.is_dir() else each.read_text("utf-8") if each.is_file() else "other"
    return found
