"""One configuration file or text, from bytes to a tree with locations.

Everything is bounded before it is parsed. Integers beyond 64 bits are refused, as by containerd's decoder (go-toml).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from imagestore.config.findings import dotted, refusal, show
from imagestore.config.key_names import fold_file
from imagestore.config.toml_lines import parse_toml
from imagestore.config.tree import Location, Plain, Table, build
from imagestore.util import files

if TYPE_CHECKING:
    from collections.abc import Callable

    from imagestore.config.findings import Finding
    from imagestore.config.tree import Path as KeyPath

#: Largest configuration file, in bytes.
MAX_FILE_BYTES: Final = 4 * 1024 * 1024
#: Newest version of the configuration format that is understood.
MAX_VERSION: Final = 4
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


def parse(raw: bytes, name: str, findings: list[Finding]) -> SourceFile:
    """Parse the bytes of one file.

    Raises:
        RefusalError: not UTF-8, not TOML, nested too deeply, numbers out of range, or an unknown version.
    """
    document, lines = parse_toml(raw, name, findings)

    def _locate(path: KeyPath) -> Location:
        return Location(name, lines.find(path))

    _check_numbers(document, (), _locate)
    table = fold_file(build(document, _locate), findings)
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
        raise refusal(entry.location, "version", f"expected a number from 1 to {MAX_VERSION}, got {show(version)}")
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
        raise refusal(entry.location, "imports", f"expected a list of texts, got {show(names)}")
    found: list[str] = []
    for item in names:
        if not isinstance(item, str):
            raise refusal(entry.location, "imports", f"expected a list of texts, got {show(item)} in it")
        found.append(item)
    return tuple(found)
