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
    from collections.abc import Mapping

_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")
_ESCAPES: Final = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_NUMBER: Final = re.compile(r"(tape-[a-z]+-)([0-9]{1,9})")
_STEPS: Final = {"ping": 0, "token": 1, "tags": 2, "manifest": 3, "blob": 4}


def format_tape(tape: Tape) -> bytes:
    """The text of a tape, in the one canonical order (docs/reference/tape-format.md)."""
    out = io.StringIO()
    top = {
        "format": FORMAT,
        "version": VERSION,
        "about": tape.about or None,
        "storage_host": tape.storage_host or None,
        "plain": sorted(set(tape.plain_names)) or None,
    }
    _members(out, top)
    for host in sorted(tape.hosts, key=lambda one: one.name):
        _table(out, "host", _host(host))
    for made in sorted(tape.synthetic, key=lambda one: one.digest):
        members = {"digest": str(made.digest), "size": made.size, "seed": made.seed, "form": made.form}
        _table(out, "synthetic", members)
    for repository in sorted(tape.repositories, key=lambda one: (one.host, one.path)):
        _table(out, "repository", _repository(repository))
        if repository.tags:
            out.write("[repository.tags]\n")
            _members(out, {_key(tag): str(digest) for tag, digest in sorted(repository.tags.items())})
    for rule in tape.faults:
        _table(out, "fault", rule.to_table())
    for exchange in sorted(tape.exchanges, key=exchange_key):
        _table(out, "exchange", _exchange(exchange))
    return out.getvalue().encode()


def exchange_key(one: TapeExchange) -> tuple[object, ...]:
    """Where an exchange stands: what a pull asks first comes first, then by address and the rest of the request.

    Answers to one request have equal keys, and keep the order in which they were recorded.
    """
    kind = "token" if one.path.endswith("/token") else parse_path(one.path).kind
    request = (one.host, one.path, one.query, one.method, one.authorization, one.range, one.accept, one.form)
    bare = tuple(_NUMBER.sub(r"\1", text) for text in request)
    # Numbers count as numbers, and only between requests that are otherwise the same.
    numbers = tuple(int(number) for text in request for _, number in _NUMBER.findall(text))
    return (_STEPS.get(kind, len(_STEPS)), *bare, numbers)


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


def _table(out: io.StringIO, name: str, members: Mapping[str, object]) -> None:
    out.write(f"\n[[{name}]]\n")
    _members(out, members)


def _members(out: io.StringIO, members: Mapping[str, object]) -> None:
    """Write members; those that are None are left out."""
    for key, value in members.items():
        if value is not None:
            out.write(f"{key} = {_value(value)}\n")


def _value(value: object) -> str:
    if isinstance(value, str):
        return quote(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, TapeContent):
        media_type = f", media_type = {quote(value.media_type)}" if value.media_type else ""
        return f"{{ digest = {quote(str(value.digest))}, size = {value.size}{media_type} }}"
    if isinstance(value, list):
        return "[\n" + "".join(f"    {_value(one)},\n" for one in value) + "]" if value else "[]"
    return str(value)


def _key(text: str) -> str:
    return text if _BARE.fullmatch(text) else quote(text)


def _host(host: TapeHost) -> dict[str, object]:
    gives_tokens = host.auth == "token"
    return {
        "name": host.name,
        "auth": host.auth,
        "realm_host": host.realm_host or None,
        "service": host.service or None,
        "users": sorted(host.users) or None,
        "anonymous": host.is_anonymous_allowed if gives_tokens else None,
        "lifetime_seconds": host.lifetime_seconds if gives_tokens else None,
    }


def _repository(repository: TapeRepository) -> dict[str, object]:
    return {
        "name": f"{repository.host}/{repository.path}",
        "manifests": sorted(repository.manifests),
        "blobs": sorted(repository.blobs),
    }


def _exchange(one: TapeExchange) -> dict[str, object]:
    headers = sorted(one.headers, key=lambda header: header[0].lower())
    return {
        "request": f"{one.method} {one.url}",
        "authorization": one.authorization or None,
        "range": one.range or None,
        "accept": one.accept or None,
        "form": one.form or None,
        "status": one.status,
        "headers": [f"{name}: {value}" for name, value in headers] or None,
        "body": one.body,
        "text": one.text,
        "stop_at": one.stop_at,
        "ending": one.ending.value if one.ending is not None else None,
        "framing": one.framing if one.framing != "length" else None,
        "times": one.times if one.times != 1 else None,
    }
