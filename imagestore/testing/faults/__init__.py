"""Faults on demand: where x what x how often.

    from imagestore.testing.faults import FaultRule, Reset, Where

    FaultRule(Reset(at=1000), Where(kind="blob"), times=2)     # the first two blobs break off after 1000 bytes

Rules go to ``RegistryServer(..., faults=[...])``, to ``replay(..., faults=[...])`` or into a tape. ``chaos(seed)``
mixes recoverable ones.
"""

from __future__ import annotations

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
from imagestore.testing.faults.chaos import Chaos, chaos
from imagestore.testing.faults.effect import Effect
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
from imagestore.testing.faults.rules import FaultPlan, FaultRule, Where

__all__ = [
    "Chaos",
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
