"""The asynchronous facade, on asyncio and on trio: results, events, and cancellation that gives everything back."""

from __future__ import annotations

import inspect
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

import imagestore
from imagestore import aio, events
from imagestore.errors import ImageNotFoundError, ReferenceNotFoundError
from imagestore.testing import FaultRule, RegistryServer, Where, build_image, synthetic_layer
from imagestore.testing.faults import Drip
from tests.support.patience import until

NAME = "registry.example/app:1"
MIB = 1024 * 1024
HERE = imagestore.platforms.host.detect()


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    with RegistryServer(
        {NAME: build_image(HERE, layers=[synthetic_layer("a", MIB), synthetic_layer("b", MIB)])}
    ) as one:
        yield one


@pytest.fixture
def slow_server() -> Iterator[RegistryServer]:
    """Layers come so slowly that only a cancelled pull ends within a test."""
    image = build_image(HERE, layers=[synthetic_layer(seed, 8 * MIB) for seed in "abc"])
    with RegistryServer({NAME: image}, faults=[FaultRule(Drip(64 * 1024), Where(kind="blob"), times=0)]) as one:
        yield one


@asynccontextmanager
async def opened(path: Path, server: RegistryServer) -> AsyncIterator[tuple[aio.AsyncImageStore, str]]:
    async with aio.open(path / "store", host=HERE) as store:
        yield store, server.server.reference(NAME)


def pools() -> set[threading.Thread]:
    """Threads that receive, verify or write for a pull."""
    return {thread for thread in threading.enumerate() if thread.name.startswith("imagestore-")}


async def ended(before: set[threading.Thread]) -> None:
    """Wait for the end of threads that began since."""
    await anyio.to_thread.run_sync(until, lambda: pools() <= before, "the pull's threads have ended")


#: Methods of the store that the facade has in another form, or not at all.
NOT_OFFERED = {"close", "hold", "reopened"}


def test_every_method_of_the_store_is_there_with_its_parameters_and_named_in_the_docs() -> None:
    methods = {name for name, _ in inspect.getmembers(imagestore.ImageStore, inspect.isfunction) if name[0] != "_"}
    assert methods > NOT_OFFERED
    for name in methods - NOT_OFFERED:
        offered, original = getattr(aio.AsyncImageStore, name), getattr(imagestore.ImageStore, name)
        assert inspect.iscoroutinefunction(offered)
        assert list(inspect.signature(offered).parameters) == list(inspect.signature(original).parameters)
        assert f"``{name}``" in (aio.AsyncImageStore.__doc__ or "")


@pytest.mark.anyio
async def test_an_image_is_pulled_listed_and_removed(tmp_path: Path, server: RegistryServer) -> None:
    async with opened(tmp_path, server) as (store, reference):
        image = await store.pull(reference)
        assert [each.reference for each in await store.list()] == [image.reference]
        assert await store.list(after=(image.reference, image.runtime_handler), limit=1) == []
        assert (await store.get(reference)).id == image.id
        assert (await store.match(reference))[image.runtime_handler].chosen is not None
        assert len((await store.remove(reference)).removed) == 1
        assert (await store.collect_garbage()).bytes_freed > 2 * MIB
        with pytest.raises(ImageNotFoundError):
            await store.get(reference)


@pytest.mark.anyio
async def test_archives_and_trees_are_made(tmp_path: Path, server: RegistryServer) -> None:
    async with opened(tmp_path, server) as (store, reference):
        await store.pull(reference)
        report = await store.export_images([reference], tmp_path / "a.tar")
        assert report.size > 2 * MIB
        await store.remove(reference)
        assert len((await store.import_images(tmp_path / "a.tar")).images) == 1
        copied = await store.copy(f"oci-archive:{tmp_path / 'a.tar'}", f"oci:{tmp_path / 'layout'}")
        assert copied.sent > 2 * MIB


@pytest.mark.anyio
async def test_events_are_iterated_while_the_pull_goes_on(tmp_path: Path, server: RegistryServer) -> None:
    async with opened(tmp_path, server) as (store, reference), store.pulling(reference) as pull:
        heard = [event async for event in pull]
        image = await pull.result()
    assert isinstance(heard[0], events.Resolved)
    done = [event.descriptor.digest for event in heard if isinstance(event, events.BlobDone)]
    assert {layer.digest for layer in image.layers} <= set(done)


@pytest.mark.anyio
async def test_two_pulls_go_on_at_once(tmp_path: Path, server: RegistryServer) -> None:
    async with opened(tmp_path, server) as (store, reference), anyio.create_task_group() as group:
        group.start_soon(store.pull, reference)
        group.start_soon(store.pull, reference)


@pytest.mark.anyio
async def test_errors_are_those_of_the_store_and_in_no_group(tmp_path: Path, server: RegistryServer) -> None:
    async with opened(tmp_path, server) as (store, reference):
        missing = reference.replace("app:1", "app:2")
        with pytest.raises(ReferenceNotFoundError):
            await store.pull(missing)
        with pytest.raises(ReferenceNotFoundError):
            async with store.pulling(missing) as pull:
                assert [event async for event in pull] == []
        with pytest.raises(ReferenceNotFoundError):
            async with store.pulling(missing) as pull:
                await pull.result()
        with pytest.raises(ZeroDivisionError):
            async with store.pulling(reference) as pull:
                raise ZeroDivisionError


@pytest.mark.anyio
async def test_a_cancelled_pull_ends_and_gives_back_what_it_brought(
    tmp_path: Path, slow_server: RegistryServer
) -> None:
    async with opened(tmp_path, slow_server) as (store, reference):
        has_begun, before = anyio.Event(), pools()

        async def watched() -> None:
            async with store.pulling(reference) as pull:
                async for event in pull:
                    if isinstance(event, events.BlobAdvanced):
                        has_begun.set()

        async with anyio.create_task_group() as group:
            group.start_soon(watched)
            await has_begun.wait()
            assert pools() > before
            group.cancel_scope.cancel()
        await ended(before)
        assert await store.list() == []
        assert [lease for lease in store.store.metadata.leases.find() if lease.id.startswith("pull")] == []


@pytest.mark.anyio
async def test_a_deadline_of_the_task_ends_the_transfer(tmp_path: Path, slow_server: RegistryServer) -> None:
    async with opened(tmp_path, slow_server) as (store, reference):
        before = pools()
        with pytest.raises(TimeoutError):
            with anyio.fail_after(0.5):
                await store.pull(reference)
        await ended(before)


@pytest.mark.anyio
async def test_leaving_the_block_early_cancels_the_pull(tmp_path: Path, slow_server: RegistryServer) -> None:
    async with opened(tmp_path, slow_server) as (store, reference):
        before = pools()
        async with store.pulling(reference) as pull:
            async for event in pull:
                if isinstance(event, events.BlobStarted):
                    break
        await ended(before)
        assert await store.list() == []


@pytest.mark.anyio
async def test_a_slow_reader_holds_nothing_up_and_misses_no_end(tmp_path: Path, server: RegistryServer) -> None:
    async with opened(tmp_path, server) as (store, reference), store.pulling(reference) as pull:
        image = await pull.result()
        heard = [event async for event in pull]
    advanced = [event.digest for event in heard if isinstance(event, events.BlobAdvanced)]
    assert len(advanced) == len(set(advanced))
    done = {event.descriptor.digest for event in heard if isinstance(event, events.BlobDone)}
    assert {layer.digest for layer in image.layers} <= done
