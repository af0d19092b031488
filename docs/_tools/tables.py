"""Tables inside pages that people write, between ``<!-- made: NAME -->`` and ``<!-- end -->``."""

from __future__ import annotations

import contextlib
import re
import tempfile
import time
import urllib.request
from collections import Counter
from typing import TYPE_CHECKING, Final, cast

import imagestore
from docs._tools.cli_pages import exit_status_table
from docs._tools.schemas import schema_table
from imagestore.cri.pull_queue import PullOutcome
from imagestore.mirror.counters import MirrorCounters
from imagestore.publish import ContentWay
from imagestore.publish.image_states import ImageStates, PublishTotals
from imagestore.server.metrics import Metrics
from imagestore.store import StoreWorkers
from imagestore.testing import RegistryServer, build_index

if TYPE_CHECKING:
    from imagestore.mirror.service import Mirror
    from imagestore.server.publishing import ServedPublisher

_PLACE: Final = re.compile(r"(?<=<!-- made: )(?P<name>[\w-]+) -->\n.*?(?=<!-- end -->)", re.DOTALL)
#: Pages with such tables.
PAGES: Final = ("reference/exit-statuses.md", "reference/json.md", "reference/metrics.md")
_LABELS_OF_SAMPLES: Final = {"le"}


def with_tables(text: str) -> str:
    """A page's text with its tables made anew."""
    makers = {"exit-statuses": exit_status_table, "metrics": metrics_table, "schemas": schema_table}
    return _PLACE.sub(lambda match: f"{match['name']} -->\n\n{makers[match['name']]()}\n\n", text)


def metrics_table() -> str:
    """Every metric of a server, as it answers at its port."""
    from prometheus_client.parser import text_string_to_metric_families

    rows = ["| metric | type | labels | meaning |", "|---|---|---|---|"]
    for family in text_string_to_metric_families(_published()):
        if not family.name.startswith("imagestore_") or family.name.endswith("_created"):
            continue
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = sorted({label for sample in family.samples for label in sample.labels} - _LABELS_OF_SAMPLES)
        shown = ", ".join(f"`{label}`" for label in labels)
        rows.append(f"| `{name}` | {family.type} | {shown} | {family.documentation} |")
    return "\n".join([*rows[:2], *sorted(rows[2:])])


class _Mirror:
    """A mirror that has served something."""

    def __init__(self) -> None:
        self.counters = MirrorCounters()
        self.counters.count_request("docker.io", "blob", "hit")
        self.counters.count("served_bytes", "docker.io")

    def usage(self) -> dict[str, tuple[int, int | None]]:
        return {"docker.io": (1, 2)}


class _Publisher:
    """A publisher that has published something."""

    def __init__(self) -> None:
        self.states = ImageStates(time.time)
        self.totals = PublishTotals()
        self.totals.published(Counter({ContentWay.LINKED: 1}))
        with self.totals.timed("content"):
            pass
        self.is_connected = True
        self.reconciles = 1

    @property
    def follower(self) -> _Publisher:
        return self

    @property
    def publisher(self) -> _Publisher:
        return self


def _published() -> str:
    """What a server with one call, pull and image answers."""
    with (
        tempfile.TemporaryDirectory() as root,
        RegistryServer({"registry.example/app:1": build_index(["linux/amd64"])}) as server,
        imagestore.open(root) as store,
        contextlib.ExitStack() as last_first,
    ):
        store.pull(f"{server.address}/app:1", platform="linux/amd64")
        workers = StoreWorkers(store)
        last_first.callback(workers.close)
        metrics = Metrics(workers)
        metrics.publish_mirror(cast("Mirror", _Mirror()))
        metrics.publish_publisher(cast("ServedPublisher", _Publisher()))
        metrics.began("/runtime.v1.ImageService/PullImage")
        metrics.ended("/runtime.v1.ImageService/PullImage", "OK", 0.1)
        metrics.pull_joined("runc")
        metrics.pull_began("runc")
        metrics.pull_ended("runc", outcome=PullOutcome.SUCCESS, bytes_fetched=1, seconds=0.1)
        metrics.collected(0.1, None)
        metrics.reloaded("success")
        publication = metrics.publish("127.0.0.1", 0)
        last_first.callback(publication.close)
        with urllib.request.urlopen(f"http://127.0.0.1:{publication.port}/metrics") as answer:
            return str(answer.read(), "utf-8")
