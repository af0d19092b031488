"""Debian's Chromium without a window, asked over a pipe in the DevTools protocol (messages end with a zero byte)."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import itertools
import json
import os
import select
import signal
import time
from typing import IO, TYPE_CHECKING, Any

from tests.support.peers import need

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_SECONDS = 60.0
#: Numbers of the descriptors at which Chromium reads and writes messages.
_READS, _WRITES = 3, 4


class Page:
    """One tab; ``events`` are what it told so far, by method and parameters."""

    def __init__(self, reader: IO[bytes], writer: IO[bytes]) -> None:
        self._reader = reader
        self._writer = writer
        self._numbers = itertools.count(1)
        self._rest = b""
        self._session = ""
        self.events: list[tuple[str, dict[str, Any]]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Log", "Runtime", "Network", "Audits"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Ask for something and wait for the answer."""
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        self._writer.write(json.dumps(message).encode() + b"\0")
        self._writer.flush()
        while True:
            answer = self._next()
            if answer.get("id") == number:
                assert "error" not in answer, (method, answer["error"])
                result: dict[str, Any] = answer["result"]
                return result

    def open(self, path: Path) -> None:
        """Show a file, and wait until it is loaded and painted."""
        self.events.clear()
        self.call("Page.navigate", url=path.resolve().as_uri())
        while not any(method == "Page.loadEventFired" for method, _ in self.events):
            self._next()
        assert self.run("new Promise(done => requestAnimationFrame(() => setTimeout(done)))") is None

    def run(self, script: str) -> Any:
        """The value of an expression of JavaScript, in the page."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def press(self, key: str, code: int, text: str = "") -> None:
        """Press and release a key."""
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, text=text)

    def screenshot(self) -> bytes:
        """What is to be seen, as PNG."""
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])

    @property
    def complaints(self) -> list[str]:
        """What the browser's console would show."""
        told = ("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Audits.issueAdded")
        return [f"{method}: {json.dumps(parameters)}" for method, parameters in self.events if method in told]

    @property
    def requests(self) -> list[str]:
        """Every address that was asked for."""
        return [found["request"]["url"] for method, found in self.events if method == "Network.requestWillBeSent"]

    def _next(self) -> dict[str, Any]:
        ends = time.monotonic() + _SECONDS
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._reader], [], [], max(0.0, ends - time.monotonic()))
            assert ready, f"Chromium said nothing for {_SECONDS} seconds"
            piece = os.read(self._reader.fileno(), 1 << 20)
            assert piece, "Chromium has ended"
            self._rest += piece
        raw, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(raw)
        if "method" in message:
            self.events.append((message["method"], message["params"]))
        return message


@contextlib.contextmanager
def chromium(folder: Path, *, width: int = 1280, height: int = 900) -> Iterator[Page]:
    """Start Chromium with one tab of this size, in a profile of its own below ``folder``."""
    program = need("chromium")
    arguments = [
        *(program, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage"),
        *("--disable-background-networking", f"--window-size={width},{height}", "--remote-debugging-pipe"),
        f"--user-data-dir={folder / 'profile'}",
    ]
    theirs, requests = _pipe()
    answers, told = _pipe()
    silent = os.open(os.devnull, os.O_WRONLY)
    actions = [
        (os.POSIX_SPAWN_DUP2, theirs, _READS),
        (os.POSIX_SPAWN_DUP2, told, _WRITES),
        (os.POSIX_SPAWN_DUP2, silent, 1),
        (os.POSIX_SPAWN_DUP2, silent, 2),
    ]
    process = os.posix_spawn(program, arguments, os.environ, file_actions=actions, setpgroup=0)
    for each in (theirs, told, silent):
        os.close(each)
    try:
        with os.fdopen(answers, "rb", buffering=0) as reader, os.fdopen(requests, "wb") as writer:
            page = Page(reader, writer)
            size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
            page.call("Emulation.setDeviceMetricsOverride", **size)
            yield page
    finally:
        os.killpg(process, signal.SIGKILL)
        os.waitpid(process, 0)


def _pipe() -> tuple[int, int]:
    """A pipe whose ends stand in nobody's way below 10."""
    ends = os.pipe()
    high = [fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, 10) for each in ends]
    for each in ends:
        os.close(each)
    return high[0], high[1]
