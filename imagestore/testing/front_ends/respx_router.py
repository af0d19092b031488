"""The respx front end: an engine behind a respx router, for suites that already mock httpx that way.

    with respx.mock() as router:
        mount(router, registry.engine)
        httpx.get("https://registry.example/v2/")

Requests to the engine's logical hosts are answered by the engine; other routes of the router keep working. Works for
httpx.Client and httpx.AsyncClient; a fault that delays the head blocks an event loop here, so test such delays with
AsyncReplayTransport.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from imagestore.errors import ConfigError
from imagestore.testing.front_ends.transport import ReplayTransport

if TYPE_CHECKING:
    from collections.abc import Iterable

    import respx

    from imagestore.testing.engine.engine import Answers


def mount(router: respx.Router, engine: Answers, *, hosts: Iterable[str] = ()) -> list[respx.Route]:
    """Add routes to a respx router that answer from an engine.

    Args:
        router: ``respx.mock`` or a router of your own.
        engine: of a Registry, a Replay or a Recorder.
        hosts: logical hosts to route; every host when empty.

    Raises:
        ConfigError: respx is missing.
    """
    try:
        from respx.patterns import M
    except ImportError as problem:
        raise ConfigError("respx is not installed", hint="pip install 'imagestore[testing]'") from problem
    names = list(hosts)
    routes = [router.route(M(host=host)) for host in names] if names else [router.route()]
    # Its streams serve both kinds of client, so one function does for both.
    answer = ReplayTransport(engine).handle_request
    for route in routes:
        route.side_effect = answer
    return routes
