"""What the figures were taken on: processor, memory, versions, and who else was at work meanwhile."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import resource
import sqlite3
import ssl
import subprocess
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks.suite.cost import processor_seconds

_PEERS = {
    "skopeo": ("skopeo", "--version"),
    "containerd": ("containerd", "--version"),
    "docker-registry": ("docker-registry", "--version"),
    "umoci": ("umoci", "--version"),
}
_PACKAGES = ("httpx", "httpcore", "jsonschema", "click", "grpcio", "protobuf")
_GIBI = 1 << 30


class Watch:
    """Watches the machine from its making on, to say how much of it others used."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._busy, self._ours = _busy_seconds(), _our_seconds()
        self._load = os.getloadavg()

    def sentence(self) -> str:
        """How long, the load, and the share of the processors that went to others, since the making."""
        wall = time.monotonic() - self._started
        others = max(0.0, _busy_seconds() - self._busy - (_our_seconds() - self._ours))
        share = others / wall / (os.cpu_count() or 1)
        length = f"{wall / 60:.0f} minutes" if wall > 90 else f"{wall:.0f} seconds"
        return (
            f"{length}; load average {self._load[0]:.1f} before, {os.getloadavg()[0]:.1f} after; "
            f"{share:.0%} of the processors' time went to other programs and to the kernel's own work"
        )


def describe() -> Iterator[str]:
    """Markdown list items."""
    cpu = _value("/proc/cpuinfo", "model name") or platform.machine()
    memory = _value("/proc/meminfo", "MemTotal").split()
    size = f"{int(memory[0]) * 1024 / _GIBI:.0f} GiB" if memory else "unknown"
    flags = _value("/proc/cpuinfo", "flags").split()
    has_sha = "SHA instructions" if "sha_ni" in flags or "sha2" in flags else "no SHA instructions found"
    yield f"- machine: {os.cpu_count()} processors ({cpu}; {has_sha}), {size} of memory"
    system = _value("/etc/os-release", "PRETTY_NAME", "=").strip('"') or platform.system()
    yield f"- system: {system}, kernel {platform.release()}"
    found = f"Python {platform.python_version()}, {ssl.OPENSSL_VERSION}, SQLite {sqlite3.sqlite_version}"
    yield f"- {found}, {', '.join(_packages())}"
    yield f"- peers: {', '.join(_peers())}"


def _packages() -> Iterator[str]:
    for name in _PACKAGES:
        try:
            yield f"{name} {version(name)}"
        except PackageNotFoundError:
            continue


def _peers() -> Iterator[str]:
    for name, command in _PEERS.items():
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10)
        except OSError:
            yield f"no {name}"
            continue
        found = re.search(r"v?([0-9]+\.[0-9]+[^ ,]*)", done.stdout + done.stderr)
        yield f"{name} {found[1].strip() if found else 'of unknown version'}"


def _value(path: str, name: str, separator: str = ":") -> str:
    """A value of a file with ``name: value`` in its lines; empty when it isn't there."""
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return ""
    for line in lines:
        key, found, value = line.partition(separator)
        if found and key.strip() == name:
            return value.strip()
    return ""


def _busy_seconds() -> float:
    """CPU seconds that all processors together have spent at work (proc(5), stat)."""
    user, nice, system, _idle, _wait, interrupt, soft, *_ = Path("/proc/stat").read_text().split("\n")[0].split()[1:]
    return sum(map(int, (user, nice, system, interrupt, soft))) / os.sysconf("SC_CLK_TCK")


def _our_seconds() -> float:
    """CPU seconds of this process, of the children that ended, and of those that run, servers for example."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    ended = sum(each.ru_utime + each.ru_stime for each in usages)
    for process in _descendants(os.getpid()):
        with contextlib.suppress(OSError):  # it has just ended
            ended += processor_seconds(process)
    return ended


def _descendants(process: int) -> Iterator[int]:
    try:
        texts = [path.read_text() for path in Path(f"/proc/{process}/task").glob("*/children")]
    except OSError:
        return
    for child in " ".join(texts).split():
        yield int(child)
        yield from _descendants(int(child))
