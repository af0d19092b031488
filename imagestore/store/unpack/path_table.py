"""A small number for each of many paths: in memory for some thousand of them, in a temporary file for more.

A layer says how many paths there are and how long they are, so neither may decide how much memory an unpacking takes.
Paths are kept as digests of 15 bytes, which no two paths share.
"""

from __future__ import annotations

import hashlib
import os
from typing import IO, TYPE_CHECKING, Final

from imagestore.util.cancel import never_cancelled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: Paths that are kept in memory: about ten megabytes.
MOST_IN_MEMORY: Final = 65_536
_SECRET: Final = 16
_DIGEST: Final = 15
#: In the file: a digest, and a byte with the value, which is 0 in a slot that is free.
_SLOT: Final = _DIGEST + 1
#: Slots that are read at a time, when one is looked for and when all are copied.
_WINDOW: Final = 8
_COPIED: Final = 4096
#: The file has room for so many times what is in it when it is made; it is replaced when half of it is taken.
_ROOM: Final = 4


class PathTable:
    """Numbers from 1 to 255 by path; 0 for all others.

    Args:
        open_file: a new file without a name, open for reading and writing.
        most_in_memory: paths; the file is made when there are more.
        check: called often in long copies; what it raises ends them.
    """

    def __init__(
        self,
        open_file: Callable[[], IO[bytes]],
        *,
        most_in_memory: int = MOST_IN_MEMORY,
        check: Callable[[], None] = never_cancelled,
    ) -> None:
        self._open_file = open_file
        self._check = check
        # A layer's author can't choose names that fall into the same slots.
        self._secret = os.urandom(_SECRET)
        self._most_in_memory = most_in_memory
        self._known: dict[bytes, int] = {}
        self._slots: _Slots | None = None

    def __bool__(self) -> bool:
        return bool(self._known) or self._slots is not None

    @property
    def in_memory(self) -> int:
        """How many paths are in memory."""
        return len(self._known)

    def __getitem__(self, path: str) -> int:
        key = self._key(path)
        return self._known.get(key, 0) if self._slots is None else self._slots.find(key)[1]

    def __setitem__(self, path: str, value: int) -> None:
        self._set(self._key(path), value)

    def include(self, path: str, bits: int) -> int:
        """Add bits to the number of a path; returns the number that it had before."""
        key = self._key(path)
        before = self._known.get(key, 0) if self._slots is None else self._slots.find(key)[1]
        if before | bits != before:
            self._set(key, before | bits)
        return before

    def _key(self, path: str) -> bytes:
        data = path.encode("utf-8", "surrogateescape")
        return hashlib.blake2b(data, digest_size=_DIGEST, key=self._secret).digest()

    def _set(self, key: bytes, value: int) -> None:
        if self._slots is not None:
            self._slots = self._slots.with_value(key, value)
            return
        self._known[key] = value
        if len(self._known) > self._most_in_memory:
            slots = _Slots(self._open_file, len(self._known) * _ROOM, self._check)
            try:
                for each, its_value in self._known.items():
                    self._check()
                    slots.put(each, its_value)
            except BaseException:
                slots.close()
                raise
            self._slots = slots
            self._known.clear()

    def close(self) -> None:
        """Give the file back; the table is empty then."""
        if self._slots is not None:
            self._slots.close()
        self._slots = None
        self._known.clear()


class _Slots:
    """A hash table in a file, with linear probing. It is never more than half full."""

    def __init__(self, open_file: Callable[[], IO[bytes]], count: int, check: Callable[[], None]) -> None:
        self._open_file = open_file
        self._check = check
        self._file = open_file()
        self._descriptor = self._file.fileno()
        self._count = count
        self._taken = 0
        os.ftruncate(self._descriptor, count * _SLOT)

    def find(self, key: bytes) -> tuple[int, int]:
        """The slot that a key has or would get, and its value."""
        place = int.from_bytes(key[:8]) % self._count
        while True:
            block = os.pread(self._descriptor, _WINDOW * _SLOT, place * _SLOT)
            for start in range(0, len(block), _SLOT):
                value = block[start + _DIGEST]
                if not value or block[start : start + _DIGEST] == key:
                    return place, value
                place += 1
            place %= self._count

    def put(self, key: bytes, value: int) -> None:
        """Give a key its value; there has to be a free slot."""
        place, before = self.find(key)
        self._taken += not before
        os.pwrite(self._descriptor, key + bytes([value]), place * _SLOT)

    def with_value(self, key: bytes, value: int) -> _Slots:
        """The table that has this value, too: another one if this is half full."""
        self.put(key, value)
        if self._taken * 2 <= self._count:
            return self
        larger = _Slots(self._open_file, self._taken * _ROOM, self._check)
        try:
            for each, its_value in self._items():
                self._check()
                larger.put(each, its_value)
        except BaseException:
            larger.close()
            raise
        self.close()
        return larger

    def _items(self) -> Iterator[tuple[bytes, int]]:
        for first in range(0, self._count, _COPIED):
            block = os.pread(self._descriptor, _COPIED * _SLOT, first * _SLOT)
            for start in range(0, len(block), _SLOT):
                if block[start + _DIGEST]:
                    yield block[start : start + _DIGEST], block[start + _DIGEST]

    def close(self) -> None:
        """Give the file back."""
        self._file.close()
