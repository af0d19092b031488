"""The typed parsers and the schemas judge alike; what only the parsers refuse is what no schema can say."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from imagestore.errors import DocumentError
from imagestore.oci.image_config import ImageConfig
from imagestore.oci.index import Index
from imagestore.oci.manifest import Manifest

FIXTURES = Path(__file__).parents[3] / "fixtures"
DIGEST = "sha256:" + "0" * 64
LAYER = {"mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": DIGEST, "size": 1}
PLATFORM = {"os": "windows", "architecture": "amd64", "os.version": "10.0.1", "os.features": ["x"], "variant": "v7"}
ENTRY = {
    "mediaType": "application/vnd.oci.image.manifest.v1+json",
    "digest": DIGEST,
    "size": 7,
    "platform": {**PLATFORM, "features": ["a"]},
    "annotations": {"a": "b"},
    "urls": ["https://example.com/"],
    "data": None,
    "artifactType": "a/b",
}
PARSERS: dict[str, Callable[[bytes], object]] = {
    "index": Index.parse,
    "manifest": Manifest.parse,
    "image-config": ImageConfig.parse,
}
RIGHT: dict[str, dict[str, Any]] = {
    "index": {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "artifactType": "a/b",
        "manifests": [ENTRY],
        "subject": LAYER,
        "annotations": {"a": None},
    },
    "manifest": {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "artifactType": "a/b",
        "config": LAYER,
        "layers": [ENTRY, LAYER],
        "subject": None,
        "annotations": {"a": "b"},
    },
    "image-config": {
        **PLATFORM,
        "created": "2020-01-01T00:00:00Z",
        "author": "x",
        "rootfs": {"type": "layers", "diff_ids": [DIGEST]},
        "config": {
            "User": "0",
            "Env": ["A=b"],
            "Entrypoint": ["x"],
            "Cmd": [None],
            "WorkingDir": "/",
            "StopSignal": "9",
            "Labels": {"a": "b"},
            "ExposedPorts": {"1/tcp": {}},
            "Volumes": {"/a": {}},
            "ArgsEscaped": True,
        },
        "history": [{"empty_layer": False}, None],
    },
}
LIBRARY = {
    name: Draft202012Validator(
        json.loads(resources.files("imagestore.oci.schemas").joinpath(f"{name}.json").read_bytes())
    )
    for name in RIGHT
}
#: What the parsers refuse beyond the schemas.
BEYOND = (
    "differs from a known member only by case",
    "expected an integer",
    "contradicts digest and size",
    "is not base64",
    "lower-case hex digits",
    "expected algorithm:encoded",
    " is no index",
    " is no manifest",
    "is a schema 1 manifest",
    "is an image config",
)

#: Values at the edge of what one member or another may have.
EDGES: list[Any] = [
    *(None, True, False, 0, 1, 2, -1, 2**63 - 1, 0.0, 2.0, 7.0, 1.5, {}, {"a": 1}, {"a": None}, [], [None], [1], [{}]),
    *(DIGEST, f"{DIGEST}\n", "sha256:x", f"{DIGEST} ", "md5:x", "layers", "layers\n", "", " ", "a", "a/b", "a/b\n"),
    *(" a/b", "a/b ", "a/b; c", "a/b ;c", "a/b;\nc", "a\x7fb", "a" * 127 + "/b", "a" * 128 + "/b", "a/b; " + "c" * 201),
    *("x" * length for length in (256, 257, 512, 513, 1024, 1025, 8192, 8193)),
    *(["x" * length] for length in (1024, 1025, 8192, 8193)),
    *(["x"] * 64, ["x"] * 65, [DIGEST] * 1000, [DIGEST] * 1001, [LAYER] * 1000, [LAYER] * 1001),
    *([{}] * 10_000, [{}] * 10_001, [LAYER] * 10_000),
]
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=8) | st.sampled_from(EDGES),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)
MORE = st.sampled_from(["config", "layers", "fsLayers", "manifests", "size", "Size", "os", "", "x"])


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [at] if at else []
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        found += places(each, (*at, key))
    return found


@st.composite
def documents(draw: st.DrawFn, name: str) -> dict[str, Any]:
    """A right document with one to three changes, at any depth."""
    document = copy.deepcopy(RIGHT[name])
    for _ in range(draw(st.integers(1, 3))):
        *way, last = draw(st.sampled_from(places(RIGHT[name])))
        target: Any = document
        try:
            for step in way:
                target = target[step]
            match draw(st.sampled_from(["replace", "remove", "add"])):
                case "replace":
                    target[last] = copy.deepcopy(draw(values))
                case "remove":
                    del target[last]
                case _:
                    target[draw(MORE)] = copy.deepcopy(draw(values))
        except (LookupError, TypeError):
            continue  # an earlier change took the place away
    return document


def agree(name: str, document: dict[str, Any]) -> None:
    """Hold that parser and schema say the same of a document."""
    if document.get("schemaVersion") in (None, 0):
        document.pop("schemaVersion", None)  # no version, as peers read it
    is_valid = LIBRARY[name].is_valid(document)
    try:
        PARSERS[name](json.dumps(document).encode())
    except DocumentError as error:
        assert not is_valid or any(words in error.faults[0] for words in BEYOND), "only the parser refuses it"
    else:
        assert is_valid, "only the schema refuses it"


@pytest.mark.parametrize("name", RIGHT)
def test_right_documents_are_read(name: str) -> None:
    assert PARSERS[name](json.dumps(RIGHT[name]).encode())
    assert LIBRARY[name].is_valid(RIGHT[name])


@pytest.mark.parametrize("name", RIGHT)
@given(data=st.data())
def test_parsers_and_schemas_judge_alike(name: str, data: st.DataObject) -> None:
    agree(name, data.draw(documents(name)))


def members(value: Any) -> set[type]:
    """What a right list has, which is texts where it only shows that null is one; nothing of what is no list."""
    if not isinstance(value, list):
        return set()
    return {type(each) for each in value if each is not None} or {str}


@pytest.mark.parametrize("name", RIGHT)
def test_they_judge_each_member_alike_at_the_edges(name: str) -> None:
    is_thorough = settings.get_current_profile_name() == "thorough"
    for position, (*way, last) in enumerate(places(RIGHT[name])):
        # Without the thorough profile each place gets every second value.
        for value in EDGES if is_thorough else EDGES[position % 2 :: 2]:
            document = copy.deepcopy(RIGHT[name])
            target: Any = document
            for step in way:
                target = target[step]
            # Of lists in the place of something else, a short one says as much.
            if isinstance(value, list) and len(value) > 100 and type(value[0]) not in members(target[last]):
                continue
            target[last] = value
            agree(name, document)


@pytest.mark.parametrize("path", sorted((FIXTURES / "indexes").rglob("*.json")), ids=lambda path: path.stem)
def test_they_judge_real_indexes_alike(path: Path) -> None:
    document = json.loads(path.read_bytes())
    if "manifests" in document:
        agree("index", document)
