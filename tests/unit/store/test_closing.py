"""Closing a store ends what other threads do with it, and says so to who comes later."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import imagestore
from imagestore import CancelToken, ImageStore
from imagestore.errors import ImageStoreError, OperationCancelledError, StoreError
from imagestore.events import BlobStarted, Event
from imagestore.testing import RegistryServer, build_image, synthetic_layer
from imagestore.testing.faults import Drip, FaultRule, Where


@pytest.fixture
def slow() -> Iterator[RegistryServer]:
    image = build_image(layers=[synthetic_layer(f"s{number}", 400 * 1024) for number in range(6)])
    dripping = FaultRule(Drip(bytes_per_second=200 * 1024), Where(kind="blob"), times=0)
    with RegistryServer({"registry.example/app:1": image}, faults=[dripping]) as server:
        yield server


def pulling(store: ImageStore, server: RegistryServer) -> tuple[threading.Thread, list[str | ImageStoreError]]:
    """A thread whose pull fetches blobs by now, and where it puts the image's reference or the error."""
    is_fetching, ends = threading.Event(), list[str | ImageStoreError]()

    def hear(event: Event) -> None:
        if isinstance(event, BlobStarted):
            is_fetching.set()

    def pull() -> None:
        try:
            ends.append(store.pull(f"{server.address}/app:1", platform="linux/amd64", observer=hear).reference)
        except ImageStoreError as error:
            ends.append(error)

    thread = threading.Thread(target=pull)
    thread.start()
    assert is_fetching.wait(120)
    return thread, ends


def test_a_pull_ends_with_its_store_and_leaves_nothing(tmp_path: Path, slow: RegistryServer) -> None:
    store = imagestore.open(tmp_path / "store")
    thread, ends = pulling(store, slow)
    store.close()
    # It was waited for.
    assert [type(each) for each in ends] == [OperationCancelledError]
    assert "this store was closed" in str(ends[0])
    asked = len(slow.ledger.entries)
    thread.join()
    assert len(slow.ledger.entries) == asked
    with imagestore.open(tmp_path / "store") as again:
        assert list(again.metadata.leases.find()) == []


def test_closing_within_an_operation_does_not_wait_for_it(tmp_path: Path, slow: RegistryServer) -> None:
    store = imagestore.open(tmp_path / "store")
    with pytest.raises(ImageStoreError, match=r"this store (was|is) closed"):
        store.pull(f"{slow.address}/app:1", platform="linux/amd64", observer=lambda _: store.close())


def test_a_forked_child_that_closes_ends_nothing_of_its_parent(tmp_path: Path, slow: RegistryServer) -> None:
    store = imagestore.open(tmp_path / "store")
    thread, ends = pulling(store, slow)
    child = os.fork()
    if not child:
        status = 1
        try:
            store.close()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    thread.join()
    assert ends == [f"{slow.address}/app:1"]
    fetched = [entry for entry in slow.ledger.entries if entry.kind == "blob"]
    assert len(fetched) == len({entry.path for entry in fetched}) == 7
    store.close()


def test_a_callback_that_fails_keeps_no_store_open(tmp_path: Path, slow: RegistryServer) -> None:
    def fail() -> None:
        raise ValueError("of an embedder's verifier")

    class Failing:
        def verify(self, _name: str, _descriptor: object, *, cancel: CancelToken) -> None:
            with cancel.on_cancel(fail):
                is_asked.set()
                is_over.wait(120)
                cancel.check()

    is_asked, is_over = threading.Event(), threading.Event()
    store = ImageStore(tmp_path / "store", verifier=Failing())

    def pull() -> None:
        with contextlib.suppress(ImageStoreError):
            store.pull(f"{slow.address}/app:1", platform="linux/amd64")

    thread = threading.Thread(target=pull)
    thread.start()
    assert is_asked.wait(120)
    with pytest.raises(ValueError, match="embedder"):
        store.close()
    is_over.set()
    thread.join()
    with pytest.raises(StoreError, match="this store is closed"):
        store.get("a")


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
