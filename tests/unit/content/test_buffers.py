"""Buffers: how many there may be, whom they go to, and where they can't be had."""

from __future__ import annotations

import contextlib
import mmap
import os
from typing import NoReturn

import pytest

from imagestore.content import buffers as content_buffers
from imagestore.content.buffers import BUFFER_BYTES, SMALL_BUFFER_BYTES, SMALL_BYTES, Buffers


@pytest.mark.parametrize(("processors", "helped"), [(1, 2), (2, 3), (64, 3)])
def test_few_blobs_are_helped_in_whatever_order_they_come(
    monkeypatch: pytest.MonkeyPatch, processors: int, helped: int
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: processors)
    buffers = Buffers()
    with contextlib.ExitStack() as stack:
        may = [stack.enter_context(buffers.coming(size)) for size in range(10)]
        assert sum(each() for each in may) == min(processors, 3)
    with contextlib.ExitStack() as stack:
        assert sum(stack.enter_context(buffers.coming(size))() for size in range(10)) == helped


def test_the_largest_blobs_are_helped_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    buffers = Buffers()
    with contextlib.ExitStack() as first, contextlib.ExitStack() as second, contextlib.ExitStack() as third:
        may = [stack.enter_context(buffers.coming(size)) for stack, size in ((first, 10), (second, 10), (third, 30))]
        assert [each() for each in may] == [True, False, True]
        third.close()
        assert [each() for each in may[:2]] == [True, True]
    with buffers.coming(1) as may_once_more:
        assert may_once_more()


def test_three_blobs_at_a_time_have_seven_buffers_between_them() -> None:
    buffers = Buffers()
    first = buffers.take_some(2, 3)
    others = [buffers.take_some(2, 3), buffers.take_some(2, 3), buffers.take_some(1, 1)]
    assert [len(first), *map(len, others)] == [3, 2, 2, 1], "the third for whoever is first"
    for each in (first, *others):
        buffers.give_some(each)
    assert len(buffers.take_some(2, 3)) == 3, "what was given back counts no more"


def test_memory_that_cannot_be_had_does_not_count_as_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object) -> NoReturn:
        raise MemoryError

    buffers = Buffers()
    with monkeypatch.context() as patched:
        patched.setattr("imagestore.content.buffers._memory", refuse)
        for _ in range(10):
            with pytest.raises(MemoryError):
                buffers.take_some(2, 3)
    assert len(buffers.take_some(2, 3)) == 3


def test_a_system_without_huge_pages_gives_buffers_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(mmap, "MADV_HUGEPAGE", raising=False)
    (buffer,) = Buffers().take_some(1, 1)
    buffer[-1] = 1
    assert len(buffer) == BUFFER_BYTES


def test_small_documents_have_memory_of_their_size_and_no_more_blobs_have_some_than_may() -> None:
    buffers = Buffers(most_lent=3)
    document, blob = buffers.try_take(700), buffers.try_take(SMALL_BYTES)
    assert document is not None
    assert blob is not None
    assert (len(document), len(blob)) == (701, SMALL_BUFFER_BYTES)
    assert buffers.try_take(5) is not None
    assert buffers.try_take(5) is None
    buffers.give_back(document)
    again = buffers.try_take(SMALL_BYTES)
    assert again is not None
    assert len(again) == SMALL_BUFFER_BYTES, "a document's memory is no buffer for a blob"


def test_large_blobs_get_what_small_ones_had(monkeypatch: pytest.MonkeyPatch) -> None:
    made = list[mmap.mmap]()
    real = content_buffers._memory

    def counted() -> mmap.mmap:
        made.append(real())
        return made[-1]

    monkeypatch.setattr(content_buffers, "_memory", counted)
    buffers = Buffers()
    small = [buffers.try_take(SMALL_BYTES) for _ in range(4)]
    for each in small:
        assert each is not None
        each[-1] = 1
        buffers.give_back(each)
    large = [*buffers.take_some(2, 3), *buffers.take_some(1, 1)]
    assert [len(each) for each in large] == [BUFFER_BYTES] * 4
    buffers.give_some(large)
    again = buffers.try_take(SMALL_BYTES)
    assert again is not None
    assert len(again) == SMALL_BUFFER_BYTES, "whole again"
    assert len(made) == 4
