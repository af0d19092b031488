"""Which files in the folders of blobs are blobs."""

from __future__ import annotations

import contextlib
import os
import re
from typing import TYPE_CHECKING, Final

from imagestore.content.disk import translated
from imagestore.oci.digest import VERIFIABLE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_HEX: Final = re.compile(r"[a-f0-9]+")


def is_name(algorithm: str, name: str) -> bool:
    """Whether a file of this name in this algorithm's folder is a blob's."""
    return len(name) == VERIFIABLE.get(algorithm) and _HEX.fullmatch(name) is not None


def entries(blobs: Path) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Everything in the folders of the algorithms we know, blob or not, with the algorithm.

    Raises:
        StoreError: a folder can't be listed.
    """
    for algorithm in sorted(VERIFIABLE):
        folder = blobs / algorithm
        with translated("list", folder), contextlib.suppress(FileNotFoundError), os.scandir(folder) as found:
            for entry in found:
                yield algorithm, entry


def names(blobs: Path) -> Iterator[str]:
    """Every blob's digest in text form, in no particular order; no file is looked at.

    Raises:
        StoreError: a folder can't be listed.
    """
    for algorithm, entry in entries(blobs):
        if is_name(algorithm, entry.name):
            with translated("list", entry.path):
                is_file = entry.is_file(follow_symlinks=False)
            if is_file:
                yield f"{algorithm}:{entry.name}"
