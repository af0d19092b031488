"""What the rows share: places, environment, registries with the images, and a containerd for each place."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks.suite import containerd, cost, images, places
from benchmarks.suite.containerd import Containerd
from benchmarks.suite.cost import Cost, RunError
from benchmarks.suite.places import Place
from tests.support.peers import DockerRegistry, docker_registry, need


@dataclass(frozen=True, slots=True)
class Registry:
    """A registry that has an image, and what clients need to know about it.

    Attributes:
        address: host and port.
        imagestore: options for our command line.
        skopeo: options for ``skopeo copy``.
        process: its number.
        authority: file with the certificate authority to trust; None without TLS.
    """

    address: str
    imagestore: tuple[str, ...]
    skopeo: tuple[str, ...]
    process: int
    authority: Path | None = None


@dataclass
class Bench:
    """A run of the benchmarks; a context manager.

    Attributes:
        rounds: that count, of each series.
        places: where pulls write.
        scratch: a folder on the disk for registries and other things that aren't measured.
        notes: what a reader has to know.
    """

    rounds: int
    places: list[Place]
    scratch: Path
    notes: list[str] = field(default_factory=list)
    _stack: ExitStack = field(default_factory=ExitStack)
    _pushed: set[str] = field(default_factory=set)
    _daemons: dict[str, Containerd] = field(default_factory=dict)

    @classmethod
    def on(cls, disk: Path, memory: Path, rounds: int) -> Bench:
        """In a folder on a disk and one in memory."""
        stack = ExitStack()
        chosen, notes = places.choose(disk, memory)
        if not chosen:
            sys.exit("; ".join(notes))
        made = [
            Place(
                each.name, Path(stack.enter_context(tempfile.TemporaryDirectory("", "bench-", each.folder))), each.kind
            )
            for each in chosen
        ]
        scratch = made[0].folder / "scratch"
        scratch.mkdir()
        return cls(rounds, made, scratch, notes, stack)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def first_place(self) -> Place:
        """The disk, where there is one."""
        return self.places[0]

    @functools.cached_property
    def environment(self) -> dict[str, str]:
        """Variables of every program that is measured."""
        home = self.scratch / "home"
        home.mkdir()
        return cost.clean_environment(home)

    def run(self, *command: str) -> Cost:
        """Run a program and account for it."""
        return cost.run(command, self.environment)

    def imagestore(self, root: Path, *arguments: str) -> Cost:
        """Run our command line on a store."""
        return self.run(*cost.imagestore_command(), "--root", str(root), *arguments)

    def bare(self) -> Cost:
        """Start and end the interpreter that our command line runs in."""
        return self.run(sys.executable, "-c", "pass")

    @functools.cached_property
    def lean_python(self) -> str:
        """An interpreter of an environment with the wheel and its extra ``cli`` alone, as users have it."""
        folder = self.scratch / "lean"
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        python = str(folder / "bin" / "python")
        wheel = f"{Path(__file__).parents[2]}[cli]"
        subprocess.run([python, "-m", "pip", "--disable-pip-version-check", "--quiet", "install", wheel], check=True)
        return python

    # -- peers -------------------------------------------------------------------------------------------------------

    @functools.cached_property
    def plain(self) -> Registry:
        """A registry on loopback without TLS."""
        return Registry(self._registry.address, (), ("--src-tls-verify=false",), self._registry.process)

    @functools.cached_property
    def tls(self) -> Registry:
        """The same storage behind TLS with a private authority that clients are told about, HTTP/1.1."""
        import trustme

        folder = self.scratch / "tls"
        (folder / "trusted").mkdir(parents=True)
        authority = trustme.CA()
        authority.cert_pem.write_to_path(str(folder / "trusted" / "ca.crt"))
        issued = authority.issue_cert("localhost", "127.0.0.1")
        issued.private_key_and_cert_chain_pem.write_to_path(str(folder / "server.pem"))
        pem = folder / "server.pem"
        more = f"  http2: {{disabled: true}}\n  tls: {{certificate: {pem}, key: {pem}}}"
        running = self._stack.enter_context(docker_registry(folder, more=more, data=self._registry.data))
        hosts = folder / "hosts" / running.address
        hosts.mkdir(parents=True)
        hosts.joinpath("hosts.toml").write_text(
            f'server = "https://{running.address}"\nca = "{folder}/trusted/ca.crt"\n'
        )
        config = folder / "config.toml"
        table = '[plugins."io.containerd.cri.v1.images".registry]'
        config.write_text(f'version = 3\n{table}\nconfig_path = "{folder}/hosts"\n')
        trusted = ("--src-cert-dir", str(folder / "trusted"))
        authority_file = folder / "trusted" / "ca.crt"
        return Registry(running.address, ("--config", str(config)), trusted, running.process, authority_file)

    @functools.cached_property
    def _registry(self) -> DockerRegistry:
        return self._stack.enter_context(docker_registry(self.scratch))

    def reference(self, name: str, registry: Registry | None = None) -> str:
        """One of our images, at a registry (the plain one by default); pushed when asked for the first time."""
        if name not in self._pushed:
            self._registry.push(f"bench/{name.lower()}", "1", images.make_image(name))
            self._pushed.add(name)
        return f"{(registry or self.plain).address}/bench/{name.lower()}:1"

    def containerd(self, place: Place) -> Containerd | None:
        """A containerd that keeps its content in a place; None, with a note, where it can't be started."""
        if not containerd.is_possible():
            self.note("containerd and ctr must be installed, and root must ask; rows against them are left out")
            return None
        if place.name not in self._daemons:
            self._daemons[place.name] = self._stack.enter_context(containerd.containerd(place.folder))
        return self._daemons[place.name]

    def note(self, text: str) -> None:
        """Tell the reader something, once."""
        if text not in self.notes:
            self.notes.append(text)

    def skopeo(self, reference: str, place: Place, registry: Registry) -> Cost:
        """Copy into a fresh OCI layout."""
        with place.fresh() as folder:
            target = f"oci:{folder / 'layout'}:1"
            return self.run(need("skopeo"), "copy", "--quiet", *registry.skopeo, f"docker://{reference}", target)

    def cold_pull(self, reference: str, place: Place, registry: Registry, *options: str) -> Cost:
        """Pull into a fresh store by our command line."""
        with place.fresh() as folder:
            return self.imagestore(folder / "store", *registry.imagestore, *options, *pull_arguments(reference))

    def bytes_alone(self, reference: str, place: Place, registry: Registry) -> Cost:
        """The least that a verified pull can cost here (see ``bytes_worker``)."""
        address, _, path = reference.partition("/")
        repository = path.removesuffix(":1")
        authority = () if registry.authority is None else (str(registry.authority),)
        with place.fresh() as folder:
            line = [str(registry.process), address, repository, str(folder), *authority]
            command = [sys.executable, "-m", "benchmarks.suite.bytes_worker", *line]
            done = subprocess.run(
                command, env=self.environment, capture_output=True, text=True, check=False, timeout=cost.LAUNCH_SECONDS
            )
        if done.returncode:
            raise RunError(f"the bytes alone: status {done.returncode}\n{done.stderr[-2000:]}")
        return Cost(*json.loads(done.stdout))

    def fetch(self, reference: str, daemon: Containerd) -> Cost:
        """``ctr content fetch`` through containerd, whose CPU is counted; the image is removed afterwards."""
        before = daemon.processor_seconds
        command = [*daemon.ctr, "content", "fetch", "--plain-http", "--platform", "linux/amd64", reference]
        found = self.run(*command).with_daemon(daemon.processor_seconds - before)
        subprocess.run([*daemon.ctr, "images", "rm", "--sync", reference], check=True, capture_output=True)
        return Cost(found.wall, found.processor, (found.peak or 0) + daemon.peak_mebibytes)


def pull_arguments(reference: str) -> tuple[str, ...]:
    """What every pull by our command line says."""
    return ("pull", "--progress=none", "--platform=linux/amd64", reference)


def default_disk() -> Path:
    """A folder beside this tree."""
    return Path(__file__).parents[2] / ".bench"


def default_memory() -> Path:
    """The memory file system that Linux machines have."""
    return Path(os.environ.get("BENCH_TMPFS", "/dev/shm"))
