"""Short names on the quick way are those of the whole grammar."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from imagestore import Reference
from imagestore.cli.describe import familiar
from imagestore.errors import InvalidReferenceError

DIGEST = "sha256:" + "a" * 64


def by_grammar(reference: str) -> tuple[str, str]:
    parsed = Reference.parse(reference)
    tag = parsed.tag or "<none>"
    return parsed.familiar_name, tag if parsed.digest is None else f"{tag}@{parsed.digest.short}"


@pytest.mark.parametrize(
    "reference",
    [
        "docker.io/library/python:3",
        "docker.io/library/python/sub:3",
        "docker.io/someone/thing:1",
        "docker.io/localhost/thing:1",
        "docker.io/with.dot/thing:1",
        f"docker.io/library/{'a' * 64}:1",
        f"docker.io/{'a' * 64}/b:1",
        f"docker.io/library/python@{DIGEST}",
        f"docker.io/library/python:3@{DIGEST}",
        "registry.example/a:1",
        "registry.example:5000/a/b/c:1",
        f"registry.example:5000/a@{DIGEST}",
        "localhost/a:1",
        "[::1]:5000/a:1",
    ],
)
def test_short_names_are_those_of_the_grammar(reference: str) -> None:
    assert str(Reference.parse(reference)) == reference, "records have canonical references"
    assert familiar(reference) == by_grammar(reference)


PARTS = st.sampled_from(["a", "library", "localhost", "x.y", "b-c", "a" * 64, "0"])


@given(
    st.sampled_from(["docker.io", "registry.example", "registry.example:5000", "localhost:1"]),
    st.lists(PARTS, min_size=1, max_size=4),
    st.sampled_from([":1", ":latest", f"@{DIGEST}", f":2@{DIGEST}"]),
)
def test_any_canonical_reference_is_shortened_alike(host: str, path: list[str], end: str) -> None:
    try:
        reference = str(Reference.parse(f"{host}/{'/'.join(path)}{end}"))
    except InvalidReferenceError:
        assume(False)
    assert familiar(reference) == by_grammar(reference)
