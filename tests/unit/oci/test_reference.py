"""References: the distribution grammar, Docker Hub's short forms, refusals with a position."""

from __future__ import annotations

import pytest

from imagestore import Digest, Reference
from imagestore.errors import InvalidReferenceError

SHA256 = "sha256:" + "a" * 64
SHA512 = "sha512:" + "b" * 128


@pytest.mark.parametrize(
    ("text", "canonical", "familiar"),
    [
        ("python", "docker.io/library/python:latest", "python:latest"),
        ("python:3.13", "docker.io/library/python:3.13", "python:3.13"),
        ("docker.io/python", "docker.io/library/python:latest", "python:latest"),
        ("index.docker.io/library/python", "docker.io/library/python:latest", "python:latest"),
        ("docker.io/library/python", "docker.io/library/python:latest", "python:latest"),
        ("grafana/loki", "docker.io/grafana/loki:latest", "grafana/loki:latest"),
        ("docker.io/library/a/b", "docker.io/library/a/b:latest", "library/a/b:latest"),
        ("localhost/a", "localhost/a:latest", "localhost/a:latest"),
        ("localhost:5000/a", "localhost:5000/a:latest", "localhost:5000/a:latest"),
        ("Registry.Example/a", "registry.example/a:latest", "registry.example/a:latest"),
        # Without capitals it would be a path on Docker Hub.
        ("Registry/a", "Registry/a:latest", "Registry/a:latest"),
        ("LocalHost/a", "localhost/a:latest", "localhost/a:latest"),
        ("registry.example:443/a/b-c/d__e:T_1.x-y", "registry.example:443/a/b-c/d__e:T_1.x-y", None),
        ("[::1]:5000/a:1", "[::1]:5000/a:1", None),
        ("[2001:db8::1]/a", "[2001:db8::1]/a:latest", None),
        ("127.0.0.1:5000/a", "127.0.0.1:5000/a:latest", None),
        (f"python@{SHA256}", f"docker.io/library/python@{SHA256}", f"python@{SHA256}"),
        (f"python:3@{SHA512}", f"docker.io/library/python:3@{SHA512}", f"python:3@{SHA512}"),
        ("a:" + "t" * 128, "docker.io/library/a:" + "t" * 128, "a:" + "t" * 128),
        ("my.host", "docker.io/library/my.host:latest", "my.host:latest"),
        # As long as an image id, and none.
        ("z" * 64, "docker.io/library/" + "z" * 64 + ":latest", "z" * 64 + ":latest"),
    ],
)
def test_references_are_completed(text: str, canonical: str, familiar: str | None) -> None:
    parsed = Reference.parse(text)
    assert str(parsed) == canonical
    assert parsed.familiar == (familiar or canonical)
    assert Reference.parse(parsed.familiar) == parsed


