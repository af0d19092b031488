"""Pulls that should cost next to nothing: another handler of an index already here, and a tag that hasn't changed.

Requests and bytes are counted at a recorded registry, which keeps a ledger; times are taken at docker-registry.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from benchmarks.suite.bench import Bench, Registry
from benchmarks.suite.cost import Cost
from benchmarks.suite.figures import Figure, Findings, compare, count
from benchmarks.suite.series import alternate, digits, table
from imagestore import Digest
from imagestore.testing import RegistryServer, build_index, synthetic_layer
from tests.support.peers import need

REFERENCE = "registry.example/bench/index:1"
_PLATFORMS = {"first": "linux/amd64", "same": "linux/amd64", "other": "linux/arm64"}
_SHARED_MEBIBYTES = 32


def _config(folder: Path) -> Path:
    lines = ["version = 3"]
    for name, platform in _PLATFORMS.items():
        lines.append(f'[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.{name}]')
        lines.append(f'[plugins."io.containerd.cri.v1.images".runtime_platforms.{name}]\nplatform = "{platform}"')
    path = folder / "config.toml"
    path.write_text("\n".join(lines))
    return path


def second_handler(bench: Bench) -> Findings:
    """An index of two platforms that share a large layer, for three handlers in turn."""
    found = Findings(details=["**An index for three handlers, at a recorded registry**", ""])
    found.details += ["| pull | requests | bytes of content | of it fetched again |", "|---|---|---|---|"]
    shared = synthetic_layer("shared by all", _SHARED_MEBIBYTES << 20)
    image = build_index(list(dict.fromkeys(_PLATFORMS.values())), shared=[shared])
    # A look at the tag; for the other platform its manifest, its config and the layers that only it has.
    least = {"same": 1, "other": 3 + len(image.manifests[1].layers) - 1}
    with bench.first_place.fresh() as folder, RegistryServer({REFERENCE: image}) as server:
        config = ("--config", str(_config(folder)))
        reference = server.server.reference(REFERENCE)
        known: dict[Digest, int] = {}
        for handler in _PLATFORMS:
            before = server.ledger.count()
            pull = ("pull", "--progress=none", "--runtime-handler", handler, reference)
            bench.imagestore(folder / "store", *config, *pull)
            sent = server.ledger.bytes_by_digest()
            again = sum(sent[digest] - size for digest, size in known.items())
            requests, fetched = server.ledger.count() - before, sum(sent.values()) - sum(known.values())
            known = sent
            found.details.append(f"| {handler} ({_PLATFORMS[handler]}) | {requests} | {fetched:,} | {again:,} |")
            if handler != "first":
                work = f"second handler, {'same manifest' if handler == 'same' else 'another manifest, shared layer'}"
                found.figures.append(count("HANDLER", work, "requests", requests, goal=least[handler]))
                found.figures.append(count("HANDLER", work, "bytes fetched again", again, goal=0))
    found.details.append("")
    return found


def unchanged_tag(bench: Bench) -> Findings:
    """An image again that is here and has not changed: requests, and time beside skopeo."""
    found, place = Findings(), bench.first_place
    reference = bench.reference("M")
    with place.fresh() as folder, ExitStack() as stack:
        ours, theirs = _again(bench, folder / "counted", bench.plain)
        server = stack.enter_context(RegistryServer({REFERENCE: build_index(["linux/amd64"])}))
        counted = server.server.reference(REFERENCE)
        counts = []
        for pull in (ours, theirs):
            pull(counted)
            before = server.ledger.count()
            pull(counted)
            counts.append([entry.method for entry in server.ledger.entries[before:]])
        mine, peer = counts
        texts = digits(len(mine)), "skopeo copy", digits(len(peer))
        work = "unchanged tag pulled again"
        found.figures.append(Figure("UNCHANGED", work, "requests", *texts, len(mine), unit="", goal=1))
        found.details += [f"Requests: {', '.join(mine)}; of skopeo: {', '.join(peer)}.", ""]
        ours, theirs = _again(bench, folder / "timed", bench.plain)
        contestants = {"imagestore": lambda: ours(reference), "skopeo copy": lambda: theirs(reference)}
        series = alternate(f"M again, unchanged, {place.name}", contestants, rounds=3 * bench.rounds)
    found.details += table(series)
    found.figures.append(compare("UNCHANGED", series, "imagestore", "skopeo copy", goal=None, is_drawn=True))
    return found


def _again(bench: Bench, folder: Path, registry: Registry) -> tuple[Callable[[str], Cost], Callable[[str], Cost]]:
    """Pulls into one store and one layout that stay."""
    folder.mkdir()

    def ours(reference: str) -> Cost:
        return bench.imagestore(folder / "store", "pull", "--progress=none", "--platform=linux/amd64", reference)

    def theirs(reference: str) -> Cost:
        target = f"oci:{folder / 'layout'}:1"
        return bench.run(need("skopeo"), "copy", "--quiet", *registry.skopeo, f"docker://{reference}", target)

    return ours, theirs
