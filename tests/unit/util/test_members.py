"""The reader of decoded objects: types, Go's leniencies, and the place of a fault."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from imagestore.util.members import Members


def of(values: Any, path: str = "$") -> Members:
    return Members(values, path, lambda place, text: ValueError(f"{place}: {text}"))


def test_null_counts_as_absent_and_in_a_list_as_an_empty_item() -> None:
    found = of(dict.fromkeys(("text", "list", "flag", "number", "object")))
    assert (found.text("text"), found.texts("list"), found.labels("object")) == ("", [], {})
    assert (found.flag("flag"), found.integer("number"), "text" in found) == (None, None, False)
    assert found.object("object").path == "$.object"
    lists = of({"texts": ["a", None], "labels": {"a": None}, "objects": [None]})
    assert (lists.texts("texts"), lists.labels("labels")) == (["a", ""], {"a": ""})
    assert [each.text("name") for each in lists.objects("objects")] == [""]


@pytest.mark.parametrize(
    ("value", "read", "said"),
    [
        (5, lambda found: found.text("a"), "$.a: expected a text, got an integer"),
        ("long", lambda found: found.text("a", 3), "$.a: is 4 characters long, at most 3 are allowed"),
        ("a", lambda found: found.texts("a"), "$.a: expected a list, got a text"),
        (["a", 1.5], lambda found: found.texts("a"), "$.a[1]: expected a text, got a number"),
        (["a", "bb"], lambda found: found.texts("a", longest=1), "$.a[1]: is 2 characters long, at most 1 are allowed"),
        ([1, 2], lambda found: found.items("a", 1), "$.a: has 2 items, at most 1 are allowed"),
        ({"b": []}, lambda found: found.labels("a"), "$.a.b: expected a text, got a list"),
        (1, lambda found: found.flag("a"), "$.a: expected true or false, got an integer"),
        (True, lambda found: found.integer("a"), "$.a: expected an integer, got true or false"),
        (2**31, lambda found: found.integer("a"), "$.a: expected an integer of 32 bits, got 2147483648"),
        ([], lambda found: found.object("a"), "$.a: expected an object, got a list"),
        ([{}, "x"], lambda found: [*found.objects("a")], "$.a[1]: expected an object, got a text"),
        ([{"b": 1}], lambda found: [each.text("b") for each in found.objects("a")], "$.a[0].b: expected a text"),
    ],
)
def test_what_does_not_fit_is_named_with_its_place(value: Any, read: Callable[[Members], object], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        read(of({"a": value}))


def test_a_value_is_not_repeated_since_it_may_be_a_secret() -> None:
    with pytest.raises(ValueError, match=r"^a: expected an object, got a text$"):
        of({"a": "hunter2"}, path="").object("a")
