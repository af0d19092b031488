"""Digests: grammar, hashing, verification."""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Callable
from typing import NoReturn

import pytest

from imagestore import Digest
from imagestore.errors import DigestMismatchError, InvalidDigestError, SizeMismatchError
from imagestore.oci.digest import Verifier, verify

SHA256 = "sha256:" + "a" * 64
SHA512 = "sha512:" + "b" * 128


@pytest.mark.parametrize("text", [SHA256, SHA512, "blake3:" + "0" * 64, "unknown+b64:abc_-=", "md5:ABCDEF"])
def test_well_formed_digests_parse_and_print_as_they_were(text: str) -> None:
    assert str(Digest.parse(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":",
        "sha256:",
        "sha256",
        "sha256:" + "A" * 64,
        "sha256:" + "a" * 63,
        SHA256 + "\n",
        "SHA256:" + "a" * 64,
        "sha256:" + "\u0660" * 64,
        "sha256:../../etc/passwd",
        "sha512:" + "a" * 64,
        "x:" + "a" * 300,
    ],
)
def test_malformed_digests_are_refused(text: str) -> None:
    with pytest.raises(InvalidDigestError):
        Digest.parse(text)


@pytest.mark.parametrize(("algorithm", "verifiable"), [("sha256", True), ("sha512", True), ("sha384", True)])
def test_digest_of_bytes_agrees_with_the_standard_library(algorithm: str, verifiable: bool) -> None:
    digest = Digest.of(b"hello", algorithm)
    assert digest.encoded == hashlib.new(algorithm, b"hello").hexdigest()
    assert digest.is_verifiable is verifiable


def test_where_openssl_refuses_python_s_own_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object, **_named: object) -> NoReturn:
        raise ValueError("unsupported hash type")

    expected = hashlib.sha256(b"x").hexdigest()
    monkeypatch.setattr("_hashlib.new", refuse)
    assert Digest.of(b"x").encoded == expected


def test_content_under_an_unknown_algorithm_is_never_verified() -> None:
    with pytest.raises(InvalidDigestError, match="can't be verified"):
        Verifier(Digest.parse("blake3:" + "0" * 64))


def test_verifier_accepts_the_announced_bytes_in_any_chunks() -> None:
    verifier = Verifier(Digest.of(b"abcdef"), 6)
    for chunk in (b"ab", b"", memoryview(b"cdef")):
        verifier.update(chunk)
    verifier.finish()


def test_verifier_stops_at_the_first_byte_too_many() -> None:
    verifier = Verifier(Digest.of(b"ab"), 2)
    with pytest.raises(SizeMismatchError, match="longer"):
        verifier.update(b"abc")


def test_verifier_names_a_short_content_truncated_before_it_looks_at_the_hash() -> None:
    verifier = Verifier(Digest.of(b"abc"), 3)
    verifier.update(b"ab")
    with pytest.raises(SizeMismatchError) as caught:
        verifier.finish()
    assert (caught.value.expected, caught.value.actual) == (3, 2)


def test_verify_refuses_other_bytes_of_the_right_size() -> None:
    with pytest.raises(DigestMismatchError) as caught:
        verify(b"abd", Digest.of(b"abc"), 3, what="layer")
    assert caught.value.actual == str(Digest.of(b"abd"))


def test_digests_sort_by_algorithm_then_hex() -> None:
    low, high, other = Digest("sha256", "0" * 64), Digest("sha256", "f" * 64), Digest("sha512", "0" * 128)
    assert sorted([other, high, low]) == [low, high, other]


@pytest.mark.parametrize("other", ["sha256:" + "0" * 64, None, 1, ("sha256", "0")])
@pytest.mark.parametrize("compare", [operator.lt, operator.le, operator.gt, operator.ge])
def test_digests_have_no_order_with_other_values(compare: Callable[[object, object], bool], other: object) -> None:
    digest = Digest.of(b"")
    with pytest.raises(TypeError, match="not supported between instances"):
        compare(digest, other)
    with pytest.raises(TypeError, match="not supported between instances"):
        compare(other, digest)
    assert digest != other
