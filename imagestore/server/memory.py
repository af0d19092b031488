"""Answers from memory: found while the store's state stands, computed by one of those who ask for the same.

A thousand callers who ask for the same list at once cost one list, not a thousand.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from imagestore.rpc.answers import computing

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Hashable

    from imagestore.rpc.answers import Answer, AnswerCache


class AnswerMemory:
    """What is remembered, and of which methods; for one event loop.

    Args:
        cache: the answers.
        state: the store's state now, or None; quick enough for the event loop.
        methods: full names of the methods whose answers depend on nothing but the request and that state.
    """

    def __init__(self, cache: AnswerCache, state: Callable[[], Hashable], methods: Collection[str]) -> None:
        self._cache = cache
        self._state = state
        self.methods = frozenset(methods)
        self._computing: dict[tuple[Hashable, str, bytes], _Computation] = {}

    def known(self, method: str, request: bytes) -> Answer | None:
        """The answer, if it is remembered and still holds.

        Args:
            method: full name of the method.
            request: its bytes.
        """
        return self._cache.get(self._state(), method, request)

    async def answer(self, method: str, request: bytes, compute: Callable[[], Awaitable[Answer]]) -> Answer:
        """The remembered answer, or a new one, which is then remembered.

        Args:
            method: full name of the method.
            request: its bytes.
            compute: makes the answer; not called while another caller does. What it raises is the caller's alone.
        """
        has_waited = False
        while True:
            state = self._state()
            known = self._cache.get(state, method, request)
            if known is not None:
                return known
            if state is None:
                return await compute()
            key = (state, method, request)
            other = self._computing.get(key)
            if other is None:
                break
            await other.ended.wait()
            if has_waited and other.answer is not None:
                # It was begun after we asked, and so is as good as our own, even where it isn't remembered.
                return other.answer
            has_waited = True
        mine = self._computing[key] = _Computation()
        try:
            with computing() as found:
                mine.answer = await compute()
            if found.is_lasting:
                self._cache.put(state, method, request, mine.answer)
            return mine.answer
        finally:
            del self._computing[key]
            mine.ended.set()


class _Computation:
    """An answer that somebody makes, and that others wait for."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self.answer: Answer | None = None
