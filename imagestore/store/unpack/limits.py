"""What an unpacking may take, and what it has taken so far."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NoReturn

from imagestore.errors import DocumentError
from imagestore.store.archive.compressions import MOST_WINDOW_BYTES
from imagestore.store.unpack.entry import FILE, XATTR

if TYPE_CHECKING:
    from imagestore.store.unpack.entry import Entry

#: Shown of what was left out; the rest is counted.
_MOST_SHOWN: Final = 1000
#: Characters of a name that is shown.
_MOST_NAME: Final = 1024
#: What headers and padding take of a layer, at most: on average for one entry, and in any case.
_ENTRY_BYTES: Final = 4096
_LEAST_BYTES: Final = 16 * 1024 * 1024
#: What Go's ``archive/tar`` reads of an extended header, and so what containerd unpacks.
HEADER_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class UnpackLimits:
    """What all layers of an image together may take, and each of its entries.

    Attributes:
        size: bytes of files.
        entries: files, folders, links.
        depth: folders above a file; 512 is the most that a tree ever has.
        xattr_bytes: bytes of extended attributes, names and values.
        header_bytes: bytes of the headers of one entry: names, links, extended attributes, the map of a sparse file.
            They are in memory while the entry is unpacked, several times.
        window_bytes: how far back a compressed layer refers, which its decoder needs in memory. Of those with more than
            128 MiB one is unpacked at a time in a process. That of xz is 128 MiB at most.
    """

    size: int = 256 * 1024**3
    entries: int = 10_000_000
    depth: int = 512
    xattr_bytes: int = 1024**3
    header_bytes: int = HEADER_BYTES
    window_bytes: int = MOST_WINDOW_BYTES

    @property
    def plain_bytes(self) -> int:
        """The most that all layers may take uncompressed: files, and headers of as many entries as are allowed."""
        return self.size + self.entries * _ENTRY_BYTES + _LEAST_BYTES


@dataclass(slots=True)
class Unpacked:
    """What has been unpacked so far.

    Attributes:
        entries: of all layers.
        size: bytes of files.
        xattr_bytes: bytes of extended attributes.
        plain: bytes of layers without their compression.
        left_out: what this user can't make, each with the reason; a thousand at most.
        left_out_count: how many there were.
    """

    entries: int = 0
    size: int = 0
    xattr_bytes: int = 0
    plain: int = 0
    left_out: list[str] = field(default_factory=list)
    left_out_count: int = 0

    def count(self, entry: Entry, limits: UnpackLimits, *, depth: int, implied: int, what: str) -> None:
        """Count an entry.

        Args:
            depth: how many folders its name has, with its own.
            implied: how many folders were made that have no entry.

        Raises:
            DocumentError: a limit is passed.
        """
        self.entries += 1
        if entry.kind == FILE:
            self.size += entry.size
        if entry.records is not None:
            found = ((name, value) for name, value in entry.records.items() if name.startswith(XATTR))
            self.xattr_bytes += sum(len(name) - len(XATTR) + len(value) for name, value in found)
        if self.entries + implied > limits.entries:
            _refuse(limits.entries, "entries", what)
        if self.size > limits.size:
            _refuse(limits.size, "bytes", what)
        if self.xattr_bytes > limits.xattr_bytes:
            _refuse(limits.xattr_bytes, "bytes of extended attributes", what)
        if depth > limits.depth:
            _refuse(limits.depth, "folders above an entry", what)

    def leave_out(self, name: str, reason: str) -> None:
        """Note something of the image that isn't in the tree."""
        self.left_out_count += 1
        if len(self.left_out) < _MOST_SHOWN:
            self.left_out.append(f"{name[:_MOST_NAME]}: {reason}")


def _refuse(most: int, name: str, what: str) -> NoReturn:
    raise DocumentError(what, [f"has more than {most} {name}, the limit of this unpacking"])
