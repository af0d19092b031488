"""The recording engine: answers come from upstream registries, and every exchange goes into a tape.

It answers requests as an Engine does, so the transports, the loopback server and the proxy record as they replay.
Bodies stream through to the client while they are spooled to a file and hashed. The tape is written once, at the end,
after everything was searched for secrets.
"""

from __future__ import annotations

import contextlib
import tempfile
import threading
from dataclasses import replace
from typing import IO, TYPE_CHECKING, Final, Self

import httpx

from imagestore.errors import Category, ImageStoreError
from imagestore.oci import Digest, new_hash
from imagestore.testing.builders.bodies import SpoolBody
from imagestore.testing.engine.engine import PendingAnswer
from imagestore.testing.engine.ledger import Ledger
from imagestore.testing.engine.messages import Ending, Fields, Reply, Request, error, has_body
from imagestore.testing.engine.urls import parse_path
from imagestore.testing.recording import secret_guard
from imagestore.testing.recording.exchange_redaction import Answer, RedactedExchange, check_body, redact_exchange
from imagestore.testing.recording.placeholders import in_order
from imagestore.testing.recording.redaction import Redactor, SeenSecrets
from imagestore.testing.recording.secret_guard import SecretSearch
from imagestore.testing.recording.upstream import Upstream
from imagestore.testing.tapes.tape import Tape, TapeExchange
from imagestore.testing.tapes.tape_text import format_tape

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from imagestore.testing.engine.messages import Framing, Responder
    from imagestore.testing.tapes.blob_folder import BlobFolder

_CONTENT_IN_MEMORY: Final = 1 << 20
#: An answer that is no content, and so may hold a secret, stays in memory up to this size.
MAX_TEXT_SPOOL: Final = 64 << 20
#: What a client leaves unread is still fetched up to this size, in bytes; a longer body is recorded as cut off.
MAX_DRAINED: Final = 1 << 30
_LAST_EXCHANGE_SECONDS: Final = 10.0


class RecordingFailedError(ImageStoreError):
    """A recording is not complete; nothing was written."""

    category = Category.FAILED_PRECONDITION


