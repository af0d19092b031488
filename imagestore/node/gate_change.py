"""Turning RuntimeClassInImageCriApi on or off on a node that has images.

Rule (KEP-4216, upgrade and downgrade): after a change, delete the workload, prune the images and start the pods again.
Otherwise a node agent doesn't know the handlers of images that were pulled without one, or can't tell images apart that
were pulled with one. A marker file in the agent's state records the value under which images were pulled.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import imagestore.node.state_file as state_file
from imagestore.errors import StoreFullError
from imagestore.node.eviction import Spared
from imagestore.node.feature_gates import RUNTIME_CLASS_IN_IMAGE_CRI_API
from imagestore.util.durations import Duration

if TYPE_CHECKING:
    from pathlib import Path

    from imagestore.node.eviction import CollectionReport
    from imagestore.node.feature_gates import FeatureGates
    from imagestore.node.image_gc import ImageCollector
    from imagestore.node.image_uses import ImageUse

_FILE: Final = "image-handler-gate.json"
_WHAT: Final = "the value of a feature gate"
_MAX_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class GateChange:
    """The gate's value, ``is_on``, differs from the one under which images were pulled."""

    is_on: bool

    def steps(self, clean_up: str = "imagestore node gc --after-gate-change") -> tuple[str, ...]:
        """What to do, in order; ``clean_up`` is the command that cleans up the affected service."""
        what = (
            "images that are present came without a runtime handler; which class they are for is not known"
            if self.is_on
            else "images that came for several runtime handlers can't be told apart any more"
        )
        return (
            f"{RUNTIME_CLASS_IN_IMAGE_CRI_API} went {'from off to on' if self.is_on else 'from on to off'}: {what}",
            "drain the node or delete the pods whose images are listed as in use",
            f"run this until it says that nothing is left: {clean_up}",
            "start the pods again; their images are pulled anew",
        )


class GateMarker:
    """The file that records the gate's value, in the agent's state folder.

    Every method raises StoreCorruptError if the file is damaged, StoreError if it can't be read or written.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / _FILE

    @property
    def is_recorded(self) -> bool:
        """Whether a value was recorded."""
        return self._read() is not None

    def check(self, gates: FeatureGates, *, dry_run: bool = False) -> GateChange | None:
        """Whether the gate has changed; the first call on a node records its value, except in a dry run."""
        before = self._read()
        now = gates.runtime_class_in_image_cri
        if before is None and not dry_run:
            # Before a collection the disk may be full; the next call records the value.
            with contextlib.suppress(StoreFullError):
                self.note(gates)
        return GateChange(now) if before not in (None, now) else None

    def note(self, gates: FeatureGates) -> None:
        """Write the gate's value."""
        value = {RUNTIME_CLASS_IN_IMAGE_CRI_API: gates.runtime_class_in_image_cri}
        state_file.write(self._path, value, _WHAT)

    def _read(self) -> bool | None:
        value = state_file.read(self._path, _MAX_BYTES, _WHAT)
        if value is None:
            return None
        recorded = value.get(RUNTIME_CLASS_IN_IMAGE_CRI_API)
        if not isinstance(recorded, bool):
            raise state_file.corrupt(self._path, _WHAT)
        return recorded


def clean_up(
    collector: ImageCollector, marker: GateMarker, gates: FeatureGates, *, dry_run: bool = False
) -> tuple[CollectionReport, tuple[ImageUse, ...]]:
    """Remove every unused image, whatever its age; record the gate's value if none is left.

    Args:
        collector: made with the new value of the gate.
        marker: of the node.
        gates: with the new value.
        dry_run: only plan.

    Returns:
        The report, and the remaining images, which keep the change from being complete.

    Raises:
        ImageCollectionError: removals failed.
        ImageStoreError: the service failed.
    """
    report = collector.delete_unused(dry_run=dry_run, minimum_age=Duration(0))
    # Pinned images belong to the node; no pod pulls them for a runtime class.
    left = tuple(image for image, why in report.spared if why not in (Spared.PINNED, Spared.SANDBOX))
    if not left and not dry_run:
        marker.note(gates)
    return report, left
