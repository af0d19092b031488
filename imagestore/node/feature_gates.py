"""Kubernetes feature gates that affect images on a node.

Rules: KEP-4216 (``RuntimeClassInImageCriApi``: alpha since 1.29, off), KEP-2535 (``KubeletEnsureSecretPulledImages``:
on since 1.35) and KEP-4210 (``ImageMaximumGCAge``: on since 1.30, generally available since 1.35).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from imagestore.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

RUNTIME_CLASS_IN_IMAGE_CRI_API: Final = "RuntimeClassInImageCriApi"
ENSURE_SECRET_PULLED_IMAGES: Final = "KubeletEnsureSecretPulledImages"  # noqa: S105 - the name of a gate
IMAGE_MAXIMUM_GC_AGE: Final = "ImageMaximumGCAge"
_NAMES: Final = {
    name.lower(): name for name in (RUNTIME_CLASS_IN_IMAGE_CRI_API, ENSURE_SECRET_PULLED_IMAGES, IMAGE_MAXIMUM_GC_AGE)
}
#: All alpha, or all beta features, except those that are named.
_ALL_ALPHA: Final = "AllAlpha"
_ALL_BETA: Final = "AllBeta"


@dataclass(frozen=True, slots=True)
class FeatureGates:
    """The values of the gates.

    Attributes:
        runtime_class_in_image_cri: images are identified by (image, runtime handler). If off, handlers are never sent,
            and those that a service lists are ignored.
        ensure_secret_pulled_images: a present image is only used by pods whose credentials may pull it.
        image_maximum_gc_age: images may be removed for their age alone.
        given: the values they were read from.
    """

    runtime_class_in_image_cri: bool = False
    ensure_secret_pulled_images: bool = True
    image_maximum_gc_age: bool = True
    given: Mapping[str, object] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def parse(cls, values: Mapping[str, object]) -> Self:
        """From ``featureGates`` of a configuration; other gates are ignored.

        Raises:
            ConfigError: a value is no boolean, or a name differs from one of these only in case.
        """
        for name, value in values.items():
            known = _NAMES.get(name.lower(), name)
            if known != name:
                raise ConfigError(f"feature gate {name}: unknown name", hint=f"write {known}")
            if not isinstance(value, bool):
                raise ConfigError(f"feature gate {name}: expected true or false, found {str(value)[:50]!r}")
        all_alpha, all_beta = values.get(_ALL_ALPHA) is True, values.get(_ALL_BETA) is not False
        return cls(
            values.get(RUNTIME_CLASS_IN_IMAGE_CRI_API, all_alpha) is True,
            values.get(ENSURE_SECRET_PULLED_IMAGES, all_beta) is True,
            values.get(IMAGE_MAXIMUM_GC_AGE) is not False,
            dict(values),
        )

    def overridden(self, values: Mapping[str, object]) -> Self:
        """These with some values replaced, as the kubelet's command line overrides its file."""
        return self.parse({**self.given, **values})
