"""A server's publisher: what it says to the service manager, to Prometheus and to CRI."""

from __future__ import annotations

import asyncio
import contextlib
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

import imagestore
from imagestore.publish import PublishSettings
from imagestore.server.metrics import Metrics
from imagestore.server.publishing import ServedPublisher
from imagestore.store import StoreWorkers
from tests.support.fake_containerd import FakeContainerd
from tests.support.patience import until_in_loop
from tests.support.publishing import APP, HOST, PublishingNode, publishing_node


@pytest.fixture
def here(tmp_path: Path) -> Iterator[PublishingNode]:
    with publishing_node(tmp_path) as opened:
        yield opened


@pytest.fixture
def fake(here: PublishingNode) -> FakeContainerd:
    return here.fake


@contextlib.asynccontextmanager
async def served(here: PublishingNode) -> AsyncIterator[tuple[ServedPublisher, StoreWorkers, asyncio.Event]]:
    """A server's publisher on a store object of its own."""
    store = imagestore.ImageStore(here.store.root, config=here.store.config, host=HOST)
    workers, heard = StoreWorkers(store), asyncio.Event()
    publisher = ServedPublisher(workers, PublishSettings(here.fake.address), heard=heard.set)
    publisher.start()
    try:
        yield publisher, workers, heard
    finally:
        await asyncio.to_thread(publisher.close)
        await asyncio.to_thread(workers.close)


def numbers(workers: StoreWorkers, publisher: ServedPublisher) -> dict[tuple[str, str], float]:
    """Values by metric and label, as Prometheus reads them."""
    metrics = Metrics(workers)
    metrics.publish_publisher(publisher)
    with (
        contextlib.closing(metrics.publish("127.0.0.1", 0)) as publication,
        urllib.request.urlopen(f"http://127.0.0.1:{publication.port}/metrics") as answer,
    ):
        text = str(answer.read(), "utf-8")
    return {
        (sample.name.removeprefix("imagestore_publish_"), "".join(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith("imagestore_publish_")
    }


def test_state_and_numbers_follow_containerd(here: PublishingNode, fake: FakeContainerd) -> None:
    image_id = here.pull()

    async def _play() -> None:
        async with served(here) as (publisher, workers, heard):
            await until_in_loop(lambda: publisher.status == "containerd: 1 published", "it is published")
            assert heard.is_set()
            found = await asyncio.to_thread(numbers, workers, publisher)
            assert (found["containerd_up", ""], found["published_total", ""]) == (1, 1)
            assert (found["images", "published"], found["images", "failed"]) == (1, 0)
            assert found["bytes_total", "linked"] > 0
            assert found["seconds_total", "content"] > 0
            assert found["reconciles_total", ""] >= 1
            await asyncio.wrap_future(publisher.ensure(imagestore.Digest.parse(image_id)))
            fake.kill()
            await until_in_loop(lambda: publisher.status.startswith("containerd is away: "), "it says so")
            assert (await asyncio.to_thread(numbers, workers, publisher))["containerd_up", ""] == 0
            fake.start()
            await until_in_loop(lambda: publisher.status == "containerd: 1 published", "it is connected again")

    asyncio.run(_play())


def test_a_failure_is_counted_until_it_is_gone(here: PublishingNode, fake: FakeContainerd) -> None:
    fake.faults.refuse("Diff/Apply", text="no space left on device", count=1000)

    async def _play() -> None:
        async with served(here) as (publisher, workers, _):
            await asyncio.to_thread(here.pull, APP)
            await until_in_loop(lambda: publisher.status == "containerd: 1 failed", "it failed")
            assert (await asyncio.to_thread(numbers, workers, publisher))["images", "failed"] == 1
            fake.faults.clear()
            publisher.reload()
            await until_in_loop(lambda: publisher.status == "containerd: 1 published", "it is published")

    asyncio.run(_play())
