"""What a stranger's server says is shown or left out, never a crash."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from imagestore.cli import describe, remote
from imagestore.cri.model import ImageDetails, ImageSpec, ServedImage

JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
DESCRIPTOR = st.dictionaries(st.sampled_from(["mediaType", "digest", "size"]), JSON)
OWN = st.dictionaries(
    st.sampled_from(["wantedPlatform", "warnings", "createdAt", "updatedAt", "layers", "target", "manifest"]),
    JSON | DESCRIPTOR | st.lists(DESCRIPTOR, max_size=3),
)
CONFIG = st.dictionaries(st.sampled_from(["os", "architecture", "variant", "os.version", "config", "created"]), JSON)
IMAGE = ServedImage("sha256:1", (), (), 1, spec=ImageSpec(""))


@given(JSON | OWN, JSON | st.fixed_dictionaries({"imageSpec": JSON | CONFIG}), st.text(max_size=20))
def test_any_info_is_shown_or_left_out(own: object, containerds: object, other: str) -> None:
    info = {"imagestore": json.dumps(own), "info": json.dumps(containerds), "other": other}
    shown = remote.image_in_full(ImageDetails(IMAGE, info), "")
    assert isinstance(shown["warnings"], list | None)
    assert shown["info"].keys() == info.keys()
    assert describe.pointer(shown["target"])
    assert describe.pointer(shown["manifest"])
    assert all(remote.layer_lines(shown["layers"]))
    json.dumps(shown)


@given(st.text(max_size=40), st.text(max_size=40))
def test_any_name_is_shown_and_compared(name: str, tag: str) -> None:
    image = ServedImage("sha256:1", (tag,), (), 1)
    assert len(describe.familiar(tag)) == 2
    assert remote.fits(image, name) in (True, False)
    assert remote.is_tagged(image, name) in (True, False)
    assert remote.names(image) == remote.names_meant(image, name) == (tag,)


def test_an_image_that_was_asked_for_by_a_tag_is_shown_under_that_one() -> None:
    tags = ("docker.io/library/a:1", "docker.io/library/b:2")
    image = ServedImage("sha256:1234abcd", tags, (), 1)
    assert remote.names_meant(image, "b:2") == tags[1:]
    assert remote.names_meant(image, f"b@sha256:{'0' * 64}") == tags[1:]
    assert remote.names_meant(image, f"c@sha256:{'0' * 64}") == tags
    assert remote.names_meant(image, "1234abcd") == remote.names_meant(image, "") == tags
