"""Every effect by the name that tapes use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from imagestore.testing.faults import answering, content, delivery, redirecting

if TYPE_CHECKING:
    from imagestore.testing.faults.effect import Effect

_ALL: Final[tuple[type[Effect], ...]] = (
    answering.Refuse,
    answering.ExpireToken,
    answering.ForeignRealm,
    answering.WrongLength,
    answering.WrongDigest,
    answering.SetHeader,
    answering.IgnoreRange,
    answering.WrongRange,
    answering.ShortRange,
    answering.RefuseRange,
    content.Flip,
    content.ExtraBytes,
    content.GzipCoding,
    content.HugeManifest,
    content.DeepJson,
    content.DuplicateKeys,
    content.LinkLoop,
    delivery.SlowHead,
    delivery.SlowFirstByte,
    delivery.Drip,
    delivery.Stall,
    delivery.Reset,
    delivery.Truncate,
    delivery.Unframed,
    redirecting.Redirect,
)
EFFECTS: Final[dict[str, type[Effect]]] = {effect.name: effect for effect in _ALL}