class _TeeBody:
    """A body on its way through: readable once, from the start, spooled and hashed as it passes."""

    def __init__(self, recorder: Recorder, request: Request, response: httpx.Response, size: int) -> None:
        self.size = size
        self.ending: Ending | None = None
        self._recorder = recorder
        self._request = request
        self._response = response
        self._pieces = response.iter_raw()
        self._digester = new_hash("sha256")
        self._spool = recorder.new_spool(request, response)
        self._count = 0
        self._place = recorder.next_place()

    def chunks(self, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """The bytes as upstream sends them; a break is passed on as OSError, which ends the client's connection."""
        try:
            for piece in self._pieces:
                self._take(piece)
                yield piece
            self._finish(Ending.COMPLETE)
        except httpx.HTTPError as problem:
            self._finish(Ending.RESET if isinstance(problem, httpx.ReadError) else Ending.CLOSED)
            raise OSError(f"upstream broke off: {type(problem).__name__}") from problem
        finally:
            self.close()

    def close(self) -> None:
        """The client has enough, or never read. What upstream would have sent is recorded all the same.

        The replay can then serve any client, and the body is what its digest says.
        """
        if self.ending is not None:
            return
        ending = Ending.COMPLETE
        try:
            for piece in self._pieces:
                self._take(piece)
                if self._count > MAX_DRAINED:
                    ending = Ending.CLOSED
                    break
        except httpx.HTTPError:
            ending = Ending.CLOSED
        self._finish(ending)

    def _take(self, piece: bytes) -> None:
        self._digester.update(piece)
        self._count += self._spool.write(piece)

    def _finish(self, ending: Ending) -> None:
        self.ending = ending
        self._response.close()
        digest = Digest("sha256", self._digester.hexdigest())
        body = SpoolBody(self._spool, self._count)
        self._recorder.keep(self._request, self._response, body, digest, ending, self._place)


class Recorder:
    """Records exchanges with upstream registries.

    Args:
        known_secrets: values that must never be written.
        plain_names: harmless names of request headers and parameters.
        before: answers first (``new_episodes``: what a tape already answers is not recorded again).
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
        self._blobs = blobs
        self._upstream = upstream or Upstream({})
        self.redactor = Redactor(SeenSecrets(tuple(known_secrets)), frozenset(plain_names))
        self._before = before
        self._lock = threading.Lock()
        self._running = 0
        self._ended = threading.Condition(self._lock)
        self._places = 0
        self._exchanges: list[tuple[int, RedactedExchange]] = []
        self._problems: list[ImageStoreError] = []
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
        limit = (
            _CONTENT_IN_MEMORY if self.redactor.addresses.is_content(request, response.status_code) else MAX_TEXT_SPOOL
        )
        spool = tempfile.SpooledTemporaryFile(max_size=limit)  # noqa: SIM115 - closed with the recorder
        with self._lock:
            self._spools.append(spool)
        return spool

    def answer(self, request: Request) -> PendingAnswer:
        """Ask upstream; the body is recorded while it is delivered."""
        reply = self._before(request) if self._before is not None else None
        finished: Callable[[], None] | None = None
        if reply is None:
            reply = self._ask(request)
            finished = reply.body.close if isinstance(reply.body, _TeeBody) else None
        else:
            self.redactor.addresses.note(request, reply.fields)
        return PendingAnswer(reply, self.ledger.begin(request, reply), self.ledger, finished)

    @property
    def problems(self) -> tuple[ImageStoreError, ...]:
        """What stops the recording, so far."""
        with self._lock:
            return tuple(self._problems)

    def next_place(self) -> int:
        """The position of an exchange among all: the order in which requests came."""
        with self._lock:
            self._places += 1
            return self._places

    def _ask(self, request: Request) -> Reply:
        with self._lock:
            self._running += 1
        try:
            response = self._upstream.send(request)
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as problem:
            text = f"{request.host}: no answer from upstream: {_reason(problem)}"
            hint = "is the address of --upstream (--tape-upstream) right, and does it answer?"
            if "CERTIFICATE_VERIFY_FAILED" in text:
                hint = "for a private authority set SSL_CERT_FILE to its certificate"
            self._stop(RecordingFailedError(f"recording: {text}; nothing was written", hint=hint))
            self._note_end()
            return error(502, "UNAVAILABLE", text)
        fields = self._upstream.logical_headers(response)
        self.redactor.addresses.note(request, fields)
        length = fields.get("Content-Length")
        target = parse_path(request.path)
        fields = fields.without("Connection", "Keep-Alive", "Transfer-Encoding", "Date")
        if not has_body(request.method, response.status_code):
            response.close()
            nothing = SpoolBody(self.new_spool(request, response), 0)
            self.keep(request, response, nothing, Digest.of(b""), Ending.COMPLETE, self.next_place())
            return Reply(response.status_code, fields, kind=target.kind, digest=target.digest)
        if length.isascii() and length.isdigit():
            body = _TeeBody(self, request, response, int(length))
            fields = fields.without("Content-Length")
            return Reply(response.status_code, fields, body, kind=target.kind, digest=target.digest)
        return self._forward(request, response, fields)

    def _forward(self, request: Request, response: httpx.Response, fields: Fields) -> Reply:
        """An answer of unknown length: taken whole, then passed on, broken off where upstream broke off."""
        copy = self.new_spool(request, response)
        size = 0
        body = _TeeBody(self, request, response, 0)
        with contextlib.suppress(OSError):
            for piece in body.chunks():
                size += copy.write(piece)
        target = parse_path(request.path)
        reply = Reply(response.status_code, fields, SpoolBody(copy, size), kind=target.kind, digest=target.digest)
        if body.ending is not None and body.ending is not Ending.COMPLETE:
            reply = reply.deliver(stop_at=size, ending=body.ending)
        return reply.deliver(framing=_framing(response))

    def keep(
        self, request: Request, response: httpx.Response, spool: SpoolBody, digest: Digest, ending: Ending, place: int
    ) -> None:
        """Redact an exchange and keep it for the tape; a refusal is raised when the tape is written."""
        answer = Answer(
            response.status_code,
            self._upstream.logical_headers(response).items,
            spool,
            digest,
            ending,
            _framing(response) if spool.size else "length",
        )
        try:
            one = redact_exchange(request, answer, self.redactor)
        except BaseException:
            # Without this exchange the tape would be incomplete.
            text = f"recording: {request.method} {request.host}{request.path}: its answer could not be taken"
            self._stop(RecordingFailedError(f"{text}; nothing was written"))
            raise
        else:
            with self._lock:
                self._exchanges.append((place, one))
        finally:
            self._note_end()

    def _stop(self, problem: ImageStoreError) -> None:
        with self._lock:
            self._problems.append(problem)

    def _note_end(self) -> None:
        with self._ended:
            self._running -= 1
            self._ended.notify_all()

    def tape(self, *, about: str = "", base: Tape | None = None) -> Tape:
        """What was recorded, as a tape that continues ``base``; bodies are put into the folder of blobs.

        Raises:
            SecretLeakError: a secret would be written; then nothing was.
            RecordingFailedError: upstream didn't answer, or an exchange didn't end.
        """
        with self._ended:
            # A client may be done, and gone, a moment before its last exchange is.
            is_over = self._ended.wait_for(lambda: self._running == 0, _LAST_EXCHANGE_SECONDS)
            redacted = [one for _, one in sorted(self._exchanges, key=lambda item: item[0])]
            problems = list(self._problems)
        if problems:
            raise problems[0]
        if not is_over:
            raise RecordingFailedError(
                "recording: a request is still running; nothing was written",
                hint="let the client close its connections",
            )
        exchanges = in_order([one.exchange for one in redacted], base.exchanges if base is not None else ())
        if base is not None:
            exchanges = [*base.exchanges, *exchanges]
        tape = replace(
            base or Tape(),
            about=about or (base.about if base else ""),
            plain_names=tuple(sorted({*(base.plain_names if base else ()), *self.redactor.plain_names})),
            exchanges=tuple(exchanges),
        )
        self._check(tape, redacted)
        for one in redacted:
            if one.body is not None and one.exchange.body is not None:
                self._blobs.put(one.body, one.exchange.body.digest)
        return tape

    def _check(self, tape: Tape, redacted: Sequence[RedactedExchange]) -> None:
        search = SecretSearch(self.redactor.secrets.values())
        # The values as they are, because the text's own escapes may hide one; then the text, as it will be on disk.
        for one in redacted:
            secret_guard.check_text(_values(one.exchange), f"the tape ({one.place})", search)
        secret_guard.check_text(format_tape(tape), "the tape", search)
        for one in redacted:
            check_body(one, search)


def _values(one: TapeExchange) -> bytes:
    headers = "\n".join(value for _, value in one.headers)
    raw = headers.encode("latin-1") if all(ord(character) < 256 for character in headers) else headers.encode()
    texts = (one.path, one.query, one.form, one.range, one.accept, one.text or "")
    return raw + b"\n" + "\n".join(texts).encode("utf-8", "surrogateescape")


def _reason(problem: Exception) -> str:
    """Why no answer came; only the texts of connection errors are shown, since others may quote the request."""
    words = str(problem) if isinstance(problem, httpx.ConnectError) else ""
    return words or type(problem).__name__


def _framing(response: httpx.Response) -> Framing:
    if response.headers.get("Transfer-Encoding", "").lower() == "chunked":
        return "chunked"
    return "length" if "Content-Length" in response.headers else "close"
