"""The schemas judge alike with their references and with what these name in their place."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from imagestore.documents.decode import validate
from imagestore.errors import DocumentError

DIGEST = "sha256:" + "0" * 64
DESCRIPTOR = {"mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": DIGEST, "size": 1}
PLATFORM = {"os": "linux", "architecture": "amd64", "os.features": ["a"], "variant": "v7"}
WHOLE: dict[str, dict[str, Any]] = {
    "index": {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [{**DESCRIPTOR, "platform": PLATFORM, "annotations": {"a": "b"}}],
        "subject": DESCRIPTOR,
    },
    "manifest": {"schemaVersion": 2, "config": DESCRIPTOR, "layers": [{**DESCRIPTOR, "urls": ["u"]}], "subject": None},
    "image-config": {**PLATFORM, "rootfs": {"type": "layers", "diff_ids": [DIGEST]}, "history": [{"comment": "x"}]},
}
VALUES = st.sampled_from([None, "", "x", DIGEST, -1, 1, 1.5, True, [], [1], {}, {"a": 1}, {"a": "b"}, [DESCRIPTOR]])


def changed(value: Any, draw: st.DataObject) -> Any:
    """Perhaps another value, here or deeper, or a member less or more."""
    if draw.draw(st.integers(0, 3)) == 0:
        return draw.draw(VALUES)
    if isinstance(value, dict):
        names = [name for name in value if draw.draw(st.integers(0, 9))]
        more = {name: draw.draw(VALUES) for name in draw.draw(st.sets(st.sampled_from(sorted(PLATFORM)), max_size=1))}
        return {**{name: changed(value[name], draw) for name in names}, **more}
    if isinstance(value, list):
        return [changed(each, draw) for each in value]
    return value


@given(st.sampled_from(sorted(WHOLE)), st.data())
def test_references_and_what_they_name_judge_alike(kind: str, draw: st.DataObject) -> None:
    text = resources.files("imagestore.documents.schemas").joinpath(f"{kind}.json").read_text("utf-8")
    document = {name: changed(value, draw) for name, value in WHOLE[kind].items()}
    expected = sorted(error.json_path for error in Draft202012Validator(json.loads(text)).iter_errors(document))
    try:
        validate(document, kind, "it")
        found = []
    except DocumentError as error:
        found = sorted(fault.partition(": ")[0] for fault in error.faults)
    assert found == expected[: len(found)]
    assert bool(found) == bool(expected)


def test_the_unchanged_documents_are_right() -> None:
    for kind, document in WHOLE.items():
        validate(document, kind, "it")
