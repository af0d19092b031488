"""Restoring a backup: its records take the place of the store's, which are kept under another name."""

from __future__ import annotations

import contextlib
import os
import shutil
from typing import TYPE_CHECKING

from imagestore.content.disk import make_directories, translated
from imagestore.content.locks import FileLock
from imagestore.errors import InvalidInputError, StoreBusyError
from imagestore.metadata.sqlite.backup import refuse_unrestorable
from imagestore.store.maintenance.rebuild import put_aside
from imagestore.util import files
from imagestore.util.failpoint import reach
from imagestore.util.files import sync_directory
from imagestore.util.root_folder import refuse_untrusted

if TYPE_CHECKING:
    from pathlib import Path


def restore_backup(root: Path, file: Path) -> Path | None:
    """Put a backup's records in the place of a store's. Nothing else may use the store during that time.

    The content stays as it is: a record of the backup whose content has been collected since is found by a check and
    fetched by a repair; content that no record of the backup needs goes with the next collection.

    Args:
        root: the store's folder, made when missing.
        file: what ImageStore.backup() wrote.

    Returns:
        Where the database that was there is kept, or None.

    Raises:
        InvalidInputError: the file can't be read, or isn't a whole backup that this version can read.
        StoreBusyError: another process is rebuilding or restoring the store.
        StoreError: the folder can't be used, or another user may have prepared it.
    """
    refuse_untrusted(root)
    path = root / "metadata.db"
    fresh = path.with_name("metadata.db.restored")
    with translated("restore", path):
        make_directories([root, root / "locks"])
        with FileLock(root / "locks" / "rebuild") as lock:
            if not lock.try_acquire():
                raise StoreBusyError(f"{path}: another process is rebuilding it", hint="wait for it")
            try:
                _copy(file, fresh)
                refuse_unrestorable(fresh, named=file)
                kept_as = put_aside(path, "replaced")
                reach("restore-replace")
                os.replace(fresh, path)
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(fresh)
        sync_directory(root)
    return kept_as


def _copy(file: Path, target: Path) -> None:
    try:
        files.check_regular(file)
        source = open(file, "rb")  # noqa: SIM115 - closed below; only its opening is the caller's fault
    except OSError as error:
        raise InvalidInputError(f"{file}: can't be read: {error.strerror}") from error
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with source, os.fdopen(descriptor, "wb") as copy:
        shutil.copyfileobj(source, copy)
        copy.flush()
        os.fsync(descriptor)
