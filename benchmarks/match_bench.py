"""How long choosing takes: indexes of 10 to 10,000 entries for 20 handlers, beside reading the same index as JSON.

Run: ``python benchmarks/match_bench.py``. Prints for each size what it takes to find the best entry (match and sort
key alone) and to make a whole selection with a verdict for every entry: for all handlers together, and for one entry
and one handler. The last column compares an explained selection for one handler with one ``json.loads`` of the index.
"""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING

from imagestore import media_types
from imagestore.descriptor import Descriptor
from imagestore.digest import Digest
from imagestore.documents.index import Index
from imagestore.documents.select import select
from imagestore.platforms import Platform, default_for, parse

if TYPE_CHECKING:
    from collections.abc import Callable

    from imagestore.platforms import Matcher

_SIZES = (10, 100, 1_000, 10_000)
_HANDLERS = (
    *("linux/amd64", "linux/amd64/v3", "linux/arm64/v8", "linux/arm64/v9.2", "linux/arm/v7", "linux/arm/v6"),
    *("linux/386", "linux/riscv64", "linux/s390x", "linux/ppc64le", "linux/loong64", "wasi/wasm", "darwin/arm64"),
    *("freebsd/amd64", "windows(10.0.17763)/amd64", "windows(10.0.20348)/amd64", "windows(10.0.22631)/amd64"),
    *("windows(10.0.26100.1742)/amd64", "windows(10.0.26200)/amd64", "windows/amd64"),
)
_OFFERED = (
    *("linux/amd64", "linux/arm/v5", "linux/arm/v7", "linux/arm64/v8", "linux/386", "linux/mips64le", "linux/ppc64le"),
    *("linux/riscv64", "linux/s390x", "windows(10.0.26100.33438)/amd64", "windows(10.0.20348.5622)/amd64"),
    *("windows(10.0.17763.9121+win32k)/amd64",),
)


class _NoDocuments:
    """Every entry states its platform, so nothing is asked for."""

    def index(self, descriptor: Descriptor) -> Index:
        raise AssertionError(descriptor)

    def config_platform(self, descriptor: Descriptor) -> Platform | None:
        raise AssertionError(descriptor)


def _document(size: int) -> tuple[str, Index]:
    entries = []
    for number in range(size):
        digest = Digest.of(str(number).encode())
        platform = parse(_OFFERED[number % len(_OFFERED)])
        entries.append(Descriptor(media_types.OCI_MANIFEST, digest, 1_000 + number, platform))
    listed = [
        {
            "mediaType": entry.media_type,
            "digest": str(entry.digest),
            "size": entry.size,
            "platform": {
                "architecture": entry.platform.architecture,
                "os": entry.platform.os,
                "os.version": entry.platform.os_version,
                "os.features": list(entry.platform.os_features),
                "variant": entry.platform.variant,
            },
        }
        for entry in entries
        if entry.platform is not None
    ]
    text = json.dumps({"schemaVersion": 2, "mediaType": media_types.OCI_INDEX, "manifests": listed})
    return text, Index(text.encode(), media_types.OCI_INDEX, tuple(entries))


def _choose(index: Index, matchers: list[Matcher]) -> None:
    platforms = [entry.platform for entry in index.manifests if entry.platform is not None]
    for matcher in matchers:
        min(filter(matcher.match, platforms), key=matcher.sort_key, default=None)


def _explain(index: Index, matchers: list[Matcher]) -> None:
    source = _NoDocuments()
    for matcher in matchers:
        select(index, matcher, source, wanted="")


def _seconds(work: Callable[[], object], repeats: int) -> float:
    """Best of several runs, which is the one that nothing else disturbed."""
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best


def main() -> None:
    """Measure and print one line for each size."""
    matchers = [default_for(parse(text)) for text in _HANDLERS]
    head = ("entries", "choose, ms", "µs/entry", "explain, ms", "µs/entry", "json.loads, ms", "explain : json")
    sys.stdout.write("  ".join(f"{title:>14}" for title in head) + f"   ({len(matchers)} handlers)\n")
    for size in _SIZES:
        text, index = _document(size)
        repeats = max(3, 2_000 // size)
        choose = _seconds(lambda index=index: _choose(index, matchers), repeats)  # type: ignore[misc]
        explain = _seconds(lambda index=index: _explain(index, matchers), repeats)  # type: ignore[misc]
        read = _seconds(lambda text=text: json.loads(text), repeats)  # type: ignore[misc]
        calls = size * len(matchers)
        row = (
            choose * 1e3,
            choose / calls * 1e6,
            explain * 1e3,
            explain / calls * 1e6,
            read * 1e3,
            explain / len(matchers) / read,
        )
        sys.stdout.write("  ".join([f"{size:>14}", *(f"{value:>14.3f}" for value in row)]) + "\n")


if __name__ == "__main__":
    main()
