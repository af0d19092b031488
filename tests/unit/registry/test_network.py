"""Connecting where the process may have no more threads, and cancelling from a signal handler."""

from __future__ import annotations

import contextlib
import signal
import socket
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from imagestore import CancelToken
from imagestore.registry.transport.http import HttpSender
from imagestore.registry.transport.messages import make_request
from imagestore.registry.transport.network import Exchange
from imagestore.registry.transport.proxy import ProxyRules

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
def test_without_more_threads_connections_are_made_all_the_same(
    raw_server: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    server = raw_server(lambda connection: connection.sendall(OK))

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    request = make_request("GET", f"http://{server.host}/".replace("127.0.0.1", name))
    with (
        contextlib.closing(HttpSender(proxies=ProxyRules())) as sender,
        sender.send(request, cancel=CancelToken()) as response,
    ):
        assert response.read(100) == b"hello"


def test_a_signal_handler_that_cancels_never_waits_for_the_thread_it_interrupts() -> None:
    exchange = Exchange(CancelToken())
    ours, theirs = socket.socketpair()
    handled: list[bool] = []

    def cancel(_signal: int, _frame: FrameType | None) -> None:
        exchange.shut_down()
        handled.append(True)

    def interrupt(frame: FrameType, event: str, _argument: object) -> Any:
        # At the line inside of the block that holds the lock.
        if frame.f_code is Exchange.finish.__code__:
            if event == "line" and frame.f_lineno > frame.f_code.co_firstlineno + 2 and not handled:
                signal.raise_signal(signal.SIGUSR1)
            return interrupt
        return None

    before = signal.signal(signal.SIGUSR1, cancel)
    # Whoever waits for itself is ended by the default action of this one.
    signal.alarm(20)
    try:
        with ours, theirs:
            exchange.use(ours)
            traced = sys.gettrace()
            sys.settrace(interrupt)
            try:
                exchange.finish()
            finally:
                sys.settrace(traced)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGUSR1, before)
    assert handled
