"""Reads the text form of a tape (docs/reference/tape-format.md).

The text is hostile until checked: bounded, typed, no unknown keys.
"""

from __future__ import annotations

import dataclasses
import re
import tomllib
import urllib.parse
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from imagestore.config import KeyLines, RefusalError
from imagestore.errors import DocumentError, InvalidDigestError, InvalidInputError, InvalidReferenceError
from imagestore.oci import Digest, Reference
from imagestore.testing.engine.messages import Ending, Framing
from imagestore.testing.faults import EFFECTS
from imagestore.testing.faults.rules import FaultRule, Where
from imagestore.testing.tapes.tape import (
    FORMAT,
    VERSION,
    Tape,
    TapeContent,
    TapeExchange,
    TapeHost,
    TapeRepository,
    TapeSynthetic,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from imagestore.testing.builders.bodies import SyntheticForm


#: A tape's text is never longer; bodies are elsewhere.
MAX_TAPE_BYTES: Final = 32 << 20
_REQUEST: Final = re.compile(r"([A-Z]{1,20}) (https?)://([a-z0-9._:\[\]-]{1,260})(/[!-~]*)")
# A computed body costs nothing to name and much to read; no layer is larger.
_MAX_SYNTHETIC_BYTES: Final = 1 << 40
_ENDINGS: Final = ("closed", "reset", "stalled")
Kind = TypeVar("Kind")


def parse_tape(data: bytes, *, what: str = "tape") -> Tape:
    """Read a tape; ``what`` names it in errors.

    Raises:
        DocumentError: too long, not TOML, another format or version, or a member that breaks the rules.
    """
    if len(data) > MAX_TAPE_BYTES:
        raise DocumentError(what, [f"expected at most {MAX_TAPE_BYTES} bytes, found {len(data)}"])
    try:
        text = data.decode("utf-8")
        # Keys of many parts take the parser minutes.
        KeyLines(text.replace("\r\n", "\n"), what)
        value = tomllib.loads(text)
    except RefusalError as problem:
        raise DocumentError(what, [problem.finding.text]) from problem
    except (ValueError, RecursionError) as problem:  # ValueError: also a whole number of thousands of digits
        raise DocumentError(what, [f"not TOML: {problem}"]) from problem
    top = Table(value, "", what)
    if top.text("format", "") != FORMAT:
        raise top.fault("format", f"expected {FORMAT!r}; this is no tape")
    version = top.integer("version")
    if version != VERSION:
        raise top.fault("version", f"expected {VERSION}, found {version}; read it with a newer release")
    tape = Tape(
        about=top.text("about", ""),
        storage_host=top.text("storage_host", ""),
        plain_names=top.texts("plain"),
        hosts=tuple(_host(one) for one in top.tables("host")),
        repositories=tuple(_repository(one) for one in top.tables("repository")),
        exchanges=tuple(_exchange(one) for one in top.tables("exchange")),
        synthetic=tuple(_synthetic(one) for one in top.tables("synthetic")),
        faults=tuple(_fault(one) for one in top.tables("fault")),
    )
    top.finish()
    return tape


def _host(table: Table) -> TapeHost:
    host = TapeHost(
        name=table.text("name"),
        auth=table.one_of("auth", ("none", "basic", "token"), "none"),
        realm_host=table.text("realm_host", ""),
        service=table.text("service", ""),
        users=table.texts("users"),
        is_anonymous_allowed=table.flag("anonymous", default=True),
        lifetime_seconds=table.integer("lifetime_seconds", 300),
    )
    table.finish()
    return host


def _content(table: Table, *, is_document: bool) -> TapeContent:
    content = TapeContent(
        table.digest("digest"), table.integer("size"), table.text("media_type") if is_document else ""
    )
    table.finish()
    return content


def _repository(table: Table) -> TapeRepository:
    name = table.text("name")
    try:
        reference = Reference.parse(name)
    except InvalidReferenceError as problem:
        raise table.fault("name", str(problem)) from problem
    if reference.name != name:
        raise table.fault("name", f"expected the full form {reference.name!r}, found {name!r}")
    manifests = tuple(_content(one, is_document=True) for one in table.tables("manifests"))
    blobs = tuple(_content(one, is_document=False) for one in table.tables("blobs"))
    tag_table = table.table("tags")
    tags = {tag: tag_table.digest(tag) for tag in tag_table.names()}
    table.finish()
    known = {one.digest for one in manifests}
    for tag, digest in tags.items():
        if digest not in known:
            raise tag_table.fault(tag, f"{digest} is not among the repository's manifests")
    return TapeRepository(reference.host, reference.path, tags, manifests, blobs)


def _synthetic(table: Table) -> TapeSynthetic:
    form = table.one_of("form", ("raw", "tar"), "raw")
    size = table.integer("size")
    if size > _MAX_SYNTHETIC_BYTES:
        raise table.fault("size", f"expected at most {_MAX_SYNTHETIC_BYTES}, found {size}")
    made = TapeSynthetic(table.digest("digest"), size, table.text("seed"), cast("SyntheticForm", form))
    table.finish()
    return made


def _exchange(table: Table) -> TapeExchange:
    line = table.text("request")
    found = _REQUEST.fullmatch(line)
    if found is None:
        raise table.fault("request", f"expected METHOD https://host/path, found {line[:200]!r}")
    path, _, query = found[4].partition("?")
    body = None
    if table.has("body"):
        body = _content(table.table("body"), is_document=False)
    ending = table.one_of("ending", _ENDINGS) if table.has("ending") else None
    made = TapeExchange(
        found[1],
        found[2],
        found[3],
        path,
        query,
        table.integer("status", least=100),
        headers=tuple(_header(table, text) for text in table.texts("headers")),
        authorization=table.text("authorization", ""),
        range=table.text("range", ""),
        accept=table.text("accept", ""),
        form=table.text("form", ""),
        body=body,
        text=table.text("text") if table.has("text") else None,
        stop_at=table.integer("stop_at") if table.has("stop_at") else None,
        ending=Ending(ending) if ending is not None else None,
        framing=cast("Framing", table.one_of("framing", ("length", "chunked", "close"), "length")),
        times=table.integer("times", 1, least=1),
    )
    table.finish()
    if made.status > 599:
        raise table.fault("status", f"expected 100 to 599, found {made.status}")
    if made.body is not None and made.text is not None:
        raise table.fault("text", "an exchange has a body or a text, not both")
    try:
        user = urllib.parse.urlsplit(made.url).username
    except ValueError as problem:  # brackets that aren't those of an address
        raise table.fault("request", f"{made.host!r} is no host: {problem}") from problem
    if user is not None:
        raise table.fault("request", "an address in a tape has no user information")
    return made


def _fault(table: Table) -> FaultRule:
    effect_type = EFFECTS[table.one_of("what", tuple(sorted(EFFECTS)))]
    members, places = (
        {member.name: table.like(member.name, member.default) for member in dataclasses.fields(kind)}
        for kind in (effect_type, Where)
    )
    try:
        effect, where = effect_type(**members), Where(**places)
    except InvalidInputError as problem:
        raise table.fault("", str(problem)) from problem
    rule = FaultRule(
        effect,
        where,
        skip=table.integer("skip", 0),
        times=table.integer("times", 1),
        every=table.integer("every", 1, least=1),
    )
    table.finish()
    return rule


def _header(table: Table, line: str) -> tuple[str, str]:
    name, colon, value = line.partition(":")
    if not colon or not name or not name.isascii():
        raise table.fault("headers", f"expected 'Name: value', found {line[:100]!r}")
    return name, value.removeprefix(" ")


class Table:
    """A TOML table under inspection; members are taken by type, and finish() refuses unknown ones."""

    def __init__(self, value: object, path: str, what: str) -> None:
        self.path = path
        self.what = what
        if not isinstance(value, dict):
            raise self.fault("", f"expected a table, found {_kind(value)}")
        self._values: dict[str, object] = dict(value)
        self._taken: set[str] = set()

    def fault(self, key: str, message: str) -> DocumentError:
        """An error about a member of this table."""
        place = ".".join(part for part in (self.path, key) if part) or "top level"
        return DocumentError(self.what, [f"{place}: {message}"])

    def _take(self, key: str) -> object:
        self._taken.add(key)
        return self._values.get(key)

    def _typed(self, key: str, kind: type[Kind], words: str, default: Kind | None) -> Kind:
        value = self._take(key)
        if value is None and default is not None:
            return default
        # A truth value is a whole number to isinstance().
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise self.fault(key, f"expected {words}, found {_kind(value)}")
        return value

    def has(self, key: str) -> bool:
        """Whether the member is there."""
        return key in self._values

    def text(self, key: str, default: str | None = None) -> str:
        """A string; required when there is no default."""
        return self._typed(key, str, "a string", default)

    def flag(self, key: str, *, default: bool) -> bool:
        """A truth value."""
        return self._typed(key, bool, "true or false", default)

    def integer(self, key: str, default: int | None = None, *, least: int = 0) -> int:
        """A whole number, at least ``least``; required when there is no default."""
        value = self._typed(key, int, "a whole number", default)
        if not least <= value < 1 << 63:
            raise self.fault(key, f"expected at least {least}, found {value}")
        return value

    def number(self, key: str, default: float) -> float:
        """A finite number, not negative."""
        value = self._take(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e9:
            raise self.fault(key, "expected a number from 0 to 1e9")
        return float(value)

    def like(self, key: str, default: object) -> Any:
        """A member of the type of its default: a truth value, a number or a string."""
        match default:
            case bool():
                return self.flag(key, default=default)
            case int():
                return self.integer(key, default, least=-(1 << 62))
            case float():
                return self.number(key, default)
        return self.text(key, str(default))

    def one_of(self, key: str, allowed: tuple[str, ...], default: str | None = None) -> str:
        """A string out of a few."""
        value = self.text(key, default)
        if value not in allowed:
            raise self.fault(key, f"expected one of {', '.join(allowed)}; found {value!r}")
        return value

    def digest(self, key: str) -> Digest:
        """A verifiable digest."""
        text = self.text(key)
        try:
            digest = Digest.parse(text)
        except InvalidDigestError as problem:
            raise self.fault(key, str(problem)) from problem
        if not digest.is_verifiable:
            raise self.fault(key, f"digest algorithm {digest.algorithm} can't be verified")
        return digest

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of strings; empty when absent."""
        value = self._take(key)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise self.fault(key, "expected a list of strings")
        return tuple(value)

    def tables(self, key: str) -> Iterator[Table]:
        """A list of tables; empty when absent."""
        for number, one in enumerate(self._typed(key, list, "a list of tables", [])):
            yield Table(one, f"{self.path}.{key}[{number}]".lstrip("."), self.what)

    def table(self, key: str) -> Table:
        """A table; empty when absent."""
        return Table(self._typed(key, dict, "a table", {}), f"{self.path}.{key}".lstrip("."), self.what)

    def names(self) -> tuple[str, ...]:
        """Names of the members, as written."""
        return tuple(self._values)

    def finish(self) -> None:
        """Refuse members that nothing has taken.

        Raises:
            DocumentError: names the first unknown member and the known ones.
        """
        for key in self._values:
            if key not in self._taken:
                raise self.fault(key, f"unknown member; known here: {', '.join(sorted(self._taken))}")


def _kind(value: object) -> str:
    names = {
        bool: "a truth value",
        int: "a number",
        float: "a number",
        str: "a string",
        list: "a list",
        dict: "a table",
    }
    return "nothing" if value is None else names.get(type(value), type(value).__name__)
