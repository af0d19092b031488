"""When a request is tried again, and after how long."""

from __future__ import annotations

import datetime
import ssl
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagestore import CancelToken, Digest, Reference, TransferPolicy
from imagestore.config.hosts import HostConfig, RegistryHosts
from imagestore.errors import (
    AccessDeniedError,
    OperationCancelledError,
    ProtocolError,
    RateLimitedError,
    ReferenceNotFoundError,
    RegistryUnavailableError,
)
from imagestore.events import Waiting
from imagestore.registry.endpoints import Endpoint, endpoints_from
from imagestore.registry.retry import (
    HostPauses,
    Timing,
    backoff_seconds,
    is_transient,
    limited_seconds,
    parse_retry_after,
)

REFERENCE = Reference.parse("registry.example/team/app:1")
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
BODY = b'{"a": 12}'
NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
MakeBench = Callable[..., Any]


def good() -> httpx.Response:
    headers = {"Content-Type": MANIFEST, "Docker-Content-Digest": str(Digest.of(BODY))}
    return httpx.Response(200, headers=headers, content=BODY)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("0", 0.0),
        (" 7 ", 7.0),
        ("Thu, 01 Jan 2026 00:00:30 GMT", 30.0),
        ("Thu, 01 Jan 2026 00:00:30 -0000", 30.0),
        ("Wed, 31 Dec 2025 23:59:00 GMT", 0.0),
        ("-1", None),
        ("1.5", None),
        ("٣", None),
        ("99999999999", 99999999999.0),
        ("soon", None),
        ("", None),
        ("9" * 30, None),
    ],
)
def test_retry_after_in_both_forms(value: str, seconds: float | None) -> None:
    assert parse_retry_after(value, NOW) == seconds


@given(st.text(max_size=40))
def test_any_retry_after_is_read_or_ignored(value: str) -> None:
    seconds = parse_retry_after(value, NOW)
    assert seconds is None or seconds >= 0


@given(st.integers(1, 10_000), st.floats(0, 1, exclude_max=True))
def test_backoff_stays_within_its_bounds(retry: int, chance: float) -> None:
    policy = TransferPolicy()
    bound = min(policy.longest_backoff_seconds, policy.first_backoff_seconds * 2 ** min(retry - 1, 20))
    assert 0 <= backoff_seconds(policy, retry, chance) <= bound


def _tls_refused() -> RegistryUnavailableError:
    error = RegistryUnavailableError("no TLS connection")
    error.__cause__ = ssl.SSLCertVerificationError("bad")
    return error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RegistryUnavailableError("reset"), True),
        (RateLimitedError("slow down"), True),
        (ProtocolError("nonsense"), False),
        (AccessDeniedError("no"), False),
        (_tls_refused(), False),
    ],
)
def test_only_failures_that_a_retry_can_pass_are_transient(error: RegistryUnavailableError, expected: bool) -> None:
    assert is_transient(error) is expected


def script(*answers: httpx.Response | Exception) -> tuple[Callable[[httpx.Request], httpx.Response], list[str]]:
    left, methods = list(answers), []

    def answer(request: httpx.Request) -> httpx.Response:
        methods.append(request.method)
        found = left.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    return answer, methods


@given(st.integers(1, 10_000), st.floats(0, 1, exclude_max=True))
def test_the_wait_after_an_unnamed_limit_is_long_and_bounded(retry: int, chance: float) -> None:
    policy = TransferPolicy()
    bound = min(policy.longest_limited_seconds, policy.first_limited_seconds * 2 ** min(retry - 1, 20))
    assert bound / 2 <= limited_seconds(policy, retry, chance) <= bound * 3 / 2


@pytest.mark.parametrize("status", [408, 425, 500, 502, 503, 504])
def test_a_passing_failure_is_tried_again_with_growing_waits(make_bench: MakeBench, status: int) -> None:
    answer, methods = script(*(httpx.Response(status) for _ in range(4)), good())
    bench = make_bench(answer)
    assert bench.client.resolve(REFERENCE, cancel=bench.cancel).size == 9
    assert methods == ["GET"] * 5
    assert bench.time.slept == [0.1, 0.2, 0.4, 0.8]


@pytest.mark.parametrize("value", ["", "soon", "1.5"])
def test_a_limit_that_names_no_time_is_waited_for_as_long_as_other_tools_do(make_bench: MakeBench, value: str) -> None:
    limited = httpx.Response(429, headers={"Retry-After": value} if value else {})
    answer, methods = script(*[limited] * 4, good())
    bench = make_bench(answer)
    assert bench.client.resolve(REFERENCE, cancel=bench.cancel).size == 9
    assert methods == ["GET"] * 5
    assert bench.time.slept == [2.0, 4.0, 8.0, 16.0]
    told = [(event.host, event.seconds) for event in bench.events if isinstance(event, Waiting)]
    assert told == [("registry.example", seconds) for seconds in bench.time.slept]


