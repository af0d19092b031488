"""Token answers, lifetimes, and the cache under threads."""

from __future__ import annotations

import json
import threading

import pytest

from imagestore import CancelToken, Secret
from imagestore.errors import AuthenticationError, OperationCancelledError
from imagestore.registry.auth.challenge import Scope
from imagestore.registry.auth.tokens import (
    TokenCache,
    TokenKey,
    TokenReply,
    lifetime,
    parse_reply,
    usable_seconds,
)
from imagestore.registry.transport.addresses import Origin

ORIGIN = Origin("https", "registry.example", 443)


def key(name: str = "a", origin: Origin = ORIGIN, account: str = "") -> TokenKey:
    return TokenKey(origin, "https://auth.example/token", "service", account, (Scope.pull(name),))


def reply(token: str = "T", seconds: float = 300.0) -> TokenReply:
    return TokenReply(Secret(token), seconds, Secret(""))


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("document", "token"),
    [
        ({"token": "abc"}, "abc"),
        ({"access_token": "abc"}, "abc"),
        ({"token": "abc", "access_token": "abc"}, "abc"),
        ({"token": "", "access_token": "abc"}, "abc"),
        ({"token": None, "access_token": "abc"}, "abc"),
        ({"token": "a.b-c_d=+/~!", "unknown": [1]}, "a.b-c_d=+/~!"),
    ],
)
def test_either_member_holds_the_token(document: dict[str, object], token: str) -> None:
    assert parse_reply(json.dumps(document).encode(), "service").token.reveal() == token


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not json",
        b"\xff",
        b"[]",
        b'"token"',
        b"[" * 100_000,
        b'{"expires_in": ' + b"9" * 5000 + b"}",
        b"{}",
        b'{"token": ""}',
        b'{"token": 7}',
        b'{"token": ["CANARY"]}',
        b'{"token": "CANARY\\r\\nX-Evil: 1"}',
        b'{"token": "CANARY x"}',
        b'{"token": "CANARY\\u00fc"}',
        b'{"token": "CANARY\\u0000"}',
    ],
)
def test_unusable_answers_are_refused_without_quoting_them(body: bytes) -> None:
    with pytest.raises(AuthenticationError) as caught:
        parse_reply(body, "token service x")
    assert "CANARY" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_of_two_tokens_the_first_is_taken() -> None:
    assert parse_reply(b'{"access_token": "b", "token": "a"}', "x").token.reveal() == "a"


@pytest.mark.parametrize("value", ["300", 300.0, 0, -1, None, True, 10**30, [], {}, 7 * 24 * 3600 + 1])
def test_odd_lifetimes_count_as_sixty_seconds(value: object) -> None:
    assert lifetime(value) == 60.0


def test_sensible_lifetimes_count() -> None:
    assert [lifetime(value) for value in (1, 60, 3600)] == [1.0, 60.0, 3600.0]


@pytest.mark.parametrize(("lived", "used"), [(300, 240), (60, 48), (50, 40), (40, 30), (11, 1), (10, 0), (1, 0)])
def test_renewal_is_at_four_fifths_or_ten_seconds_before_the_end(lived: float, used: float) -> None:
    assert usable_seconds(lived) == used


def test_refresh_tokens_are_kept_when_usable() -> None:
    assert parse_reply(b'{"token":"a","refresh_token":"r"}', "x").refresh_token.reveal() == "r"
    assert not parse_reply(b'{"token":"a","refresh_token":"r\\n"}', "x").refresh_token
    assert not parse_reply(b'{"token":"a","refresh_token":7}', "x").refresh_token


def test_a_token_is_reused_until_it_is_due() -> None:
    clock = Clock()
    cache = TokenCache(clock=clock)
    tokens = iter(["one", "two"])
    first, is_new = cache.obtain(key(), lambda: reply(next(tokens)), cancel=CancelToken())
    again, is_new_again = cache.obtain(key(), lambda: reply(next(tokens)), cancel=CancelToken())
    assert (first.value.reveal(), is_new, again.value.reveal(), is_new_again) == ("one", True, "one", False)
    clock.now += 239.9
    assert cache.get(key()) is not None
    clock.now += 0.1
    assert cache.get(key()) is None
    renewed, _ = cache.obtain(key(), lambda: reply(next(tokens)), cancel=CancelToken())
    assert renewed.value.reveal() == "two"


