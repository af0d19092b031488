"""Configuration files, from bytes to one merged tree with locations.

containerd's order (server config, LoadConfig and resolveImports): the main file first, then its imports, then theirs,
level by level; a file is read once, which also ends cycles. A path is relative to the file that names it. It is a
pattern only if it has a ``*``; a pattern may find nothing, a plain path has to exist. Each file is migrated by its own
version, and none may have a later version than the main file.

Everything is bounded before it is parsed. Integers beyond 64 bits are refused, as by containerd's decoder (go-toml).
"""

from __future__ import annotations

import os
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from imagestore.config.findings import dotted, refusal, show
from imagestore.config.globs import expand
from imagestore.config.key_names import fold_file
from imagestore.config.merge_imports import merge
from imagestore.config.migrate import migrate
from imagestore.config.plugin_names import foreign_names
from imagestore.config.redaction import kind_of
from imagestore.config.toml_lines import parse_toml
from imagestore.config.tree import Location, Plain, Table, build
from imagestore.util import files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from imagestore.config.findings import Finding
    from imagestore.config.known import Shape
    from imagestore.config.tree import Path as KeyPath

#: Largest configuration file, in bytes.
MAX_FILE_BYTES: Final = 4 * 1024 * 1024
#: Newest version of the configuration format that is understood.
MAX_VERSION: Final = 4
#: Files one configuration may consist of, and their bytes together.
MAX_FILES: Final = 100
MAX_TOTAL_BYTES: Final = 16 * 1024 * 1024
#: Oldest version that everything is brought to; the shape that the rest of the package reads.
BASE_VERSION: Final = 3
_INT64: Final = range(-(2**63), 2**63)


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file as read: not migrated, not merged.

    Attributes:
        name: path as opened.
        version: of the format; 1 when the file doesn't say.
        is_versioned: whether the file says its version.
        imports: its ``imports``, unresolved.
        table: its keys in their known spelling, without ``version``.
    """

    name: str
    version: int
    is_versioned: bool
    imports: tuple[str, ...]
    table: Table


def read_bytes(name: str, *, wanted_at: Location | None = None) -> bytes:
    """Read a file, bounded.

    Args:
        name: path to open.
        wanted_at: the import that names the file, or None for the main file.

    Raises:
        RefusalError: it can't be read, or is larger than MAX_FILE_BYTES.
    """
    location = wanted_at or Location(name, 0)
    key = "imports" if wanted_at else ""
    shown = f"{show(name)} " if wanted_at else ""
    try:
        return files.read_regular(name, MAX_FILE_BYTES)
    except OSError as error:
        hint = "correct the path, or remove the import" if wanted_at else "correct the path"
        raise refusal(location, key, f"{shown}can't be read: {error.strerror}", hint) from error
    except ValueError as error:  # a NUL character in the path
        raise refusal(location, key, f"{shown}is no file name") from error


def parse(raw: bytes, name: str, shape: Shape, findings: list[Finding]) -> SourceFile:
    """Parse the bytes of one file.

    Raises:
        RefusalError: not UTF-8, not TOML, nested too deeply, numbers out of range, or an unknown version.
    """
    document, lines = parse_toml(raw, name, findings)

    def _locate(path: KeyPath) -> Location:
        return Location(name, lines.find(path))

    _check_numbers(document, (), _locate)
    table = fold_file(build(document, _locate), shape, findings)
    version, is_versioned = _take_version(table, name)
    return SourceFile(name, version, is_versioned, _take_imports(table), table)


def _check_numbers(value: Plain, path: KeyPath, locate: Callable[[KeyPath], Location]) -> None:
    if isinstance(value, dict):
        for name, inner in value.items():
            _check_numbers(inner, (*path, name), locate)
    elif isinstance(value, list):
        for inner in value:
            _check_numbers(inner, path, locate)
    elif isinstance(value, int) and value not in _INT64:
        raise refusal(locate(path), dotted(path), "expected an integer of 64 bits, got a larger one")


def _take_version(table: Table, name: str) -> tuple[int, bool]:
    entry = table.pop("version", None)
    if entry is None:
        return 1, False
    version = entry.value
    if isinstance(version, bool) or not isinstance(version, int) or version < 0:
        came = show(version) if isinstance(version, int | str) else kind_of(version)
        raise refusal(entry.location, "version", f"expected a number from 1 to {MAX_VERSION}, got {came}")
    if version > MAX_VERSION:
        text = f"expected a configuration version up to {MAX_VERSION}, got {version}"
        raise refusal(entry.location, "version", text, f"write {name} for version {MAX_VERSION} or older")
    return max(version, 1), version != 0


def _take_imports(table: Table) -> tuple[str, ...]:
    entry = table.get("imports")
    if entry is None:
        return ()
    names = entry.value
    if not isinstance(names, list):
        raise refusal(entry.location, "imports", f"expected a list of texts, got {kind_of(names)}")
    found: list[str] = []
    for item in names:
        if not isinstance(item, str):
            raise refusal(entry.location, "imports", f"expected a list of texts, got {kind_of(item)} in it")
        found.append(item)
    return tuple(found)


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
        self._findings.extend(foreign_names(source.table, source.version))
        migrated = migrate(source.table, source.version, self._findings)
        self.table = merge(self.table, migrated, self._findings)

    def add_import(self, source: SourceFile, wanted_at: Location) -> None:
        """Merge an imported file.

        Raises:
            RefusalError: it has a later version than the files before it.
        """
        if self._limit is None and source.is_versioned:
            self._limit = source.version
            self.version = max(self.version, source.version)
        if source.version > (self._limit or 1):
            text = f"{show(source.name)} has version {source.version}, but the main file has {self._limit}"
            raise refusal(wanted_at, "imports", text, f"set version = {source.version} in the main file")
        self._add(source)


def load_files(raw: bytes, name: str, shape: Shape, findings: list[Finding]) -> LoadedFiles:
    """Parse a main file and read, migrate and merge what it imports.

    Raises:
        RefusalError: a file can't be read or parsed, there are too many, or a version doesn't fit.
    """
    main = parse(raw, name, shape, findings)
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
        source = parse(raw, path, shape, findings)
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
