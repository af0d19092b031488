"""The publisher for asynchronous programs, on asyncio and on trio."""

from __future__ import annotations

import threading

import anyio
import pytest

from imagestore.errors import InvalidInputError, OperationCancelledError
from imagestore.publish import ImageState, open_publisher
from tests.support.patience import PATIENCE_SECONDS, until
from tests.support.publishing import APP, OTHER, PublishingNode

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def test_what_a_publisher_does(here: PublishingNode) -> None:
    image_id, other = here.pull(), here.pull(OTHER)
    heard: list[object] = []
    async with open_publisher(here.store, here.fake.address) as publisher:
        assert await publisher.publish(APP) == image_id
        assert (await publisher.reconcile(observer=heard.append)).published == (other,)
        assert len(heard) == 1
        assert {image.state for image in (await publisher.status()).images} == {ImageState.PUBLISHED}
        assert [image.image_id for image in (await publisher.status(OTHER)).images] == [other]
        assert OTHER in await publisher.unpublish_all()
    assert here.fake.images() == {}


async def test_a_cancelled_task_stops_waiting(here: PublishingNode) -> None:
    here.pull()
    begun, go_on = threading.Event(), threading.Event()

    def _block() -> None:
        begun.set()
        go_on.wait(PATIENCE_SECONDS)

    here.fake.faults.meanwhile("Diff/Apply", _block)
    async with open_publisher(here.store, here.fake.address) as publisher:
        async with anyio.create_task_group() as group:
            group.start_soon(publisher.reconcile)
            await anyio.to_thread.run_sync(until, begun.is_set, "it publishes")
            group.cancel_scope.cancel()
        go_on.set()
        assert (await publisher.reconcile()).failed == {}
    assert here.unmet() == []


async def test_errors_are_those_of_the_publisher(here: PublishingNode) -> None:
    with pytest.raises(InvalidInputError):
        async with open_publisher(here.store, "tcp://127.0.0.1:1"):
            pass
    async with open_publisher(here.store, here.fake.address) as publisher:
        publisher.publisher.cancel("ended")
        with pytest.raises(OperationCancelledError):
            await publisher.reconcile()
