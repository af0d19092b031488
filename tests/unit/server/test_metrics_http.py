"""Numbers are handed out at one path, and silence is closed."""

from __future__ import annotations

import contextlib
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, Gauge

from imagestore.server.metrics_http import MOST_CONNECTIONS, MetricsServer


class Broken:
    """A collector that fails."""

    def describe(self) -> list[object]:
        return []

    def collect(self) -> Iterator[object]:
        raise ValueError("hunter2-canary")


@pytest.fixture(scope="module")
def registry() -> CollectorRegistry:
    registry = CollectorRegistry()
    Gauge("answer", "All of it.", registry=registry).set(42)
    return registry


@pytest.fixture(scope="module")
def publication(registry: CollectorRegistry) -> Iterator[MetricsServer]:
    published = MetricsServer(registry, "127.0.0.1", 0)
    yield published
    published.close()


def asked(publication: MetricsServer, path: str = "/metrics") -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{publication.port}{path}", timeout=60) as answer:
        return str(answer.read().decode())


def test_numbers_are_answered(publication: MetricsServer) -> None:
    assert "answer 42.0\n" in asked(publication)
    assert "answer 42.0\n" in asked(publication, "/metrics?name[]=answer")


def test_they_are_answered_over_ipv6(registry: CollectorRegistry) -> None:
    published = MetricsServer(registry, "::1", 0)
    with (
        contextlib.closing(published),
        urllib.request.urlopen(f"http://[::1]:{published.port}/metrics", timeout=60) as answer,
    ):
        assert b"answer 42.0\n" in answer.read()


def test_an_idle_connection_is_closed_and_delays_no_other(
    publication: MetricsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("imagestore.server.metrics_http._Handler.timeout", 0.3)
    with contextlib.ExitStack() as stack:
        silent = [
            stack.enter_context(socket.create_connection(("127.0.0.1", publication.port), timeout=60))
            for _ in range(50)
        ]
        silent[0].sendall(b"GET /metr")
        assert "answer 42.0\n" in asked(publication)
        for each in silent:
            with contextlib.suppress(ConnectionResetError):
                assert each.recv(1) == b""


def test_of_too_many_connections_the_oldest_are_closed(
    publication: MetricsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Longer than this test waits, so that none is given up for its silence.
    monkeypatch.setattr("imagestore.server.metrics_http._Handler.timeout", 600.0)
    before = threading.active_count()
    with contextlib.ExitStack() as stack:
        callers = []
        for _ in range(3 * MOST_CONNECTIONS):
            callers.append(stack.enter_context(socket.create_connection(("127.0.0.1", publication.port), timeout=60)))
            with contextlib.suppress(OSError):
                callers[-1].sendall(b"G")
        for each in callers[:MOST_CONNECTIONS]:
            with contextlib.suppress(ConnectionResetError):
                assert each.recv(1) == b""
        assert "answer 42.0\n" in asked(publication)
        assert threading.active_count() - before <= 2 * MOST_CONNECTIONS


def test_a_failing_request_is_not_printed_and_the_next_is_answered(
    publication: MetricsServer, registry: CollectorRegistry, capfd: pytest.CaptureFixture[str]
) -> None:
    broken = Broken()
    registry.register(broken)  # type: ignore[arg-type]  # it has what the registry calls
    with pytest.raises(urllib.error.HTTPError) as caught:
        asked(publication)
    caught.value.close()
    registry.unregister(broken)  # type: ignore[arg-type]
    assert "answer 42.0\n" in asked(publication)
    assert "canary" not in "".join(capfd.readouterr())


def test_taken_port_is_an_error_of_the_system(publication: MetricsServer, registry: CollectorRegistry) -> None:
    with pytest.raises(OSError, match="in use"):
        MetricsServer(registry, "127.0.0.1", publication.port)


@pytest.mark.parametrize("path", ["/", "/metrics/", "/metricsx", "//x/metrics", "/favicon.ico", "/x?/metrics"])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_other_paths_are_not_found(publication: MetricsServer, method: str, path: str) -> None:
    url = f"http://127.0.0.1:{publication.port}{path}"
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=60)
    assert caught.value.code == 404
    caught.value.close()
