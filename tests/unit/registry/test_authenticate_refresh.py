"""Refresh tokens that a token service replaces: which is the newest, and when it is forgotten."""

from __future__ import annotations

import contextlib
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

import pytest

from imagestore import CancelToken
from imagestore.errors import AuthenticationError, OperationCancelledError, RegistryUnavailableError
from imagestore.registry.auth.authenticate import RegistryAuthenticator
from tests.unit.registry.token_server import (
    ALICE,
    IDENTITY,
    ORIGIN,
    Asked,
    FakeResponse,
    TokenServer,
    answer,
    bearer,
    given,
)


def rotating(*statuses: int) -> TokenServer:
    """A service that replaces the refresh token where it answers 200."""
    steps = iter(statuses)

    def handler(asked: Asked) -> FakeResponse:
        status = next(steps)
        return server.grant(asked, refresh_token="rotated") if status == 200 else FakeResponse(status)

    server = TokenServer(handler)
    return server


def test_a_replaced_refresh_token_is_used_next_also_after_a_service_was_out_of_order() -> None:
    server = rotating(200, 503, 200)
    authenticator = RegistryAuthenticator(server, given(IDENTITY))
    answer(authenticator)
    with pytest.raises(RegistryUnavailableError):
        answer(authenticator, bearer("repository:a/c:pull"), repository="a/c")
    answer(authenticator, bearer("repository:a/d:pull"), repository="a/d")
    assert [asked.form["refresh_token"] for asked in server.asked] == ["CANARY-identity", "rotated", "rotated"]


def test_a_replaced_refresh_token_that_is_refused_is_not_the_last_word() -> None:
    server = rotating(200, 400, 200, 400, 400)
    authenticator = RegistryAuthenticator(server, given(IDENTITY))
    answer(authenticator)
    answer(authenticator, bearer("repository:a/c:pull"), repository="a/c")
    with pytest.raises(AuthenticationError):
        answer(authenticator, bearer("repository:a/d:pull"), repository="a/d")
    used = [asked.form["refresh_token"] for asked in server.asked]
    assert used == ["CANARY-identity", "rotated", "CANARY-identity", "rotated", "CANARY-identity"]


def test_an_odd_realm_is_refused_in_its_registry_s_name() -> None:
    authenticator = RegistryAuthenticator(TokenServer(), given(IDENTITY))
    with pytest.raises(AuthenticationError, match=r"^https://registry\.example: token service address: ") as raised:
        answer(authenticator, bearer(realm="ftp://auth.example/"))
    assert raised.value.host == "registry.example"


class StrictServer(TokenServer):
    """Its refresh tokens end with their use; holds the first exchange until others had the time to come."""

    def __init__(self) -> None:
        super().__init__(self.handle)
        self.good = "CANARY-identity"
        #: The first exchange is here; it may be answered.
        self.is_asked, self.is_free = threading.Event(), threading.Event()
        #: What the first exchange comes to.
        self.first: Callable[[], None] = lambda: None

    def handle(self, asked: Asked) -> FakeResponse:
        number = len(self.asked)
        if number == 1:
            self.is_asked.set()
            assert self.is_free.wait(60)
            self.first()
        if asked.form["refresh_token"] != self.good:
            return FakeResponse(400, b'{"error": "invalid_grant"}')
        self.good = f"CANARY-rotated-{number}"
        return self.grant(asked, refresh_token=self.good)


OTHERS: Final = 3


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(OTHERS + 1) as made:
        yield made


def ask(authenticator: RegistryAuthenticator, repository: str, cancel: CancelToken) -> str:
    authenticator.authorization(ORIGIN, repository)
    headers = bearer(f"repository:{repository}:pull")
    return authenticator.respond(ORIGIN, repository, headers, cancel=cancel)


