"""Every effect by the name that tapes use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from imagestore.testing.faults.bodies import (
    DeepJson,
    Drip,
    DuplicateKeys,
    ExtraBytes,
    Flip,
    GzipCoding,
    HugeManifest,
    LinkLoop,
    Reset,
    SlowFirstByte,
    SlowHead,
    Stall,
    Truncate,
    Unframed,
)
from imagestore.testing.faults.replies import (
    ExpireToken,
    ForeignRealm,
    IgnoreRange,
    Redirect,
    Refuse,
    RefuseRange,
    SetHeader,
    ShortRange,
    WrongDigest,
    WrongLength,
    WrongRange,
)

if TYPE_CHECKING:
    from imagestore.testing.faults.effect import Effect

_ALL: Final[tuple[type[Effect], ...]] = (
    Refuse,
    ExpireToken,
    ForeignRealm,
    WrongLength,
    WrongDigest,
    SetHeader,
    IgnoreRange,
    WrongRange,
    ShortRange,
    RefuseRange,
    Flip,
    ExtraBytes,
    GzipCoding,
    HugeManifest,
    DeepJson,
    DuplicateKeys,
    LinkLoop,
    SlowHead,
    SlowFirstByte,
    Drip,
    Stall,
    Reset,
    Truncate,
    Unframed,
    Redirect,
)
EFFECTS: Final[dict[str, type[Effect]]] = {effect.name: effect for effect in _ALL}
