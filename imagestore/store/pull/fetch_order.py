"""How many blobs of a pull come at a time, in which order, and under which names their ingests are kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from imagestore.oci.media_types import Kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from imagestore.oci.descriptor import Descriptor

#: Blobs of one pull in flight at once, as with skopeo: containerd's default of three leaves distant registries idle.
PARALLEL_BLOBS: Final = 6
#: A config and a single layer of fewer bytes come one after the other: with TLS a second connection could take longer.
_WORTH_A_CONNECTION: Final = 1024 * 1024
#: However many the configuration allows.
MOST_PARALLEL_BLOBS: Final = 64
_INGEST_PREFIX: Final = {
    Kind.INDEX: "index",
    Kind.MANIFEST: "manifest",
    Kind.CONFIG: "config",
    Kind.LAYER: "layer",
    Kind.FOREIGN_LAYER: "layer",
}


def parallel_blobs(configured: int | None, layers: Sequence[Descriptor]) -> int:
    """How many blobs of one pull are in flight at once, by containerd's max_concurrent_downloads; None when not set.

    >>> [parallel_blobs(configured, ()) for configured in (None, 5, 0, 1000)]
    [6, 5, 64, 64]
    """
    if configured is None:
        return 1 if len(layers) == 1 and layers[0].size < _WORTH_A_CONNECTION else PARALLEL_BLOBS
    # As in containerd, zero and less is no limit; threads are not free, so there is one.
    return min(configured, MOST_PARALLEL_BLOBS) if configured > 0 else MOST_PARALLEL_BLOBS


def fetch_order(descriptors: Iterable[Descriptor]) -> list[Descriptor]:
    """Each digest once, the largest first: the longest download decides when the pull ends."""
    wanted = {descriptor.digest: descriptor for descriptor in descriptors}
    return sorted(wanted.values(), key=lambda descriptor: -descriptor.size)


def order_with(config: Descriptor, layers: Iterable[Descriptor], *, parallel: int) -> list[Descriptor]:
    """As fetch_order(), with a config that is soon wanted: first, or second if that doesn't make it wait.

    The connection that is open already serves the largest layer, which decides when the pull ends.
    """
    ordered = [each for each in fetch_order(layers) if each.digest != config.digest]
    ordered.insert(min(parallel - 1, 1), config)
    return ordered


def ingest_ref(descriptor: Descriptor) -> str:
    """The ingest's name for fetched content, in containerd's form: kind, hyphen, digest."""
    return f"{_INGEST_PREFIX.get(descriptor.kind, 'unknown')}-{descriptor.digest}"
