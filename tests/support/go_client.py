"""A CRI client in Go, built from our .proto with what Debian has: a stranger's gRPC on the other end of the socket."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any

from tests.support.golang import TOP, compile_program, run
from tests.support.peers import need

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType
    from typing import Self


def build(folder: Path) -> Path:
    """Generate and compile; half a minute the first time."""
    package = folder / "go" / "src" / "imagestore" / "runtime" / "v1"
    package.mkdir(parents=True)
    proto = TOP / "imagestore" / "protos" / "cri"
    run(
        [need("protoc"), f"--proto_path={proto}", f"--go_out=plugins=grpc,paths=source_relative:{package}", "api.proto"]
    )
    return compile_program("go_client", folder)


class GoClient:
    """A running client.

    Args:
        program: built before.
        socket: path of the server's socket.
    """

    def __init__(self, program: Path, socket: str) -> None:
        self._process = subprocess.Popen(
            [str(program), socket], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def ask(self, *words: str) -> Any:
        """What a question's answer has: ``answer``, or ``code`` and ``error``."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(" ".join(words) + "\n")
        return json.loads(self._process.stdout.readline())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None, /
    ) -> None:
        self._process.communicate(timeout=60)