def test_a_limit_that_names_no_time_is_not_waited_for_beyond_the_deadline(make_bench: MakeBench) -> None:
    answer, methods = script(httpx.Response(429), httpx.Response(429))
    bench = make_bench(answer)
    with pytest.raises(RateLimitedError, match="answered 429"):
        bench.client.resolve(REFERENCE, cancel=CancelToken(deadline_seconds=3))
    assert (len(methods), bench.time.slept) == (2, [2.0])


def test_a_wait_for_a_limit_that_names_no_time_ends_when_cancelled(make_bench: MakeBench) -> None:
    answer, methods = script(httpx.Response(429))
    bench = make_bench(answer)
    bench.time.on_sleep = CancelToken.cancel
    with pytest.raises(OperationCancelledError):
        bench.client.resolve(REFERENCE, cancel=bench.cancel)
    assert len(methods) == 1


@pytest.mark.parametrize(
    "failure",
    [
        httpx.ConnectError("refused"),
        httpx.ConnectTimeout("slow"),
        httpx.ReadTimeout("slow"),
        httpx.ReadError("reset"),
        httpx.RemoteProtocolError("hung up"),
        httpx.ProxyError("bad gateway"),
        OSError("network is down"),
    ],
)
def test_a_broken_connection_is_tried_again(make_bench: MakeBench, failure: Exception) -> None:
    answer, _ = script(failure, good())
    bench = make_bench(answer)
    assert bench.client.resolve(REFERENCE, cancel=bench.cancel).size == 9


def test_tries_end_after_the_fifth(make_bench: MakeBench) -> None:
    answer, methods = script(*(httpx.Response(503) for _ in range(5)))
    bench = make_bench(answer)
    with pytest.raises(RegistryUnavailableError) as raised:
        bench.client.resolve(REFERENCE, cancel=bench.cancel)
    assert raised.value.status == 503
    assert len(methods) == 5


@pytest.mark.parametrize("status", [400, 403, 404, 405, 406, 410, 451, 501, 505])
def test_a_final_refusal_is_not_repeated(make_bench: MakeBench, status: int) -> None:
    answer, methods = script(httpx.Response(status))
    bench = make_bench(answer)
    with pytest.raises(Exception, match=str(status)):
        bench.client.resolve(REFERENCE, cancel=bench.cancel)
    assert methods == ["GET"]
    assert bench.time.slept == []


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("value", ["20", "Thu, 01 Jan 2026 00:00:20 GMT"])
def test_retry_after_is_waited_for_and_shown(make_bench: MakeBench, status: int, value: str) -> None:
    answer, _ = script(httpx.Response(status, headers={"Retry-After": value}), good())
    bench = make_bench(answer)
    bench.client.resolve(REFERENCE, cancel=bench.cancel)
    assert bench.time.slept == [pytest.approx(20.1)]
    (waiting,) = [event for event in bench.events if isinstance(event, Waiting)]
    assert waiting.host == "registry.example"
    assert str(status) in waiting.reason


def test_a_wait_longer_than_the_limit_fails_at_once_and_names_the_time(make_bench: MakeBench) -> None:
    answer, methods = script(httpx.Response(429, headers={"Retry-After": "3600"}))
    bench = make_bench(answer)
    with pytest.raises(RateLimitedError, match="429") as raised:
        bench.client.resolve(REFERENCE, cancel=bench.cancel)
    assert raised.value.retry_after == 3600
    assert "3600 s" in raised.value.hint
    assert len(methods) == 1


def test_a_wait_beyond_the_deadline_fails_at_once(make_bench: MakeBench) -> None:
    answer, methods = script(httpx.Response(429, headers={"Retry-After": "30"}))
    bench = make_bench(answer)
    with pytest.raises(RateLimitedError):
        bench.client.resolve(REFERENCE, cancel=CancelToken(deadline_seconds=5))
    assert len(methods) == 1


def test_one_requests_rate_limit_holds_back_the_next(make_bench: MakeBench) -> None:
    answer, _ = script(
        httpx.Response(429, headers={"Retry-After": "100"}),
        good(),
    )
    bench = make_bench(answer, policy=TransferPolicy(attempts=2))
    bench.client.resolve(REFERENCE, cancel=bench.cancel)
    slept = sum(bench.time.slept)
    assert slept == pytest.approx(100.1)


def test_a_pause_longer_than_the_deadline_is_not_sat_out(make_bench: MakeBench) -> None:
    answer, methods = script(httpx.Response(429, headers={"Retry-After": "100"}), good())
    bench = make_bench(answer)
    bench.client._shared.pauses.pause("registry.example", 100.0, "it asked")
    with pytest.raises(RateLimitedError, match="not asked again for 100 s") as raised:
        bench.client.resolve(REFERENCE, cancel=CancelToken(deadline_seconds=5))
    assert raised.value.retry_after == pytest.approx(100.0)
    assert "it asked" in str(raised.value)
    assert (methods, bench.time.slept) == ([], [])


class WithMirror:
    """A mirror in front of the registry."""

    def __call__(self, host: str) -> tuple[Endpoint, ...]:
        return endpoints_from(host, RegistryHosts((HostConfig("https://mirror.example/v2"),)))


