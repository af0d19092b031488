"""Writes the text form of a tape: one order, one spelling, so that the same content is always the same bytes.

The subset of TOML that is needed is small (strings, integers, flags, lists, tables), so it is written here and needs no
package. Strings are basic strings with every control character escaped, which keeps odd header bytes visible in a diff.
"""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING, Final

from imagestore.testing.engine.urls import parse_path
from imagestore.testing.tapes.tape import FORMAT, VERSION, Tape, TapeContent, TapeExchange, TapeHost, TapeRepository

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from imagestore.testing.faults.rules import FaultRule

_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")
_ESCAPES: Final = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_NUMBER: Final = re.compile(r"(tape-[a-z]+-)([0-9]{1,9})")
_STEPS: Final = {"ping": 0, "token": 1, "tags": 2, "manifest": 3, "blob": 4}


def format_tape(tape: Tape) -> bytes:
    """The text of a tape, in the one canonical order (docs/reference/tape-format.md)."""
    out = io.StringIO()
    out.write(f"format = {quote(FORMAT)}\nversion = {VERSION}\n")
    if tape.about:
        out.write(f"about = {quote(tape.about)}\n")
    if tape.storage_host:
        out.write(f"storage_host = {quote(tape.storage_host)}\n")
    if tape.plain_names:
        out.write(f"plain = {_list([quote(name) for name in sorted(set(tape.plain_names))])}\n")
    for host in sorted(tape.hosts, key=lambda one: one.name):
        _table(out, "host", _host_pairs(host))
    for made in sorted(tape.synthetic, key=lambda one: one.digest):
        pairs = [("digest", quote(str(made.digest))), ("size", str(made.size)), ("seed", quote(made.seed))]
        _table(out, "synthetic", [*pairs, ("form", quote(made.form))])
    for repository in sorted(tape.repositories, key=lambda one: (one.host, one.path)):
        _repository(out, repository)
    for rule in tape.faults:
        _table(out, "fault", _fault_pairs(rule))
    for exchange in sort_exchanges(tape.exchanges):
        _table(out, "exchange", _exchange_pairs(exchange))
    return out.getvalue().encode()


def exchange_key(one: TapeExchange) -> tuple[object, ...]:
    """Where an exchange stands: what a pull asks first comes first, then by address and the rest of the request."""
    kind = "token" if one.path.endswith("/token") else parse_path(one.path).kind
    request = (one.host, one.path, one.query, one.method, one.authorization, one.range, one.accept, one.form)
    bare = tuple(_NUMBER.sub(r"\1", text) for text in request)
    # Numbers count as numbers, and only between requests that are otherwise the same.
    numbers = tuple(int(number) for text in request for _, number in _NUMBER.findall(text))
    return (_STEPS.get(kind, len(_STEPS)), *bare, numbers)


def sort_exchanges(exchanges: Iterable[TapeExchange]) -> list[TapeExchange]:
    """The canonical order; answers to one request keep the order they were recorded in."""
    return sorted(exchanges, key=exchange_key)


def quote(text: str) -> str:
    """A TOML basic string."""
    return '"' + "".join(_escape(character) for character in text) + '"'


def _escape(character: str) -> str:
    known = _ESCAPES.get(character)
    if known is not None:
        return known
    code = ord(character)
    # C0, DEL, C1 and the separators that a terminal or an editor would act on.
    if code < 0x20 or 0x7F <= code < 0xA0 or code in (0x2028, 0x2029, 0xFEFF) or 0x202A <= code <= 0x202E:
        return f"\\u{code:04x}"
    return character


def _table(out: io.StringIO, name: str, pairs: Sequence[tuple[str, str]]) -> None:
    out.write(f"\n[[{name}]]\n")
    for key, value in pairs:
        out.write(f"{key} = {value}\n")


def _list(values: Sequence[str]) -> str:
    return "[\n" + "".join(f"    {value},\n" for value in values) + "]" if values else "[]"


def _key(text: str) -> str:
    return text if _BARE.fullmatch(text) else quote(text)


def _host_pairs(host: TapeHost) -> list[tuple[str, str]]:
    pairs = [("name", quote(host.name)), ("auth", quote(host.auth))]
    if host.realm_host:
        pairs.append(("realm_host", quote(host.realm_host)))
    if host.service:
        pairs.append(("service", quote(host.service)))
    if host.users:
        pairs.append(("users", _list([quote(user) for user in sorted(host.users)])))
    if host.auth == "token":
        pairs.append(("anonymous", "true" if host.is_anonymous_allowed else "false"))
        pairs.append(("lifetime_seconds", str(host.lifetime_seconds)))
    return pairs


def _content(one: TapeContent) -> str:
    media_type = f", media_type = {quote(one.media_type)}" if one.media_type else ""
    return f"{{ digest = {quote(str(one.digest))}, size = {one.size}{media_type} }}"


def _repository(out: io.StringIO, repository: TapeRepository) -> None:
    pairs = [("name", quote(f"{repository.host}/{repository.path}"))]
    pairs.append(("manifests", _list([_content(one) for one in sorted(repository.manifests)])))
    pairs.append(("blobs", _list([_content(one) for one in sorted(repository.blobs)])))
    _table(out, "repository", pairs)
    if repository.tags:
        out.write("[repository.tags]\n")
        for tag, digest in sorted(repository.tags.items()):
            out.write(f"{_key(tag)} = {quote(str(digest))}\n")


def _fault_pairs(rule: FaultRule) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    for key, value in rule.to_table().items():
        if isinstance(value, bool):
            pairs.append((key, "true" if value else "false"))
        else:
            pairs.append((key, quote(value) if isinstance(value, str) else str(value)))
    return pairs


def _exchange_pairs(one: TapeExchange) -> list[tuple[str, str]]:
    pairs = [("request", quote(f"{one.method} {one.url}"))]
    for key, text in (
        ("authorization", one.authorization),
        ("range", one.range),
        ("accept", one.accept),
        ("form", one.form),
    ):
        if text:
            pairs.append((key, quote(text)))
    pairs.append(("status", str(one.status)))
    if one.headers:
        lines = sorted(one.headers, key=lambda header: header[0].lower())
        pairs.append(("headers", _list([quote(f"{name}: {value}") for name, value in lines])))
    if one.body is not None:
        pairs.append(("body", _content(one.body)))
    if one.text is not None:
        pairs.append(("text", quote(one.text)))
    if one.stop_at is not None:
        pairs.append(("stop_at", str(one.stop_at)))
    if one.ending is not None:
        pairs.append(("ending", quote(one.ending.value)))
    if one.framing != "length":
        pairs.append(("framing", quote(one.framing)))
    if one.times != 1:
        pairs.append(("times", str(one.times)))
    return pairs
