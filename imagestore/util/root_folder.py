"""A store's root: the address of a database that machines share, or a folder.

A folder is refused if another user may have prepared it or could change it: if it is neither root's nor this user's,
or all users may write there. If it is a link, the folder that the link leads to is judged. The same rules hold for the
folders of sockets (server/sockets.py). Where only this user and root can write, nothing changes between the check and
the use.
"""

from __future__ import annotations

import os
import re
import stat
from typing import TYPE_CHECKING, Final

from imagestore.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: A store's folders, and beginnings of its files' names (metadata.db-wal).
_FOLDERS: Final = frozenset({"content", "locks", "hosts", "copies"})
_FILES: Final = ("metadata.db", "records.jsonl", "last-change.json", "check.json", "waiting", "verified", "ballast")
_INNER_FOLDERS: Final = ("content/blobs", "content/blobs/sha256", "content/ingest")
_HINT: Final = "choose another --root, or look at what is in it and give it to this user"

_DATABASES: Final = ("postgresql://", "postgres://")
#: A scheme, also if it has lost a slash; a login; a name of libpq's that is assigned.
_ADDRESS: Final = re.compile(
    r"[A-Za-z][A-Za-z0-9+.-]*:/|postgres(?:ql)?:|[^/]+:.*@|(?:.*\s)?(?:host|hostaddr|dbname|user|password)\s*=",
    re.IGNORECASE | re.DOTALL,
)


def is_database(root: str) -> bool:
    """Whether a store's root is a database's address.

    >>> is_database("postgresql://db.example/images"), is_database("/var/lib/imagestore")
    (True, False)
    """
    return root.startswith(_DATABASES)


def is_foreign_address(root: str) -> bool:
    """Whether a store's root looks like an unsupported address. Don't show it: it may have a password.

    >>> is_foreign_address("mysql://db.example/images"), is_foreign_address("/var/lib/imagestore")
    (True, False)
    >>> is_foreign_address("postgresql:/user:word@db.example/images"), is_foreign_address("/run/user@1000/images")
    (True, False)
    """
    return not is_database(root) and _ADDRESS.match(root) is not None


def refuse_untrusted(root: Path) -> None:
    """Refuse a store's folder that another user may have prepared, or could change; a missing one is not refused.

    Raises:
        StoreError: the folder or a store's file in it is another user's, may be written by all users, or is of the
            wrong kind, such as a link. Or it can't be examined.
    """
    try:
        _check(root, os.stat(root), is_folder=True)
        for path, status, is_folder in _members(root):
            _check(path, status, is_folder=is_folder)
    except (FileNotFoundError, NotADirectoryError):
        return  # opening it says why
    except PermissionError:
        return  # opening it says why, with a hint
    except OSError as error:
        raise StoreError(f"{root}: can't examine the store's folder: {error.strerror}") from error


def _members(root: Path) -> Iterator[tuple[str, os.stat_result, bool]]:
    """What the store has in its folder: path, status, and whether it has to be a folder."""
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
