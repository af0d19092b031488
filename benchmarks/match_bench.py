"""How long it takes to say what 20 runtime handlers get from one index of 10 to 10,000 entries, no two alike.

Run: ``python benchmarks/match_bench.py``. It goes the way of ``imagestore match``: an index as bytes, handlers from a
configuration, :func:`imagestore.pull.choice.match_handlers`. For each size it prints what it takes

* to find the best entry alone (match and sort key), for all handlers together;
* to read and check the index, once;
* to make a selection with a verdict for every entry, for all handlers, and the same for one entry and handler;
* to read every rule and sentence of these verdicts;
* to parse the same bytes with ``json.loads``, for scale, and how often that fits into all of the above.
"""

from __future__ import annotations

import json
import sys
import time
from itertools import product
from typing import TYPE_CHECKING, Any

from imagestore import config, media_types
from imagestore.cancel import CancelToken
from imagestore.descriptor import Descriptor
from imagestore.digest import Digest
from imagestore.platforms import Platform
from imagestore.pull.choice import match_handlers, wanted_platforms
from imagestore.pull.sources import Documents

if TYPE_CHECKING:
    from collections.abc import Callable

    from imagestore.config import HandlerPlatform
    from imagestore.documents.index import Index
    from imagestore.documents.select import Selection

_SIZES = (10, 100, 1_000, 10_000)
_HOST = Platform("linux", "amd64")
_WANTED = (
    *("linux/amd64", "linux/amd64/v3", "linux/arm64/v8", "linux/arm64/v9.2", "linux/arm/v7", "linux/arm/v6"),
    *("linux/386", "linux/riscv64", "linux/s390x", "linux/ppc64le", "linux/loong64", "wasi/wasm", "darwin/arm64"),
    *("freebsd/amd64", "windows(10.0.17763)/amd64", "windows(10.0.20348)/amd64", "windows(10.0.22631)/amd64"),
    *("windows(10.0.26100.1742)/amd64", "windows(10.0.26200)/amd64", "windows/amd64"),
)
_NAMES = (
    *(("linux", "amd64", ""), ("linux", "arm64", "v8"), ("linux", "arm", "v7"), ("linux", "386", "")),
    *(("linux", "ppc64le", ""), ("linux", "riscv64", ""), ("linux", "s390x", ""), ("windows", "amd64", "")),
)
_BUILDS = (17763, 20348, 26100, 14393)


def _platforms(size: int) -> list[dict[str, Any]]:
    """Platforms that are all different: of each kind, then each with a version (and a feature) of its own."""
    found = []
    for number, (build, (os_name, architecture, variant)) in zip(
        range(size), product(range(size), _NAMES), strict=False
    ):
        platform: dict[str, Any] = {"os": os_name, "architecture": architecture}
        if variant:
            platform["variant"] = variant
        platform["os.version"] = f"10.0.{_BUILDS[build % len(_BUILDS)]}.{number}"
        if number % 10 == 9:
            platform["os.features"] = [f"feature-{number}"]
        found.append(platform)
    return found


def _document(size: int) -> bytes:
    entries = [
        {
            "mediaType": media_types.OCI_MANIFEST,
            "digest": str(Digest.of(str(number).encode())),
            "size": 1_000 + number,
            "platform": platform,
        }
        for number, platform in enumerate(_platforms(size))
    ]
    return json.dumps({"schemaVersion": 2, "mediaType": media_types.OCI_INDEX, "manifests": entries}).encode()


def handlers() -> dict[str, HandlerPlatform]:
    """Twenty handlers from a configuration, each with a platform of its own."""
    lines = ["version = 3"]
    for number, text in enumerate(_WANTED):
        lines += [f'[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.handler-{number}]']
        lines += [f'[plugins."io.containerd.cri.v1.images".runtime_platforms.handler-{number}]', f'platform = "{text}"']
    loaded = config.loads("\n".join(lines), host=_HOST)
    return wanted_platforms(loaded, [name for name in loaded.handlers if name.startswith("handler")], host=_HOST)


class Case:
    """One index, and the steps that are measured."""

    def __init__(self, size: int, handlers: dict[str, HandlerPlatform]) -> None:
        self.raw = _document(size)
        self.handlers = handlers
        self.target = Descriptor(media_types.OCI_INDEX, Digest.of(self.raw), len(self.raw))
        self.documents = self.fresh()
        self.index = self.documents.index(self.target)
        self.selections = self.match()

    def fresh(self) -> Documents:
        documents = Documents(None, None, None, CancelToken())
        documents.remember(self.target, self.raw)
        return documents

    def read(self) -> Index:
        """Read and check the index."""
        return self.fresh().index(self.target)

    def best(self) -> None:
        """The best entry for each handler, and nothing about the others."""
        platforms = [entry.platform for entry in self.index.manifests if entry.platform is not None]
        for handler in self.handlers.values():
            min(filter(handler.matcher.match, platforms), key=handler.matcher.sort_key, default=None)

    def match(self) -> dict[str, Selection]:
        """A verdict for every entry and handler."""
        return match_handlers(self.target, self.documents, self.handlers)

    def reasons(self) -> int:
        """Read every rule and sentence of the verdicts."""
        verdicts = (verdict for selection in self.selections.values() for verdict in selection.verdicts)
        return sum(len(verdict.rule) + len(verdict.reason) for verdict in verdicts)

    def parse(self) -> object:
        """The same bytes as plain JSON."""
        return json.loads(self.raw)


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
    all_handlers = handlers()
    head = ("entries", "best, ms", "read, ms", "select, ms", "µs/entry", "reasons, ms", "json.loads, ms", "all : json")
    sys.stdout.write("  ".join(f"{title:>14}" for title in head) + f"   ({len(all_handlers)} handlers)\n")
    for size in _SIZES:
        case = Case(size, all_handlers)
        repeats = max(3, 2_000 // size)
        steps = (case.best, case.read, case.match, case.reasons, case.parse)
        best, read, match, reasons, parse = (_seconds(step, repeats) for step in steps)
        row = (
            *(best * 1e3, read * 1e3, match * 1e3, match / size / len(all_handlers) * 1e6),
            *(reasons * 1e3, parse * 1e3, (read + match + reasons) / parse),
        )
        sys.stdout.write("  ".join([f"{size:>14}", *(f"{value:>14.3f}" for value in row)]) + "\n")


if __name__ == "__main__":
    main()
