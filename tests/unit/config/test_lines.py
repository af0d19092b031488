"""The line of a key: every way TOML has to write one."""

from __future__ import annotations

import pytest

from imagestore.config.findings import RefusalError
from imagestore.config.toml_lines import MAX_DEPTH, KeyLines

TEXT = '''\
version = 3 # a comment with [brackets] and a = sign

[plugins."io.x".runtimes] # a header
  plain.dotted."quoted key" = 1
  'literal key' = "a # b"
  multi = """
first = 1
[not.a.table]
""" # after
  raw = \'\'\'
x = 1\'\'\'
  list = [
    "a", # = [
    { inside = 1 },
  ]
  inline = { one = 1, deep = { two = "}" } }
[plugins."io.x".runtimes.sub]
key = 1
[[array]]
  a = 1
[[array]]
  b = 2
"esc\\u0061ped" = 1
date = 1979-05-27T07:32:00Z
last = """a""b"""""
'''

LINES = {
    ("version",): 1,
    ("plugins",): 3,
    ("plugins", "io.x"): 3,
    ("plugins", "io.x", "runtimes"): 3,
    ("plugins", "io.x", "runtimes", "plain", "dotted", "quoted key"): 4,
    ("plugins", "io.x", "runtimes", "plain"): 4,
    ("plugins", "io.x", "runtimes", "literal key"): 5,
    ("plugins", "io.x", "runtimes", "multi"): 6,
    ("plugins", "io.x", "runtimes", "raw"): 10,
    ("plugins", "io.x", "runtimes", "list"): 12,
    ("plugins", "io.x", "runtimes", "inline"): 16,
    ("plugins", "io.x", "runtimes", "inline", "deep", "two"): 16,
    ("plugins", "io.x", "runtimes", "sub"): 17,
    ("plugins", "io.x", "runtimes", "sub", "key"): 18,
    ("array",): 19,
    ("array", "a"): 20,
    ("array", "escaped"): 23,
    ("array", "last"): 25,
}


@pytest.mark.parametrize(
    ("path", "line"), LINES.items(), ids=lambda value: "-".join(value) if isinstance(value, tuple) else None
)
def test_every_kind_of_key_is_found_at_its_line(path: tuple[str, ...], line: int) -> None:
    assert KeyLines(TEXT, "test").find(path) == line


@pytest.mark.parametrize("path", [("first",), ("not", "a", "table"), ("x",), ("plugins", "io.x", "list"), ("missing",)])
def test_text_inside_strings_is_no_key(path: tuple[str, ...]) -> None:
    assert KeyLines(TEXT, "test").find(path) is None


@pytest.mark.parametrize(
    "text", ["a = [", "a = {", 'a = "', "a", "=", "[a", "[[a]", "a = {b}", 'a = """', "a = ]", '"\\z" = 1', "a = [1 2]"]
)
def test_scanning_stops_quietly_where_the_text_is_no_toml(text: str) -> None:
    assert KeyLines(f"before = 1\n{text}\n", "test").find(("before",)) == 1


@pytest.mark.parametrize(
    "text",
    [
        ".".join(["a"] * (MAX_DEPTH + 1)) + " = 1",
        "[" + ".".join(["a"] * (MAX_DEPTH + 1)) + "]",
        "a = " + "[" * (MAX_DEPTH + 1),
        "a = " + "{a = " * (MAX_DEPTH + 1),
    ],
    ids=["key", "header", "array", "inline table"],
)
def test_deep_nesting_is_refused_with_its_line(text: str) -> None:
    with pytest.raises(RefusalError, match="file:2: nested deeper than the 32 levels allowed"):
        KeyLines(f"\n{text}", "file")


def test_nesting_up_to_the_limit_is_fine() -> None:
    path = ("a",) * MAX_DEPTH
    assert KeyLines(".".join(path) + " = " + "[" * MAX_DEPTH + "]" * MAX_DEPTH, "file").find(path) == 1


def test_a_tables_own_header_counts_before_one_below_it() -> None:
    lines = KeyLines("[a.b.c]\n[a.b]\n", "file")
    assert [lines.find(("a",)), lines.find(("a", "b"))] == [1, 2]
