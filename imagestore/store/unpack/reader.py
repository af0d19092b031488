"""The entries of a layer (OCI image-spec 1.1, layer.md) or of an archive of images, read once from front to back.

Formats are USTAR and PAX (POSIX.1-2001, pax) and GNU tar's, sparse files in all four forms. What readers read
differently is refused; where this reader has to choose, it does what Go's ``archive/tar`` does, since containerd reads
both with that. ``docs/decisions/0012`` says why the standard library's reader isn't used.
"""

from __future__ import annotations

import functools
import re
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NoReturn, Protocol

from imagestore.errors import DocumentError
from imagestore.store.unpack.entry import (
    BLOCK,
    DEVICES,
    FILE,
    FOLDER,
    HARD_LINK,
    LINK,
    WITHOUT_DATA,
    XATTR,
    Entry,
    check_entry,
    is_known,
    record_faults,
    shown,
)
from imagestore.store.unpack.sparse import PAX_PREFIX, read_gnu, read_pax

if TYPE_CHECKING:
    from collections.abc import Iterator

_HALF: Final = BLOCK // 2
_CHECKSUM: Final = slice(148, 156)
_BLANK_CHECKSUM: Final = 8 * ord(" ")
_OWNER_FIELDS: Final = (slice(0, 8), slice(8, 16), slice(16, 24))
_POSITIVE, _NEGATIVE = 0x80, 0xFF
_NUL_OR_SPACE: Final = b" \0"
_ZEROS: Final = bytes(BLOCK)
_LONG_NAME, _LONG_LINK, _GLOBAL, _GNU_SPARSE = b"L", b"K", b"g", b"S"
_RECORDS: Final = (b"x", b"X")  # POSIX', and that of Solaris before it
_EXTENSIONS: Final = frozenset((_LONG_NAME, _LONG_LINK, _GLOBAL, *_RECORDS))
_OLD_FILE: Final = b"\0"
_FILES: Final = frozenset((FILE, _OLD_FILE, b"7"))
_RECORD: Final = re.compile(rb"([1-9][0-9]{0,7}) ")


def _number(raw: bytes) -> int:
    r"""A numeric field: octal digits up to a NUL or a space, or GNU's base 256.

    Raises:
        ValueError: it is neither.

    >>> _number(b"0000644\0"), _number(b"   17 \0 "), _number(b"\x80\0\0\0\0\0\1\0"), _number(b"\xff" * 8)
    (420, 15, 256, -1)
    """
    text = raw.partition(b"\0")[0].strip(b" ")
    if text.isdigit():
        return int(text, 8)
    if raw[0] == _POSITIVE:
        return int.from_bytes(raw[1:])
    if raw[0] == _NEGATIVE:
        return int.from_bytes(raw[1:]) - (1 << 8 * (len(raw) - 1))
    # Go skips NULs in front of digits, tarfile takes such a field for 0.
    if text or raw.strip(_NUL_OR_SPACE):
        raise ValueError(f"{raw!r} is no number")
    return 0


#: Modes, owners and times repeat from entry to entry.
_known_number = functools.lru_cache(1024)(_number)


@functools.lru_cache(1024)
def _owner(raw: bytes) -> tuple[int, int, int]:
    """The fields mode, uid and gid, which are next to each other."""
    mode, uid, gid = (_number(raw[field]) for field in _OWNER_FIELDS)
    return mode, uid, gid


def _is_intact(block: bytes) -> bool:
    """Whether the checksum of a header fits: the sum of its bytes, with spaces in the place of the checksum."""
    field = block[_CHECKSUM]
    # The lower half of Adler-32 is 1 and the sum of the bytes, modulo 65521, which 256 bytes don't reach. It takes a
    # tenth of the time that sum() takes.
    plain = (zlib.adler32(block[:_HALF]) & 0xFFFF) + (zlib.adler32(block[_HALF:]) & 0xFFFF) - 2
    found = plain - sum(field) + _BLANK_CHECKSUM
    digits = field[:6]
    # Six digits, NUL and space are usual.
    stated = int(digits, 8) if not field[6] and digits.isdigit() else _number(field)
    # Old programs added bytes as signed numbers.
    return stated == found or stated == found - 256 * sum(byte > 127 for byte in block[:148] + block[156:])


