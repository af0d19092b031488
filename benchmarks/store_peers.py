"""The same store operations by imagestore and by Debian's containerd, side by side, on one layout of many tiny images.

Import, listing, removing one image and removing all, each as a command from start to end, and ours also in process. A
private containerd with its own root, state and socket is started; both stores lie in the same folder. Both sync what
they import.
"""

from __future__ import annotations

import os
import shutil
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
from imagestore import platforms
from imagestore.store import ImageStore

#: The goals, as parts of what containerd takes.
GOALS = {
    "import all": 0.12,
    "list all": 0.02,
    "list all, in process": 0.02,
    "remove one": 0.1,
    "remove one, in process": 0.1,
    "remove all": 0.15,
    "remove all, in process": 0.15,
}


@dataclass
class Peers:
    """Both programs on one folder.

    Attributes:
        folder: for everything.
        count: images of the layout.
        environment: variables of every program; None for this process's.
        daemon: the containerd, while it runs.
        seconds: what each operation took, by name, ours and containerd's.
        deleting: seconds that deleting as many files takes, and nothing else.
    """

    folder: Path
    count: int
    environment: Mapping[str, str] | None = None
    daemon: Containerd | None = None
    seconds: dict[str, tuple[list[float], list[float]]] = field(default_factory=dict)
    deleting: float = 0.0

    @property
    def layout(self) -> Path:
        """The images to import."""
        return self.folder / "layout"

    @property
    def ours(self) -> Path:
        """Our store."""
        return self.folder / "ours"

    def imagestore(self, *arguments: str) -> None:
        """Run our command line."""
        line = [*imagestore_command(), "--root", str(self.ours), *arguments]
        _quietly(line, self.environment)

    def ctr(self, *arguments: str) -> None:
        """Run containerd's."""
        assert self.daemon is not None
        _quietly([*self.daemon.ctr, *arguments], self.environment)

    def compare(self, name: str, ours: Callable[[], object], theirs: Callable[[], object] | None) -> None:
        """Time both once; without theirs, what the same operation took them the last time counts."""
        mine, peer = self.seconds.setdefault(name, ([], []))
        mine.append(_seconds(ours))
        if theirs is not None:
            peer.append(_seconds(theirs))

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
            rest = names[2 * rounds :]
            self._remove_all(rest)
        self.deleting = min(self._delete_names(threads) for threads in (1, 8)) * len(rest) / self.count

    def _remove_one(self, first: str, second: str) -> None:
        self.compare(
            "remove one",
            lambda: self.imagestore("rmi", "--gc", first),
            lambda: self.ctr("images", "rm", "--sync", first),
        )
        self._in_process("remove one, in process", lambda store: store.delete(second))

    def _delete_names(self, threads: int) -> float:
        """Delete the layout's blobs, and do nothing else."""
        blobs = shutil.copytree(self.layout / "blobs" / "sha256", self.folder / "names")
        os.sync()
        names = iter(sorted(os.listdir(blobs)))
        descriptor = os.open(blobs, os.O_RDONLY | os.O_DIRECTORY)

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
        blobs.rmdir()
        return taken

    def _remove_all(self, names: Sequence[str]) -> None:
        copy = shutil.copytree(self.ours, self.folder / "copy", symlinks=True)
        os.sync()
        self.compare(
            "remove all",
            lambda: self.imagestore("rmi", "--gc", *names),
            lambda: self.ctr("images", "rm", "--sync", *names),
        )
        with ImageStore(copy, host=platforms.parse("linux/amd64")) as store:
            self.compare("remove all, in process", lambda: store.delete_each(names), None)

    def _in_process(self, name: str, work: Callable[[ImageStore], object]) -> None:
        with ImageStore(self.ours, host=platforms.parse("linux/amd64")) as store:
            self.compare(name, lambda: work(store), None)

    def lines(self) -> Iterator[str]:
        """A table of medians and ratios."""
        yield f"{f'seconds, {self.count:,} images':<32}{'imagestore':>12}{'containerd':>12}{'ratio':>9}{'goal':>7}"
        for name, (mine, _) in self.seconds.items():
            peer = self.seconds[name.removesuffix(", in process")][1]
            ours, theirs = statistics.median(mine), statistics.median(peer)
            yield f"{name:<32}{ours:>12.4f}{theirs:>12.4f}{ours / theirs:>9.4f}{GOALS[name]:>7}"


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _quietly(line: Sequence[str], environment: Mapping[str, str] | None) -> None:
    subprocess.run(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment, check=True)
