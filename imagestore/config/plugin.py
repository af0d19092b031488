"""What a package tells about its plugin table, so that a configuration is read and checked with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from imagestore.config.section import Section
from imagestore.config.tree import child

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from imagestore.config.findings import Finding
    from imagestore.config.known import Shape
    from imagestore.config.tree import Table
    from imagestore.platforms import Platform

S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class Plugin(Generic[S]):
    """A plugin table, ``[plugins."NAME"]``, that a package outside of ``imagestore.config`` reads.

    Attributes:
        name: of the table.
        shape: its keys. Unknown ones, and values of other kinds, are reported before ``read`` is called.
        read: gives the settings of a table, which is empty if it isn't written. It gets the names of the runtime
            handlers and the node's platform, and reports what can't be used by ``Section.report``.

    >>> from imagestore.config import Kind, Plugin, Shape, loads
    >>> from imagestore.platforms import Platform
    >>> cache = Plugin("org.example.cache.v1", Shape({"size": Kind.TEXT}), lambda table, *_: table.size("size"))
    >>> text = 'version = 3\\n[plugins."org.example.cache.v1"]\\nsize = "1Ki"'
    >>> loads(text, host=Platform("linux", "amd64"), plugins=[cache]).plugin(cache)
    1024
    """

    name: str
    shape: Shape
    read: Callable[[Section, Collection[str], Platform], S]

    def settings(
        self,
        document: Table,
        handlers: Collection[str],
        host: Platform,
        findings: list[Finding],
        *,
        version: int,
    ) -> S:
        """Read the table of a merged document of this main file's version; ``findings`` gets what is found."""
        entry = child(document, "plugins").get(self.name)
        section = Section(entry, ("plugins", self.name), self.shape, findings, version=version)
        return self.read(section, handlers, host)
