"""Where tapes and bodies may be: in the folders of a project, whatever a name, ``..`` or a symbolic link says.

A recorder writes what registries answered, and a replay hands files out; neither should happen outside of the folder
that its user looks after. What counts is where a place really is, with every link followed.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from imagestore.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence


def is_named_inside(path: str, folder: str) -> bool:
    """Whether a path names a place in a folder, or the folder itself, wherever links lead.

    >>> is_named_inside("/a/b/../c", "/a"), is_named_inside("/ab", "/a")
    (True, False)
    """
    whole, root = os.path.abspath(path), os.path.abspath(folder)
    return os.path.commonpath([whole, root]) == root


def is_inside(path: str, folder: str) -> bool:
    """Whether a path, which need not exist, really is in a folder or the folder itself: links are followed."""
    return is_named_inside(os.path.realpath(path), os.path.realpath(folder))


def folder_of(path: str, folders: Sequence[str]) -> str:
    """The first of these folders that a path is in; empty when it is in none."""
    return next((folder for folder in folders if is_inside(path, folder)), "")


def check_inside(what: str, path: str, folders: Sequence[str]) -> None:
    """Refuse a path that leads out of a project.

    Args:
        what: names it in the error.
        path: of a tape, of a body, or of a folder of bodies.
        folders: of the project, the main one first; without any, every path is allowed.

    Raises:
        ConfigError: it is in none of them.
    """
    if not folders or folder_of(path, folders):
        return
    real = os.path.realpath(path)
    leads = "" if real == os.path.abspath(path) else f"; it leads to {real}"
    raise ConfigError(
        f"{what} {os.path.normpath(path)}: outside of the project {folders[0]}{leads}",
        hint="choose a place inside of the project, or allow its folder with --tape-outside",
    )


def real_place(path: str) -> str:
    """Where a path that a link leads out of its working folder really is; empty for any other path."""
    here = os.getcwd()
    return os.path.realpath(path) if is_named_inside(path, here) and not is_inside(path, here) else ""


def shown_place(path: str) -> str:
    """A path for people: below the working folder relative to it, and with the real place where a link leads out of it.

    >>> shown_place(os.path.join(os.getcwd(), "tests", "blobs"))
    'tests/blobs'
    """
    real = real_place(path)
    if real:
        return f"{os.path.relpath(path)} (which is {real})"
    return os.path.relpath(path) if is_inside(path, os.getcwd()) else os.path.abspath(path)
