"""The engine: one place that decides every answer, for every server and transport.

The first responder that has an answer wins; then the faults change it, and the change that it confirms is made. When
no responder has one, the request is *unexpected*: it is noted in the ledger and answered with 501, which no client
mistakes for "not found".
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from imagestore.testing.engine.messages import error
from imagestore.testing.engine.urls import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from imagestore.testing.engine.ledger import Ledger
    from imagestore.testing.engine.messages import Ending, Reply, Request, Responder


class FaultInjector(Protocol):
    """Changes answers: a plan of fault rules, or chaos from a seed."""

    def inject(self, request: Request, reply: Reply) -> Reply:
        """The reply to send instead; the same one when nothing goes wrong."""


class RequestHandler(Protocol):
    """What a server or transport needs: an engine, or a recorder."""

    @property
    def ledger(self) -> Ledger:
        """Where requests are noted."""

    def answer(self, request: Request) -> PendingAnswer:
        """Decide the answer to a request and note both."""


@dataclass(frozen=True, slots=True)
class PendingAnswer:
    """A reply to be delivered, with the number of its entry in the ledger.

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
        responders: the first one that has an answer gives it.
        injectors: faults, applied in turn to the answer.
        explain: the nearest candidates of an unexpected request, as text.
        ledger: where requests are noted.
    """

    def __init__(
        self,
        responders: Sequence[Responder],
        *,
        injectors: Sequence[FaultInjector],
        explain: Callable[[Request], str] | None,
        ledger: Ledger,
    ) -> None:
        self.ledger = ledger
        self._responders = responders
        self._injectors = injectors
        self._explain = explain
        # Responders and faults count and hold queues; an answer is decided in microseconds, so one lock is enough.
        self._lock = threading.Lock()

    def answer(self, request: Request) -> PendingAnswer:
        """Decide the answer to a request and note both."""
        with self._lock:
            reply = self._find(request) or self._unexpected(request)
            number = self.ledger.begin(request, reply)
        return PendingAnswer(reply, number, self.ledger)

    def respond(self, request: Request) -> Reply | None:
        """The answer, without a note; None when nothing answers."""
        with self._lock:
            return self._find(request)

    def _find(self, request: Request) -> Reply | None:
        reply = next((found for respond in self._responders if (found := respond(request)) is not None), None)
        if reply is not None:
            for injector in self._injectors:
                reply = injector.inject(request, reply)
            if reply.act is not None:
                reply.act(len(request.body) if reply.arrived is None else reply.arrived)
        return reply

    def _unexpected(self, request: Request) -> Reply:
        text = f"unexpected request: {request.method} {request.scheme}://{request.host}{request.path}{shown(request.query)}"
        if self._explain is not None:
            text += "\n" + self._explain(request)
        self.ledger.note_unexpected(text)
        return error(501, "UNSUPPORTED", text, kind="unexpected")
