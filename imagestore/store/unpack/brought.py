"""What a layer has brought so far: its whiteouts are about the layers below, and spare this."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from imagestore.store.unpack.path_table import PathTable
from imagestore.util.cancel import never_cancelled
from imagestore.util.trees import Choice

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import IO

#: The layer has an entry of the path, or of one below it.
_BROUGHT: Final = 1
#: Nothing of the layers below is left below the path.
_CLEAN: Final = 2


class BroughtPaths:
    """The paths that one layer has brought, and the folders in which it has hidden all that was there before.

    A folder is hidden once: what comes into it afterwards is the layer's own. So whiteouts take no longer together than
    it takes to read each folder once.

    Args:
        is_lowest: there is no layer below, so nothing has to be kept.
        open_file, check: see PathTable.
    """

    def __init__(
        self, open_file: Callable[[], IO[bytes]], *, is_lowest: bool, check: Callable[[], None] = never_cancelled
    ) -> None:
        self._table = PathTable(open_file, check=check)
        self._is_lowest = is_lowest
        self._has_clean = False

    @property
    def in_memory(self) -> int:
        """How many paths are in memory."""
        return self._table.in_memory

    def add(self, path: str) -> None:
        """Add a path and those above it."""
        if not self._is_lowest:
            for each in _upwards(path):
                if self._table.include(each, _BROUGHT) & _BROUGHT:
                    break  # and all above it

    def add_name(self, path: str) -> None:
        """Add a path in a folder that has been added."""
        if not self._is_lowest:
            self._table.include(path, _BROUGHT)

    def __contains__(self, path: str) -> bool:
        return bool(self._table[path] & _BROUGHT)

    def set_clean(self, path: str) -> None:
        """Remember that nothing of the layers below is left below a path."""
        self._has_clean = True
        self._table.include(path, _CLEAN)

    def is_clean(self, path: str) -> bool:
        """Whether nothing of the layers below is left below a path."""
        if self._is_lowest:
            return True
        return self._has_clean and any(self._table[each] & _CLEAN for each in (*_upwards(path), ""))

    def spared(self, path: str) -> Choice:
        """What becomes of a path when the folder above it is hidden."""
        known = self._table[path]
        if not known & _BROUGHT:
            return Choice.REMOVE
        return Choice.KEEP if known & _CLEAN else Choice.ENTER

    def close(self) -> None:
        """Forget all."""
        self._table.close()


def _upwards(path: str) -> Iterator[str]:
    """A path and those above it, but for the root.

    >>> list(_upwards("a/b/c"))
    ['a/b/c', 'a/b', 'a']
    """
    while path:
        yield path
        path = path.rpartition("/")[0]
