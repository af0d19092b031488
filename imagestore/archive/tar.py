"""Where the files of a tar archive are: its headers read one by one, its contents left where they are.

Formats are USTAR and PAX (POSIX.1-2001, pax "Interchange Format") and GNU's long names. The standard library's reader
is not used: it takes long-name and extended headers of any size into memory, and follows links.

Nothing is unpacked, so a name is only a key. Still refused: absolute names, ``..``, names that occur twice (readers
disagree which counts), devices, FIFOs and sparse files. Symbolic links are only noted; a hard link is another name of
a file that came before it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NoReturn

from imagestore.errors import DocumentError

if TYPE_CHECKING:
    from collections.abc import Callable

    from imagestore.cancel import CancelToken

#: Size of a header and the unit of contents.
BLOCK: Final = 512
#: Files, folders and links together.
MAX_MEMBERS: Final = 100_000
#: Bytes of one long name or extended header; real ones have a few hundred.
MAX_EXTENSION_BYTES: Final = 64 * 1024
#: Names and targets of links together; those of that many blobs take half of it.
MAX_NAMES_BYTES: Final = 32 * 1024 * 1024
_MAX_NAME: Final = 1024
_OCTAL: Final = re.compile(rb"[ \0]*([0-7]*)[ \0]*")
_RECORD: Final = re.compile(rb"([1-9][0-9]{0,5}) ")
_DECIMAL: Final = re.compile(rb"[0-9]{1,19}")
_ZEROS: Final = bytes(BLOCK)
_FILES: Final = frozenset(b"0\x007")
_REFUSED: Final = {
    ord("3"): "a character device",
    ord("4"): "a block device",
    ord("6"): "a FIFO",
    ord("S"): "a sparse file",
}


@dataclass(frozen=True, slots=True)
class Span:
    """Where a file's contents are: ``offset`` and ``size`` in bytes."""

    offset: int
    size: int


@dataclass(slots=True)
class TarTable:
    """The members of an archive.

    Attributes:
        files: contents by cleaned name.
        links: targets of symbolic links, as written, by cleaned name.
    """

    files: dict[str, Span] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Header:
    name: bytes
    size: int
    kind: int
    link: bytes


def scan(read: Callable[[int, int], bytes], length: int, what: str, cancel: CancelToken) -> TarTable:
    """Read every header.

    Args:
        read: gives up to so many bytes (second argument) at an offset (first).
        length: of the whole archive in bytes.
        what: names the archive in errors.
        cancel: ends the scan.

    Raises:
        DocumentError: it is no tar archive, is cut off, or has a member that is refused.
        OperationCancelledError: cancelled.
    """
    return _Scan(read, length, what, cancel).run()


def clean(name: str) -> str:
    """A member's name without ``./`` in front and slash behind; empty when it leaves the archive or is malformed.

    >>> clean("./blobs/sha256/"), clean("../etc/passwd"), clean("/etc/passwd"), clean("./")
    ('blobs/sha256', '', '', '.')
    """
    short = name.removeprefix("./").removesuffix("/") or "."
    parts = short.split("/")
    if short != "." and any(part in ("", ".", "..") for part in parts):
        return ""
    return "" if "\0" in short or "\\" in short or len(short) > _MAX_NAME else short


