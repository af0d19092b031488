"""Closing a store ends what other threads do with it, and says so to who comes later."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import imagestore
from imagestore import ImageStore
from imagestore.errors import ImageStoreError, OperationCancelledError, StoreError
from imagestore.observe import BlobStarted, Event
from imagestore.testing import RegistryServer, build_image, synthetic_layer
from imagestore.testing.faults import Drip, FaultRule, Where


@pytest.fixture
def slow() -> Iterator[RegistryServer]:
    image = build_image(layers=[synthetic_layer(f"s{number}", 400 * 1024) for number in range(6)])
    dripping = FaultRule(Drip(bytes_per_second=100 * 1024), Where(kind="blob"), times=0)
    with RegistryServer({"registry.example/app:1": image}, faults=[dripping]) as server:
        yield server


def test_a_pull_ends_with_its_store_and_leaves_nothing(tmp_path: Path, slow: RegistryServer) -> None:
    store = imagestore.open(tmp_path / "store")
    is_fetching, failures = threading.Event(), list[BaseException]()

    def hear(event: Event) -> None:
        if isinstance(event, BlobStarted):
            is_fetching.set()

    def pull() -> None:
        try:
            store.pull(f"{slow.address}/app:1", platform="linux/amd64", observer=hear)
        except ImageStoreError as error:
            failures.append(error)

    thread = threading.Thread(target=pull)
    thread.start()
    assert is_fetching.wait(30)
    store.close()
    # It was waited for.
    assert [type(each) for each in failures] == [OperationCancelledError]
    assert "this store was closed" in str(failures[0])
    asked = len(slow.ledger.entries)
    thread.join()
    assert len(slow.ledger.entries) == asked
    with imagestore.open(tmp_path / "store") as again:
        assert list(again.metadata.leases()) == []


def test_who_closes_from_within_his_own_work_is_not_waited_for(tmp_path: Path, slow: RegistryServer) -> None:
    store = imagestore.open(tmp_path / "store")
    with pytest.raises(ImageStoreError, match=r"this store (was|is) closed"):
        store.pull(f"{slow.address}/app:1", platform="linux/amd64", observer=lambda _: store.close())


@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.get("a"),
        lambda store: list(store.list()),
        lambda store: store.pull("127.0.0.1:1/a:1"),
        lambda store: store.plan([("127.0.0.1:1/a:1", "")]),
        lambda store: store.match("127.0.0.1:1/a:1"),
        lambda store: store.check(),
        lambda store: store.collect_garbage(),
        lambda store: store.usage(),
        lambda store: store.import_images("nothing.tar"),
        lambda store: store.export_images([], "nothing.tar"),
        lambda store: store.hold([]).__enter__(),
    ],
    ids=["get", "list", "pull", "plan", "match", "check", "collect", "usage", "import", "export", "hold"],
)
def test_a_closed_store_says_so_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Callable[[ImageStore], object]
) -> None:
    monkeypatch.chdir(tmp_path)
    store = imagestore.open(tmp_path / "store")
    store.close()
    store.close()
    with pytest.raises(StoreError, match="this store is closed") as caught:
        call(store)
    assert caught.value.hint == "open it again"
