"""Where the files of a tar archive are: its headers read one by one, its contents left where they are.

Headers are read by the reader of layers (``unpack.reader``). Nothing is unpacked, so a name is only a key, made short
as Go's ``path.Clean`` does. Names that leave the archive are refused, and a name that occurs twice with different
contents, since readers disagree which counts. Symbolic links are only noted; a hard link is another name of a file that
came before it. Devices, FIFOs and members of unknown types are noted too: most archives need none of them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from imagestore.errors import DocumentError
from imagestore.store.unpack.entry import (
    BLOCK,
    BLOCK_DEVICE,
    CHARACTER_DEVICE,
    FIFO,
    FILE,
    FOLDER,
    HARD_LINK,
    LINK,
    shown,
)
from imagestore.store.unpack.limits import HEADER_BYTES
from imagestore.store.unpack.paths import byte_length
from imagestore.store.unpack.reader import entries

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from imagestore.store.unpack.entry import Entry
    from imagestore.util.cancel import CancelToken

#: Files, folders and links together.
MAX_MEMBERS: Final = 100_000
#: Names and targets of links together; those of that many blobs take half of it.
MAX_NAMES_BYTES: Final = 32 * 1024 * 1024
#: Pieces of all sparse files.
MAX_PIECES: Final = 250_000
_OTHERS: Final = {CHARACTER_DEVICE: "a character device", BLOCK_DEVICE: "a block device", FIFO: "a FIFO"}
#: No file has a byte there, and pread(2) takes the place.
_MAX_PLACE: Final = 2**62
_COMPARED: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Span:
    """Where a file's contents are in an archive.

    Attributes:
        offset: of what is stored, in bytes.
        size: of the file.
        pieces: of a sparse file, place in the file and length of each piece that is stored, in order; None for a file
            that is stored whole.
    """

    offset: int
    size: int
    pieces: tuple[tuple[int, int], ...] | None = None

    @property
    def stored(self) -> int:
        """How many bytes stand in the archive."""
        return self.size if self.pieces is None else sum(length for _, length in self.pieces)

    def parts(self, start: int, most: int) -> Iterator[tuple[int | None, int]]:
        """The file from ``start`` on, in parts of at most ``most`` bytes.

        Yields:
            Offset in the archive (None where the file has zeros that aren't stored) and length.
        """
        place = self.offset
        done = 0
        for at, length in (*(self.pieces if self.pieces is not None else ((0, self.size),)), (self.size, 0)):
            for first, end, is_stored in ((done, at, False), (at, at + length, True)):
                begin = max(first, start)
                while begin < end:
                    size = min(most, end - begin)
                    yield (place + begin - first if is_stored else None), size
                    begin += size
            place += length
            done = at + length


@dataclass(slots=True)
class TarTable:
    """The members of an archive.

    Attributes:
        files: contents by cleaned name.
        links: targets of symbolic links, as written, by cleaned name.
        others: what can't be read, by cleaned name: "a FIFO".
    """

    files: dict[str, Span] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    others: dict[str, str] = field(default_factory=dict)


def scan(read: Callable[[int, int], bytes], what: str, cancel: CancelToken) -> TarTable:
    """Read every header.

    Args:
        read: gives so many bytes (second argument) at an offset (first), fewer at the end of the archive.

    Raises:
        DocumentError: it is no tar archive, is cut off, or has a member that is refused.
    """
    return _Scan(read, what, cancel).run()


def member_name(name: str) -> str:
    """The name of a member in its shortest spelling: an absolute one is below the top, as for skopeo and podman.

    >>> member_name("/blobs/./sha256"), member_name("/../etc/passwd")
    ('blobs/sha256', '')
    """
    return clean(name.lstrip("/"))


def clean(name: str) -> str:
    """A member's name in its shortest spelling; empty when it leaves the archive, for any reader.

    >>> clean("./blobs//sha256/"), clean("a/../b"), clean("../etc/passwd"), clean("/etc/passwd"), clean("./")
    ('blobs/sha256', 'b', '', '', '.')
    """
    if name.startswith(("/", "\\")) or "\0" in name or ("\\" in name and ".." in re.split(r"[/\\]", name)):
        return ""
    parts: list[str] = []
    for part in name.split("/"):
        if part == "..":
            if not parts:
                return ""
            parts.pop()
        elif part not in ("", "."):
            parts.append(part)
    return "/".join(parts) or "."


class _Headers:
    """An archive as the stream that its headers are read from."""

    def __init__(self, read: Callable[[int, int], bytes], what: str) -> None:
        self._read = read
        self._what = what
        self._place = self._left = 0

    def first_block(self) -> bytes:
        """See HeaderStream."""
        self._left = HEADER_BYTES
        return self.read(BLOCK)

    def read(self, size: int) -> bytes:
        """See HeaderStream."""
        self._left -= size
        if self._left < 0:
            raise DocumentError(self._what, [f"has a member whose headers take more than {HEADER_BYTES} bytes"])
        found = self._read(self._place, size)
        self._place += len(found)
        return found

    def tell(self) -> int:
        """See HeaderStream."""
        return self._place

    def skip_to(self, end: int) -> None:
        """See HeaderStream."""
        self._place = end


class _Scan:
    def __init__(self, read: Callable[[int, int], bytes], what: str, cancel: CancelToken) -> None:
        self._read = read
        self._what = what
        self._cancel = cancel
        self._table = TarTable()

    def run(self) -> TarTable:
        """Read headers until the end of the archive; raises as scan()."""
        headers = _Headers(self._read, self._what)
        names = pieces = 0
        for count, entry in enumerate(entries(headers, what=self._what), 1):
            self._cancel.check()
            names += byte_length(entry.name) + byte_length(entry.link)
            pieces += len(entry.pieces or ())
            for number, most, of in (
                (count, MAX_MEMBERS, "members"),
                (names, MAX_NAMES_BYTES, "bytes of names"),
                (pieces, MAX_PIECES, "pieces of sparse files"),
            ):
                if number > most:
                    raise DocumentError(self._what, [f"has more than {most} {of}"])
            self._check_inside(entry, headers.tell())
            if entry.kind != FOLDER:
                self._add(entry, Span(headers.tell(), entry.size, entry.pieces))
        return self._table

    def _check_inside(self, entry: Entry, start: int) -> None:
        last = start + entry.stored - 1
        if entry.stored and (last > _MAX_PLACE or not self._read(last, 1)):
            fault = f"is cut off: a member of {entry.stored} bytes starts at {start}"
            raise DocumentError(self._what, [f"{fault}, and the archive ends before its end"])

    def _add(self, entry: Entry, span: Span) -> None:
        key, table = member_name(entry.name), self._table
        if not key or key == ".":
            fault = f"member {shown(entry.name)} has a name that leaves the archive, or that readers disagree on"
            raise DocumentError(self._what, [fault])
        file, link, other = None, None, ""
        if entry.kind == FILE:
            file = span
        elif entry.kind == LINK:
            link = entry.link
        elif entry.kind == HARD_LINK:
            file = table.files.get(member_name(entry.link))
            other = "" if file else f"a hard link to {shown(entry.link)}, which is no file before it"
        else:
            other = _OTHERS.get(entry.kind, f"of the unknown type {entry.kind.decode('latin-1')!r}")
        if key in table.files or key in table.links or key in table.others:
            before = table.files.get(key), table.links.get(key), table.others.get(key, "")
            if before[1:] != (link, other) or not self._is_same(before[0], file):
                raise DocumentError(self._what, [f"member {shown(key)} occurs twice, with different contents"])
        elif file is not None:
            table.files[key] = file
        elif link is not None:
            table.links[key] = link
        else:
            table.others[key] = other

    def _is_same(self, one: Span | None, other: Span | None) -> bool:
        """Whether two members have the same bytes; of sparse ones, stored in the same pieces."""
        if one is None or other is None or one == other:
            return one == other
        if (one.size, one.stored, one.pieces) != (other.size, other.stored, other.pieces):
            return False
        for done in range(0, one.stored, _COMPARED):
            self._cancel.check()
            length = min(_COMPARED, one.stored - done)
            if self._read(one.offset + done, length) != self._read(other.offset + done, length):
                return False
        return True
