"""An entry of a tar archive: what its headers say, whatever their format, and whether a file can be so.

An entry is checked before anything of it is written: numbers outside of what Linux has, names that no file can have.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from imagestore.errors import DocumentError
from imagestore.store.unpack.paths import MOST_PATH_BYTES, byte_length

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

#: Size of a header, and the unit of data (POSIX.1-2001, pax, "ustar Interchange Format").
BLOCK: Final = 512
#: What keywords of extended attributes begin with.
XATTR: Final = "SCHILY.xattr."
#: Kinds of entries: the type flag of the header.
FILE: Final = b"0"
HARD_LINK: Final = b"1"
LINK: Final = b"2"
CHARACTER_DEVICE: Final = b"3"
BLOCK_DEVICE: Final = b"4"
FOLDER: Final = b"5"
FIFO: Final = b"6"
DEVICES: Final = (CHARACTER_DEVICE, BLOCK_DEVICE)
#: Kinds that have no data in the archive, whatever size the header states.
WITHOUT_DATA: Final = frozenset((HARD_LINK, LINK, CHARACTER_DEVICE, BLOCK_DEVICE, FOLDER, FIFO))
WHITEOUT: Final = ".wh."
#: Of users and groups: 2**32 - 1 is -1 for chown(2), which then changes nothing.
MOST_ID: Final = 2**32 - 2
# Of the kernel's device numbers (linux/kdev_t.h).
_MOST_MAJOR: Final = 2**12 - 1
_MOST_MINOR: Final = 2**20 - 1
# Linux: NAME_MAX, XATTR_NAME_MAX, XATTR_SIZE_MAX, XATTR_LIST_MAX (names of one file, each with its end).
_NAME_BYTES: Final = 255
_XATTR_NAME_BYTES: Final = 255
_XATTR_BYTES: Final = 65536
_XATTR_LIST_BYTES: Final = 65536
_MOST_SECONDS: Final = 2**63 - 1
_MOST_SHOWN: Final = 200
#: Kinds of which nothing but name and numbers is judged.
_PLAIN: Final = (FILE, FOLDER)
# PAX records as POSIX has them (pax(1), "pax Extended Header Keywords"): decimal numbers, times with a fraction.
_NUMBER: Final = re.compile(rb"[0-9]{1,19}")
_TIME: Final = re.compile(rb"-?[0-9]{1,18}(\.[0-9]*)?")
_RECORDS: Final = {"uid": _NUMBER, "gid": _NUMBER, "size": _NUMBER, "mtime": _TIME, "atime": _TIME, "ctime": _TIME}
_KNOWN_RECORDS: Final = frozenset((*_RECORDS, "path", "linkpath"))


@dataclass(slots=True)
class Entry:
    """One file, folder, link or device.

    Attributes:
        name: its path, as the archive has it; bytes that are no UTF-8 are surrogates (``surrogateescape``).
        kind: its type flag; ``FILE`` for all forms of regular files, ``FOLDER`` for all forms of folders.
        stored: bytes of its data that are in the archive, without what fills the last block.
        mode: permission bits, and whatever else the header has there.
        mtime: last modification, in seconds since 1970; a PAX record may have it more precisely.
        records: PAX records of this entry by keyword, those that say something of a file; None when it has no extended
            header.
        pieces: of a sparse file, place and length of each piece that is stored, in order.
    """

    name: str
    kind: bytes
    link: str
    size: int
    stored: int
    mode: int
    uid: int
    gid: int
    mtime: int
    major: int = 0
    minor: int = 0
    records: Mapping[str, bytes] | None = None
    pieces: tuple[tuple[int, int], ...] | None = None


def shown(name: str) -> str:
    r"""A name for a message: quoted, and not endless.

    >>> shown("a\n"), shown("x" * 1000)[-5:]
    ("'a\\n'", "xxx'…")
    """
    return repr(name) if len(name) <= _MOST_SHOWN else f"{name[:_MOST_SHOWN]!r}…"


def check_entry(entry: Entry, *, what: str) -> None:
    """Refuse an entry that no file can be; its records are checked before (see record_faults()).

    Raises:
        DocumentError: names the entry, and what is wrong with it.
    """
    has_usual_numbers = (
        0 <= entry.uid <= MOST_ID
        and 0 <= entry.gid <= MOST_ID
        and 0 <= entry.size <= _MOST_SECONDS
        and -_MOST_SECONDS <= entry.mtime <= _MOST_SECONDS
    )
    # No character takes more than four bytes.
    if has_usual_numbers and entry.kind in _PLAIN and len(entry.name) * 4 <= _NAME_BYTES and "\0" not in entry.name:
        return
    for fault in _faults(entry):
        raise DocumentError(what, [f"has an entry {shown(entry.name)} {fault}"])


def is_known(keyword: str) -> bool:
    """Whether a PAX record of this keyword says something of a file; all others are passed over."""
    return keyword in _KNOWN_RECORDS or keyword.startswith(XATTR)


def record_faults(records: Mapping[str, bytes]) -> Iterator[str]:
    """Faults in the PAX records that a file's owner, size, times and attributes come from."""
    listed = 0
    for keyword, value in records.items():
        form = _RECORDS.get(keyword)
        if form is not None and not form.fullmatch(value):
            given = shown(value.decode("utf-8", "surrogateescape"))
            yield f"whose {keyword} is {given}, which is no number that a file can have"
        elif keyword.startswith(XATTR):
            yield from _xattr_faults(keyword.removeprefix(XATTR), value)
            listed += byte_length(keyword.removeprefix(XATTR)) + 1
    if listed > _XATTR_LIST_BYTES:
        yield f"with extended attributes whose names take more than {_XATTR_LIST_BYTES} bytes together"


