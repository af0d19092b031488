"""Ranges of versions of skopeo's files, as Masterminds/semver 3.4 answers them."""

from __future__ import annotations

import pytest

from imagestore.store.copy.version_ranges import version_range

TAGS = (
    *(
        "0.0.3",
        "0.2.3",
        "0.9.0",
        "1.0.0",
        "v1.2",
        "1.2.3",
        "1.2.9",
        "1.10.0",
        "2.0.0-rc1",
        "2.0.0-rc.2",
        "2.0.0",
        "2.1.0",
    ),
    *("latest", "1.2.3-01.", "1.2.3-a..b", "1.2.3.4", "", "v", "99999999999999999999.0.0"),
)


@pytest.mark.parametrize(
    ("text", "fitting"),
    [
        ("^0", "0.0.3 0.2.3 0.9.0"),
        ("^0.0", "0.0.3"),
        ("^0.0.3", "0.0.3"),
        ("^0.2", "0.2.3"),
        ("^1", "1.0.0 v1.2 1.2.3 1.2.9 1.10.0"),
        ("^v1.2.3", "1.2.3 1.2.9 1.10.0"),
        ("~1", "1.0.0 v1.2 1.2.3 1.2.9 1.10.0"),
        ("~>1.2", "v1.2 1.2.3 1.2.9"),
        ("~1.2.3", "1.2.3 1.2.9"),
        ("1.2.x", "v1.2 1.2.3 1.2.9"),
        ("1.X", "1.0.0 v1.2 1.2.3 1.2.9 1.10.0"),
        ("=1.2", "v1.2 1.2.3 1.2.9"),
        ("!=1.x >=1", "2.0.0 2.1.0"),
        ("> 1", "2.0.0 2.1.0"),
        ("=>2", "2.0.0 2.1.0"),
        ("=<0.2", "0.0.3 0.2.3"),
        ("<= 0.2.3", "0.0.3 0.2.3"),
        ("<0.2-0", "0.0.3"),
        ("x", "0.0.3 0.2.3 0.9.0 1.0.0 v1.2 1.2.3 1.2.9 1.10.0 2.0.0 2.1.0"),
        ("1.2 - 1.2.5", "v1.2 1.2.3"),
        ("1.2.4 - 1 || 2.1", "1.2.9 1.10.0 2.1.0"),
        (">=2.0.0-rc1", "2.0.0-rc1 2.0.0 2.1.0"),
        (">=2.0.0-rc.3, <2.1", "2.0.0-rc1 2.0.0"),
        (">=1.3.0-0 <2", "1.10.0 2.0.0-rc1 2.0.0-rc.2"),
        (">=5.0.0-0 || >=2", "2.0.0 2.1.0"),
    ],
)
def test_tags_fit_as_in_skopeo(text: str, fitting: str) -> None:
    fits = version_range(text)
    assert [tag for tag in TAGS if fits(tag)] == fitting.split()


@pytest.mark.parametrize("text", ["", "||", "about 2", ">=", "1.2.3.4", "1..2", "^", "1.2 -", "latest", ">>1", "1 || "])
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="range"):
        version_range(text)
