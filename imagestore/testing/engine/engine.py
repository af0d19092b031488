"""The engine: one place that decides every answer, for every server and transport.

The first responder that has an answer wins; then the faults change it. When no responder has one, the request is
*unexpected*: it is noted in the ledger and answered with 501, which no client mistakes for "not found".
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from imagestore.testing.engine.ledger import Ledger
from imagestore.testing.engine.messages import Ending, Reply, Request, error
from imagestore.testing.engine.urls import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from imagestore.testing.engine.messages import Responder


class Shaper(Protocol):
    """Changes answers: a fault, or a plan of several."""

    def shape(self, request: Request, reply: Reply) -> Reply:
        """The reply to send instead; the same one when the fault does not apply."""


class RequestHandler(Protocol):
    """What a server or transport needs: an engine, or a recorder."""

    @property
    def ledger(self) -> Ledger:
        """Where requests are noted."""

    def answer(self, request: Request) -> Answered:
        """Decide the answer to a request and note both."""


@dataclass(frozen=True, slots=True)
class Answered:
    """A reply, with the number of its entry in the ledger.

    ``finished`` is called when the delivery is over, however it ended; a recorder then reads what the client left.
    """

    reply: Reply
    number: int
    ledger: Ledger
    finished: Callable[[], None] | None = None

    def end(self, *, sent_bytes: int, ending: Ending) -> None:
        """Note how the delivery ended."""
        self.ledger.end(self.number, sent_bytes=sent_bytes, ending=ending)
        if self.finished is not None:
            self.finished()


class Engine:
    """Turns requests into replies; safe to call from many threads.

    Args:
        responders: asked in turn.
        shapers: faults, applied in turn to the answer.
        explain: the nearest candidates of an unexpected request, as text.
        ledger: where requests are noted.
    """

    def __init__(
        self,
        responders: Sequence[Responder],
        *,
        shapers: Sequence[Shaper] = (),
        explain: Callable[[Request], str] | None = None,
        ledger: Ledger | None = None,
    ) -> None:
        self.ledger = ledger if ledger is not None else Ledger()
        self._responders = tuple(responders)
        self._shapers = tuple(shapers)
        self._explain = explain
        # Responders and faults count and hold queues; an answer is decided in microseconds, so one lock is enough.
        self._lock = threading.Lock()

    def answer(self, request: Request) -> Answered:
        """Decide the answer to a request and note both."""
        with self._lock:
            reply = self._find(request) or self._unexpected(request)
            number = self.ledger.begin(request, reply)
        return Answered(reply, number, self.ledger)

    def respond(self, request: Request) -> Reply | None:
        """The answer, without a note; None when nothing answers."""
        with self._lock:
            return self._find(request)

    def _find(self, request: Request) -> Reply | None:
        for respond in self._responders:
            reply = respond(request)
            if reply is not None:
                for shaper in self._shapers:
                    reply = shaper.shape(request, reply)
                return reply
        return None

    def _unexpected(self, request: Request) -> Reply:
        text = f"unexpected request: {request.method} {request.scheme}://{request.host}{request.path}{shown(request.query)}"
        if self._explain is not None:
            text += "\n" + self._explain(request)
        self.ledger.note_unexpected(text)
        return error(501, "UNSUPPORTED", text, kind="unexpected")
