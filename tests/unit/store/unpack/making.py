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

#: Offset and size of a header's numbers.
_PLACES = {
    "mode": (100, 8),
    "uid": (108, 8),
    "gid": (116, 8),
    "size": (124, 12),
    "mtime": (136, 12),
    "devmajor": (329, 8),
    "devminor": (337, 8),
}
_CHECKSUM = slice(148, 156)


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


def with_records(
    records: dict[str, str] | Iterable[tuple[str, str]], following: bytes, *, kind: bytes = tarfile.XHDTYPE
) -> bytes:
    """PAX records as they are, however odd, in front of an archive."""
    data = b""
    for name, value in records.items() if isinstance(records, dict) else records:
        record = f" {name}={value}\n".encode("utf-8", "surrogateescape")
        # The length of a record counts its own digits.
        size = next(n for n in range(len(record), len(record) + 10) if n == len(record) + len(str(n)))
        data += str(size).encode() + record
    info = tarfile.TarInfo("records")
    info.type, info.size = kind, len(data)
    return info.tobuf(tarfile.USTAR_FORMAT) + data + bytes(-len(data) % tarfile.BLOCKSIZE) + following


def with_numbers(name: str, kind: bytes = tarfile.REGTYPE, **numbers: int) -> bytes:
    """An archive of one entry whose header has some numbers in base 256, as GNU tar writes what octal can't hold."""
    info = tarfile.TarInfo(name)
    info.type = kind
    header = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    for member, number in numbers.items():
        offset, size = _PLACES[member]
        sign = b"\xff" if number < 0 else b"\x80"
        header[offset : offset + size] = sign + (number % 256 ** (size - 1)).to_bytes(size - 1, "big")
    header[_CHECKSUM] = b" " * 8
    header[_CHECKSUM] = b"%06o\0 " % sum(header)
    return bytes(header) + bytes(2 * tarfile.BLOCKSIZE)


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
    given.setdefault("rootless", IS_ROOTLESS)
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
