"""How one document refers to another: by its ``subject`` (OCI image-spec 1.1, manifest.md), and the tag under which a
place without the referrers API lists who does (distribution-spec 1.1, "Referrers Tag Schema").
"""

from __future__ import annotations

import re
from typing import Final

from imagestore.errors import InvalidDigestError
from imagestore.oci.decode import decode
from imagestore.oci.digest import Digest

#: Characters of a digest's value that its tag has.
TAG_DIGITS: Final = 64
_ALGORITHM_LETTERS: Final = 32
_NOT_IN_TAGS: Final = re.compile(r"[^a-zA-Z0-9._-]")


def fallback_tag(digest: Digest) -> str:
    """The tag that stands for the referrers API where that is missing.

    >>> from imagestore.oci.digest import Digest
    >>> fallback_tag(Digest.of(b""))[:16]
    'sha256-e3b0c4429'
    """
    parts = digest.algorithm[:_ALGORITHM_LETTERS], digest.encoded[:TAG_DIGITS]
    return "-".join(_NOT_IN_TAGS.sub("-", part) for part in parts)


def subject_of(raw: bytes, what: str) -> Digest | None:
    """The digest of a manifest's or an index's ``subject``; None if there is none that can be read.

    Raises:
        DocumentError: it is no JSON object.
    """
    subject = decode(raw, what).get("subject")
    if not isinstance(subject, dict):
        return None
    try:
        return Digest.parse(str(subject.get("digest", "")))
    except InvalidDigestError:
        return None
