"""The same store operations by imagestore and by Debian's containerd, side by side, on one layout of many tiny images.

Import, listing, removing one image and removing all, each as a command from start to end, and ours also in process. A
private containerd with its own root, state and socket is started; both stores lie in the same folder. Both sync what
they import.
"""

from __future__ import annotations

import itertools
import os
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import tiny_layout
from benchmarks.suite.containerd import Containerd, containerd
from benchmarks.suite.cost import imagestore_command
from benchmarks.suite.series import turns
from imagestore import ImageStore, platforms

#: The goals, as parts of what containerd takes.
GOALS = {
    "import all": 0.12,
    "list all": 0.02,
    "list all, in process": 0.02,
    "remove one": 0.1,
    "remove one, in process": 0.05,
    "remove all": 0.25,
    "remove all, in process": 0.25,
}

#: With one or the other, deleting is fastest: in memory, and on disks.
_THREADS = (1, 8)


@dataclass
class Peers:
    """Both programs on one folder.

    Attributes:
        folder: for everything.
        count: images of the layout.
        environment: variables of every program; None for this process's.
        daemon: the containerd, while it runs.
        seconds: what each operation took, by name, ours and containerd's.
        deleting: seconds that deleting as many files takes, and nothing else; one for each round.
    """

    folder: Path
    count: int
    environment: Mapping[str, str] | None = None
    daemon: Containerd | None = None
    seconds: dict[str, tuple[list[float], list[float]]] = field(default_factory=dict)
    deleting: list[float] = field(default_factory=list)

    @property
    def layout(self) -> Path:
        """The images to import."""
        return self.folder / "layout"

    @property
    def ours(self) -> Path:
        """Our store."""
        return self.folder / "ours"

    def imagestore(self, *arguments: str, root: Path | None = None) -> None:
        """Run our command line."""
        line = [*imagestore_command(), "--root", str(root or self.ours), *arguments]
        _quietly(line, self.environment)

    def ctr(self, *arguments: str) -> None:
        """Run containerd's."""
        assert self.daemon is not None
        _quietly([*self.daemon.ctr, *arguments], self.environment)

    def compare(self, name: str, ours: Callable[[], object], theirs: Callable[[], object]) -> None:
        """Time both once."""
        self._time(name, ours)
        self._time(name, theirs, is_peer=True)

    def _time(self, name: str, work: Callable[[], object], *, is_peer: bool = False) -> None:
        self.seconds.setdefault(name, ([], []))[is_peer].append(_seconds(work))

    def run(self, rounds: int) -> None:
        """Measure everything."""
        tiny_layout.write_layout(self.layout, self.count)
        archive = self.folder / "layout.tar"
        subprocess.run(["tar", "-C", self.layout, "-cf", archive, "."], check=True)
        names = [tiny_layout.name(number) for number in range(self.count)]
        with containerd(self.folder) as self.daemon:
            self.compare(
                "import all",
                lambda: self.imagestore("import", str(self.layout), "--platform", "linux/amd64"),
                lambda: self.ctr("images", "import", "--no-unpack", str(archive)),
            )
            for _ in range(rounds):
                self.compare("list all", lambda: self.imagestore("images"), lambda: self.ctr("images", "ls"))
                self._in_process("list all, in process", lambda store: list(store.list()))
            for number in range(rounds):
                self._remove_one(names[2 * number], names[2 * number + 1])
        self._remove_all(names[2 * rounds :], rounds)

    def _remove_one(self, first: str, second: str) -> None:
        self.compare(
            "remove one",
            lambda: self.imagestore("rmi", "--gc", first),
            lambda: self.ctr("images", "rm", "--sync", first),
        )
        self._in_process("remove one, in process", lambda store: store.remove(second, collect=True))

    def _remove_all(self, names: Sequence[str], rounds: int) -> None:
        # All copies come first: ext4 is slow in making files for some minutes after it has deleted many.
        copies = [self._copy(number) for number in range(rounds)]
        os.sync()
        for copy, order in zip(copies, itertools.cycle(turns(4)), strict=False):
            ways = [
                lambda copy=copy: self._time("remove all", lambda: self._remove_by_command(copy / "ours", names)),
                lambda copy=copy: self._remove_by_ctr(copy, names),
                lambda copy=copy: self._remove_in_process(copy / "inside", names),
                lambda copy=copy: self._delete_names(copy),
            ]
            for each in order:
                ways[each]()

    def _copy(self, number: int) -> Path:
        """Both stores as they are, for one round: ours for each way, and its files for each number of threads."""
        copy = self.folder / f"copy-{number}"
        copy.mkdir()
        wanted = {"ours": self.ours, "inside": self.ours, "containerd": self.folder / "containerd"}
        wanted |= {f"names-{threads}": self.ours / "content" / "blobs" / "sha256" for threads in _THREADS}
        for name, source in wanted.items():
            subprocess.run(["cp", "--archive", source, copy / name], check=True)
        return copy

    def _delete_names(self, folder: Path) -> None:
        self.deleting.append(min(_delete_everything(folder / f"names-{threads}", threads) for threads in _THREADS))

    def _remove_by_command(self, root: Path, names: Sequence[str]) -> None:
        self.imagestore("rmi", "--gc", *names, root=root)

    def _remove_by_ctr(self, folder: Path, names: Sequence[str]) -> None:
        with containerd(folder) as self.daemon:
            self._time("remove all", lambda: self.ctr("images", "rm", "--sync", *names), is_peer=True)

    def _remove_in_process(self, root: Path, names: Sequence[str]) -> None:
        with ImageStore(root, host=platforms.parse("linux/amd64")) as store:
            self._time("remove all, in process", lambda: store.remove(*names, collect=True))

    def _in_process(self, name: str, work: Callable[[ImageStore], object]) -> None:
        with ImageStore(self.ours, host=platforms.parse("linux/amd64")) as store:
            self._time(name, lambda: work(store))

    def lines(self) -> Iterator[str]:
        """A table of medians and ratios."""
        yield f"{f'seconds, {self.count:,} images':<32}{'imagestore':>12}{'containerd':>12}{'ratio':>9}{'goal':>7}"
        for name, (mine, _) in self.seconds.items():
            peer = self.seconds[name.removesuffix(", in process")][1]
            ours, theirs = statistics.median(mine), statistics.median(peer)
            yield f"{name:<32}{ours:>12.4f}{theirs:>12.4f}{ours / theirs:>9.4f}{GOALS[name]:>7}"


def _delete_everything(folder: Path, threads: int) -> float:
    """Seconds that deleting the files of a folder takes, and nothing else."""
    names = iter(sorted(os.listdir(folder)))
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)

    def delete() -> None:
        # A list's iterator gives each name once, whichever threads ask.
        for name in names:
            os.unlink(name, dir_fd=descriptor)

    crew = [threading.Thread(target=delete) for _ in range(threads)]

    def work() -> None:
        for each in crew:
            each.start()
        for each in crew:
            each.join()

    taken = _seconds(work)
    os.close(descriptor)
    return taken


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _quietly(line: Sequence[str], environment: Mapping[str, str] | None) -> None:
    subprocess.run(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment, check=True)
