"""Paths below a root, and what is known of them: a tree of names, so that a long path takes little memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from imagestore.store.unpack.metadata import FileMetadata

#: Shared by all that have nothing below them: most paths are files'.
_NOTHING: Final[dict[str, PathNode]] = {}
#: Names from the root down.
Parts = tuple[str, ...]


def parts_of(name: str) -> Parts:
    """The names of a path below a root; ``..`` leads to the root at most.

    >>> parts_of("./a//b/../c"), parts_of("/../../etc")
    (('a', 'c'), ('etc',))
    """
    parts: list[str] = []
    for part in name.split("/"):
        if part == "..":
            del parts[-1:]
        elif part not in ("", "."):
            parts.append(part)
    return tuple(parts)


class PathNode:
    """A path and those below it.

    Attributes:
        inner: by their names; only add() and add_leaf() put any in.
        metadata: what the path gets, where something has said so.
    """

    __slots__ = ("inner", "metadata")

    def __init__(self) -> None:
        self.inner: dict[str, PathNode] = _NOTHING
        self.metadata: FileMetadata | None = None

    def add(self, parts: Parts) -> PathNode:
        """The node of a path, made with those above it when missing."""
        node = self
        for part in parts:
            found = node.inner.get(part, _LEAF)
            if found is _LEAF:
                if node.inner is _NOTHING:
                    node.inner = {}
                found = node.inner[part] = PathNode()
            node = found
        return node

    def add_leaf(self, name: str) -> None:
        """Add a name directly below this path; it gets a node of its own when something is added below it."""
        if self.inner is _NOTHING:
            self.inner = {}
        self.inner.setdefault(name, _LEAF)

    def find(self, parts: Parts) -> PathNode | None:
        """The node of a path, where there is one; only to be read."""
        node: PathNode | None = self
        for part in parts:
            node = None if node is None else node.inner.get(part)
        return node

    def remove(self, parts: Parts) -> None:
        """Forget a path and all below it."""
        above = self.find(parts[:-1]) if parts else None
        if above is not None:
            above.inner.pop(parts[-1], None)

    def keep(self, kept: PathNode | None) -> None:
        """Forget what is below this path and isn't in the other tree too."""
        pending = [(self, kept)]
        while pending:
            node, other = pending.pop()
            node.inner = {name: each for name, each in node.inner.items() if other is not None and name in other.inner}
            if other is not None:
                pending += [(each, other.inner[name]) for name, each in node.inner.items()]

    def innermost_first(self) -> Iterator[tuple[Parts, FileMetadata]]:
        """Each path that has metadata, after all that are below it."""
        found: list[tuple[Parts, PathNode]] = []
        pending: list[tuple[Parts, PathNode]] = [((), self)]
        while pending:
            parts, node = pending.pop()
            found.append((parts, node))
            pending += [((*parts, name), each) for name, each in node.inner.items()]
        for parts, node in reversed(found):
            if node.metadata is not None:
                yield parts, node.metadata


#: The node of all paths that have nothing below them and no metadata.
_LEAF: Final = PathNode()
