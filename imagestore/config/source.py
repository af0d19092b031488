"""One configuration file or text, from bytes to a tree with locations.

Reads TOML 1.0 in UTF-8 with or without a byte-order mark. Everything is bounded before it is parsed; what containerd's
decoder (go-toml) refuses, an integer beyond 64 bits for instance, is refused here too.
"""

from __future__ import annotations

import codecs
import re
import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from imagestore.config.findings import byte_order_mark, dotted, refusal, show
from imagestore.config.key_names import fold_file
from imagestore.config.redaction import quoted_without_secrets
from imagestore.config.toml_lines import KeyLines
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
_POSITION: Final = re.compile(r" \(at (?:line ([0-9]+), column ([0-9]+)|end of document)\)$")


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

    Args:
        raw: the file's content.
        name: for locations.
        findings: gets warnings.

    Raises:
        RefusalError: not UTF-8, not TOML, nested too deeply, numbers out of range, or an unknown version.
    """
    if raw.startswith(codecs.BOM_UTF8):
        findings.append(byte_order_mark(name))
    text = _decode(raw, name)
    lines = KeyLines(text, name)
    document = _parse_toml(text, name)

    def _locate(path: KeyPath) -> Location:
        return Location(name, lines.find(path))

    _check_numbers(document, (), _locate)
    table = fold_file(build(document, _locate), findings)
    version, is_versioned = _take_version(table, name)
    return SourceFile(name, version, is_versioned, _take_imports(table), table)


def _decode(raw: bytes, name: str) -> str:
    # Windows editors write a byte-order mark; containerd 1 skips it, tomllib and containerd 2 don't.
    raw = raw.removeprefix(codecs.BOM_UTF8)
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise refusal(Location(name, line), "", "is not UTF-8", "save the file as UTF-8") from error
    return text.replace("\r\n", "\n")


def _parse_toml(text: str, name: str) -> dict[str, Plain]:
    try:
        document: dict[str, Plain] = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        message = str(error)
        found = _POSITION.search(message)
        line = int(found[1]) if found is not None and found[1] else text.count("\n") + 1 if found else None
        where = f" (column {found[2]})" if found is not None and found[2] else ""
        reason = quoted_without_secrets(_POSITION.sub("", message))
        raise refusal(Location(name, line), "", f"is not TOML: {reason}{where}") from error
    return document


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