class _Scan:
    def __init__(self, read: Callable[[int, int], bytes], length: int, what: str, cancel: CancelToken) -> None:
        self._read = read
        self._length = length
        self._what = what
        self._cancel = cancel
        self._table = TarTable()
        self._names_bytes = 0
        self._extra: dict[str, bytes] = {}

    def run(self) -> TarTable:
        position = count = 0
        while position < self._length:
            self._cancel.check()
            block = self._block(position)
            if block == _ZEROS:
                self._end(position + BLOCK)
                break
            header = self._header(block, position)
            position = self._take(header, position + BLOCK)
            count += 1
            if count > MAX_MEMBERS:
                self._refuse(f"has more than {MAX_MEMBERS} members")
        if self._extra:
            self._refuse("ends after an extended header, before the member it belongs to")
        return self._table

    def _block(self, position: int) -> bytes:
        block = self._read(position, BLOCK)
        if len(block) < BLOCK:
            self._refuse(f"is cut off at byte {position + len(block)}, inside a header")
        return block

    def _end(self, position: int) -> None:
        """One block of zeros may end the archive only together with a second, or with the file."""
        if position < self._length and self._read(position, BLOCK).strip(b"\0"):
            self._refuse(f"goes on after its end, at byte {position}")

    def _header(self, block: bytes, position: int) -> _Header:
        stated = self._number(block[148:156], position)
        if stated != sum(block[:148]) + 8 * ord(" ") + sum(block[156:]):
            self._refuse(f"is no tar archive: the header at byte {position} has a wrong checksum")
        name = _text(block[0:100])
        if block[257:263] == b"ustar\0" and block[345]:
            name = _text(block[345:500]) + b"/" + name
        return _Header(name, self._number(block[124:136], position), block[156], _text(block[157:257]))

    def _number(self, raw: bytes, position: int) -> int:
        if raw[0] == 0x80:  # GNU's base 256
            return int.from_bytes(raw[1:])
        found = _OCTAL.fullmatch(raw)
        if found is None:
            self._refuse(f"is no tar archive: the header at byte {position} has a number that can't be read")
        return int(found.group(1) or b"0", 8)

    def _take(self, header: _Header, start: int) -> int:
        """Note one member; return where the next header is."""
        if header.kind in b"xgLK":
            self._check_inside(header.size, start)
            self._extend(header, start)
            return _after(start, header.size)
        raw_name, raw_link = self._extra.pop("path", header.name), self._extra.pop("linkpath", header.link)
        self._names_bytes += len(raw_name) + len(raw_link)
        if self._names_bytes > MAX_NAMES_BYTES:
            self._refuse(f"has more than {MAX_NAMES_BYTES} bytes of names")
        name, link = self._decoded(raw_name), self._decoded(raw_link)
        size = self._size(self._extra.pop("size", None), header.size)
        if header.kind == ord("5"):
            return start
        if header.kind == ord("2"):
            self._add(name, link=link)
            return start
        if header.kind == ord("1"):
            file = self._table.files.get(clean(link))
            if file is None or size:
                self._refuse(f"member {name!r} is a hard link to {link[:200]!r}, which is no file before it")
            self._add(name, size=file.size, start=file.offset)
            return start
        if header.kind not in _FILES:
            kind = _REFUSED.get(header.kind, f"of the unknown type {chr(header.kind)!r}")
            self._refuse(f"member {name!r} is {kind}; only files, folders and links are read")
        self._check_inside(size, start)
        if self._is_folder_of_old(name, size):
            return start
        self._add(name, size=size, start=start)
        return _after(start, size)

    def _is_folder_of_old(self, name: str, size: int) -> bool:
        """Before USTAR a folder was a file with a slash behind its name."""
        if name.endswith("/") and size:
            self._refuse(f"member {name!r} is a folder with contents")
        return name.endswith("/")

    def _add(self, name: str, *, size: int = 0, start: int = 0, link: str | None = None) -> None:
        key = clean(name)
        if not key or key == ".":
            self._refuse(f"member {name[:200]!r} has a name that leaves the archive, or that readers disagree on")
        if key in self._table.files or key in self._table.links:
            self._refuse(f"member {key!r} occurs twice")
        if link is None:
            self._table.files[key] = Span(start, size)
        else:
            self._table.links[key] = link

    def _extend(self, header: _Header, start: int) -> None:
        """Take a long name, a long link or an extended header; it belongs to the next member."""
        if header.size > MAX_EXTENSION_BYTES:
            self._refuse(f"has an extended header of {header.size} bytes; allowed are {MAX_EXTENSION_BYTES}")
        data = self._read(start, header.size)
        if header.kind == ord("L"):
            found = {"path": _text(data)}
        elif header.kind == ord("K"):
            found = {"linkpath": _text(data)}
        else:
            found = self._records(data)
            if header.kind == ord("g"):
                if found:
                    self._refuse(f"has a global header that sets {', '.join(sorted(found))} of every member")
                return
        for key, value in found.items():
            if key in self._extra:
                self._refuse(f"gives a member two values for {key}")
            self._extra[key] = value

    def _records(self, data: bytes) -> dict[str, bytes]:
        """The keywords of an extended header that matter here: ``<length> <keyword>=<value>`` and a line feed each."""
        found: dict[str, bytes] = {}
        while data:
            head = _RECORD.match(data)
            length = int(head.group(1)) if head else 0
            record = data[:length]
            if head is None or len(record) < length or not record.endswith(b"\n") or length <= head.end():
                self._refuse("has an extended header that can't be read")
            keyword, equals, value = record[head.end() : -1].partition(b"=")
            if not equals or keyword.startswith(b"GNU.sparse."):
                self._refuse("has a sparse file, or an extended header that can't be read")
            if keyword in (b"path", b"linkpath", b"size"):
                found[keyword.decode()] = value
            data = data[length:]
        return found

    def _size(self, override: bytes | None, own: int) -> int:
        if override is None:
            return own
        if not _DECIMAL.fullmatch(override):
            self._refuse("has an extended header with a size that can't be read")
        return int(override)

    def _decoded(self, raw: bytes) -> str:
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            self._refuse(f"has a name that is not UTF-8: {raw[:100]!r}")

    def _check_inside(self, size: int, start: int) -> None:
        if size > self._length - start:
            self._refuse(f"is cut off: a member of {size} bytes starts at {start}, the archive has {self._length}")

    def _refuse(self, fault: str) -> NoReturn:
        raise DocumentError(self._what, [fault])


def _text(raw: bytes) -> bytes:
    return raw.partition(b"\0")[0]


def _after(start: int, size: int) -> int:
    return start + -(-size // BLOCK) * BLOCK
