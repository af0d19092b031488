"""The recording engine: answers come from upstream registries, and every exchange goes into a tape.

It has the face of an Engine, so every front end records as it replays: the httpx transport, the loopback server, the
proxy. Bodies stream through to the client while they are spooled to a file and hashed. The tape is written once, at
the end, after the guard has searched everything.
"""

from __future__ import annotations

import contextlib
import tempfile
import threading
from dataclasses import dataclass, replace
from typing import IO, TYPE_CHECKING, Final, Self

import httpx

from imagestore.digest import Digest, new_hash
from imagestore.testing.engine.answers import error
from imagestore.testing.engine.engine import Answered
from imagestore.testing.engine.exchange import Ending, Fields, Reply, Request, has_body
from imagestore.testing.engine.ledger import Ledger
from imagestore.testing.engine.targets import read_target
from imagestore.testing.recording import guard
from imagestore.testing.recording.secrets import Numbering, Vault, unmarked
from imagestore.testing.recording.take import Answer, SpoolBody, Take, is_content, make_take
from imagestore.testing.recording.upstream import Upstream
from imagestore.testing.tapes.tape import Tape, TapeExchange
from imagestore.testing.tapes.tape_write import exchange_key, format_tape

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from imagestore.testing.engine.exchange import Framing
    from imagestore.testing.engine.rules import Responder
    from imagestore.testing.tapes.blob_folder import BlobFolder

_MAX_TEXT_SEARCH: Final = 4 << 20
_CONTENT_IN_MEMORY: Final = 1 << 20
#: An answer that is no content, and so may hold a secret, stays in memory up to this size.
MAX_TEXT_SPOOL: Final = 64 << 20
_LAST_EXCHANGE_SECONDS: Final = 10.0


