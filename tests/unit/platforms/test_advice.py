"""What people are told to change when nothing fits."""

from __future__ import annotations

import pytest

from imagestore.platforms import Platform, any_of, default_for, everything, ordered, parse
from imagestore.platforms.advice import advise


@pytest.mark.parametrize(
    ("wanted", "offered", "advice"),
    [
        (
            "windows(10.0.20348)/amd64",
            [
                "windows(10.0.14393.1)/amd64",
                "windows(10.0.17763.1)/amd64",
                "windows(10.0.26100.1)/amd64",
                "linux/amd64",
            ],
            (
                "build 17763 (ltsc2019) can run here under Hyper-V isolation: give the runtime handler a "
                'guest_platform with OSVersion = "10.0.17763"'
            ),
        ),
        (
            "windows(10.0.17763)/amd64",
            ["windows(10.0.26100.1)/amd64", "windows(10.0.20348.1)/amd64"],
            (
                "the image has only newer builds, from 20348 (ltsc2022) on: use an image for build 17763 (ltsc2019), "
                "or a node (and guest_platform) of build 20348 (ltsc2022) or newer"
            ),
        ),
        (
            "windows(10.0.17763)/amd64",
            ["windows(6.3.9600)/amd64"],
            "none of the image's os.version values can be compared; ask its publisher to mend the index",
        ),
        (
            "windows(10.0.17763)/amd64",
            ["windows(10.0.x)/amd64", "linux/amd64"],
            "the image's os.version '10.0.x' can't be read; ask its publisher to mend the index",
        ),
        (
            "linux(+a)/amd64",
            ["linux(+a+b+c)/amd64", "linux(+b)/amd64", "linux/s390x"],
            'if the sandbox provides "b", say so in OSFeatures of the runtime handler\'s guest_platform',
        ),
        (
            "linux/amd64",
            ["linux/amd64/v3", "linux/arm64"],
            (
                "the image needs linux/amd64/v3: where the processor has it, name that platform for the pull or as "
                "the runtime handler's platform, instead of linux/amd64"
            ),
        ),
        (
            "linux/arm64/unknown",
            ["linux/arm64"],
            "name the platform without the unknown variant: linux/arm64",
        ),
        (
            "linux/riscv64",
            ["linux/amd64", "linux/x86_64", "linux/arm64", "windows/amd64"],
            (
                "the image has no entry for riscv64 on linux, only for amd64, arm64: a runtime handler that emulates "
                "one of them must declare it as its platform"
            ),
        ),
        (
            "linux/amd64",
            ["windows(10.0.17763)/amd64", "Windows/amd64"],
            "the image is for windows: use a runtime handler whose platform is that, or an image for linux",
        ),
        ("linux/amd64", [], ""),
        ("linux/amd64", ["linux/amd64"], ""),
    ],
)
def test_advice_follows_the_closest_entry(wanted: str, offered: list[str], advice: str) -> None:
    assert advise([parse(text) for text in offered], default_for(parse(wanted))) == advice


def test_advice_counts_from_the_wanted_windows_platform_that_names_a_build() -> None:
    matcher = ordered(parse("windows/arm64"), parse("windows(10.0.20348)/amd64"))
    assert advise([parse("windows(10.0.17763)/amd64")], matcher).startswith("build 17763 (ltsc2019) can run here")


def test_no_advice_where_nothing_is_wanted_or_all_is() -> None:
    assert advise([Platform("linux", "amd64")], any_of()) == ""
    assert advise([Platform("linux", "amd64")], everything()) == ""
