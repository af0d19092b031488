"""Answers from recorded exchanges.

Method, address (query parameters in any order, secrets as placeholders) and the scheme of the credential must agree;
then the same Range, Accept and token are preferred, in that order. Several answers to one request are given in their
recorded order; the last one is repeated, for retries and second readers, only where that is harmless (200, 401 or 404
to GET or HEAD, whole). Two answers are derived from a recorded whole body: a Range of it, and its HEAD.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from imagestore.testing.builders.bodies import BlankBody, Body, BytesBody
from imagestore.testing.engine.messages import Fields, Reply, Request, apply_range
from imagestore.testing.engine.urls import comparable, parse_path, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from imagestore.oci import Digest
    from imagestore.testing.tapes.tape import TapeExchange

# How many near misses an explanation shows.
_NEAREST: Final = 3
_REPEATABLE: Final = frozenset({200, 401, 404})


@dataclass(slots=True)
class _RecordedRequest:
    """One recorded request with its answers in order."""

    exchanges: list[TapeExchange] = field(default_factory=list)
    played: int = 0

    def next(self) -> TapeExchange | None:
        """The answer whose turn it is; None when they are used up and may not be repeated."""
        before = 0
        for one in self.exchanges:
            before += one.times
            if self.played < before:
                self.played += 1
                return one
        last = self.exchanges[-1]
        self.played += 1
        return last if last.status in _REPEATABLE and last.method in ("GET", "HEAD") and last.ending is None else None


class ExchangeResponder:
    """Plays recorded exchanges; several that answer one request stand in recorded order."""

    def __init__(self, exchanges: Sequence[TapeExchange], open_body: Callable[[Digest], Body]) -> None:
        self._open = open_body
        self._requests: dict[tuple[object, ...], _RecordedRequest] = {}
        self._by_address: dict[tuple[object, ...], list[_RecordedRequest]] = {}
        for one in exchanges:
            address = (one.host, one.path, comparable(one.query))
            key = (one.method, address, one.authorization, one.range, one.accept, one.form)
            if key not in self._requests:
                self._requests[key] = _RecordedRequest()
                self._by_address.setdefault(address, []).append(self._requests[key])
            self._requests[key].exchanges.append(one)

    def respond(self, request: Request) -> Reply | None:
        """The recorded answer, or None."""
        scheme = _scheme(request.fields.get("Authorization"))
        recorded = self._recorded_at(request)
        return self._play([one for one in recorded if _scheme(one.exchanges[0].authorization) == scheme], request)

    def respond_open(self, request: Request) -> Reply | None:
        """The recorded content whatever credential it needed; None when there is none with status 200."""
        return self._play([one for one in self._recorded_at(request) if one.exchanges[-1].status == 200], request)

    def _recorded_at(self, request: Request) -> list[_RecordedRequest]:
        return self._by_address.get((request.host, request.path, comparable(request.query)), [])

    def _play(self, fitting: list[_RecordedRequest], request: Request) -> Reply | None:
        exact = [each for each in fitting if each.exchanges[0].method == request.method]
        for each in sorted(exact, key=lambda one: _distance(one.exchanges[0], request)):
            first = each.exchanges[0]
            if first.range and first.range != request.fields.get("Range"):
                continue
            found = each.next()
            if found is not None:
                return self._reply(found, request)
        return self._derived(fitting, request)

    def unused(self) -> tuple[TapeExchange, ...]:
        """Recorded answers that were never requested."""
        out: list[TapeExchange] = []
        for each in self._requests.values():
            before = 0
            for one in each.exchanges:
                if each.played <= before:
                    out.append(one)
                before += one.times
        return tuple(out)

    def explain(self, request: Request) -> str:
        """The recorded requests most like this one."""
        asked = _line(request.method, request.host, request.path, request.query)
        known = {
            _line(one.method, one.host, one.path, one.query): one
            for each in self._requests.values()
            for one in each.exchanges
        }
        if not known:
            return "the tape has no exchanges"
        near = difflib.get_close_matches(asked, list(known), n=_NEAREST, cutoff=0.0)
        lines = [f"  {name}{_difference(known[name], request)}" for name in near]
        return "nearest recorded requests:\n" + "\n".join(lines)

    def _derived(self, recorded: Sequence[_RecordedRequest], request: Request) -> Reply | None:
        """A HEAD that was never recorded: the answer to GET, whose body is left out on the way."""
        for whole in [each.exchanges[-1] for each in recorded] if request.method == "HEAD" else ():
            if whole.method == "GET" and whole.status == 200 and not whole.range and whole.ending is None:
                return self._reply(whole, request)
        return None

    def _reply(self, one: TapeExchange, request: Request) -> Reply:
        body: Body = BytesBody((one.text or "").encode())
        if one.body is not None:
            body = self._open(one.body.digest)
        elif one.dropped is not None:
            body = BlankBody(one.dropped)
        digest = parse_path(one.path).digest
        if digest is None and one.body is not None and one.kind in ("manifest", "blob"):
            digest = one.body.digest
        reply = Reply(one.status, Fields(one.headers), body, kind=one.kind, digest=digest)
        if one.ending is not None:
            reply = reply.deliver(stop_at=one.stop_at or 0, ending=one.ending)
        elif one.framing != "length":
            reply = reply.deliver(framing=one.framing)
        return reply if one.range else apply_range(reply, request.fields.get("Range"))


def _scheme(authorization: str) -> str:
    return authorization.partition(" ")[0].lower()


def _distance(one: TapeExchange, request: Request) -> tuple[bool, ...]:
    form = request.body.decode("utf-8", "replace") if one.form else ""
    return (
        one.range != request.fields.get("Range"),
        bool(one.accept) and one.accept != ", ".join(request.fields.get_all("Accept")),
        one.query != request.query,
        one.authorization != request.fields.get("Authorization"),
        comparable(one.form) != comparable(form),
    )


def _line(method: str, host: str, path: str, query: str) -> str:
    return f"{method} {host}{path}{shown(query)}"


def _difference(one: TapeExchange, request: Request) -> str:
    parts = []
    if one.method != request.method:
        parts.append(f"method {one.method}")
    if _scheme(one.authorization) != _scheme(request.fields.get("Authorization")):
        parts.append(f"recorded with {_scheme(one.authorization) or 'no'} credential")
    if one.range and one.range != request.fields.get("Range"):
        parts.append(f"recorded with Range {one.range}")
    if one.path == request.path and comparable(one.query) != comparable(request.query):
        parts.append("another query")
    if (one.host, one.path, one.method) == (request.host, request.path, request.method) and not parts:
        parts.append(f"status {one.status}, already used")
    return f"   [{'; '.join(parts)}]" if parts else ""
