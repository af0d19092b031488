"""The package's face: curated, sorted, complete."""

from __future__ import annotations

from imagestore import platforms


def test_platform_is_a_value() -> None:
    platform = platforms.Platform("linux", "amd64")
    assert platform == platforms.Platform(os="linux", architecture="amd64", variant="", os_version="", os_features=())
    assert len({platform, platforms.Platform("linux", "amd64")}) == 1