def test_a_mirror_that_asked_for_a_long_wait_is_not_asked_before_its_end(make_bench: MakeBench) -> None:
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.host)
        if request.url.host == "mirror.example":
            return httpx.Response(429, headers={"Retry-After": "60"})
        return good()

    bench = make_bench(answer, endpoints=WithMirror())
    for _ in range(3):
        bench.client.resolve(REFERENCE, cancel=bench.cancel)
    assert asked == ["mirror.example", *["registry.example"] * 3]
    assert bench.time.slept == []
    bench.time.seconds += 62
    bench.client.resolve(REFERENCE, cancel=bench.cancel)
    assert asked[4:] == ["mirror.example", "registry.example"]


def test_a_mirror_that_limits_without_naming_a_time_is_passed_over_and_asked_for_the_next(
    make_bench: MakeBench,
) -> None:
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.host)
        limited = request.url.host == "mirror.example" and len(asked) == 1
        return httpx.Response(429) if limited else good()

    bench = make_bench(answer, endpoints=WithMirror())
    for _ in range(2):
        bench.client.resolve(REFERENCE, cancel=bench.cancel)
    assert asked == ["mirror.example", "registry.example", "mirror.example"]
    assert bench.time.slept == []


@pytest.mark.parametrize("fields", [{}, {"Retry-After": "20"}])
def test_a_mirror_that_limits_is_waited_for_where_the_registry_is_out_of_reach(
    make_bench: MakeBench, fields: dict[str, str]
) -> None:
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.host)
        if request.url.host != "mirror.example":
            raise httpx.ConnectError("no route to host")
        is_limited = bench.time.seconds < started + 15
        return httpx.Response(429, headers=fields) if is_limited else good()

    bench = make_bench(answer, endpoints=WithMirror())
    started = bench.time.seconds
    found = bench.client.resolve(REFERENCE, cancel=bench.cancel)
    assert found.digest == Digest.of(BODY)
    assert asked[0] == asked[-1] == "mirror.example"


def test_a_mirror_that_goes_on_limiting_leaves_the_registrys_failure(make_bench: MakeBench) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.host != "mirror.example":
            raise httpx.ConnectError("no route to host")
        return httpx.Response(429)

    bench = make_bench(answer, endpoints=WithMirror())
    with pytest.raises(RegistryUnavailableError, match=r"registry\.example: no connection") as raised:
        bench.client.resolve(REFERENCE, cancel=bench.cancel)
    assert "mirror.example answered 429" in raised.value.hint


def test_a_mirror_that_limits_is_not_waited_for_where_the_registry_answers(make_bench: MakeBench) -> None:
    bench = make_bench(
        lambda request: httpx.Response(429 if request.url.host == "mirror.example" else 404), endpoints=WithMirror()
    )
    with pytest.raises(ReferenceNotFoundError):
        bench.client.resolve(REFERENCE, cancel=bench.cancel)
    assert bench.time.slept == []


def test_a_registry_that_asked_for_a_long_wait_is_asked_again_by_the_next_operation(make_bench: MakeBench) -> None:
    """Nobody else serves meanwhile, and perhaps it has changed its mind."""
    answer, methods = script(httpx.Response(429, headers={"Retry-After": "3600"}), good())
    bench = make_bench(answer)
    with pytest.raises(RateLimitedError, match="answered 429"):
        bench.client.resolve(REFERENCE, cancel=bench.cancel)
    bench.client.resolve(REFERENCE, cancel=bench.cancel)
    assert (len(methods), bench.time.slept) == (2, [])


def test_retries_of_one_operation_are_counted_together(make_bench: MakeBench) -> None:
    answer, methods = script(*(httpx.Response(503) for _ in range(9)))
    bench = make_bench(answer, policy=TransferPolicy(total_retries=3))
    for _ in range(2):
        with pytest.raises(RegistryUnavailableError):
            bench.client.resolve(REFERENCE, cancel=bench.cancel)
    # Three retries for the first, none for the second; another operation has its own.
    assert len(methods) == 5
    with pytest.raises(RegistryUnavailableError):
        bench.client.resolve(REFERENCE, cancel=CancelToken())
    assert len(methods) == 9


def test_a_host_rests_for_the_longest_time_it_asked_for_and_no_other_host_does() -> None:
    slept: list[float] = []
    timing = Timing(lambda: sum(slept), lambda: NOW, lambda: 0.5, lambda _, seconds: slept.append(seconds))
    pauses, seen = HostPauses(timing), list[object]()
    for host, seconds in (("a.example", 10.0), ("a.example", 100.0), ("a.example", 20.0), ("b.example", 5.0)):
        pauses.pause(host, seconds, f"{seconds:.0f} s")
    pauses.wait("c.example", 0.0, cancel=CancelToken(), observer=seen.append)
    assert (slept, seen) == ([], [])
    pauses.wait("a.example", 100.0, cancel=CancelToken(), observer=seen.append)
    pauses.wait("a.example", 0.0, cancel=CancelToken(), observer=seen.append)
    assert (slept, seen) == ([100.0], [Waiting("a.example", 100.0, "100 s")])
