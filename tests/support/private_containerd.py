"""A containerd with a root, a state and a socket of its own, and its ctr."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.patience import until
from tests.support.peers import need

_CONFIG: Final = """
version = 2
root = "{folder}/root"
state = "{folder}/state"
disabled_plugins = {disabled}
[grpc]
address = "{folder}/containerd.sock"
[ttrpc]
address = "{folder}/ttrpc.sock"
"""
#: What containers need, and tests of content and images don't.
CONTAINERS: Final = ("io.containerd.grpc.v1.cri", "io.containerd.internal.v1.opt")


@dataclass(frozen=True)
class Containerd:
    """A running one."""

    folder: Path

    def ctr(self, *arguments: str | Path) -> str:
        """Run ctr against it."""
        command = [need("ctr"), "--address", f"{self.folder}/containerd.sock", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def images(self) -> dict[str, str]:
        """Target digest by name."""
        lines = [line.split() for line in self.ctr("images", "ls").splitlines()[1:]]
        return {fields[0]: fields[2] for fields in lines}

    def blobs(self) -> set[str]:
        """Every digest in its content store."""
        return set(self.ctr("content", "ls", "-q").split())

    def clear(self) -> None:
        """Remove every image, and its content."""
        for name in self.images():
            self.ctr("images", "rm", "--sync", name)


@contextlib.contextmanager
def private_containerd(
    folder: Path, *, disabled: Sequence[str] = CONTAINERS, mounts: bool = False
) -> Iterator[Containerd]:
    """Start one, and end it.

    Args:
        folder: of its own, empty.
        disabled: plugins that it does without.
        mounts: its snapshots are to be seen here; without, it runs in a namespace of mounts, as root of which it acts.
    """
    (folder / "config.toml").write_text(_CONFIG.format(folder=folder, disabled=list(disabled)))
    apart = [] if mounts else [need("unshare"), "--mount", "--map-root-user"]
    with open(folder / "log", "wb") as log:
        command = [*apart, need("containerd"), "--config", f"{folder}/config.toml"]
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:

        def is_there() -> bool:
            assert process.poll() is None, f"containerd: {(folder / 'log').read_text()[-500:]}"
            return (folder / "containerd.sock").exists()

        until(is_there, "containerd's socket is there")
        yield Containerd(folder)
    finally:
        process.terminate()
        process.wait(timeout=60)
