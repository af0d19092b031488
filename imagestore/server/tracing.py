"""A span for each call, if the server runs with ``--tracing``.

The exporter is the one that ``OTEL_TRACES_EXPORTER`` names (``otlp`` by default, as the specification has it), found
among the installed ones; a caller's ``traceparent`` makes our span a child of its own. Spans carry the method and its
status code, nothing of requests.
"""

from __future__ import annotations

import os
from importlib import metadata
from typing import TYPE_CHECKING, Any, Final

from imagestore.errors import ConfigError
from imagestore.util.distribution import install_hint

if TYPE_CHECKING:
    from collections.abc import Iterable

_GROUP: Final = "opentelemetry_traces_exporter"


class Tracing:
    """Makes spans and hands them to a span exporter of OpenTelemetry's SDK.

    Raises:
        ConfigError: OpenTelemetry isn't installed.
    """

    def __init__(self, exporter: Any) -> None:
        try:
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ImportError as error:
            raise ConfigError(
                "tracing: expected the package opentelemetry-sdk, it is not installed",
                hint=install_hint("tracing"),
            ) from error
        # Its own provider: an embedder's global one is the embedder's.
        self._provider = TracerProvider(resource=Resource.create({"service.name": "imagestore"}))
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("imagestore")
        self._propagator = TraceContextTextMapPropagator()

    def begin(self, method: str, headers: Iterable[tuple[str, str | bytes]]) -> Any:
        """The span of a call that starts, with this metadata."""
        from opentelemetry.trace import SpanKind

        carrier = {key: value for key, value in headers if isinstance(value, str) and key.startswith("trace")}
        service, _, name = method.lstrip("/").partition("/")
        attributes = {"rpc.system": "grpc", "rpc.service": service, "rpc.method": name}
        parent = self._propagator.extract(carrier) if carrier else None
        return self._tracer.start_span(method.lstrip("/"), context=parent, kind=SpanKind.SERVER, attributes=attributes)

    def end(self, span: Any, code: str) -> None:
        """A call ended with the status code of this name."""
        from opentelemetry.trace import Status, StatusCode

        span.set_attribute("rpc.grpc.status_code", code)
        if code != "OK":
            span.set_status(Status(StatusCode.ERROR, code))
        span.end()

    def close(self) -> None:
        """Export the spans that are still held."""
        self._provider.shutdown()


def named_exporter() -> Any:
    """The exporter that the environment names.

    Raises:
        ConfigError: it isn't installed, or can't be made as the environment has it.
    """
    name = os.environ.get("OTEL_TRACES_EXPORTER") or "otlp"
    for entry in metadata.entry_points(group=_GROUP, name=name):
        try:
            return entry.load()()
        except Exception as error:
            raise ConfigError(
                f"tracing: span exporter {name!r} can't be made: {type(error).__name__}: {error}",
                hint="see its variables, which begin with OTEL_EXPORTER_",
            ) from error
    known = ", ".join(sorted({entry.name for entry in metadata.entry_points(group=_GROUP)})) or "none"
    raise ConfigError(
        f"tracing: no span exporter is called {name!r}; installed: {known}",
        hint="set OTEL_TRACES_EXPORTER, or install opentelemetry-exporter-otlp",
    )
