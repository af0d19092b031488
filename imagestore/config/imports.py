"""Reading a configuration with everything it imports.

containerd's order (server config, LoadConfig and resolveImports): the main file first, then its imports, then theirs,
level by level; a file once read isn't read again, which also ends cycles. A path is relative to the file that names
it. It is a pattern only if it holds ``*``; a pattern may find nothing, a plain path has to exist. Each file is
migrated by its own version, and none may have a later version than the main file.
"""

from __future__ import annotations

import os
from collections import deque
from typing import TYPE_CHECKING, Final

from imagestore.config.findings import refusal, show
from imagestore.config.globs import expand
from imagestore.config.merge_imports import merge
from imagestore.config.migrate import migrate
from imagestore.config.plugin_names import foreign_names
from imagestore.config.source import parse, read_bytes
from imagestore.config.tree import Location

if TYPE_CHECKING:
    from collections.abc import Iterator

    from imagestore.config.findings import Finding
    from imagestore.config.source import SourceFile
    from imagestore.config.tree import Table

#: Files one configuration may consist of, and their bytes together.
MAX_FILES: Final = 100
MAX_TOTAL_BYTES: Final = 16 * 1024 * 1024
#: Oldest version that everything is brought to; the shape that the rest of the package reads.
BASE_VERSION: Final = 3


class LoadedFiles:
    """The merged result of a main file and its imports.

    Attributes:
        table: merged keys, migrated to ``version``.
        version: 3, or 4 when the main file says so.
        main_version: what the main file says.
        newest_version: the latest that any of the files has.
        names: files in the order in which they were read.
    """

    def __init__(self, main: SourceFile, findings: list[Finding]) -> None:
        self.main_version = self.newest_version = main.version
        self.version = max(BASE_VERSION, main.version)
        self.names: list[str] = []
        self.table: Table = {}
        # As in containerd: the first file that says its version sets the limit for those after it.
        self._limit = main.version if main.is_versioned else None
        self._findings = findings
        self._add(main)

    def _add(self, source: SourceFile) -> None:
        self.names.append(source.name)
        self.newest_version = max(self.newest_version, source.version)
        self._findings.extend(foreign_names(source))
        migrated = migrate(source.table, source.version, self.version, self._findings)
        self.table = merge(self.table, migrated, self._findings)

    def add_import(self, source: SourceFile, wanted_at: Location) -> None:
        """Merge an imported file.

        Raises:
            RefusalError: it has a later version than the files before it.
        """
        if self._limit is None and source.is_versioned:
            self._limit = source.version
            self.table = migrate(self.table, self.version, max(self.version, source.version), self._findings)
            self.version = max(self.version, source.version)
        if source.version > (self._limit or 1):
            text = f"{show(source.name)} has version {source.version}, but the main file has {self._limit}"
            raise refusal(wanted_at, "imports", text, f"set version = {source.version} in the main file")
        self._add(source)


def load_files(raw: bytes, name: str, findings: list[Finding]) -> LoadedFiles:
    """Parse a main file and read, migrate and merge what it imports.

    Args:
        raw: the main file's bytes.
        name: its path; imports are relative to its folder.
        findings: gets warnings.

    Raises:
        RefusalError: a file can't be read or parsed, there are too many, or a version doesn't fit.
    """
    main = parse(raw, name, findings)
    loaded = LoadedFiles(main, findings)
    seen = {os.path.abspath(name)}
    budget = MAX_TOTAL_BYTES - len(raw)
    pending = deque(_imports_of(main))
    while pending:
        path, wanted_at = pending.popleft()
        if os.path.abspath(path) in seen:
            continue
        seen.add(os.path.abspath(path))
        if len(seen) > MAX_FILES:
            raise refusal(wanted_at, "imports", f"more than the {MAX_FILES} files allowed are imported")
        raw = read_bytes(path, wanted_at=wanted_at)
        budget -= len(raw)
        if budget < 0:
            raise refusal(wanted_at, "imports", f"the files are together larger than {MAX_TOTAL_BYTES} bytes")
        source = parse(raw, path, findings)
        loaded.add_import(source, wanted_at)
        pending.extend(_imports_of(source))
    return loaded


def _imports_of(source: SourceFile) -> Iterator[tuple[str, Location]]:
    if not source.imports:
        return
    wanted_at = source.table["imports"].location
    for name in source.imports:
        path = os.path.normpath(os.path.join(os.path.dirname(source.name), os.path.normpath(name or ".")))
        if "*" not in path:
            yield path, wanted_at
            continue
        try:
            found = expand(path)
        except ValueError as error:
            raise refusal(wanted_at, "imports", f"{show(name)} is no pattern: {error}") from error
        for match in found:
            yield match, wanted_at
