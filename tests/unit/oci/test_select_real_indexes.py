"""Real indexes: what nodes of all kinds get from them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from imagestore import Descriptor, Digest
from imagestore.oci.descriptor import members_of, parse_platform
from imagestore.oci.index import Index
from imagestore.oci.select import Selection, select
from imagestore.platforms import Platform, default_for, format_all, parse

INDEXES = Path(__file__).parents[3] / "fixtures" / "indexes"


class Configs:
    """Platforms in the configs of no-platform-index, in its order."""

    def __init__(self) -> None:
        self.read: list[Digest] = []
        self._platforms = iter(["linux/amd64", "windows(10.0.20348.1)/amd64", "windows(10.0.17763.1)/amd64"])

    def index(self, descriptor: Descriptor) -> Index:
        raise AssertionError(f"{descriptor.digest} is no index")

    def config_platform(self, descriptor: Descriptor) -> Platform:
        self.read.append(descriptor.digest)
        return parse(next(self._platforms))


def _load(name: str) -> Index:
    """An index; listings, which have no sizes and so are no valid documents, with invented ones."""
    raw = (INDEXES / f"{name}.json").read_bytes()
    document = json.loads(raw)
    if all("size" in entry for entry in document["manifests"]):
        return Index.parse(raw, what=name)
    entries = tuple(
        Descriptor(
            entry["mediaType"],
            Digest.parse(entry["digest"]),
            1,
            parse_platform(members_of(entry["platform"], "test")),
            entry.get("annotations", {}),
        )
        for entry in document["manifests"]
    )
    return Index(raw, document["mediaType"], entries)


def _select(name: str, node: str) -> Selection:
    return select(_load(name), default_for(parse(node)), Configs(), wanted=node)


def _choice(name: str, node: str) -> str | None:
    chosen = _select(name, node).chosen
    return None if chosen is None or chosen.platform is None else format_all(chosen.platform)


@pytest.mark.parametrize(
    ("name", "node", "expected"),
    [
        ("python-kep4216", "windows(10.0.17763)/amd64", "windows(10.0.17763.4851)/amd64"),
        ("python-kep4216", "windows(10.0.20348)/amd64", "windows(10.0.20348.1970)/amd64"),
        ("python-kep4216", "windows(10.0.26100)/amd64", "windows(10.0.20348.1970)/amd64"),
        ("python-kep4216", "windows(10.0.19044)/amd64", None),
        ("python-kep4216", "linux/amd64/v3", "linux/amd64"),
        ("python-3.13-2026", "windows(10.0.26200)/amd64", "windows(10.0.26100.33438)/amd64"),
        ("python-3.13-2026", "windows(10.0.22631)/amd64", "windows(10.0.20348.5622)/amd64"),
        ("python-3.13-2026", "windows(10.0.17763)/amd64", None),
        ("python-3.13-2026", "linux/arm64/v8", "linux/arm64/v8"),
        ("hello-world-2026", "linux/arm/v6", "linux/arm/v6"),
        ("cygwin-2026-08", "windows(10.0.26200)/amd64", "windows(10.0.26100.33296)/amd64"),
        ("cygwin-2026-08", "windows(10.0.25398)/amd64", "windows(10.0.20348.5499)/amd64"),
        ("cygwin-2025-11", "windows(10.0.17763)/amd64", "windows(10.0.17763.8027)/amd64"),
        ("cygwin-2024-11", "windows/amd64", "windows(10.0.26100.2314)/amd64"),
        ("dotnet-framework-runtime-4.8", "windows(10.0.26100)/amd64", "windows(10.0.20348.473)/amd64"),
        ("dotnet-framework-runtime-4.8", "windows(10.0.19042)/amd64", "windows(10.0.19042.1469)/amd64"),
        ("volume-ownership-2.1", "windows(10.0.20348)/amd64", "windows(10.0.20348.1726)/amd64"),
        ("julia-1.9.3", "windows(10.0.20348)/amd64", "windows(10.0.20348.2031)/amd64"),
        ("servercore-ltsc2022", "windows(10.0.22000)/amd64", "windows(10.0.20348.2402+win32k)/amd64"),
        ("nanoserver-1809", "windows(10.0.17763.1)/amd64", "windows(10.0.17763.5696)/amd64"),
        ("servercore-1809", "linux/amd64", None),
        ("busybox-1.36.1", "linux/arm/v8", "linux/arm/v7"),
        ("busybox-1.36.1", "linux/arm/v5", "linux/arm/v5"),
        ("busybox-2018", "linux/arm64/v9.2", "linux/arm64/v8"),
        ("alpine-2018", "linux/arm/v7", "linux/arm/v6"),
        ("alpine-2018", "linux/riscv64", None),
        ("alpine-3.22-2026", "linux/riscv64", "linux/riscv64"),
        ("distroless-static", "linux/arm64/v8", "linux/arm64"),
        ("distroless-static", "linux/arm/v6", None),
        ("distroless-python3", "linux/arm/v7", None),
        ("distroless-python3", "darwin/arm64/v8", "linux/arm64"),
        ("made-loong64", "linux/loong64", "linux/loong64"),
        ("haproxy-attested", "linux/amd64", "linux/amd64"),
        ("haproxy-attested", "freebsd/amd64", "linux/amd64"),
        ("notary-server-0.7.0", "linux/ppc64le", "linux/ppc64le"),
        ("gosu-riscv64", "linux/arm64/unknown", None),
        ("traefik-2018", "linux/arm64/v8", "linux/arm64/v8"),
        ("single-platform-attested", "linux/arm64", None),
        ("docker-24.0.7-cli", "linux/arm64", "linux/arm64/v8"),
    ],
)
def test_what_a_node_gets(name: str, node: str, expected: str | None) -> None:
    assert _choice(name, node) == expected


@pytest.mark.parametrize("name", sorted(path.stem for path in INDEXES.glob("*.json")))
@pytest.mark.parametrize("node", ["linux/amd64", "linux/arm64/v8", "windows(10.0.20348)/amd64", "darwin/arm64"])
def test_every_entry_is_judged_and_no_attestation_is_chosen(name: str, node: str) -> None:
    index, found = _load(name), _select(name, node)
    assert [verdict.position for verdict in found.verdicts] == [(number,) for number in range(len(index.manifests))]
    assert all(verdict.reason for verdict in found.verdicts)
    ranks = sorted(verdict.rank for verdict in found.verdicts if verdict.rank is not None)
    assert ranks == list(range(len(ranks)))
    assert not any(verdict.accepted for verdict in found.verdicts if verdict.descriptor.is_attestation)
    assert (found.chosen is None) == (not ranks)


@pytest.mark.parametrize(
    ("node", "position", "reads"),
    [
        ("linux/amd64", (0,), 1),
        ("windows(10.0.20348)/amd64", (1,), 2),
        ("windows(10.0.17763)/amd64", (2,), 3),
        ("linux/arm64", None, 3),
    ],
)
def test_index_without_platforms_is_judged_by_configs(node: str, position: tuple[int, ...] | None, reads: int) -> None:
    configs = Configs()
    found = select(_load("no-platform-index"), default_for(parse(node)), configs, wanted=node)
    assert (None if found.chosen is None else found.chosen.position) == position
    assert len(configs.read) == reads
