"""How long it takes to say what 20 runtime handlers get from one index, against a JSON parse of the same index.

Run: ``python benchmarks/match_bench.py``. It goes the way of ``imagestore match``: an index as bytes, handlers from a
configuration, :func:`imagestore.store.pull.choice.match_handlers`. Two kinds of index, of 10 to 10,000 entries, no two
alike: Windows builds for one architecture, and all kinds of platforms. All numbers are medians, and the runs that are
compared take turns. For each index it prints

* ``choose``: from bytes to the choices of all handlers: read, check, select. No verdict but those of the chosen
  entries is made before somebody reads it;
* ``json.loads`` of the same bytes, and ``choose`` as a multiple of it;
* ``read``: the part of ``choose`` that reads and checks the index;
* ``explain``: ``choose``, and then every verdict of every handler, with rule and sentence.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import time
from itertools import product
from typing import TYPE_CHECKING, Any

from imagestore import CancelToken, Descriptor, Digest, config
from imagestore.oci import media_types
from imagestore.platforms import Platform
from imagestore.store import Documents, match_handlers
from imagestore.store.pull.choice import wanted_platforms

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from imagestore.config import HandlerPlatform
    from imagestore.oci import Index
    from imagestore.oci.select import Selection

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


def _mixed(number: int, _size: int) -> dict[str, Any]:
    """A platform of any kind: of each kind, then each with a version (and a feature) of its own."""
    os_name, architecture, variant = _NAMES[number % len(_NAMES)]
    platform: dict[str, Any] = {"os": os_name, "architecture": architecture}
    if variant:
        platform["variant"] = variant
    platform["os.version"] = f"10.0.{_BUILDS[number // len(_NAMES) % len(_BUILDS)]}.{number}"
    if number % 10 == 9:
        platform["os.features"] = [f"feature-{number}"]
    return platform


def _windows(number: int, size: int) -> dict[str, Any]:
    """A Windows platform: as many builds as revisions of each."""
    build, revision = divmod(number, math.isqrt(size))
    return {"os": "windows", "architecture": "amd64", "os.version": f"10.0.{17763 + 300 * build}.{revision}"}


#: What the platforms of an index are, by number of the entry and size of the index.
KINDS = {"windows": _windows, "mixed": _mixed}


def _document(kind: str, size: int) -> bytes:
    entries = [
        {
            "mediaType": media_types.OCI_MANIFEST,
            "digest": str(Digest.of(str(number).encode())),
            "size": 1_000 + number,
            "platform": KINDS[kind](number, size),
        }
        for number in range(size)
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

    def __init__(self, kind: str, size: int, handlers: dict[str, HandlerPlatform]) -> None:
        self.raw = _document(kind, size)
        self.handlers = handlers
        self.target = Descriptor(media_types.OCI_INDEX, Digest.of(self.raw), len(self.raw))

    def _documents(self) -> Documents:
        documents = Documents(None, None, None, CancelToken())
        documents.remember(self.target, self.raw)
        return documents

    def read(self) -> Index:
        """Read and check the index."""
        return self._documents().index(self.target)

    def choose(self) -> dict[str, Selection]:
        """Read the index, and choose for every handler."""
        return match_handlers(self.target, self._documents(), self.handlers)

    def explain(self) -> int:
        """The same, and then every rule and sentence of the verdict on every entry for every handler."""
        verdicts = (verdict for selection in self.choose().values() for verdict in selection.verdicts)
        return sum(len(verdict.rule) + len(verdict.reason) for verdict in verdicts)

    def loads(self) -> object:
        """The same bytes as plain JSON."""
        return json.loads(self.raw)


def _medians(steps: Sequence[Callable[[], object]], repeats: int) -> list[float]:
    """Milliseconds of each step; the steps take turns, so that what disturbs them disturbs all of them."""
    taken: list[list[float]] = [[] for _ in steps]
    for _ in range(repeats):
        for times, step in zip(taken, steps, strict=True):
            start = time.perf_counter()
            step()
            times.append((time.perf_counter() - start) * 1e3)
    return [statistics.median(times) for times in taken]


def main() -> None:
    """Measure and print one line for each index."""
    all_handlers = handlers()
    head = ("index", "entries", "choose, ms", "json.loads, ms", "choose : json", "read, ms", "explain, ms")
    sys.stdout.write("  ".join(f"{title:>14}" for title in head) + f"   ({len(all_handlers)} handlers)\n")
    for kind, size in product(KINDS, _SIZES):
        case = Case(kind, size, all_handlers)
        choose, loads = _medians((case.choose, case.loads), min(max(5, 60_000 // size), 300))
        read, explain = _medians((case.read, case.explain), 5)
        row = (choose, loads, choose / loads, read, explain)
        sys.stdout.write("  ".join([f"{kind:>14}", f"{size:>14,}", *(f"{value:>14.3f}" for value in row)]) + "\n")


if __name__ == "__main__":
    main()