def _text(raw: bytes) -> bytes:
    """A text field, which ends with its first NUL, if it has one."""
    return raw.partition(b"\0")[0]


def _name_of(block: bytes) -> bytes:
    """The name that a header has; only POSIX' format has a prefix, where GNU's has times."""
    name = block[:100].partition(b"\0")[0]
    if block[345] and block[257:263] == b"ustar\0":
        return _text(block[345:500]) + b"/" + name
    return name


def pax_records(data: bytes) -> list[tuple[str, bytes]]:
    r"""The keywords and values of a PAX extended header: ``<length> <keyword>=<value>`` and a line feed each.

    A record without a value takes back those of its keyword that came before (POSIX.1-2001, pax), and isn't among the
    result; only extended attributes may be empty.

    Raises:
        ValueError: something else is there.

    >>> pax_records(b"12 path=a/b\n9 uid=12\n9 gid=12\n7 gid=\n")
    [('path', b'a/b'), ('uid', b'12')]
    """
    found = []
    start = 0
    while start < len(data):
        head = _RECORD.match(data, start)
        end = start + int(head.group(1)) if head else 0
        if head is None or not head.end() < end <= len(data) or data[end - 1] != ord("\n"):
            raise ValueError(f"{data[start : start + 40]!r} is no record of an extended header")
        keyword, equals, value = data[head.end() : end - 1].partition(b"=")
        if not keyword or not equals:
            raise ValueError(f"{data[start : start + 40]!r} is no record of an extended header")
        found.append((keyword.decode("utf-8", "surrogateescape"), value))
        start = end
    taken_back = {
        keyword: place for place, (keyword, value) in enumerate(found) if not value and not keyword.startswith(XATTR)
    }
    return [each for place, each in enumerate(found) if place > taken_back.get(each[0], -1)] if taken_back else found


@dataclass(slots=True)
class _Extension:
    """What headers in front of an entry say of it.

    Attributes:
        records: of the extended header by keyword.
        sparse: those that describe a sparse file, in order, without what their keywords begin with.
    """

    records: dict[str, bytes] = field(default_factory=dict)
    sparse: list[tuple[str, bytes]] = field(default_factory=list)
    name: bytes = b""
    link: bytes = b""


class HeaderStream(Protocol):
    """What entries are read from: the bytes of a layer, or an archive at rest."""

    def first_block(self) -> bytes:
        """The first block of one more entry's headers; fewer bytes at the end."""

    def read(self, size: int) -> bytes:
        """Bytes of a header, or of data that extends one; fewer at the end.

        Raises:
            DocumentError: the headers of this entry take too much.
        """

    def tell(self) -> int:
        """Bytes from the beginning."""

    def skip_to(self, end: int) -> None:
        """Skip forward, at most to the end."""


def entries(stream: HeaderStream, *, what: str) -> Iterator[Entry]:
    """The entries of a layer or an archive.

    When one comes, the stream is where its data begins; what is wanted of it is read before the next entry is taken.

    Raises:
        DocumentError: a header is damaged or takes too much, or an entry can't be (see ``check_entry``).
    """
    reader = _Reader(stream, what)
    while (entry := reader.next()) is not None:
        end = stream.tell() + entry.stored + -entry.stored % BLOCK
        yield entry
        stream.skip_to(end)


