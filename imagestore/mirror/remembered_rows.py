"""A mirror's rows of a shared store, with answers remembered for as long as no replica changes anything."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, cast

from imagestore.mirror.sql_rows import SqlCatalogueRows

if TYPE_CHECKING:
    from collections.abc import Callable

    from imagestore.mirror.catalogue_rows import CachedTag, KnownContent
    from imagestore.mirror.sql_rows import CatalogueDatabase
    from imagestore.oci.descriptor import Descriptor
    from imagestore.oci.digest import Digest

T = TypeVar("T")

#: Some 300 bytes each.
_MOST: Final = 20_000


class Changes(Protocol):
    """Hears of changes of the rows by whatever replica."""

    def mark(self) -> int | None:
        """A number that is another one after every change; None when it can't be told."""


class RememberedRows(SqlCatalogueRows):
    """CatalogueRows that ask the database once for what every request asks; thread-safe.

    Args:
        database: runs the statements; closed with this.
        changes: of its rows. While they can't be told, each question goes to the database.
    """

    def __init__(self, database: CatalogueDatabase, changes: Changes) -> None:
        super().__init__(database)
        self._changes = changes
        self._lock = threading.Lock()
        self._mark: int | None = None
        self._answers: dict[tuple[str, ...], Any] = {}

    def tag(self, name: str, tag: str) -> CachedTag | None:
        """Where a tag led, if its document is still known."""
        return self._remembered(("tag", name, tag), lambda: SqlCatalogueRows.tag(self, name, tag))

    def document(self, name: str, digest: Digest) -> Descriptor | None:
        """A document of a repository."""
        return self._remembered(("document", name, str(digest)), lambda: SqlCatalogueRows.document(self, name, digest))

    def known(self, upstream: str, name: str, digest: Digest) -> KnownContent | None:
        """Anything that a repository is known to have."""
        key = ("known", upstream, name, str(digest))
        return self._remembered(key, lambda: SqlCatalogueRows.known(self, upstream, name, digest))

    def _remembered(self, key: tuple[str, ...], ask: Callable[[], T]) -> T:
        mark = self._changes.mark()
        if mark is None:
            return ask()
        with self._lock:
            if self._mark != mark or len(self._answers) >= _MOST:
                self._mark, self._answers = mark, {}
            elif key in self._answers:
                return cast("T", self._answers[key])
        answer = ask()
        with self._lock:
            # Else it may be of a moment before the change.
            if self._mark == mark == self._changes.mark():
                self._answers[key] = answer
        return answer
