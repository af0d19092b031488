"""Whatever bytes come, a document is read or refused with our own error; nothing else escapes."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from imagestore.errors import DocumentError
from imagestore.oci.decode import decode
from imagestore.oci.image_config import ImageConfig
from imagestore.oci.index import Index
from imagestore.oci.manifest import Manifest

DIGEST = "sha256:" + "a" * 64
value = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
# Every member that a descriptor may have, wherever it stands.
descriptor = {
    "mediaType": "application/vnd.oci.image.manifest.v1+json",
    "digest": DIGEST,
    "size": 1,
    "platform": {"os": "linux", "architecture": "arm64", "os.features": ["x"], "os.version": "1", "variant": "v8"},
    "annotations": {"a": "b"},
    "urls": ["https://layers.example/a"],
    "data": None,
    "artifactType": "a/b",
}
good = {
    "index": {"schemaVersion": 2, "manifests": [descriptor], "subject": descriptor},
    "manifest": {"schemaVersion": 2, "config": descriptor, "layers": [descriptor], "subject": descriptor},
    "config": {"os": "linux", "architecture": "arm", "rootfs": {"type": "layers", "diff_ids": [DIGEST]}},
}


def parse_as_everything(raw: bytes) -> None:
    for kind in (Index, Manifest, ImageConfig):
        try:
            assert kind.parse(raw).raw == raw
        except DocumentError as error:
            assert error.faults


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode) | value.map(lambda v: json.dumps(v).encode()))
def test_any_bytes(raw: bytes) -> None:
    parse_as_everything(raw)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A good document in which one member, at any depth, has any other value."""
    document = json.loads(json.dumps(good[draw(st.sampled_from(sorted(good)))]))
    node = document
    while True:
        keys = sorted(node) if isinstance(node, dict) else list(range(len(node)))
        key = draw(st.sampled_from(keys))
        if isinstance(node[key], dict | list) and node[key] and draw(st.booleans()):
            node = node[key]
            continue
        if isinstance(node, dict) and draw(st.booleans()):
            del node[key]
        else:
            node[key] = draw(value)
        return json.dumps(document).encode()


@given(damaged())
def test_any_damage_to_a_good_document(raw: bytes) -> None:
    parse_as_everything(raw)


@given(value)
def test_what_is_decoded_is_what_was_encoded(plain: object) -> None:
    document = {"value": plain}
    try:
        decoded = decode(json.dumps(document, allow_nan=False).encode(), "test")
    except (ValueError, DocumentError):
        return  # NaN, or an integer outside 64 bits
    assert decoded == document
