"""Whether an entry of a layer can be what it says: judged before anything of it is written.

Numbers outside of what Linux has, names that no file can have, maps of sparse files that make no sense. ``tarfile``
passes them on, or takes 0 for what it can't read, which would make a file root's.
"""

from __future__ import annotations

import re
import stat
import tarfile
from typing import TYPE_CHECKING, Final, cast

from imagestore.errors import DocumentError

if TYPE_CHECKING:
    from collections.abc import Iterator

XATTR: Final = "SCHILY.xattr."
WHITEOUT: Final = ".wh."
#: What becomes a device or a FIFO, and its kind (stat(2)).
NODES: Final = {tarfile.CHRTYPE: stat.S_IFCHR, tarfile.BLKTYPE: stat.S_IFBLK, tarfile.FIFOTYPE: stat.S_IFIFO}
_BLOCK: Final = tarfile.BLOCKSIZE
#: Of users and groups: 2**32 - 1 is -1 for chown(2), which then changes nothing.
MOST_ID: Final = 2**32 - 2
# Of the kernel's device numbers (linux/kdev_t.h).
_MOST_MAJOR: Final = 2**12 - 1
_MOST_MINOR: Final = 2**20 - 1
# Linux: NAME_MAX, PATH_MAX without its end, XATTR_NAME_MAX, XATTR_SIZE_MAX.
_NAME_BYTES: Final = 255
_TARGET_BYTES: Final = 4095
_XATTR_NAME_BYTES: Final = 255
_XATTR_BYTES: Final = 65536
_MOST_SECONDS: Final = 2**63 - 1
_MOST_SHOWN: Final = 200
# PAX records as POSIX has them (pax(1), "pax Extended Header Keywords"): decimal numbers, times with a fraction.
_NUMBER: Final = re.compile(r"[0-9]{1,19}")
_TIME: Final = re.compile(r"-?[0-9]{1,18}(\.[0-9]*)?")
_RECORDS: Final = {"uid": _NUMBER, "gid": _NUMBER, "size": _NUMBER, "mtime": _TIME, "atime": _TIME, "ctime": _TIME}


def shown(name: str) -> str:
    r"""A name for a message: quoted, and not endless.

    >>> shown("a\n"), shown("x" * 1000)[-5:]
    ("'a\\n'", "xxx'…")
    """
    return repr(name) if len(name) <= _MOST_SHOWN else f"{name[:_MOST_SHOWN]!r}…"


def judge(entry: tarfile.TarInfo, stored_bytes: int, *, what: str) -> None:
    """Refuse an entry that can't be.

    Args:
        entry: as ``tarfile`` read it.
        stored_bytes: of its data in the archive, with what fills the last block.
        what: names the layer in errors.

    Raises:
        DocumentError: names the entry, and what is wrong with it.
    """
    for fault in _faults(entry, stored_bytes):
        raise DocumentError(what, [f"has an entry {shown(entry.name)} {fault}"])


def _faults(entry: tarfile.TarInfo, stored_bytes: int) -> Iterator[str]:
    # First, since tarfile has read other numbers out of damaged records.
    for keyword, text in entry.pax_headers.items():
        form = _RECORDS.get(keyword)
        if form is not None and not form.fullmatch(text):
            yield f"whose {keyword} is {shown(text)}, which is no number that a file can have"
        elif keyword.startswith(XATTR):
            yield from _xattr_faults(keyword.removeprefix(XATTR), text)
    yield from _number_faults(entry)
    yield from _name_faults(entry.name, "name")
    if entry.issym() or entry.islnk():
        yield from _link_faults(entry)
    if entry.issparse():
        yield from _sparse_faults(entry, stored_bytes)


def _number_faults(entry: tarfile.TarInfo) -> Iterator[str]:
    numbers = [
        ("uid", entry.uid, 0, MOST_ID),
        ("gid", entry.gid, 0, MOST_ID),
        ("size", entry.size, 0, _MOST_SECONDS),
        ("mtime", entry.mtime, -_MOST_SECONDS, _MOST_SECONDS),
    ]
    if entry.isblk() or entry.ischr():
        numbers += [
            ("device major", entry.devmajor, 0, _MOST_MAJOR),
            ("device minor", entry.devminor, 0, _MOST_MINOR),
        ]
    for name, found, least, most in numbers:
        if not least <= found <= most:
            yield f"whose {name} is {found}; a file has one from {least} to {most}"


def _name_faults(path: str, kind: str) -> Iterator[str]:
    if "\0" in path:
        yield f"with a NUL character in its {kind}"
    # No character takes more than four bytes.
    if len(path) * 4 <= _NAME_BYTES:
        return
    for part in path.split("/"):
        # What a whiteout hides may have a name of full length.
        if len(part.removeprefix(WHITEOUT).encode("utf-8", "surrogateescape")) > _NAME_BYTES:
            yield f"with a part {shown(part)} in its {kind} that is longer than {_NAME_BYTES} bytes"


def _link_faults(entry: tarfile.TarInfo) -> Iterator[str]:
    target = entry.linkname
    if entry.islnk():
        yield from _name_faults(target, "link target")
        return
    if "\0" in target:
        yield "with a NUL character in its link target"
    if not target:
        yield "that is a symbolic link to nothing"
    if len(target.encode("utf-8", "surrogateescape")) > _TARGET_BYTES:
        yield f"that is a symbolic link to more than {_TARGET_BYTES} bytes"


def _xattr_faults(name: str, value: str) -> Iterator[str]:
    size = len(name.encode("utf-8", "surrogateescape"))
    if "\0" in name or not 0 < size <= _XATTR_NAME_BYTES:
        yield f"with an extended attribute {shown(name)}: no name of 1 to {_XATTR_NAME_BYTES} bytes without NUL"
    if len(value) * 4 > _XATTR_BYTES and len(value.encode("utf-8", "surrogateescape")) > _XATTR_BYTES:
        yield f"with an extended attribute {shown(name)} of more than {_XATTR_BYTES} bytes"


def _sparse_faults(entry: tarfile.TarInfo, stored_bytes: int) -> Iterator[str]:
    end = found = 0
    for offset, size in sparse_map(entry):
        if size < 0 or offset < end or offset + size > entry.size:
            yield f"whose map of a sparse file has a piece of {size} bytes at {offset}, behind or outside of its place"
        end, found = offset + size, found + size
    if -(-found // _BLOCK) * _BLOCK != stored_bytes:
        yield f"whose map of a sparse file names {found} bytes, but the archive has {stored_bytes}"


def sparse_map(entry: tarfile.TarInfo) -> list[tuple[int, int]]:
    """Offset and size of each piece that the archive has of a sparse file."""
    # The type stubs say otherwise. Headers have unused places for pieces, and some maps end with an empty one.
    return [(offset, size) for offset, size in cast("list[tuple[int, int]]", entry.sparse or []) if size]
