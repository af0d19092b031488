"""Faults on demand: where x what x how often.

    from imagestore.testing.faults import FaultRule, Reset, Where

    FaultRule(Reset(at=1000), Where(kind="blob"), times=2)     # the first two blobs break off after 1000 bytes

Rules go to ``RegistryServer(..., faults=[...])``, to ``replay(..., faults=[...])`` or into a tape. ``chaos(seed)``
mixes recoverable ones.
"""

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
    Reset,
    SlowFirstByte,
    SlowHead,
    Stall,
    Truncate,
    Unframed,
)
from imagestore.testing.faults.chaos import chaos
from imagestore.testing.faults.replies import (
    CutUpload,
    ExpireToken,
    ForeignRealm,
    IgnoreRange,
    LinkLoop,
    Redirect,
    Refuse,
    RefuseRange,
    SetHeader,
    SetStatus,
    ShortRange,
    WrongDigest,
    WrongLength,
    WrongRange,
)
from imagestore.testing.faults.rules import Effect, FaultPlan, FaultRule, Where

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "EFFECTS",
    "CutUpload",
    "DeepJson",
    "Drip",
    "DuplicateKeys",
    "Effect",
    "ExpireToken",
    "ExtraBytes",
    "FaultPlan",
    "FaultRule",
    "Flip",
    "ForeignRealm",
    "GzipCoding",
    "HugeManifest",
    "IgnoreRange",
    "LinkLoop",
    "Redirect",
    "Refuse",
    "RefuseRange",
    "Reset",
    "SetHeader",
    "SetStatus",
    "ShortRange",
    "SlowFirstByte",
    "SlowHead",
    "Stall",
    "Truncate",
    "Unframed",
    "Where",
    "WrongDigest",
    "WrongLength",
    "WrongRange",
    "chaos",
]

#: Every effect by the name that tapes use.
EFFECTS: Final[Mapping[str, type[Effect]]] = {
    one.name: one
    for one in list(vars().values())
    if isinstance(one, type) and issubclass(one, Effect) and one is not Effect
}
