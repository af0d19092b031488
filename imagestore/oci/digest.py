"""Digests: the identity of content.

A digest is ``algorithm:encoded`` (OCI image-spec 1.1, descriptor.md "Digests"). Any well-formed digest parses, since an
index may name content under an algorithm we don't know; only sha256, sha384 and sha512 can be verified, and nothing
unverified enters the store. A digest becomes a path, so it is matched whole and by ASCII rules.
"""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from imagestore.errors import DigestMismatchError, InvalidDigestError, SizeMismatchError
from imagestore.oci.grammar import DIGEST

if TYPE_CHECKING:
    from typing import Self

#: Hex length of the algorithms that can be verified.
VERIFIABLE: Final = {"sha256": 64, "sha384": 96, "sha512": 128}
#: Registered algorithms whose form is known; blake3 is known but can't be verified here.
_HEX_LENGTHS: Final = {**VERIFIABLE, "blake3": 64}
_HEX_DIGITS: Final = "0123456789abcdef"
# Longer than any registered digest, short enough for a file name.
_MAX_LENGTH: Final = 255


@functools.total_ordering
@dataclass(frozen=True, slots=True)
class Digest:
    """Algorithm and encoded hash of some bytes.

    >>> digest = Digest.parse("sha256:" + "0" * 64)
    >>> digest.algorithm, digest.is_verifiable
    ('sha256', True)
    """

    algorithm: str
    encoded: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``algorithm:encoded``.

        Raises:
            InvalidDigestError: the text breaks the grammar, or its algorithm's length or alphabet.
        """
        if _is_usual(text):
            return cls("sha256", text[7:])
        if len(text) > _MAX_LENGTH:
            raise InvalidDigestError(f"digest {text[:32]!r}...: longer than {_MAX_LENGTH} characters")
        found = DIGEST.fullmatch(text)
        if found is None:
            raise InvalidDigestError(f"digest {text!r}: expected algorithm:encoded, for example sha256:<64 hex digits>")
        algorithm, encoded = found.groups()
        length = _HEX_LENGTHS.get(algorithm)
        if length is not None and (len(encoded) != length or encoded.lstrip(_HEX_DIGITS)):
            raise InvalidDigestError(f"digest {text!r}: {algorithm} needs {length} lower-case hex digits")
        return cls(algorithm, encoded)

    @classmethod
    def of(cls, data: bytes | memoryview, algorithm: str = "sha256") -> Self:
        """Hash bytes.

        >>> str(Digest.of(b""))[:20]
        'sha256:e3b0c44298fc1'
        """
        digester = new_hash(algorithm)
        digester.update(data)
        return cls(algorithm, digester.hexdigest())

    @property
    def is_verifiable(self) -> bool:
        """Whether content under this digest can be checked here."""
        return self.algorithm in VERIFIABLE

    @property
    def short(self) -> str:
        """First twelve characters of the encoded part, for people."""
        return self.encoded[:12]

    def __str__(self) -> str:
        return f"{self.algorithm}:{self.encoded}"

    def __lt__(self, other: Digest) -> bool:
        if not isinstance(other, Digest):
            return NotImplemented
        return (self.algorithm, self.encoded) < (other.algorithm, other.encoded)


def new_hash(algorithm: str) -> hashlib._Hash:
    """An empty hash object of a verifiable algorithm.

    Raises:
        InvalidDigestError: the algorithm can't be verified here.
    """
    if algorithm not in VERIFIABLE:
        raise InvalidDigestError(
            f"digest algorithm {algorithm!r} can't be verified; known: {', '.join(sorted(VERIFIABLE))}"
        )
    return hashlib.new(algorithm)


class Verifier:
    """Hashes a stream and judges it at the end.

    Args:
        digest: what the bytes must hash to.
        size: how many bytes there must be, or None when unknown.
        what: names the content in errors; the digest by default.

    >>> verifier = Verifier(Digest.of(b"ab"), 2)
    >>> verifier.update(b"a"); verifier.update(b"b"); verifier.finish()
    """

    def __init__(self, digest: Digest, size: int | None = None, *, what: str = "") -> None:
        self.digest = digest
        self.size = size
        self.received = 0
        self._what = what or str(digest)
        self._hash = new_hash(digest.algorithm)

    def update(self, chunk: bytes | bytearray | memoryview) -> None:
        """Take the next bytes.

        Raises:
            SizeMismatchError: more bytes than announced have come.
        """
        self.received += len(chunk)
        if self.size is not None and self.received > self.size:
            raise SizeMismatchError(self._what, expected=self.size, actual=self.received)
        self._hash.update(chunk)

    def finish(self) -> None:
        """Judge what came.

        Raises:
            SizeMismatchError: fewer bytes than announced.
            DigestMismatchError: other bytes than announced.
        """
        if self.size is not None and self.received != self.size:
            raise SizeMismatchError(self._what, expected=self.size, actual=self.received)
        actual = self._hash.hexdigest()
        if actual != self.digest.encoded:
            raise DigestMismatchError(self._what, expected=str(self.digest), actual=f"{self.digest.algorithm}:{actual}")


def verify(data: bytes, digest: Digest, size: int | None = None, *, what: str = "") -> None:
    """Check whole bytes against digest and size.

    Raises:
        SizeMismatchError: wrong length.
        DigestMismatchError: wrong content.
    """
    if size is not None and len(data) != size:
        raise SizeMismatchError(what or str(digest), expected=size, actual=len(data))
    verifier = Verifier(digest, what=what)
    verifier.update(data)
    verifier.finish()


def as_written(text: str) -> Digest:
    """A digest from a text that was made from one; parsing half a million again would take a second."""
    algorithm, _, encoded = text.partition(":")
    return Digest(algorithm, encoded)


def check(text: str) -> None:
    """Check a text as Digest.parse() does; for many texts, of which no digests are made.

    Raises:
        InvalidDigestError: as parse().
    """
    if not _is_usual(text):
        Digest.parse(text)


def _is_usual(text: str) -> bool:
    """Whether it is a sha256 digest, as nearly all are. Only for others a command loads the regular expressions."""
    return len(text) == 71 and text.startswith("sha256:") and not text[7:].lstrip(_HEX_DIGITS)
