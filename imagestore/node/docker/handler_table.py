"""Which image an engine has for which runtime handler; the engine itself doesn't know handlers.

A row means: a reference was pulled for a handler and resolved to an image id. A tag of the engine's classic store
points to one platform's image only; the rows still have the ids of the others. The rows are kept in memory, or in a
file that is replaced by a rename. Every change starts from the file, so several processes may share it.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Final

import imagestore.node.state_file as state_file
from imagestore.util.cancel import CancelToken
from imagestore.util.disk_errors import translated
from imagestore.util.file_locks import FileLock
from imagestore.util.files import make_directory, signature

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_WHAT: Final = "the handlers of images"
_MAX_BYTES: Final = 16 * 1024 * 1024


_Rows = dict[tuple[str, str], str]


class HandlerTable:
    """Rows (reference, handler) → image id; safe from any thread and process.

    Args:
        path: the file; None keeps the rows in memory.

    Raises:
        StoreCorruptError: the file is damaged.
        StoreError: it can't be read.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._signature = None if path is None else signature(path)
        self._rows = {} if path is None else _load(path)

    def get(self, reference: str, handler: str) -> str | None:
        """The id of the image that was pulled for the handler, or None."""
        return self._read().get((reference, handler))

    def knows(self, reference: str) -> bool:
        """Whether the table has the reference, for any handler."""
        return any(each == reference for each, _ in self._read())

    def of_image(self, image_id: str) -> dict[str, tuple[str, ...]]:
        """References by handler that resolved to an image."""
        found: dict[str, list[str]] = {}
        for (reference, handler), each in sorted(self._read().items()):
            if each == image_id:
                found.setdefault(handler, []).append(reference)
        return {handler: tuple(references) for handler, references in found.items()}

    def put(self, reference: str, handler: str, image_id: str) -> None:
        """Record a pull."""
        with self._changing() as rows:
            rows[reference, handler] = image_id

    def forget(self, image_id: str, handler: str | None = None) -> None:
        """Delete the rows of an image, of one handler or of all."""
        with self._changing() as rows:
            for row in [row for row, each in rows.items() if each == image_id and handler in (None, row[1])]:
                del rows[row]

    def _read(self) -> _Rows:
        """The rows now. A change replaces them, so that they can be read without the lock."""
        with self._lock:
            if self._path is not None and self._signature != (found := signature(self._path)):
                self._signature, self._rows = found, _load(self._path)
            return self._rows

    @contextlib.contextmanager
    def _changing(self) -> Iterator[_Rows]:
        """The rows to change; written afterwards if the block changed them."""
        with self._lock:
            if self._path is None:
                changed = dict(self._rows)
                yield changed
                self._rows = changed
                return
            with translated(f"write {_WHAT}", self._path):
                make_directory(self._path.parent, 0o700)
            with FileLock(self._path.with_name(f"{self._path.name}.lock")) as lock:
                lock.acquire(CancelToken())
                rows = _load(self._path)
                before = dict(rows)
                yield rows
                if rows != before:
                    images = [[reference, handler, each] for (reference, handler), each in sorted(rows.items())]
                    state_file.write(self._path, {"version": 1, "images": images}, _WHAT)


def _load(path: Path) -> _Rows:
    value = state_file.read(path, _MAX_BYTES, _WHAT)
    if value is None:
        return {}
    rows = value.get("images") if value.get("version") == 1 else None
    if not isinstance(rows, list) or not all(
        isinstance(row, list) and len(row) == 3 and all(isinstance(part, str) for part in row) for row in rows
    ):
        raise state_file.corrupt(path, _WHAT)
    return {(row[0], row[1]): row[2] for row in rows}