class _Reader:
    def __init__(self, stream: HeaderStream, what: str) -> None:
        self._stream = stream
        self._what = what

    def next(self) -> Entry | None:
        """The next entry, checked; None at the end."""
        extension: _Extension | None = None
        block = self._stream.first_block()
        while True:
            if len(block) < BLOCK or block == _ZEROS:
                self._end(block)
                return None
            try:
                if not _is_intact(block):
                    self._refuse_damage("its checksum is wrong")
                kind = block[156:157]
                if kind not in _EXTENSIONS:
                    return self._entry(block, kind, extension)
                extension = extension or _Extension()
                self._extend(extension, kind, self._data(_number(block[124:136])))
                block = self._stream.read(BLOCK)
            except ValueError as error:
                self._refuse_damage(str(error), error)

    def _end(self, block: bytes) -> None:
        """An archive ends with two blocks of zeros, or where the bytes end; anything else is damage.

        As in Go, a header that extends an entry may come before none: git writes a global one of an empty tree.
        """
        if block.strip(b"\0"):
            self._refuse_damage("it is cut off")
        if block and self._stream.read(BLOCK).strip(b"\0"):
            self._refuse_damage("it is behind a block of zeros")

    def _data(self, size: int) -> bytes:
        """An extension's data after its header; its padding is read, too."""
        if size < 0:
            self._refuse_damage(f"its size is {size}")
        data = self._stream.read(size + -size % BLOCK)
        if len(data) < size:
            self._refuse_damage("it is cut off")
        return data[:size]

    def _extend(self, extension: _Extension, kind: bytes, data: bytes) -> None:
        """Take a header that extends the next entry. The last of two of a kind counts, as in Go."""
        if kind == _LONG_NAME:
            extension.name = _text(data)
            return
        if kind == _LONG_LINK:
            extension.link = _text(data)
            return
        found = pax_records(data)
        # Global records are for all entries that follow: containerd and Docker have none of them count.
        if kind != _GLOBAL:
            extension.records = {keyword: value for keyword, value in found if is_known(keyword)}
            extension.sparse = [
                (keyword.removeprefix(PAX_PREFIX), value) for keyword, value in found if keyword.startswith(PAX_PREFIX)
            ]

    def _entry(self, block: bytes, kind: bytes, extension: _Extension | None) -> Entry:
        mode, uid, gid = _owner(block[100:124])
        size, mtime = _number(block[124:136]), _known_number(block[136:148])
        name = _name_of(block).decode("utf-8", "surrogateescape")
        entry = Entry(name, FILE if kind in _FILES else kind, "", size, size, mode, uid, gid, mtime)
        if kind in (LINK, HARD_LINK):
            entry.link = _decoded(_text(block[157:257]))
        elif kind in DEVICES:
            entry.major, entry.minor = _number(block[329:337]), _number(block[337:345])
        if extension is not None:
            self._apply(extension, entry)
        if kind == _OLD_FILE and entry.name.endswith("/"):  # before USTAR a folder had no type of its own
            entry.kind = FOLDER
        if entry.kind == FOLDER:
            entry.name = entry.name.rstrip("/")
        if kind == _GNU_SPARSE or (extension is not None and extension.sparse):
            self._apply_sparse(block, entry, extension)
        if entry.kind in WITHOUT_DATA:
            entry.stored = 0
        check_entry(entry, what=self._what)
        return entry

    def _apply(self, extension: _Extension, entry: Entry) -> None:
        """Let records and long names override the header's fields; empty ones don't, as in Go."""
        records = extension.records
        entry.name = _decoded(extension.name or records.get("path", b"")) or entry.name
        if name := dict(extension.sparse).get("name"):
            entry.name = _decoded(name)
        if entry.kind in (LINK, HARD_LINK):
            entry.link = _decoded(extension.link or records.get("linkpath", b"")) or entry.link
        for fault in record_faults(records):
            self._refuse(entry, fault)
        entry.records = records
        entry.uid = int(records.get("uid", entry.uid))
        entry.gid = int(records.get("gid", entry.gid))
        entry.size = entry.stored = int(records.get("size", entry.size))

    def _apply_sparse(self, block: bytes, entry: Entry, extension: _Extension | None) -> None:
        """Read the map of a sparse file, which may go on behind the header."""
        found = None
        if entry.kind == _GNU_SPARSE:
            found = read_gnu(block, self._stream.read, entry.stored)
        elif entry.kind == FILE and extension is not None:
            found = read_pax(extension.sparse, self._stream.read, entry.stored)
        if found is None:
            self._refuse(entry, f"with a map of a sparse file that can't be: for {entry.stored} bytes in the archive")
        entry.kind, entry.size, entry.pieces = FILE, found.size, found.pieces
        entry.stored = sum(length for _, length in found.pieces)

    def _refuse(self, entry: Entry, fault: str) -> NoReturn:
        raise DocumentError(self._what, [f"has an entry {shown(entry.name)} {fault}"])

    def _refuse_damage(self, fault: str, cause: Exception | None = None) -> NoReturn:
        place = self._stream.tell()
        where = "is no tar archive, or has" if place <= BLOCK else "has"
        raise DocumentError(self._what, [f"{where} a damaged tar header before byte {place}: {fault}"]) from cause


def _decoded(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")
