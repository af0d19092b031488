"""Merging imports by containerd's rules."""

from __future__ import annotations

import pytest

from imagestore.config import Location
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
    "the daemon's own keys stay as they are": (
        {"root": "/a", "grpc": {"uid": 5}, "timeouts": {"a": "1"}},
        {"root": "/b", "grpc": {"gid": 6}, "timeouts": {"b": "2"}, "state": "/s"},
        {"root": "/a", "grpc": {"uid": 5}, "timeouts": {"a": "1"}, "state": "/s"},
    ),
    "proxies replaced whole": (
        {"proxy_plugins": {"p": {"type": "2", "address": "4"}, "q": {"type": "5"}}},
        {"proxy_plugins": {"p": {"type": "3"}}},
        {"proxy_plugins": {"p": {"type": "3"}, "q": {"type": "5"}}},
    ),
    "proxies new": ({}, {"proxy_plugins": {"p": {"type": "3"}}}, {"proxy_plugins": {"p": {"type": "3"}}}),
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
    "a wrong type of all plugins": ({"plugins": 1}, {"plugins": {"p": {}}}, {"plugins": {"p": {}}}),
}


@pytest.mark.parametrize(("base", "over", "expected"), CASES.values(), ids=CASES.keys())
def test_merging_gives_containerds_answer(base: Document, over: Document, expected: Document) -> None:
    assert merged(base, over) == expected


def test_an_overridden_key_points_at_the_import() -> None:
    table = merge(tree({"plugins": {"p": {"a": 1, "b": 2}}}), tree({"plugins": {"p": {"b": 3}}}, "import"), [])
    plugins = table["plugins"].value
    assert isinstance(plugins, dict)
    inner = plugins["p"].value
    assert isinstance(inner, dict)
    assert (inner["a"].location.file, inner["b"].location.file) == ("main", "import")
