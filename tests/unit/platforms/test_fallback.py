"""What Only tries, best first: every row of containerd's lists."""

from __future__ import annotations

import pytest

from imagestore.platforms import Platform, format, only  # noqa: A004

_ARM = ["arm/v8", "arm/v7", "arm/v6", "arm/v5"]
_V8 = ["arm64/v8.9", "arm64/v8.8", "arm64/v8.7", "arm64/v8.6", "arm64/v8.5", "arm64/v8.4", "arm64/v8.3"]
_V8 += ["arm64/v8.2", "arm64/v8.1", "arm64"]
_V9 = ["arm64/v9.7", "arm64/v9.6", "arm64/v9.5", "arm64/v9.4", "arm64/v9.3", "arm64/v9.2", "arm64/v9.1", "arm64/v9"]
_OTHERS = ["arm64/v8.10", "arm64/v9.8", "arm64/v10", "arm64/unknown", "arm/v9", "arm/v4", "arm/v3", "arm/unknown"]
_OTHERS += ["amd64", "amd64/v2", "amd64/v3", "amd64/v4", "amd64/v5", "amd64/x", "386", "386/v1", "riscv64", "riscv64/x"]
_OTHERS += ["s390x", "ppc64le", "ppc64le/power9", "loong64", "mips64le", "mips64le/r6", "mips", "wasm", "unknown"]
_ALL = [*_V9, *_V8, *_ARM, *_OTHERS]


def _platform(text: str, name: str = "linux") -> Platform:
    architecture, _, variant = text.partition("/")
    return Platform(name, architecture, variant)


@pytest.mark.parametrize("system", ["linux", "windows", "freebsd"])
@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ("amd64", ["amd64", "386"]),
        ("amd64/v1", ["amd64", "386"]),
        ("amd64/v2", ["amd64/v2", "amd64", "386"]),
        ("amd64/v4", ["amd64/v4", "amd64/v3", "amd64/v2", "amd64", "386"]),
        ("amd64/x", ["amd64/x", "386"]),
        ("386", ["386"]),
        ("arm/v8", _ARM),
        ("arm", _ARM[1:]),
        ("arm/v7", _ARM[1:]),
        ("arm/v6", _ARM[2:]),
        ("arm/v5", ["arm/v5"]),
        ("arm/v4", ["arm/v4"]),
        ("arm/v3", ["arm/v3"]),
        ("arm/unknown", ["arm/unknown"]),
        ("arm/v9", ["arm/v9", *_ARM]),
        ("arm64", ["arm64", *_ARM]),
        ("arm64/v8", ["arm64", *_ARM]),
        ("arm64/v8.1", [*_V8[-2:], *_ARM]),
        ("arm64/v8.9", [*_V8, *_ARM]),
        ("arm64/v9", [_V9[-1], *_V8[4:], *_ARM]),
        ("arm64/v9.1", [*_V9[-2:], *_V8[3:], *_ARM]),
        ("arm64/v9.4", [*_V9[3:], *_V8, *_ARM]),
        ("arm64/v9.5", [*_V9[2:], *_V8, *_ARM]),
        ("arm64/v9.7", [*_V9, *_V8, *_ARM]),
        ("arm64/v8.10", []),
        ("arm64/v9.8", []),
        ("arm64/v10", []),
        ("arm64/unknown", []),
        ("arm64/v8.", []),
        ("arm64/v8.01", []),
        ("riscv64", ["riscv64"]),
        ("riscv64/x", ["riscv64/x"]),
        ("ppc64le/power9", ["ppc64le/power9"]),
        ("s390x", ["s390x"]),
        ("loong64", ["loong64"]),
        ("mips64le", ["mips64le"]),
        ("wasm", ["wasm"]),
    ],
)
def test_only_takes_its_list_in_order(wanted: str, expected: list[str], system: str) -> None:
    matcher = only(_platform(wanted, system))
    fitting = [platform for platform in (_platform(text, system) for text in _ALL) if matcher.match(platform)]
    ranked = sorted(fitting, key=matcher.sort_key)
    assert [format(platform).partition("/")[2] for platform in ranked] == expected


@pytest.mark.parametrize(
    ("wanted", "candidate", "fits"),
    [
        ("3", "v2", True),
        ("3", "v3", False),
        ("+3", "v2", True),
        ("v03", "v2", True),
        ("v03", "v3", False),
        ("-3", "v2", False),
        ("vv3", "v2", False),
        ("v3x", "v2", False),
        ("1", "", False),
        ("v9223372036854775807", "v9223372036854775806", True),
        ("v9223372036854775808", "v2", False),
        ("v" + "9" * 5000, "v2", False),
        ("v4", "v03", False),
        ("v4", "v0", False),
        ("v4", "v3x", False),
        ("v4", "v3.1", False),
        ("v4", "v" + "9" * 5000, False),
    ],
)
def test_levels_are_numbers_as_go_reads_them(wanted: str, candidate: str, fits: bool) -> None:
    assert only(Platform("linux", "amd64", wanted)).match(Platform("linux", "amd64", candidate)) is fits
