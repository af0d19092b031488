"""Answers from memory are those of the store's present state, and memory is bounded."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from imagestore.rpc.answers import AnswerCache
from imagestore.rpc.context import request_id
from imagestore.rpc.workers import StoreWorkers
from imagestore.store import ImageStore
from tests.support.node import PYTHON, node


def test_answer_is_known_in_its_state_only() -> None:
    cache = AnswerCache()
    cache.put((0, 1), "/m", b"q", (b"a",))
    assert cache.get((0, 1), "/m", b"q") == (b"a",)
    assert cache.get((0, 1), "/n", b"q") is None
    assert cache.get((0, 2), "/m", b"q") is None
    cache.put((0, 2), "/m", b"other", (b"b",))
    assert cache.get((0, 2), "/m", b"q") is None
    assert cache.get((0, 1), "/m", b"q") is None


def test_unknown_state_has_no_answers() -> None:
    cache = AnswerCache()
    cache.put(None, "/m", b"q", (b"a",))
    assert cache.get(None, "/m", b"q") is None


def test_an_answer_above_the_bound_is_not_kept() -> None:
    cache = AnswerCache(1000)
    cache.put(1, "/m", b"q", (b"a" * 500, b"b" * 500))
    assert cache.get(1, "/m", b"q") is None


@given(st.lists(st.tuples(st.integers(0, 3), st.binary(max_size=3), st.integers(0, 700)), max_size=60))
def test_cache_agrees_with_a_plain_table_and_stays_small(puts: list[tuple[int, bytes, int]]) -> None:
    cache, table = AnswerCache(2000), dict[tuple[int, bytes], tuple[bytes, ...]]()
    for index, (state, request, size) in enumerate(puts):
        answer = (bytes([index]) * size, b"x")
        cache.put(state, "/m", request, answer)
        table[(state, request)] = answer
        found = {key: cache.get(state, "/m", key[1]) for key in table if key[0] == state}
        assert all(value in (None, table[key]) for key, value in found.items())
        assert (
            sum(256 + len(key[1]) + sum(map(len, value)) for key, value in found.items() if value is not None) <= 2000
        )


def test_state_moves_with_records_of_any_connection_and_with_nothing_else(tmp_path: Path) -> None:
    with node(tmp_path) as first:
        workers = StoreWorkers(ImageStore(tmp_path, config=first.store.config, host=first.store.host))
        before = workers.state()
        assert before is not None
        first.store.metadata.create_lease("l", lifetime_seconds=60)
        assert workers.state() == before
        first.store.pull(PYTHON)
        pulled = workers.state()
        assert pulled not in (None, before)
        first.store.touch(PYTHON)
        assert workers.state() == pulled
        first.store.pin(PYTHON)
        pinned = workers.state()
        assert pinned not in (None, before, pulled)
        workers.replace(ImageStore(tmp_path, config=first.store.config, host=first.store.host))
        replaced = workers.state()
        assert replaced not in (None, pinned)
        first.store.remove(PYTHON)
        assert workers.state() not in (None, replaced)
        workers.close()
        assert workers.state() is None


def test_request_keeps_its_callers_name_when_that_is_harmless() -> None:
    assert request_id([("other", "x"), ("x-request-id", "pod-7/pull")]) == "pod-7/pull"
    for evil in ("", "a b", "a\nb", "x" * 129, "é"):
        made = request_id([("x-request-id", evil)])
        assert made != evil
        assert len(made) == 16
    assert request_id(None) != request_id(None)
