"""A table of paths says what a dictionary says, and keeps no more in memory than it may."""

from __future__ import annotations

import tempfile

from hypothesis import given
from hypothesis import strategies as st

from imagestore.store.unpack.brought import BroughtPaths
from imagestore.store.unpack.path_table import PathTable
from imagestore.util.trees import Choice

PATHS = st.text(st.sampled_from("ab/\udcff"), max_size=4)


@given(st.lists(st.tuples(PATHS, st.integers(1, 255)), max_size=60), st.integers(0, 20), PATHS)
def test_it_says_what_a_dictionary_says(entries: list[tuple[str, int]], most: int, other: str) -> None:
    table, model = PathTable(tempfile.TemporaryFile, most_in_memory=most), dict[str, int]()
    for path, value in entries:
        if value % 2:
            table[path] = model[path] = value
        else:
            assert table.include(path, value) == model.get(path, 0)
            model[path] = model.get(path, 0) | value
        assert table.in_memory <= most
        assert bool(table)
    assert {path: table[path] for path in model} == model
    assert table[other] == model.get(other, 0)
    table.close()
    assert not table


def test_the_file_grows_with_the_paths() -> None:
    table = PathTable(tempfile.TemporaryFile, most_in_memory=10)
    for number in range(5000):
        table[f"path/{number}"] = number % 255 + 1
    assert table.in_memory == 0
    assert [table[f"path/{number}"] for number in range(5000)] == [number % 255 + 1 for number in range(5000)]
    assert table["path/5000"] == 0
    table.close()


def test_a_layer_brings_what_is_above_its_entries() -> None:
    brought = BroughtPaths(tempfile.TemporaryFile, is_lowest=False)
    brought.add("a/b/c")
    assert [each in brought for each in ("a", "a/b", "a/b/c", "a/b/c/d", "b")] == [True, True, True, False, False]
    assert [brought.spared(each) for each in ("a/b", "b")] == [Choice.ENTER, Choice.REMOVE]
    assert not brought.is_clean("a/b")
    brought.set_clean("a/b")
    assert [brought.is_clean(each) for each in ("a/b", "a/b/c", "a/b/x/y", "a", "ab")] == [
        True,
        True,
        True,
        False,
        False,
    ]
    assert [brought.spared(each) for each in ("a/b", "a/b/c")] == [Choice.KEEP, Choice.ENTER]


def test_in_the_lowest_layer_nothing_is_kept_and_nothing_is_to_be_hidden() -> None:
    brought = BroughtPaths(tempfile.TemporaryFile, is_lowest=True)
    brought.add("a/b/c")
    assert brought.in_memory == 0
    assert brought.is_clean("a")
