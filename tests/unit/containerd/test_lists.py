"""What a caller's filter takes time for holds nobody else up, and ends when he leaves; the same for every list."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest

from imagestore.containerd.filters import Fields, Filter
from imagestore.errors import OperationCancelledError
from imagestore.protos.containerd import content_pb2, images_pb2, introspection_pb2, leases_pb2, namespaces_pb2
from imagestore.protos.containerd.content_pb2_grpc import ContentStub
from imagestore.protos.containerd.images_pb2_grpc import ImagesStub
from imagestore.protos.containerd.introspection_pb2_grpc import IntrospectionStub
from imagestore.protos.containerd.leases_pb2_grpc import LeasesStub
from imagestore.protos.containerd.namespaces_pb2_grpc import NamespacesStub
from imagestore.store.workers import QUICK_THREADS
from tests.support.containerd_client import Client, message


class Search:
    """Stands in for a search that goes on until it is told to end."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.left = threading.Semaphore(0)
        self.end = threading.Event()

    def fits(self, _filter: Filter, _fields: Fields, check: Callable[[], None]) -> bool:
        self.begun.release()
        while not self.end.wait(0.02):
            try:
                check()
            except OperationCancelledError:
                self.left.release()
                raise
        return True


@pytest.fixture
def search(monkeypatch: pytest.MonkeyPatch) -> Iterator[Search]:
    found = Search()
    monkeypatch.setattr(Filter, "_fits", lambda *given: found.fits(*given))
    yield found
    found.end.set()


def drained(stub: Any, request: Any, **more: Any) -> Any:
    """A stream's call, begun."""
    call = stub(request, **more)
    threading.Thread(target=lambda: _swallow(call), daemon=True).start()
    return call


def _swallow(call: Any) -> None:
    with contextlib.suppress(grpc.RpcError):
        list(call)


LISTS: dict[str, Callable[[Client], Any]] = {
    "images": lambda client: ImagesStub(client.channel).List.future(
        images_pb2.ListImagesRequest(filters=["name"]), metadata=client.headers
    ),
    "content": lambda client: drained(
        ContentStub(client.channel).List, content_pb2.ListContentRequest(filters=["digest"]), metadata=client.headers
    ),
    "statuses": lambda client: ContentStub(client.channel).ListStatuses.future(
        content_pb2.ListStatusesRequest(filters=["ref"]), metadata=client.headers
    ),
    "leases": lambda client: LeasesStub(client.channel).List.future(
        leases_pb2.ListRequest(filters=["id"]), metadata=client.headers
    ),
    "namespaces": lambda client: NamespacesStub(client.channel).List.future(
        namespaces_pb2.ListNamespacesRequest(filter="name")
    ),
    "plugins": lambda client: IntrospectionStub(client.channel).Plugins.future(
        introspection_pb2.PluginsRequest(filters=["id"])
    ),
}


@pytest.mark.parametrize("what", LISTS)
def test_a_long_search_keeps_no_quick_call_waiting_and_ends_with_its_caller(
    client: Client, search: Search, what: str
) -> None:
    client.create_image("x", client.ingest(b"a"))
    client.write(message(content_pb2.WRITE, "open", data=b"b"))
    LeasesStub(client.channel).Create(leases_pb2.CreateRequest(id="l"), metadata=client.headers)
    calls = [LISTS[what](client) for _ in range(QUICK_THREADS)]
    assert all(search.begun.acquire(timeout=60) for _ in calls)
    # Every quick thread would be taken.
    request = namespaces_pb2.GetNamespaceRequest(name="default")
    assert NamespacesStub(client.channel).Get(request, timeout=60).namespace.name == "default"
    for call in calls:
        call.cancel()
    assert all(search.left.acquire(timeout=60) for _ in calls)