@pytest.mark.parametrize(
    ("text", "position", "reason"),
    [
        ("", 0, "is empty"),
        ("https://docker.io/python", 5, "no URL scheme"),
        ("Python", 0, "lower case"),
        ("docker.io/Python", 10, "lower case"),
        ("a//b", 2, "component is empty"),
        ("a/", 2, "component is empty"),
        ("/a", 0, "component is empty"),
        ("a/../b", 2, "'.' does not fit"),
        ("a:", 2, "tag after ':' is missing"),
        ("a:-x", 2, "does not fit a tag"),
        ("a:x/y:z", 1, "expected a port"),
        ("a:" + "t" * 129, 130, "longer than 128"),
        ("a b", 1, "not allowed"),
        ("python\n", 6, "not allowed"),
        ("pyth\u00f6n", 4, "not allowed"),
        ("a%2e", 1, "not allowed"),
        ("user:pw@host/a", 0, "no login"),
        ("@sha256:" + "a" * 64, 0, "missing"),
        ("a@sha256:abc", 2, "64 lower-case hex"),
        ("host:0/a", 4, "port"),
        ("host:65536/a", 4, "port"),
        ("[::1/a", 0, "IPv6"),
        ("[12345::]/a", 1, "IPv6"),
        ("[x[::1]/a", 0, "IPv6"),
        ("[::1]x/a", 5, "port"),
        ("[::1]x5000/a", 5, "port"),
        ("[::1].5000/a", 5, "port"),
        ("host:1:2/a", 4, "port"),
        ("[::1]", 5, "repository path must follow"),
        ("-bad.host/a", 0, "host name"),
        ("a" * 64, 0, "image id"),
        ("registry.example/" + "a" * 256, 17, "longer than 255"),
        ("registry.example/a/" + "b" * 254, 17, "longer than 255"),
        ("a" * 248, 0, "longer than 255"),  # which library/ stands before
        ("[2001:db8::192.0.2.33]:5000/a:1", 0, "hexadecimal"),
        ("[::ffff:192.0.2.33]/a:1", 0, "hexadecimal"),
        ("[::1.2]/a:1", 0, "hexadecimal"),
        ("[fe80::1%eth0]/a", 8, "not allowed"),
        ("[1::2::3]/a", 1, "IPv6"),
        ("a__.b", 1, "does not fit"),
    ],
)
def test_bad_references_are_refused_with_reason_and_position(text: str, position: int, reason: str) -> None:
    with pytest.raises(InvalidReferenceError, match=reason) as caught:
        Reference.parse(text)
    assert caught.value.position == position


def test_familiar_form_stays_long_where_the_short_one_means_something_else() -> None:
    for path in ("my.host/image", "localhost/image", "library/" + "a" * 64):
        reference = Reference("docker.io", path, "1")
        assert reference.familiar == f"docker.io/{path}:1"
        assert Reference.parse(reference.familiar) == reference


@pytest.mark.parametrize(
    "text",
    [
        "https://user:hunter2@registry.example/a:1",
        "user:hunter2@registry.example/a:1",
        "user:hunter2@registry.example:5000/a@" + SHA256,
        "user:hun/ter2@registry.example/a",
        "user:x@hunter2@registry.example/a",
        "user:hunter2@registry.example/a b",
        "a,user:hunter2@[::1]:5000/a",
        "//user:hunter2@registry.example/a",
    ],
)
def test_logins_in_what_should_be_a_reference_are_not_repeated(text: str) -> None:
    with pytest.raises(InvalidReferenceError) as caught:
        Reference.parse(text)
    assert "ter2" not in str(caught.value)


@pytest.mark.parametrize("text", ["name:tag@nodigest", "name:tag@sha256:abc", "registry.example:5000/a@sha512:abc"])
def test_what_may_be_a_digest_is_shown(text: str) -> None:
    with pytest.raises(InvalidReferenceError, match=text):
        Reference.parse(text)


def test_with_digest_drops_the_tag() -> None:
    digest = Digest.parse(SHA256)
    assert str(Reference.parse("python:3").with_digest(digest)) == f"docker.io/library/python@{SHA256}"


def test_a_text_of_megabytes_is_looked_at_no_further() -> None:
    longest = f"registry.example/{'a/' * 118}a:{'t' * 128}@sha512:{'0' * 128}"
    assert Reference.parse(longest).tag == "t" * 128
    for text in ("a" * 1025, "[" + ":" * 8_000_000, "@" * 8_000_000):
        with pytest.raises(InvalidReferenceError, match="longer than 1024 characters") as caught:
            Reference.parse(text)
        assert len(str(caught.value)) < 500


@pytest.mark.parametrize("path", ["a" * 255, "a" * 100 + "/" + "b" * 154])
@pytest.mark.parametrize("host", ["a.b", "registry.example:5000", ".".join(["a" * 60] * 4)])
def test_the_limit_of_255_is_for_the_path_without_the_host(host: str, path: str) -> None:
    assert Reference.parse(f"{host}/{path}:1").path == path