def _faults(entry: Entry) -> Iterator[str]:
    yield from _number_faults(entry)
    yield from _name_faults(entry.name, "name")
    if entry.kind in (LINK, HARD_LINK):
        yield from _link_faults(entry)


def _number_faults(entry: Entry) -> Iterator[str]:
    numbers = [
        ("uid", entry.uid, 0, MOST_ID),
        ("gid", entry.gid, 0, MOST_ID),
        ("size", entry.size, 0, _MOST_SECONDS),
        ("mtime", entry.mtime, -_MOST_SECONDS, _MOST_SECONDS),
    ]
    if entry.kind in DEVICES:
        numbers += [("device major", entry.major, 0, _MOST_MAJOR), ("device minor", entry.minor, 0, _MOST_MINOR)]
    for name, found, least, most in numbers:
        if not least <= found <= most:
            yield f"whose {name} is {found}; a file has one from {least} to {most}"


def _name_faults(path: str, kind: str) -> Iterator[str]:
    if "\0" in path:
        yield f"with a NUL character in its {kind}"
    if byte_length(path) > MOST_PATH_BYTES:
        yield f"with a {kind} that is longer than {MOST_PATH_BYTES} bytes"
    for part in path.split("/"):
        # What a whiteout hides may have a name of full length.
        if byte_length(part.removeprefix(WHITEOUT)) > _NAME_BYTES:
            yield f"with a part {shown(part)} in its {kind} that is longer than {_NAME_BYTES} bytes"


def _link_faults(entry: Entry) -> Iterator[str]:
    target = entry.link
    if entry.kind == HARD_LINK:
        yield from _name_faults(target, "link target")
        return
    if "\0" in target:
        yield "with a NUL character in its link target"
    if not target:
        yield "that is a symbolic link to nothing"
    if byte_length(target) > MOST_PATH_BYTES:
        yield f"that is a symbolic link to more than {MOST_PATH_BYTES} bytes"


def _xattr_faults(name: str, value: bytes) -> Iterator[str]:
    size = byte_length(name)
    if "\0" in name or not 0 < size <= _XATTR_NAME_BYTES:
        yield f"with an extended attribute {shown(name)}: no name of 1 to {_XATTR_NAME_BYTES} bytes without NUL"
    if len(value) > _XATTR_BYTES:
        yield f"with an extended attribute {shown(name)} of more than {_XATTR_BYTES} bytes"