@dataclass(slots=True)
class _TeeBody:
    """A body on its way through: readable once, from the start, spooled and hashed as it passes."""

    recorder: Recorder
    request: Request
    response: httpx.Response
    size: int

    def chunks(self, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """The bytes as upstream sends them; a break is passed on as OSError, which ends the client's connection."""
        digester = new_hash("sha256")
        spool = self.recorder.new_spool(self.request, self.response)
        count = 0
        ending = Ending.CLOSED
        pieces = self.response.iter_raw()
        try:
            for piece in pieces:
                digester.update(piece)
                count += spool.write(piece)
                yield piece
            ending = Ending.COMPLETE
        except httpx.HTTPError as problem:
            ending = Ending.RESET if isinstance(problem, httpx.ReadError) else Ending.CLOSED
            raise OSError(f"upstream broke off: {type(problem).__name__}") from problem
        except GeneratorExit:
            # The client has enough. What upstream would have sent is recorded all the same: the replay can then serve
            # any client, and the body is what its digest says.
            with contextlib.suppress(httpx.HTTPError):
                for piece in pieces:
                    digester.update(piece)
                    count += spool.write(piece)
                ending = Ending.COMPLETE
        finally:
            self.response.close()
            digest = Digest("sha256", digester.hexdigest())
            self.recorder.keep(self.request, self.response, SpoolBody(spool, count), digest, ending)


class Recorder:
    """Records exchanges with upstream registries.

    Args:
        blobs: folder for bodies.
        upstream: where logical hosts really are.
        known_secrets: values that must never be written, however they come up.
        plain_names: further JSON members of token answers that may be written.
        before: asked first (``new_episodes``: what a tape already answers is not recorded again).
    """

    def __init__(
        self,
        blobs: BlobFolder,
        *,
        upstream: Upstream | None = None,
        known_secrets: Sequence[str] = (),
        plain_names: Sequence[str] = (),
        before: Responder | None = None,
    ) -> None:
        self.ledger = Ledger()
        self.vault = Vault(tuple(known_secrets))
        self._blobs = blobs
        self._upstream = upstream or Upstream({})
        self._plain_names = frozenset(plain_names)
        self._before = before
        self._lock = threading.Lock()
        self._running = 0
        self._ended = threading.Condition(self._lock)
        self._takes: list[Take] = []
        self._problems: list[Exception] = []
        self._spools: list[IO[bytes]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Drop connections and spooled bodies."""
        self._upstream.close()
        for spool in self._spools:
            spool.close()

    def new_spool(self, request: Request, response: httpx.Response) -> IO[bytes]:
        """Where a body goes while it is recorded: content to a nameless file when large, anything else to memory."""
        headers = self._upstream.logical_headers(response)
        limit = _CONTENT_IN_MEMORY if is_content(request, response.status_code, headers) else MAX_TEXT_SPOOL
        spool = tempfile.SpooledTemporaryFile(max_size=limit)  # noqa: SIM115 - closed with the recorder
        with self._lock:
            self._spools.append(spool)
        return spool

    # -- the face of an engine -----------------------------------------------------------------------------------

    def answer(self, request: Request) -> Answered:
        """Ask upstream; the body is recorded while it is delivered."""
        reply = self._before.respond(request) if self._before is not None else None
        if reply is None:
            reply = self._ask(request)
        return Answered(reply, self.ledger.begin(request, reply), self.ledger)

    def _ask(self, request: Request) -> Reply:
        with self._lock:
            self._running += 1
        try:
            response = self._upstream.send(request)
        except httpx.HTTPError as problem:
            self._note_end()
            return error(502, "UNAVAILABLE", f"{request.host}: no answer from upstream: {type(problem).__name__}")
        fields = Fields(self._upstream.logical_headers(response))
        length = fields.get("Content-Length")
        target = read_target(request.path)
        digest = target.digest
        fields = fields.without("Connection", "Keep-Alive", "Transfer-Encoding", "Date")
        if not has_body(request.method, response.status_code):
            response.close()
            self._keep_empty(request, response)
            return Reply(response.status_code, fields, kind=target.kind, digest=digest)
        if length.isascii() and length.isdigit():
            body = _TeeBody(self, request, response, int(length))
            fields = fields.without("Content-Length")
            return Reply(response.status_code, fields, body, kind=target.kind, digest=digest)
        return self._forward(request, response, fields)

    def _forward(self, request: Request, response: httpx.Response, fields: Fields) -> Reply:
        """An answer of unknown length: taken whole, then passed on."""
        copy = self.new_spool(request, response)
        size = 0
        with contextlib.suppress(OSError):
            for piece in _TeeBody(self, request, response, 0).chunks():
                size += copy.write(piece)
        target = read_target(request.path)
        reply = Reply(response.status_code, fields, SpoolBody(copy, size), kind=target.kind, digest=target.digest)
        return reply.deliver(framing=_framing(response))

    # -- collecting ----------------------------------------------------------------------------------------------

    def _keep_empty(self, request: Request, response: httpx.Response) -> None:
        nothing = SpoolBody(self.new_spool(request, response), 0)
        self.keep(request, response, nothing, Digest.of(b""), Ending.COMPLETE)

    def keep(
        self, request: Request, response: httpx.Response, spool: SpoolBody, digest: Digest, ending: Ending
    ) -> None:
        """Redact an exchange and keep it for the tape; a refusal is raised when the tape is written."""
        answer = Answer(
            response.status_code,
            self._upstream.logical_headers(response),
            spool,
            digest,
            ending,
            _framing(response) if spool.size else "length",
        )
        try:
            take = make_take(request, answer, self.vault, plain_names=self._plain_names)
        except guard.SecretLeakError as problem:
            with self._lock:
                self._problems.append(problem)
        else:
            with self._lock:
                self._takes.append(take)
        finally:
            self._note_end()

    def _note_end(self) -> None:
        with self._ended:
            self._running -= 1
            self._ended.notify_all()

    # -- writing -------------------------------------------------------------------------------------------------

    def tape(self, *, about: str = "", base: Tape | None = None) -> Tape:
        """What was recorded, as a tape; bodies are put into the folder of blobs.

        Args:
            about: for people.
            base: an earlier tape that this one continues.

        Raises:
            SecretLeakError: a secret would be written; then nothing was.
        """
        with self._ended:
            # A client may be done, and gone, a moment before its last exchange is.
            self._ended.wait_for(lambda: self._running == 0, _LAST_EXCHANGE_SECONDS)
            takes, problems = list(self._takes), list(self._problems)
        if problems:
            raise problems[0]
        exchanges = _in_order(takes)
        if base is not None:
            exchanges = [*base.exchanges, *exchanges]
        tape = replace(base or Tape(), about=about or (base.about if base else ""), exchanges=tuple(exchanges))
        self._check(tape, takes)
        for take in takes:
            if take.spool is not None and take.exchange.body is not None:
                self._blobs.put(take.spool, take.exchange.body.digest)
        return tape

    def _check(self, tape: Tape, takes: Sequence[Take]) -> None:
        secrets = self.vault.values()
        guard.check_text(format_tape(tape).decode(), "the tape", secrets)
        for take in takes:
            if take.spool is None:
                continue
            body = take.spool
            place = f"the body of {take.place}"
            guard.check_body(body, place, secrets)
            if body.size <= _MAX_TEXT_SEARCH and read_target(take.exchange.path).kind == "manifest":
                guard.check_text(b"".join(body.chunks()).decode("utf-8", "replace"), place, secrets)


def _framing(response: httpx.Response) -> Framing:
    if response.headers.get("Transfer-Encoding", "").lower() == "chunked":
        return "chunked"
    return "length" if "Content-Length" in response.headers else "close"


def _in_order(takes: Sequence[Take]) -> list[TapeExchange]:
    """Canonical order first (independent of who came first), then numbers for placeholders, then runs counted."""
    ordered = sorted((take.exchange for take in takes), key=_key_without_numbers)
    number = Numbering()
    out: list[TapeExchange] = []
    for one in ordered:
        numbered = replace(
            one,
            query=number(one.query),
            form=number(one.form),
            authorization=number(one.authorization),
            text=None if one.text is None else number(one.text),
            headers=tuple((name, number(value)) for name, value in one.headers),
        )
        if out and replace(out[-1], times=1) == numbered:
            out[-1] = replace(out[-1], times=out[-1].times + 1)
        else:
            out.append(numbered)
    return out


def _key_without_numbers(one: TapeExchange) -> tuple[object, ...]:
    bare = replace(one, query=unmarked(one.query), authorization=unmarked(one.authorization), form=unmarked(one.form))
    return exchange_key(bare)
