"""Which version of the Docker Engine API is spoken.

Rule: the unversioned ``GET /_ping`` tells the engine's newest in the header ``Api-Version``; the smaller of that and
ours is used as the prefix of every path. Versions are compared as numbers.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from imagestore.errors import ImageServiceError

_FORM: Final = re.compile(r"([0-9]{1,4})\.([0-9]{1,4})")


class ApiVersion(NamedTuple):
    """Major and minor number.

    >>> ApiVersion(1, 9) < ApiVersion(1, 41)
    True
    """

    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


#: The newest we know.
NEWEST: Final = ApiVersion(1, 56)
#: Pulling for a platform came with it; engines since 2017 have it.
OLDEST: Final = ApiVersion(1, 32)


def negotiate(told: str | None) -> ApiVersion:
    """The version to speak.

    Args:
        told: the engine's ``Api-Version``.

    Raises:
        ImageServiceError: it tells none, or one that is too old.
    """
    found = _FORM.fullmatch(told or "")
    if found is None:
        raise ImageServiceError("docker engine: /_ping told no API version", hint="is something else on this socket?")
    version = ApiVersion(int(found[1]), int(found[2]))
    if version < OLDEST:
        raise ImageServiceError(f"docker engine: API version {version}: expected {OLDEST} or newer")
    return min(version, NEWEST)
