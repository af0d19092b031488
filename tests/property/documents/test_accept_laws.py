"""What is taken at once is never what the schema library would refuse, and real documents are taken at once."""

from __future__ import annotations

import copy
import json
import pkgutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from imagestore.documents.accept import compiled
from imagestore.documents.fields import parse_descriptor, plain_entry

FIXTURES = Path(__file__).parents[3] / "fixtures"
DIGEST = "sha256:" + "0" * 64
LAYER = {"mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": DIGEST, "size": 1}
RIGHT: dict[str, dict[str, Any]] = {
    "index": {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [
            {
                "mediaType": "application/vnd.oci.image.manifest.v1+json",
                "digest": DIGEST,
                "size": 7,
                "platform": {"os": "windows", "architecture": "amd64", "os.version": "10.0.1", "os.features": ["x"]},
                "annotations": {"a": "b"},
                "urls": ["https://example.com/"],
                "data": None,
            }
        ],
        "subject": LAYER,
        "annotations": None,
    },
    "manifest": {"schemaVersion": 2, "config": LAYER, "layers": [LAYER, LAYER], "annotations": {"a": "b"}},
    "image-config": {
        "architecture": "amd64",
        "os": "linux",
        "os.features": None,
        "rootfs": {"type": "layers", "diff_ids": [DIGEST]},
        "config": {"User": "0", "Env": ["A=b"], "Labels": {"a": "b"}, "ArgsEscaped": True},
        "history": [{"empty_layer": False}],
    },
    "oci-resources": {
        "linux": {
            "resources": {"cpu": {"shares": 2, "quota": -1}, "hugepageLimits": [{"pageSize": "2MB", "limit": 0}]}
        },
    },
}

PLAIN: dict[str, Any] = {
    "mediaType": "application/vnd.oci.image.manifest.v1+json",
    "digest": DIGEST,
    "size": 7,
    "platform": {"os": "windows", "architecture": "amd64", "os.version": "10.0.1", "os.features": ["win32k"]},
}


def schema(name: str) -> Any:
    text = pkgutil.get_data("imagestore.documents.schemas", f"{name}.json")
    assert text is not None
    return json.loads(text)


ACCEPTS = {name: compiled(schema(name)) for name in RIGHT}
LIBRARY = {name: Draft202012Validator(schema(name)) for name in RIGHT}

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
    | st.sampled_from([DIGEST, "layers", "", "application/x", "a/b\n", "sha256:x\n", 2, 2.0, True, LAYER]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [at] if at else []
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        found += places(each, (*at, key))
    return found


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_document_is_taken_at_once(name: str) -> None:
    assert ACCEPTS[name](RIGHT[name])


def test_real_indexes_are_taken_at_once() -> None:
    for path in sorted((FIXTURES / "indexes").rglob("*.json")):
        document = json.loads(path.read_bytes())
        if "manifests" in document:
            assert ACCEPTS["index"](document) == LIBRARY["index"].is_valid(document), path.name


BOUNDS: list[dict[str, Any]] = [
    {"type": "array", "maxItems": 1},
    {"type": "array", "maxItems": 1, "items": {"type": "string"}},
    {"type": "array", "items": {"type": "string", "minLength": 2}},
    {"type": "string", "minLength": 1, "maxLength": 2},
    {"type": "string", "maxLength": 1},
    {"type": "string", "minLength": 2, "maxLength": 3, "pattern": "a"},
    {"type": "object", "minProperties": 1},
    {"type": "object", "maxProperties": 1},
    {"type": "object", "required": ["a"], "propertyNames": {"maxLength": 1}},
    {"type": "object", "properties": {"a": {"type": "null"}}, "additionalProperties": False},
    {"type": "integer", "minimum": 1, "maximum": 2},
    {"type": "integer", "maximum": 1},
    {"const": 2},
]
SMALL: list[Any] = [[], ["a"], ["a", "b"], ["bb"], [1], "", "a", "b", "ab", "aab", "aabb", {}, {"a": None}, {"b": 1}]
SMALL += [{"a": 1}, {"a": None, "b": None}, {"a": None, "ab": None}, 0, 1, 2, 3, None]


@pytest.mark.parametrize("bound", BOUNDS, ids=json.dumps)
def test_each_bound_is_the_librarys(bound: dict[str, Any]) -> None:
    accepts, library = compiled(bound), Draft202012Validator(bound)
    assert [value for value in SMALL if accepts(value)] == [value for value in SMALL if library.is_valid(value)]


@settings(max_examples=200, deadline=None)
@given(data=st.data(), name=st.sampled_from(sorted(RIGHT)))
def test_nothing_is_taken_that_the_library_would_refuse(data: st.DataObject, name: str) -> None:
    document = copy.deepcopy(RIGHT[name])
    for _ in range(data.draw(st.integers(1, 3))):
        *way, last = data.draw(st.sampled_from(places(document)))
        target: Any = document
        for step in way:
            target = target[step]
        how = data.draw(st.sampled_from(["replace", "remove", "add"]))
        if how == "replace":
            target[last] = copy.deepcopy(data.draw(values))
        elif how == "remove":
            del target[last]
        elif isinstance(target, dict):
            names = st.sampled_from(["config", "layers", "fsLayers", "manifests", "size", "", "x"])
            target[data.draw(names)] = copy.deepcopy(data.draw(values))
        if not places(document):
            break
    if ACCEPTS[name](document):
        assert LIBRARY[name].is_valid(document)


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_a_plain_entry_keeps_the_schema_and_says_what_thorough_reading_says(data: st.DataObject) -> None:
    entry = copy.deepcopy(PLAIN)
    for target in (entry, entry["platform"]):
        for name in data.draw(st.lists(st.sampled_from([*target, "os.features", "annotations", "Size"]), max_size=2)):
            target[name] = copy.deepcopy(data.draw(values | st.sampled_from(["x" * 257, ["x" * 300], ["x"] * 65])))
        target.pop(data.draw(st.sampled_from(["", "", "", *target])), None)
        if not isinstance(entry.get("platform"), dict):
            break
    found = plain_entry(entry)
    if found is not None:
        assert LIBRARY["index"].is_valid({"schemaVersion": 2, "manifests": [entry]})
        assert found == parse_descriptor(entry, "$", "test")


def test_real_entries_are_plain() -> None:
    assert plain_entry(PLAIN) == parse_descriptor(PLAIN, "$", "test")


@pytest.mark.parametrize(
    ("what", "unknown"),
    [
        ("uniqueItems", {"type": "array", "uniqueItems": True}),
        ("not", {"not": {"type": "string"}}),
    ],
)
def test_what_is_not_known_is_refused_when_a_schema_is_compiled(what: str, unknown: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=what):
        compiled(unknown)
