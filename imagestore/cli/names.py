"""Names of images as short as people write them."""

from __future__ import annotations

from typing import Final

_HUB: Final = "docker.io/"
_OFFICIAL: Final = "library/"
# A name of this length might be an image id, which has a long form only.
_ID_LENGTH: Final = 64


def familiar(reference: str) -> tuple[str, str]:
    """Name and tag (or shortened digest) of a canonical reference, as Docker's tools show it.

    >>> familiar("docker.io/library/python:3")
    ('python', '3')
    """
    name, colon, tag = reference.rpartition(":")
    if colon and "/" not in tag and "@" not in name:
        short = _short(name)
        if short:
            return short, tag
    # What isn't plain is judged by the whole grammar, which takes several times as long.
    from imagestore.oci.reference import Reference

    parsed = Reference.parse(reference)
    tag = parsed.tag or "<none>"
    return parsed.familiar_name, tag if parsed.digest is None else f"{tag}@{parsed.digest.short}"


def _short(name: str) -> str:
    """The short form where it is plain; empty where it needs thought."""
    if not name.startswith(_HUB):
        return name
    path = name[len(_HUB) :]
    first, _, rest = path.partition("/")
    if first == _OFFICIAL[:-1] and "/" not in rest:
        return rest if len(rest) != _ID_LENGTH else ""
    return path if rest and "." not in first and ":" not in first and first != "localhost" else ""
