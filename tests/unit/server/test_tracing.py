"""Spans: one for each call, the caller's child, with the code and nothing of the request."""

from __future__ import annotations

from importlib import metadata
from types import SimpleNamespace

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from imagestore.errors import ConfigError
from imagestore.server.tracing import Tracing, named_exporter


def test_call_is_a_span_below_its_callers() -> None:
    exporter = InMemorySpanExporter()
    tracing = Tracing(exporter)
    headers: list[tuple[str, str | bytes]] = [
        ("traceparent", f"00-{'ab' * 16}-{'cd' * 8}-01"),
        ("authorization", "hunter2-canary"),
        ("x-bin", b"\0"),
    ]
    tracing.end(tracing.begin("/runtime.v1.ImageService/PullImage", headers), "NOT_FOUND")
    tracing.end(tracing.begin("/runtime.v1.ImageService/ListImages", []), "OK")
    tracing._provider.force_flush()
    pull, listing = exporter.get_finished_spans()
    tracing.close()
    assert pull.name == "runtime.v1.ImageService/PullImage"
    assert pull.context is not None
    assert pull.context.trace_id == int("ab" * 16, 16)
    assert dict(pull.attributes or {}) == {
        "rpc.system": "grpc",
        "rpc.service": "runtime.v1.ImageService",
        "rpc.method": "PullImage",
        "rpc.grpc.status_code": "NOT_FOUND",
    }
    assert (pull.status.is_ok, listing.status.is_ok) == (False, True)
    assert listing.parent is None
    assert "hunter2" not in pull.to_json()


def test_exporter_is_the_one_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console")
    assert type(named_exporter()).__name__ == "ConsoleSpanExporter"
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "nobody")
    with pytest.raises(ConfigError, match="no span exporter is called 'nobody'; installed: console"):
        named_exporter()


@pytest.mark.parametrize("error", [ImportError("no module named 'opentelemetry.proto'"), ValueError("timeout 'soon'")])
def test_exporter_that_cannot_be_made_is_named_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def load() -> None:
        raise error

    entry = SimpleNamespace(name="otlp", load=load)
    monkeypatch.delenv("OTEL_TRACES_EXPORTER", raising=False)
    monkeypatch.setattr(metadata, "entry_points", lambda **_: [entry])
    with pytest.raises(ConfigError, match=f"exporter 'otlp' can't be made: {type(error).__name__}: {error}") as caught:
        named_exporter()
    assert caught.value.hint