@pytest.mark.parametrize(
    "other",
    [
        key("b"),
        key(account="someone else"),
        key(origin=Origin("https", "other.example", 443)),
        key(origin=Origin("https", "registry.example", 5000)),
        key(origin=Origin("http", "registry.example", 443)),
    ],
)
def test_a_token_is_never_given_to_another_key(other: TokenKey) -> None:
    cache = TokenCache()
    cache.obtain(key(), reply, cancel=CancelToken())
    assert cache.get(other) is None


def test_discard_spares_a_token_that_has_taken_the_place() -> None:
    cache = TokenCache()
    cache.obtain(key(), lambda: reply("new"), cancel=CancelToken())
    cache.discard(key(), Secret("old"))
    assert cache.get(key()) is not None
    cache.discard(key(), Secret("new"))
    assert cache.get(key()) is None


def run_threads(count: int, work: object) -> None:
    threads = [threading.Thread(target=work) for _ in range(count)]  # type: ignore[arg-type]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def test_threads_share_one_exchange() -> None:
    cache, gate, asked, got = TokenCache(), threading.Event(), [], []

    def exchange() -> TokenReply:
        asked.append(1)
        gate.wait(60)
        return reply("shared")

    def work() -> None:
        got.append(cache.obtain(key(), exchange, cancel=CancelToken())[0].value.reveal())

    timer = threading.Timer(0.05, gate.set)
    timer.start()
    run_threads(8, work)
    assert (len(asked), got) == (1, ["shared"] * 8)


def test_every_waiting_thread_gets_the_failure() -> None:
    cache, gate, asked = TokenCache(), threading.Event(), []
    failures: list[AuthenticationError] = []

    def exchange() -> TokenReply:
        asked.append(1)
        gate.wait(60)
        raise AuthenticationError("refused", host="h", status=401, hint="log in") from ValueError("why")

    present = threading.Barrier(4, action=lambda: threading.Timer(0.3, gate.set).start())

    def work() -> None:
        present.wait(60)
        try:
            cache.obtain(key(), exchange, cancel=CancelToken())
        except AuthenticationError as error:
            failures.append(error)

    run_threads(4, work)
    assert {(str(error), error.host, error.status, error.hint) for error in failures} == {
        ("refused", "h", 401, "log in")
    }
    assert all(isinstance(error.__cause__, ValueError) for error in failures)
    # What one of them adds to its own is not said by the others.
    assert len({id(error) for error in failures}) == 4
    assert len(asked) == 1


def test_after_a_cancelled_exchange_a_waiting_thread_exchanges() -> None:
    cache, started, gate, got = TokenCache(), threading.Event(), threading.Event(), []

    def cancelled() -> TokenReply:
        started.set()
        gate.wait(60)
        raise OperationCancelledError("the leader's own")

    def lead() -> None:
        with pytest.raises(OperationCancelledError):
            cache.obtain(key(), cancelled, cancel=CancelToken())

    def follow() -> None:
        got.append(cache.obtain(key(), lambda: reply("mine"), cancel=CancelToken())[0].value.reveal())

    leader, follower = threading.Thread(target=lead), threading.Thread(target=follow)
    leader.start()
    assert started.wait(60)
    follower.start()
    gate.set()
    leader.join(60)
    follower.join(60)
    assert got == ["mine"]


def test_a_waiting_thread_can_be_cancelled() -> None:
    cache, started, gate, cancel = TokenCache(), threading.Event(), threading.Event(), CancelToken()

    def slow() -> TokenReply:
        started.set()
        gate.wait(60)
        return reply()

    leader = threading.Thread(target=lambda: cache.obtain(key(), slow, cancel=CancelToken()))
    leader.start()
    assert started.wait(60)
    threading.Timer(0.02, cancel.cancel).start()
    with pytest.raises(OperationCancelledError):
        cache.obtain(key(), slow, cancel=cancel)
    gate.set()
    leader.join(60)


def test_the_cache_is_bounded_and_drops_what_ends_first() -> None:
    cache = TokenCache(clock=Clock())
    cache.obtain(key("short"), lambda: reply(seconds=20.0), cancel=CancelToken())
    for number in range(1024):
        cache.obtain(key(f"a{number}"), reply, cancel=CancelToken())
    assert cache.get(key("short")) is None
    assert cache.get(key("a0")) is not None


def test_nothing_printed_holds_a_secret() -> None:
    secret_key = TokenKey(ORIGIN, "https://auth.example/?key=CANARY", "s", "", ())
    token, _ = TokenCache().obtain(secret_key, lambda: reply("CANARY"), cancel=CancelToken())
    assert "CANARY" not in f"{secret_key!r} {token!r} {reply('CANARY')!r}"
