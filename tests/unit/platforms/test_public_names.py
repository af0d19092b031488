"""The package's face: curated, sorted, complete."""

from __future__ import annotations

from imagestore import platforms


def test_public_names_are_sorted_and_exist() -> None:
    assert dir(platforms) == sorted(platforms.__all__)
    assert all(hasattr(platforms, name) for name in dir(platforms))


def test_platform_is_a_value() -> None:
    platform = platforms.Platform("linux", "amd64")
    assert platform == platforms.Platform(os="linux", architecture="amd64", variant="", os_version="", os_features=())
    assert len({platform, platforms.Platform("linux", "amd64")}) == 1
