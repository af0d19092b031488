"""What packages offer under names that load when used: each is there, and no other name is taken for one."""

from __future__ import annotations

from types import ModuleType

import pytest

import imagestore
from imagestore import config, platforms, testing
from imagestore.node import gc

PACKAGES = [imagestore, config, platforms, testing, gc]


@pytest.mark.parametrize("package", PACKAGES, ids=[each.__name__ for each in PACKAGES])
def test_every_public_name_is_there(package: ModuleType) -> None:
    assert sorted(package.__all__) == dir(package)
    for name in package.__all__:
        assert getattr(package, name) is not None


def test_a_misspelled_name_is_an_error_to_a_type_checker_too() -> None:
    """`make types` refuses the comments below where a package takes any name."""
    with pytest.raises(AttributeError, match="no attribute 'CancelTokn'"):
        _ = imagestore.CancelTokn  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="no attribute 'lod'"):
        _ = config.lod  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="no attribute 'prse'"):
        _ = platforms.prse  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="no attribute 'bild_image'"):
        _ = testing.bild_image  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="no attribute 'ImageColector'"):
        _ = gc.ImageColector  # type: ignore[attr-defined]
