"""A store's root: the address of a database that machines share, or a folder.

A folder is refused where another user may have prepared it, or could change it while it is used.

The rules are those for the folders of sockets (server/sockets.py): what others own or may write isn't used. Where only
we and root can write, nothing is exchanged between the look and the use.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Final

from imagestore.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: What a store has in its folder; names that begin like a file's are files too (metadata.db-wal, records.jsonl.tmp).
_FOLDERS: Final = frozenset({"content", "locks", "hosts"})
_FILES: Final = ("metadata.db", "records.jsonl", "check.json", "waiting", "ballast")
_INNER_FOLDERS: Final = ("content/blobs", "content/blobs/sha256", "content/ingest")
_HINT: Final = "choose another --root, or look at what is in it and give it to this user"

_DATABASES: Final = ("postgresql://", "postgres://")


def is_database(root: str) -> bool:
    """Whether a store's root is a database's address, and no folder.

    >>> is_database("postgresql://db.example/images"), is_database("/var/lib/imagestore")
    (True, False)
    """
    return root.startswith(_DATABASES)


def is_foreign_address(root: str) -> bool:
    """Whether a store's root looks like an address that isn't taken; it may have a password, and isn't to be shown.

    >>> is_foreign_address("mysql://db.example/images"), is_foreign_address("/var/lib/imagestore")
    (True, False)
    """
    return not is_database(root) and ("://" in root or "password=" in root)


def refuse_untrusted(root: Path) -> None:
    """Refuse a store that another user may have prepared, or could change while it is used.

    Args:
        root: the store's folder; one that isn't there is not refused.

    Raises:
        StoreError: the folder or something of the store in it is another user's, may be written by all users, or is
            of the wrong kind, such as a link. Or it can't be looked at.
    """
    try:
        _check(root, os.stat(root), is_folder=True)
        for path, status, is_folder in _members(root):
            _check(path, status, is_folder=is_folder)
    except (FileNotFoundError, NotADirectoryError):
        return  # opening it says why
    except PermissionError:
        return  # as above, with words that say what to do
    except OSError as error:
        raise StoreError(f"{root}: can't look at the store's folder: {error.strerror}") from error


def _members(root: Path) -> Iterator[tuple[str, os.stat_result, bool]]:
    """What belongs to the store: path, status, and whether it has to be a folder."""
    with os.scandir(root) as entries:
        for entry in entries:
            is_folder = entry.name in _FOLDERS
            if is_folder or entry.name.startswith(_FILES):
                try:
                    yield entry.path, entry.stat(follow_symlinks=False), is_folder
                except FileNotFoundError:  # gone since it was listed
                    continue
    for name in _INNER_FOLDERS:
        path = os.path.join(root, name)
        try:
            yield path, os.lstat(path), True
        except FileNotFoundError:
            continue


def _check(path: str | Path, status: os.stat_result, *, is_folder: bool) -> None:
    if status.st_uid not in (0, os.geteuid()):
        raise StoreError(f"{path}: expected it to be root's or ours, but user {status.st_uid} owns it", hint=_HINT)
    kind, wanted = stat.S_IFMT(status.st_mode), stat.S_IFDIR if is_folder else stat.S_IFREG
    if kind != wanted:
        what = "a folder" if is_folder else "a regular file"
        found = "a symbolic link" if kind == stat.S_IFLNK else "another kind of file"
        raise StoreError(f"{path}: expected {what}, found {found}", hint="remove it, or mount the folder there instead")
    if status.st_mode & stat.S_IWOTH:
        raise StoreError(f"{path}: all users may write there", hint=f"run 'chmod o-w {path}', or choose another --root")
