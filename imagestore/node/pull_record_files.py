"""Pull records on disk, in the kubelet's layout, so that a kubelet can read our files and we can read its files.

``<root>/image_manager/pulling/`` has intents, ``…/pulled/`` has records. A file is named ``sha256-`` and the hash of
its key: the image text for an intent, the image ref for a record. Files are replaced by a rename; files with other
names are ignored. Several processes may share a folder: a lock in ``…/locks/`` shows that a pull is still running.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Final, TypeVar

import imagestore.node.pull_records as pull_records
from imagestore.errors import StoreCorruptError
from imagestore.oci import Digest
from imagestore.util import files
from imagestore.util.disk_errors import translated
from imagestore.util.file_locks import FileLock, SharedLock
from imagestore.util.files import make_directory

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from imagestore.node.pull_records import PulledRecord


_PREFIX: Final = "sha256-"
_TEMPORARY: Final = ".tmp"
#: A temporary file older than this was left by a dead process.
_LEFTOVER_SECONDS: Final = 3600
_MAX_BYTES: Final = 4 * 1024 * 1024


def file_name(key: str) -> str:
    """The file name for a key.

    >>> file_name("busybox")[:15]
    'sha256-9d75f0d7'
    """
    return _PREFIX + Digest.of(key.encode("utf-8", "surrogatepass")).encoded


V = TypeVar("V")


class PullRecordFiles:
    """Reads and writes intents and records below one folder; every method raises StoreError if that fails.

    Args:
        root: state folder of the kubelet or the node agent.
    """

    def __init__(self, root: Path) -> None:
        self._pulling = root / "image_manager" / "pulling"
        self._pulled = root / "image_manager" / "pulled"
        self._locks = root / "image_manager" / "locks"
        for folder in (self._pulling, self._pulled, self._locks):
            with translated("make the folder of pull records", folder):
                make_directory(folder, 0o700)

    def begin(self, image: str) -> SharedLock:
        """Write the intent of a pull before it starts; return the lock for end(), held while the pull runs."""
        lock = SharedLock(self._locks / file_name(image))
        lock.acquire()
        try:
            self._write_intent(image)
        except BaseException:
            with lock.released():  # removes the lock file unless another pull holds it
                pass
            raise
        return lock

    def end(self, image: str, lock: SharedLock) -> None:
        """Delete an intent, unless another process pulls the image; the lock of begin() is released in any case."""
        with lock.released() as is_last:
            if is_last:
                self.delete_intent(image)

    def interrupted(self, image: str) -> FileLock:
        """The lock for handling the intent of an interrupted pull; it can't be acquired while a pull is running."""
        return FileLock(self._locks / file_name(image))

    def _write_intent(self, image: str) -> None:
        _replace(self._pulling / file_name(image), pull_records.intent_json(image))

    def has_intent(self, image: str) -> bool:
        """Whether a pull of the image is running or was interrupted."""
        path = self._pulling / file_name(image)
        data = _read(path)
        return data is not None and pull_records.parse_intent(data, f"pull intent {path.name}") == image

    def delete_intent(self, image: str) -> None:
        """Delete an intent; it need not exist."""
        _delete(self._pulling / file_name(image))

    def intents(self) -> tuple[list[str], list[StoreCorruptError]]:
        """The images of all intents, and the faults of unreadable files."""
        return _parsed(self._pulling, "pull intent", pull_records.parse_intent)

    def read(self, image_ref: str) -> PulledRecord | None:
        """The record of an image, or None."""
        path = self._pulled / file_name(image_ref)
        data = _read(path)
        if data is None:
            return None
        record = pull_records.parse_record(data, f"pulled record {path.name}")
        return record if record.image_ref == image_ref else None

    def records(self) -> tuple[list[PulledRecord], list[StoreCorruptError]]:
        """All records, and the faults of unreadable files."""
        return _parsed(self._pulled, "pulled record", pull_records.parse_record)

    def write(self, record: PulledRecord) -> None:
        """Write or replace a record."""
        _replace(self._pulled / file_name(record.image_ref), pull_records.record_json(record))

    def delete(self, image_ref: str) -> None:
        """Delete a record; it need not exist."""
        _delete(self._pulled / file_name(image_ref))

    def renew(self) -> None:
        """Rewrite files of older API versions, except unreadable ones; delete temporary files of dead processes."""
        for folder in (self._pulling, self._pulled):
            _delete_leftovers(folder)
        for path in _paths(self._pulling):
            _rewrite(path, lambda data, what: pull_records.intent_json(pull_records.parse_intent(data, what)))
        for path in _paths(self._pulled):
            _rewrite(path, lambda data, what: pull_records.record_json(pull_records.parse_record(data, what)))

    def counts(self) -> tuple[int, int]:
        """The numbers of intents and records on disk."""
        return len(_paths(self._pulling)), len(_paths(self._pulled))


def _read(path: Path) -> bytes | None:
    with translated("read a pull record", path):
        try:
            return files.read_regular(path, _MAX_BYTES)
        except FileNotFoundError:
            return None
        except files.TooLongError as error:
            raise StoreCorruptError(f"{path.name}: larger than {_MAX_BYTES} bytes") from error


def _parsed(folder: Path, what: str, parse: Callable[[bytes, str], V]) -> tuple[list[V], list[StoreCorruptError]]:
    found: list[V] = []
    faults: list[StoreCorruptError] = []
    for path in _paths(folder):
        try:
            data = _read(path)
            if data is not None:
                found.append(parse(data, f"{what} {path.name}"))
        except StoreCorruptError as error:
            faults.append(error)
    return found, faults


def _paths(folder: Path) -> list[Path]:
    with translated("list pull records", folder):
        return sorted(
            path
            for path in folder.iterdir()
            if path.name.startswith(_PREFIX) and not path.name.endswith(_TEMPORARY) and path.is_file()
        )


def _replace(path: Path, data: bytes) -> None:
    with translated("write a pull record", path):
        files.replace(path, data, is_durable=True)


def _rewrite(path: Path, renewed: Callable[[bytes, str], bytes]) -> None:
    with contextlib.suppress(StoreCorruptError):
        before = _read(path)
        after = None if before is None else renewed(before, path.name)
        if after is not None and after != before:
            _replace(path, after)


def _delete_leftovers(folder: Path) -> None:
    with translated("delete temporary files of pull records", folder):
        for path in folder.glob(f"*{_PREFIX}*{_TEMPORARY}"):
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_mtime < time.time() - _LEFTOVER_SECONDS:
                    path.unlink()


def _delete(path: Path) -> None:
    with translated("delete a pull record", path), contextlib.suppress(FileNotFoundError):
        path.unlink()
