"""Laws of references and digests."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from imagestore import Digest, Reference
from imagestore.errors import ImageStoreError, InvalidDigestError, InvalidReferenceError
from imagestore.node.image_names import name_fault
from imagestore.oci.digest import VERIFIABLE

component = st.from_regex(r"[a-z0-9]{1,8}([._]|__|-{1,3})?[a-z0-9]{1,8}", fullmatch=True)
host = st.sampled_from(["docker.io", "localhost", "localhost:5000", "registry.example:443", "[::1]:80", "10.0.0.1"])
tag = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,20}", fullmatch=True)
digest = st.sampled_from(sorted(VERIFIABLE)).flatmap(
    lambda algorithm: st.binary(max_size=8).map(lambda data: Digest.of(data, algorithm))
)


@st.composite
def references(draw: st.DrawFn) -> Reference:
    chosen = draw(host)
    parts = draw(st.lists(component, min_size=1, max_size=4))
    path = "/".join(parts)
    if chosen == "docker.io" and "/" not in path:
        path = f"library/{path}"
    pinned = draw(st.none() | digest)
    return Reference(chosen, path, draw(tag if pinned is None else st.just("") | tag), pinned)


@given(references())
def test_canonical_and_familiar_forms_lead_back(reference: Reference) -> None:
    assert Reference.parse(str(reference)) == reference
    assert Reference.parse(reference.familiar) == reference


@given(references())
def test_parsing_is_idempotent(reference: Reference) -> None:
    once = str(Reference.parse(reference.familiar))
    assert str(Reference.parse(once)) == once


@given(st.text(max_size=60) | st.text("abAB./:", max_size=8) | st.text("ab./:@[]-_A0 \n%", max_size=40))
def test_any_text_is_parsed_or_refused_with_a_position_inside_it(text: str) -> None:
    try:
        parsed = Reference.parse(text)
    except InvalidReferenceError as error:
        assert 0 <= error.position <= len(text)
    else:
        assert text.isascii()
        assert Reference.parse(str(parsed)) == parsed


#: The distribution project's grammar of what is written without a host, as expressions say it.
PATH = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
NAMED = re.compile(rf"(?P<path>{PATH}(?:/{PATH})*)(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9._-]{{0,127}}))?")
LABEL = r"[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?"
HOST = re.compile(rf"{LABEL}(?:\.{LABEL})*(?::[0-9]{{1,5}})?")


@given(st.text("ab0._-", max_size=8), st.text("aZ9_.-", max_size=6) | st.text("a.", min_size=126, max_size=130))
def test_paths_and_tags_are_those_of_the_grammar(path: str, tag: str) -> None:
    # A host in front, so that the path isn't taken for one.
    text = f"{path}:{tag}" if tag else path
    found = NAMED.fullmatch(text)
    try:
        parsed = Reference.parse(f"registry.example/{text}")
    except InvalidReferenceError:
        assert found is None
    else:
        assert found is not None
        assert (parsed.path, parsed.tag) == (found["path"], found["tag"] or "latest")


# With a dot in front of it nothing is taken for a path.
@given(st.text("aB0-.:", max_size=10).map(lambda text: f"r.{text}"))
def test_hosts_are_those_of_the_grammar(host: str) -> None:
    port = host.partition(":")[2]
    is_host = HOST.fullmatch(host) is not None and (not port or 0 < int(port) < 65536)
    try:
        parsed = Reference.parse(f"{host}/a")
    except InvalidReferenceError:
        assert not is_host
    else:
        assert is_host
        assert parsed.host == host.lower()


@given(st.text(max_size=90) | st.from_regex(r"[a-z0-9+.]{1,8}:[a-zA-Z0-9=_-]{1,70}"))
def test_any_text_is_a_digest_or_refused(text: str) -> None:
    try:
        parsed = Digest.parse(text)
    except InvalidDigestError as error:
        assert isinstance(error, ImageStoreError)
    else:
        assert str(parsed) == text
        assert "/" not in parsed.encoded
        assert not parsed.is_verifiable or len(parsed.encoded) == VERIFIABLE[parsed.algorithm]


WRITTEN_HOSTS = st.one_of(
    host,
    st.from_regex(r"\[[0-9a-f:.]{1,12}\](:[0-9]{1,6})?", fullmatch=True),
    st.from_regex(r"[a-zA-Z0-9.-]{1,12}(:[0-9]{1,6})?", fullmatch=True),
    st.ip_addresses(v=6).map(lambda address: f"[{address}]:5000"),
    st.ip_addresses(v=6).map(lambda address: f"[{address.exploded}]"),
)


@given(WRITTEN_HOSTS, st.integers(250, 258))
def test_the_kubelets_names_have_the_same_hosts_and_lengths(written: str, length: int) -> None:
    text = f"{written}/b/{'a' * (length - 2)}:1"
    try:
        Reference.parse(text)
    except InvalidReferenceError:
        assert name_fault(text)
    else:
        assert not name_fault(text)