def while_one_is_asked(
    server: StrictServer, pool: ThreadPoolExecutor, cancel: CancelToken | None = None
) -> tuple[Future[str], list[Future[str]]]:
    """An exchange that the service hasn't answered, and those of other repositories that come meanwhile."""
    authenticator = RegistryAuthenticator(server, given(IDENTITY))
    first = pool.submit(ask, authenticator, "a/0", CancelToken())
    assert server.is_asked.wait(60)
    others = [
        pool.submit(ask, authenticator, f"a/{number}", cancel or CancelToken()) for number in range(1, OTHERS + 1)
    ]
    with contextlib.suppress(TimeoutError):
        # Long enough for them to be in the line, or to spoil it.
        others[0].exception(0.1)
    return first, others


def test_a_refresh_token_that_ends_with_its_use_is_used_once(pool: ThreadPoolExecutor) -> None:
    server = StrictServer()
    first, others = while_one_is_asked(server, pool)
    server.is_free.set()
    assert first.result(60).startswith("Bearer CANARY-")
    assert len({each.result(60) for each in others}) == OTHERS
    used = [asked.form["refresh_token"] for asked in server.asked]
    assert used == ["CANARY-identity", *(f"CANARY-rotated-{number}" for number in range(1, OTHERS + 1))]


def test_cancelling_ends_the_wait_for_another_s_exchange(pool: ThreadPoolExecutor) -> None:
    server, cancel = StrictServer(), CancelToken()
    first, others = while_one_is_asked(server, pool, cancel)
    cancel.cancel()
    for each in others:
        assert isinstance(each.exception(10), OperationCancelledError)
    server.is_free.set()
    assert first.result(60)
    assert len(server.asked) == 1


def failing(error: Exception) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


@pytest.mark.parametrize(
    "error",
    [
        AuthenticationError("refused", status=401),
        OperationCancelledError("by its caller"),
        RegistryUnavailableError("for this scope", status=500),
        ValueError("a bug"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_exchange_that_fails_lets_the_next_one_try(pool: ThreadPoolExecutor, error: Exception) -> None:
    server = StrictServer()
    server.first = failing(error)
    first, others = while_one_is_asked(server, pool)
    server.is_free.set()
    assert type(first.exception(10)) is type(error)
    assert len({each.result(60) for each in others}) == OTHERS


def test_threads_that_waited_for_a_silent_service_do_not_ask_it_again(pool: ThreadPoolExecutor) -> None:
    server = StrictServer()
    server.first = failing(RegistryUnavailableError("no answer within the time allowed", host="registry.example"))
    first, others = while_one_is_asked(server, pool)
    server.is_free.set()
    raised = [each.exception(10) for each in (first, *others)]
    assert [str(each) for each in raised] == ["no answer within the time allowed"] * (OTHERS + 1)
    assert len({id(each) for each in raised}) == OTHERS + 1
    assert len(server.asked) == 1


def test_a_service_that_did_not_answer_is_asked_by_later_requests() -> None:
    server = StrictServer()
    server.first = failing(RegistryUnavailableError("no answer within the time allowed", host="registry.example"))
    server.is_free.set()
    authenticator = RegistryAuthenticator(server, given(IDENTITY))
    with pytest.raises(RegistryUnavailableError):
        answer(authenticator)
    assert answer(authenticator)


def test_a_remembered_outage_keeps_no_frames_of_its_caller() -> None:
    """A pull has buffers of megabytes, and the login may not be used again for days."""

    def fail(_asked: Asked) -> FakeResponse:
        raise RegistryUnavailableError("no answer within the time allowed", host="registry.example")

    authenticator = RegistryAuthenticator(TokenServer(fail), given(IDENTITY))

    def pull() -> weakref.ref[threading.Event]:
        buffer = threading.Event()
        with contextlib.suppress(RegistryUnavailableError):
            answer(authenticator)
        return weakref.ref(buffer)

    left = pull()
    gc.collect()
    assert left() is None


def test_logins_with_a_password_do_not_wait_for_each_other(pool: ThreadPoolExecutor) -> None:
    together = threading.Barrier(2, timeout=60)

    def handler(asked: Asked) -> FakeResponse:
        together.wait()
        return server.grant(asked)

    server = TokenServer(handler)
    authenticator = RegistryAuthenticator(server, given(ALICE))
    both = [pool.submit(ask, authenticator, repository, CancelToken()) for repository in ("a/b", "a/c")]
    assert all(each.result(60) for each in both)
