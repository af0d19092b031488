"""Where the files of a tar archive are: its headers read one by one, its contents left where they are.

Formats are USTAR and PAX (POSIX.1-2001, pax "Interchange Format"), GNU's long names, and sparse files (``sparse``). The
standard library's reader is not used: it takes long-name and extended headers of any size into memory, and follows
links.

Nothing is unpacked, so a name is only a key, made short as Go's ``path.Clean`` does. Names that leave the archive are
refused, and a name that occurs twice with different contents, since readers disagree which counts. Symbolic links are
only noted; a hard link is another name of a file that came before it. Devices, FIFOs and members of unknown types are
noted too: most archives need none of them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NoReturn

from imagestore.errors import DocumentError
from imagestore.store.archive.sparse import MAX_PIECES, PAX_PREFIX, Span, read_gnu, read_pax

if TYPE_CHECKING:
    from collections.abc import Callable

    from imagestore.util.cancel import CancelToken

#: Size of a header and the unit of contents.
BLOCK: Final = 512
#: Files, folders and links together.
MAX_MEMBERS: Final = 100_000
#: Bytes of one long name or extended header; real ones have a few hundred.
MAX_EXTENSION_BYTES: Final = 64 * 1024
#: Names and targets of links together; those of that many blobs take half of it.
MAX_NAMES_BYTES: Final = 32 * 1024 * 1024
_OCTAL: Final = re.compile(rb"[ \0]*([0-7]*)[ \0]*")
_RECORD: Final = re.compile(rb"([1-9][0-9]{0,7}) ")
_DECIMAL: Final = re.compile(rb"[0-9]{1,19}")
_ZEROS: Final = bytes(BLOCK)
_FILES: Final = frozenset(b"0\x007")
#: What keywords of extended attributes begin with.
XATTR: Final = "SCHILY.xattr."
#: Members of which only the header stands in the archive, whatever size it states.
_DEVICES: Final = {ord("3"): "a character device", ord("4"): "a block device", ord("6"): "a FIFO"}
_MAX_SIZE: Final = 2**62
_COMPARED: Final = 1024 * 1024


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


@dataclass(frozen=True, slots=True)
class _Header:
    name: bytes
    size: int
    kind: int
    link: bytes
    block: bytes


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


class _Scan:
    def __init__(self, read: Callable[[int, int], bytes], what: str, cancel: CancelToken) -> None:
        self._read = read
        self._what = what
        self._cancel = cancel
        self._table = TarTable()
        self._names_bytes = 0
        self._extra: dict[str, bytes] = {}
        self._sparse: list[tuple[str, bytes]] = []
        self._pieces = 0

    def run(self) -> TarTable:
        """Read headers until the end of the archive; raises as scan()."""
        position = count = 0
        while block := self._block(position):
            self._cancel.check()
            if block == _ZEROS:
                self._end(position + BLOCK)
                break
            header = self._header(block, position)
            position = self._take(header, position + BLOCK)
            count += 1
            if count > MAX_MEMBERS:
                self._refuse(f"has more than {MAX_MEMBERS} members")
        return self._table

    def _block(self, position: int) -> bytes:
        block = self._read(position, BLOCK)
        if 0 < len(block) < BLOCK:
            self._refuse(f"is cut off at byte {position + len(block)}, inside a header")
        return block

    def _end(self, position: int) -> None:
        """One block of zeros may end the archive only together with a second, or with the file."""
        if self._read(position, BLOCK).strip(b"\0"):
            self._refuse(f"goes on after its end, at byte {position}")

    def _header(self, block: bytes, position: int) -> _Header:
        stated = self._number(block[148:156], position)
        if stated != sum(block[:148]) + 8 * ord(" ") + sum(block[156:]):
            self._refuse(f"is no tar archive: the header at byte {position} has a wrong checksum")
        name = _text(block[0:100])
        if block[257:263] == b"ustar\0" and block[345]:
            name = _text(block[345:500]) + b"/" + name
        return _Header(name, self._number(block[124:136], position), block[156], _text(block[157:257]), block)

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
        sparse, self._sparse = self._sparse, []
        raw_name, raw_link = self._extra.pop("path", header.name), self._extra.pop("linkpath", header.link)
        raw_name = dict(sparse).get("name", raw_name)
        self._names_bytes += len(raw_name) + len(raw_link)
        if self._names_bytes > MAX_NAMES_BYTES:
            self._refuse(f"has more than {MAX_NAMES_BYTES} bytes of names")
        # A name that isn't UTF-8 is none that a document could give, so only members that nothing needs have one.
        name, link = raw_name.decode("utf-8", "surrogateescape"), raw_link.decode("utf-8", "surrogateescape")
        size = self._size(self._extra.pop("size", None), header.size)
        if header.kind == ord("5"):
            return start
        if header.kind == ord("2"):
            self._add(name, link=link)
            return start
        if header.kind == ord("1"):
            file = self._table.files.get(member_name(link))
            if file is None or size:
                self._add(name, other=f"a hard link to {link[:200]!r}, which is no file before it")
                return start
            self._add(name, file=file)
            return start
        if header.kind in _DEVICES:
            self._add(name, other=_DEVICES[header.kind])
            return start
        if header.kind == ord("S"):
            return self._take_gnu_sparse(name, header, size, start)
        self._check_inside(size, start)
        if header.kind not in _FILES:
            self._add(name, other=f"of the unknown type {chr(header.kind)!r}")
        elif sparse:
            found = self._counted(read_pax(sparse, self._read, start, size))
            self._add(name, file=found, other="" if found else "a sparse file whose map can't be read")
        elif not self._is_pre_ustar_folder(name, size):
            self._add(name, file=Span(start, size))
        return _after(start, size)

    def _take_gnu_sparse(self, name: str, header: _Header, size: int, start: int) -> int:
        """A sparse file as GNU's own format has it: with its map in the header, and in blocks behind it."""
        found = read_gnu(header.block, self._read, start, size)
        if found is None:
            self._refuse(f"member {name[:200]!r} is a sparse file whose map can't be read")
        self._check_inside(size, found.offset)
        self._add(name, file=self._counted(found))
        return _after(found.offset, size)

    def _counted(self, span: Span | None) -> Span | None:
        """Bound what the maps of all sparse files take."""
        self._pieces += 0 if span is None or span.pieces is None else len(span.pieces)
        if self._pieces > MAX_PIECES:
            self._refuse(f"has sparse files of more than {MAX_PIECES} pieces")
        return span

    def _is_pre_ustar_folder(self, name: str, size: int) -> bool:
        """Before USTAR a folder was a file with a slash behind its name."""
        if name.endswith("/") and size:
            self._refuse(f"member {name!r} is a folder with contents")
        return name.endswith("/")

    def _add(self, name: str, *, file: Span | None = None, link: str | None = None, other: str = "") -> None:
        key = member_name(name)
        if not key or key == ".":
            self._refuse(f"member {name[:200]!r} has a name that leaves the archive, or that readers disagree on")
        table = self._table
        if key in table.files or key in table.links or key in table.others:
            before = table.files.get(key), table.links.get(key), table.others.get(key, "")
            if before[1:] != (link, other) or not self._is_same(before[0], file):
                self._refuse(f"member {key[:200]!r} occurs twice, with different contents")
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
                if found or self._sparse:
                    keys = ", ".join(sorted(found)) or "pieces"
                    self._refuse(f"has a global header that sets {keys} of every member")
                return
        for key, value in found.items():
            if key in self._extra:
                self._refuse(f"gives a member two values for {key}")
            self._extra[key] = value

    def _records(self, data: bytes) -> dict[str, bytes]:
        """The records of an extended header that matter here; those of sparse files are kept apart."""
        found: dict[str, bytes] = {}
        try:
            records = pax_records(data)
        except ValueError:
            self._refuse("has an extended header that can't be read")
        for keyword, value in records:
            if keyword.startswith(PAX_PREFIX):
                self._sparse.append((keyword.removeprefix(PAX_PREFIX), value))
            elif keyword in ("path", "linkpath", "size"):
                found[keyword] = value
        return found

    def _size(self, override: bytes | None, own: int) -> int:
        if override is None:
            return own
        if not _DECIMAL.fullmatch(override):
            self._refuse("has an extended header with a size that can't be read")
        return int(override)

    def _check_inside(self, size: int, start: int) -> None:
        if max(size, start) >= _MAX_SIZE:
            self._refuse(f"is cut off: it states a member of {size} bytes")
        if size and not self._read(start + size - 1, 1):
            self._refuse(f"is cut off: a member of {size} bytes starts at {start}, and the archive ends before its end")

    def _refuse(self, fault: str) -> NoReturn:
        raise DocumentError(self._what, [fault])


def _text(raw: bytes) -> bytes:
    return raw.partition(b"\0")[0]


def _after(start: int, size: int) -> int:
    return start + -(-size // BLOCK) * BLOCK
