"""Archives read by our reader and by the standard library's, as lists that can be compared."""

from __future__ import annotations

import io
import tarfile
from typing import Any, NamedTuple

from imagestore import CancelToken
from imagestore.store.unpack import entry
from imagestore.store.unpack.layer import LayerStream
from imagestore.store.unpack.metadata import FileMetadata
from imagestore.store.unpack.reader import entries

_FILES = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE, tarfile.GNUTYPE_SPARSE)


class Read(NamedTuple):
    """What a reader says of an entry."""

    name: str
    kind: bytes
    link: str
    mode: int
    uid: int
    gid: int
    mtime_ns: int
    device: tuple[int, int]
    xattrs: dict[str, bytes]
    data: bytes


def ours(data: bytes, *, piece: int = 700) -> list[Read]:
    """By our reader, which gets the archive in small pieces."""
    pieces = (data[start : start + piece] for start in range(0, len(data), piece))
    found = []
    with LayerStream(pieces, "sha256", what="test", cancel=CancelToken()) as stream:
        for each in entries(stream, what="test"):
            metadata = FileMetadata.of(each)
            content = bytearray(each.size if each.kind == entry.FILE else 0)
            stored = ((0, each.stored),) if each.pieces is None else each.pieces
            for place, size in stored if each.kind == entry.FILE else ():
                done = 0
                while done < size:
                    some = stream.some(size - done)
                    content[place + done : place + done + len(some)] = some
                    done += len(some)
            found.append(
                Read(
                    *(each.name.rstrip("/"), each.kind, each.link, metadata.mode, each.uid, each.gid),
                    *(metadata.times_ns[1], (each.major, each.minor), dict(metadata.xattrs), bytes(content)),
                )
            )
    return found


def theirs(data: bytes) -> list[Read]:
    """By ``tarfile``."""
    found = []
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:", encoding="utf-8", errors="surrogateescape") as archive:
        for each in archive:
            file = archive.extractfile(each) if each.isreg() else None
            found.append(
                Read(
                    *(each.name.rstrip("/"), entry.FILE if each.type in _FILES else each.type, _link(each)),
                    *(each.mode & 0o7777, each.uid, each.gid, _nanoseconds(each)),
                    (each.devmajor, each.devminor) if each.ischr() or each.isblk() else (0, 0),
                    _xattrs(each),
                    b"" if file is None else file.read(),
                )
            )
    return found


def _link(member: tarfile.TarInfo) -> str:
    return member.linkname if member.issym() or member.islnk() else ""


def _nanoseconds(member: tarfile.TarInfo) -> int:
    seconds, _, fraction = str(member.pax_headers.get("mtime") or int(member.mtime)).partition(".")
    found = abs(int(seconds)) * 10**9 + int(fraction[:9].ljust(9, "0"))
    return -found if seconds.startswith("-") else found


def _xattrs(member: tarfile.TarInfo) -> dict[str, Any]:
    prefix = "SCHILY.xattr."
    return {
        key.removeprefix(prefix): value.encode("utf-8", "surrogateescape")
        for key, value in member.pax_headers.items()
        if key.startswith(prefix)
    }
