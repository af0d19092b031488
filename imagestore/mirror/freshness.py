"""How old an answer is, as HTTP caches tell it: ``Age`` (RFC 9111, section 5.1), ``Warning`` (RFC 7234, section 5.5).

A replica that gets an answer from another replica passes both on to its clients, so that they see the same freshness
whichever replica they ask.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from collections.abc import Mapping

_STALE: Final = '110 imagestore "Response is Stale"'
_QUOTED: Final = re.compile(r'"(?:[^"\\]|\\.)*"')
#: Of a list of warnings without their texts: one with the code for stale answers.
_IS_STALE: Final = re.compile(r"(?:^|,)\s*110\s")
#: 68 years, the most that RFC 9111 lets a cache state.
_SECONDS: Final = re.compile(r"[0-9]{1,10}")
_MOST_SECONDS: Final = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class Freshness:
    """The freshness of an answer.

    Attributes:
        age_seconds: since the upstream said it; 0 for what can't change, such as a document asked for by digest.
        is_stale: it is older than allowed, and the upstream can't be asked.
    """

    age_seconds: float = 0.0
    is_stale: bool = False

    @classmethod
    def of(cls, headers: Mapping[str, str]) -> Self:
        """What the headers of an answer say; what can't be read says nothing."""
        age = headers.get("Age", "").strip()
        seconds = min(int(age), _MOST_SECONDS) if _SECONDS.fullmatch(age) else 0
        warnings = _QUOTED.sub("", headers.get("Warning", ""))
        return cls(float(seconds), _IS_STALE.search(warnings) is not None)

    def headers(self) -> dict[str, str]:
        """The headers of an answer. The age is rounded up, so that passing an answer on never makes it younger."""
        found = {"Age": str(math.ceil(self.age_seconds))} if self.age_seconds else {}
        return {**found, "Warning": _STALE} if self.is_stale else found


#: Of what the upstream says at the moment, or what can't change.
FRESH: Final = Freshness()
