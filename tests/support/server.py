"""``imagestore serve`` as a process of its own, started as a service manager would; it says itself when it is ready."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

from imagestore.cri import CriImageService
from tests.support.patience import PATIENCE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


class Server:
    """A server process.

    Args:
        folder: for its sockets and logs; short, since the kernel's limit for sockets is 107 bytes.
        root: the store; a shared one's address, from which only a mirror is served.
        options: more options of ``imagestore serve``.
        config: of handlers, or none.
        environment: more variables.
        wrapper: a command in front, which becomes the server.
    """

    def __init__(
        self,
        folder: Path,
        root: Path | str,
        *options: str,
        config: Path | None = None,
        environment: Mapping[str, str] | None = None,
        wrapper: Sequence[str] = (),
    ) -> None:
        self.folder = folder
        self.socket = folder / "run" / "i.sock"
        self.endpoint = f"unix://{self.socket}"
        self.log_path = folder / "log"
        self._manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        manager = folder / f"notify-{time.monotonic_ns()}"
        self._manager.bind(str(manager))
        self.messages: list[str] = []
        command = [*wrapper, sys.executable, "-m", "imagestore", "serve"]
        command += ["--root", str(root), "--log-format", "json", *options]
        if config is not None:
            command += ["--config", str(config)]
        if isinstance(root, Path):
            command += ["--listen", self.endpoint]
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                env={**os.environ, "NOTIFY_SOCKET": str(manager), **(environment or {})},
            )

    def hear(self, word: str) -> str:
        """Wait for a message to the service manager that contains a word."""
        end = time.monotonic() + PATIENCE_SECONDS
        self._manager.settimeout(0.1)
        while time.monotonic() < end:
            with contextlib.suppress(TimeoutError):
                self.messages.append(self._manager.recv(4096).decode())
                if word in self.messages[-1]:
                    return self.messages[-1]
            if self.process.poll() is not None:
                break
        raise AssertionError(f"never heard {word}: {self.messages}\n{self.log_path.read_text()}")

    def log(self, message: str) -> list[dict[str, object]]:
        """The log's lines with a message."""
        lines = [json.loads(line) for line in self.log_path.read_text().splitlines() if line.startswith("{")]
        return [line for line in lines if line["message"] == message]

    def number(self, name: str) -> float:
        """A number that it publishes, which has no labels; it was started with ``--metrics-listen``."""
        (published,) = self.log("numbers published")
        with urllib.request.urlopen(f"http://127.0.0.1:{published['port']}/metrics", timeout=60) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.split()[1]) for line in lines if line.split()[0] == name)

    def client(self, endpoint: str = "") -> CriImageService:
        """A client of its CRI face."""
        return CriImageService(endpoint or self.endpoint, timeout_seconds=PATIENCE_SECONDS)

    @property
    def memory_bytes(self) -> int:
        """What it has in memory now (resident)."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    def wait(self) -> int:
        """Wait for its end; its exit status."""
        return self.process.wait(PATIENCE_SECONDS)

    def close(self) -> None:
        """End it, in order if it still runs."""
        with contextlib.closing(self._manager):
            if self.process.poll() is None:
                self.process.terminate()
                try:
                    self.wait()
                except subprocess.TimeoutExpired:
                    self.process.kill()
                    self.process.wait()
                    raise


@contextlib.contextmanager
def short_folder() -> Iterator[Path]:
    """A folder whose path leaves room for a socket's name."""
    folder = Path(tempfile.mkdtemp(prefix="is-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@contextlib.contextmanager
def serving(
    root: Path | str, *options: str, config: Path | None = None, environment: Mapping[str, str] | None = None
) -> Iterator[Server]:
    """A server that is ready."""
    with (
        short_folder() as folder,
        contextlib.closing(Server(folder, root, *options, config=config, environment=environment)) as server,
    ):
        server.hear("READY=1")
        yield server
