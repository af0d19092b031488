"""An entry of a layer: what its headers say, in one form whatever format the archive has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Size of a header, and the unit of data (POSIX.1-2001, pax, "ustar Interchange Format").
BLOCK: Final = 512
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


@dataclass(slots=True)
class Entry:
    """One file, folder, link or device.

    Attributes:
        name: its path, as the archive has it; bytes that are no UTF-8 are surrogates (``surrogateescape``).
        kind: its type flag; ``FILE`` for all forms of regular files, ``FOLDER`` for all forms of folders.
        link: the target of a link.
        size: of the file, in bytes.
        stored: bytes of its data that are in the archive, without what fills the last block.
        mode: permission bits, and whatever else the header has there.
        uid: owner.
        gid: group.
        mtime: last modification, in seconds since 1970; a PAX record may have it more precisely.
        major: of a device.
        minor: of a device.
        records: PAX records of this entry by keyword; None when it has no extended header.
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
