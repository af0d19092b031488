"""Answers that must not be remembered are shared all the same by those who ask at once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from imagestore.rpc.answers import AnswerCache, shows_damage
from imagestore.server.memory import AnswerMemory

if TYPE_CHECKING:
    from imagestore.rpc.answers import Answer


def test_many_who_ask_at_once_for_what_is_damaged_cost_two_answers() -> None:
    begun: list[int] = []

    async def run() -> None:
        memory = AnswerMemory(AnswerCache(), lambda: 1, ["m"])

        async def compute() -> Answer:
            begun.append(len(begun))
            await asyncio.sleep(0.01)
            shows_damage()
            return (bytes([begun[-1]]),)

        asked = [asyncio.create_task(memory.answer("m", b"", compute)) for _ in range(50)]
        # The first may have looked at what was mended before the others asked; theirs is begun after that.
        assert await asyncio.gather(*asked) == [(b"\0",), *([(b"\1",)] * 49)]
        assert await memory.answer("m", b"", compute) == (b"\2",)

    asyncio.run(run())
    assert len(begun) == 3


def test_who_waited_for_one_that_failed_makes_its_own() -> None:
    async def run() -> None:
        memory, count = AnswerMemory(AnswerCache(), lambda: 1, ["m"]), 0

        async def compute() -> Answer:
            nonlocal count
            count += 1
            mine = count
            await asyncio.sleep(0)
            shows_damage()
            if mine < 4:
                raise ValueError(mine)
            return (b"a",)

        asked = [asyncio.create_task(memory.answer("m", b"", compute)) for _ in range(6)]
        found = await asyncio.gather(*asked, return_exceptions=True)
        assert [type(each) for each in found[:3]] == [ValueError] * 3
        assert found[3:] == [(b"a",)] * 3

    asyncio.run(run())
