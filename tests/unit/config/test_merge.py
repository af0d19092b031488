"""Merging imports by containerd's rules."""

from __future__ import annotations

import pytest

from imagestore.config import Finding, Location
from imagestore.config.merge_imports import merge
from imagestore.config.tree import Plain, Table, build, plain

Document = dict[str, Plain]


def tree(document: Document, file: str = "main") -> Table:
    return build(document, lambda path: Location(file, len(path)))


def merged(base: Document, over: Document) -> Document:
    return plain(merge(tree(base), tree(over, "import"), []))


# The answers of containerd's merge library (mergo 0.3.12 was run), but for "table over scalar", where releases before
# 1.0 keep the scalar.
CASES: dict[str, tuple[Document, Document, Document]] = {
    "empty text over a fixed key": ({"root": "/a"}, {"root": ""}, {"root": "/a"}),
    "text over a fixed key": ({"root": "/a"}, {"root": "/b"}, {"root": "/b"}),
    "zero over a fixed key": ({"oom_score": 1}, {"oom_score": 0}, {"oom_score": 1}),
    "zero over an unset key": ({}, {"oom_score": 0}, {"oom_score": 0}),
    "section key by key": (
        {"grpc": {"address": "x", "uid": 5}},
        {"grpc": {"address": "", "uid": 6}},
        {"grpc": {"address": "x", "uid": 6}},
    ),
    "section new": ({}, {"debug": {"level": ""}}, {"debug": {"level": ""}}),
    "lists joined": ({"disabled_plugins": ["a"]}, {"disabled_plugins": ["b", "a"]}, {"disabled_plugins": ["a", "b"]}),
    "timeouts replaced": (
        {"timeouts": {"a": "1", "b": "2"}},
        {"timeouts": {"a": ""}},
        {"timeouts": {"a": "", "b": "2"}},
    ),
    "processors replaced whole": (
        {"stream_processors": {"p": {"path": "2", "returns": "4"}, "q": {"path": "5"}}},
        {"stream_processors": {"p": {"path": "3"}}},
        {"stream_processors": {"p": {"path": "3"}, "q": {"path": "5"}}},
    ),
    "empty text in a plugin": (
        {"plugins": {"p": {"s": "old"}}},
        {"plugins": {"p": {"s": ""}}},
        {"plugins": {"p": {"s": ""}}},
    ),
    "false in a plugin": (
        {"plugins": {"p": {"b": True}}},
        {"plugins": {"p": {"b": False}}},
        {"plugins": {"p": {"b": False}}},
    ),
    "zero deep in a plugin": (
        {"plugins": {"p": {"t": {"x": 1, "y": 2}}}},
        {"plugins": {"p": {"t": {"y": 0, "z": {}}}}},
        {"plugins": {"p": {"t": {"x": 1, "y": 0, "z": {}}}}},
    ),
    "list in a plugin": (
        {"plugins": {"p": {"l": ["a"]}}},
        {"plugins": {"p": {"l": ["b"]}}},
        {"plugins": {"p": {"l": ["b"]}}},
    ),
    "empty list in a plugin": (
        {"plugins": {"p": {"l": ["a"]}}},
        {"plugins": {"p": {"l": []}}},
        {"plugins": {"p": {"l": []}}},
    ),
    "empty table in a plugin": (
        {"plugins": {"p": {"u": {"x": 1}}}},
        {"plugins": {"p": {"u": {}}}},
        {"plugins": {"p": {"u": {"x": 1}}}},
    ),
    "scalar over table": (
        {"plugins": {"p": {"t": {"x": 1}}}},
        {"plugins": {"p": {"t": 7}}},
        {"plugins": {"p": {"t": 7}}},
    ),
    "table over scalar": (
        {"plugins": {"p": {"t": 7}}},
        {"plugins": {"p": {"t": {"x": 1}}}},
        {"plugins": {"p": {"t": {"x": 1}}}},
    ),
    "new plugin": ({"plugins": {"p": {}}}, {"plugins": {"q": {"l": []}}}, {"plugins": {"p": {}, "q": {"l": []}}}),
    "a section over a wrong type": ({"grpc": 1}, {"grpc": {"uid": 5}}, {"grpc": {"uid": 5}}),
    "a wrong type over a section": ({"grpc": {"uid": 5}}, {"grpc": 1}, {"grpc": 1}),
    "a list over a wrong type": ({"imports": 1}, {"imports": ["a"]}, {"imports": ["a"]}),
    "a wrong type over a list": ({"imports": ["a"]}, {"imports": 1}, {"imports": 1}),
    "wrong types are left for the reader": (
        {"grpc": 1, "imports": 1},
        {"grpc": {}, "imports": ["a"]},
        {"grpc": {}, "imports": ["a"]},
    ),
}


@pytest.mark.parametrize(("base", "over", "expected"), CASES.values(), ids=CASES.keys())
def test_merging_gives_containerds_answer(base: Document, over: Document, expected: Document) -> None:
    assert merged(base, over) == expected


def test_a_dropped_zero_is_reported_with_both_places() -> None:
    findings: list[Finding] = []
    merge(tree({"oom_score": 5, "grpc": {"uid": 7}}), tree({"oom_score": 0, "grpc": {"uid": 0}}, "import"), findings)
    assert [str(finding) for finding in findings] == [
        "import:1: oom_score: 0 doesn't override 5 from main:1: a zero counts as unset",
        "import:2: grpc.uid: 0 doesn't override 7 from main:2: a zero counts as unset",
    ]


def test_a_zero_that_changes_nothing_is_not_reported() -> None:
    findings: list[Finding] = []
    merge(tree({"oom_score": 0, "root": "/a"}), tree({"oom_score": 0, "state": ""}, "import"), findings)
    assert findings == []


def test_an_overridden_key_points_at_the_import() -> None:
    table = merge(tree({"plugins": {"p": {"a": 1, "b": 2}}}), tree({"plugins": {"p": {"b": 3}}}, "import"), [])
    plugins = table["plugins"].value
    assert isinstance(plugins, dict)
    inner = plugins["p"].value
    assert isinstance(inner, dict)
    assert (inner["a"].location.file, inner["b"].location.file) == ("main", "import")
