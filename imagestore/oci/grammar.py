"""The grammar of images' names (distribution-spec, "Pulling manifests") and of digests (image-spec, descriptor.md)."""

from __future__ import annotations

import re
from typing import Final

#: The path alone, as the distribution project caps it.
MAX_PATH: Final = 255
#: A part of a host's name.
LABEL: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?")
#: A part of a path.
COMPONENT: Final = re.compile(r"[a-z0-9]+(?:(?:\.|__?|-+)[a-z0-9]+)*")
PATH: Final = re.compile(rf"(?=.{{1,{MAX_PATH}}}\Z){COMPONENT.pattern}(?:/{COMPONENT.pattern})*")
TAG: Final = re.compile(r"[a-zA-Z0-9_][a-zA-Z0-9_.-]{0,127}")
#: An image id, which is no name.
IMAGE_ID: Final = re.compile("[a-f0-9]{64}")
#: Algorithm and encoded hash.
DIGEST: Final = re.compile(r"([a-z0-9]+(?:[+._-][a-z0-9]+)*):([a-zA-Z0-9=_-]+)")


def looks_like_host(first: str) -> bool:
    """Whether the first part of a name, before a slash, is a host: no repository path has these marks."""
    return "." in first or ":" in first or first == "localhost" or first != first.lower()
