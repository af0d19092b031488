"""Answers kept as the bytes that go on the wire, as long as the records they were made from stand.

A node agent asks for the same list and the same images again and again. The key is the request's bytes; all answers
belong to one state of the store, and a new state empties the cache. The state is read before an answer is computed, so
an answer may be newer than its state and is then merely computed once more, but never older.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

    #: One message, or those of a stream.
    Answer = tuple[bytes, ...]

#: Ten thousand images listed are 2.8 MB.
MOST_BYTES: Final = 16 * 1024 * 1024
# What an entry takes besides its key and answer, about.
_ENTRY_BYTES: Final = 256


class AnswerCache:
    """Serialised answers of one state; for one event loop.

    Args:
        most_bytes: of all keys and answers; those not asked for longest go first.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most = most_bytes
        self._bytes = 0
        self._state: Hashable = None
        self._answers: OrderedDict[tuple[str, bytes], Answer] = OrderedDict()

    def get(self, state: Hashable, method: str, request: bytes) -> Answer | None:
        """The answer to a request in a state of the store, if it is known.

        Args:
            state: of the store, now; None when it can't be told.
            method: full name of the method.
            request: its bytes.
        """
        if state is None or state != self._state:
            return None
        answer = self._answers.get((method, request))
        if answer is not None:
            self._answers.move_to_end((method, request))
        return answer

    def put(self, state: Hashable, method: str, request: bytes, answer: Answer) -> None:
        """Remember an answer.

        Args:
            state: of the store, read before the answer was computed.
            method: full name of the method.
            request: its bytes.
            answer: the bytes of its messages.
        """
        if state is None:
            return
        if state != self._state:
            self._answers.clear()
            self._bytes, self._state = 0, state
        key = (method, request)
        before = self._answers.pop(key, None)
        if before is not None:
            self._bytes -= self._cost(key, before)
        cost = self._cost(key, answer)
        if cost > self._most:
            return
        self._answers[key] = answer
        self._bytes += cost
        while self._bytes > self._most:
            self._bytes -= self._cost(*self._answers.popitem(last=False))

    @staticmethod
    def _cost(key: tuple[str, bytes], answer: Answer) -> int:
        return len(key[1]) + sum(map(len, answer)) + _ENTRY_BYTES


class Lasting:
    """Whether the answer that is being computed stands as long as the records do."""

    def __init__(self) -> None:
        self.is_lasting = True


_AT_HAND: Final[ContextVar[Lasting | None]] = ContextVar("imagestore_answer", default=None)


@contextlib.contextmanager
def computing() -> Iterator[Lasting]:
    """A block that computes an answer, with its threads; what it says of the answer."""
    answer = Lasting()
    token = _AT_HAND.set(answer)
    try:
        yield answer
    finally:
        _AT_HAND.reset(token)


def shows_damage() -> None:
    """Say of the answer at hand that it shows damaged content: a repair ends that without a change of records."""
    answer = _AT_HAND.get()
    if answer is not None:
        answer.is_lasting = False
