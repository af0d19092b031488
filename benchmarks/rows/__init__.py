"""The rows of the table of goals, by name, in the order of the page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from benchmarks.rows import again, copy, distant, match, mirror, publish, pulls, shared, start, store, unpack
from benchmarks.suite.bench import Bench
from benchmarks.suite.figures import Findings

Row = Callable[[Bench], Findings]


def _cri(bench: Bench) -> Findings:
    """Status of one image and the list of 1,000, over the socket."""
    # gRPC starts threads when it is loaded; only when it is wanted.
    from benchmarks.rows import rpc

    return rpc.cri(bench)


def _together(bench: Bench) -> Findings:
    """A hundred pulls of one image at once through the server."""
    from benchmarks.rows import rpc

    return rpc.together(bench)


ROWS: Final[dict[str, Row]] = {
    "S": pulls.small,
    "M": pulls.medium,
    "MANY": pulls.many,
    "L": pulls.large,
    "S-TLS": pulls.small_tls,
    "L-TLS": pulls.large_tls,
    "MIXED-TLS": pulls.mixed_tls,
    "HANDLER": again.second_handler,
    "UNCHANGED": again.unchanged_tag,
    "RANGES": distant.ranges,
    "FAR": distant.images,
    "COPY": copy.measure,
    "UNPACK": unpack.measure,
    "MIRROR": mirror.serving,
    "NODES": mirror.nodes,
    "SHARED": shared.measure,
    "PUBLISH": publish.measure,
    "START": start.measure,
    "MATCH": match.measure,
    "CRI": _cri,
    "TOGETHER": _together,
    # They delete many files, which slows the making of others on some file systems for minutes; so they come last.
    "STORE": store.peers,
    "GROWTH": store.growth,
}
