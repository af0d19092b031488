"""Where the examples of a page run: a folder, a store, registries on loopback, and a node of a given platform.

Pages use the names that a reader has: ``python:3``, ``registry.example``, ``/var/lib/imagestore``. A session puts the
real folder and addresses in their place, and takes them out of what commands print.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from imagestore import platforms
from imagestore.cli.main import main
from imagestore.testing import Image, RegistryServer, build_index, replay
from tests.support.fake_containerd import fake_containerd
from tests.support.server import short_folder
from tests.unit.docs.pages import TOP, Block, commands

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType
    from typing import Self

NONE: Final[Mapping[str, str]] = {}
#: Paths of the pages.
ROOT: Final = "/var/lib/imagestore"
SOCKET: Final = "unix:///run/imagestore/imagestore.sock"
CONTAINERD: Final = "unix:///run/containerd/containerd.sock"
HOSTS: Final = ("registry.example", "mirror.example")
#: The registry's repositories, with the platforms of each image.
IMAGES: Final = {
    "app:1": ["linux/amd64", "linux/arm64"],
    "legacy:1": ["linux/amd64"],
    "wasm/hello:1": ["linux/amd64", "wasip1/wasm"],
}


class Session:
    """Runs the blocks of one page, one after the other.

    Args:
        folder: where files go.
        patch: sets what goes away with the test.
        node: the node's platform.
        servers: what stands for names of servers on the page, by these; each is replaced in this order.
        sql: runs the statements of a block.
    """

    def __init__(
        self,
        folder: Path,
        patch: pytest.MonkeyPatch,
        node: str = "linux/amd64",
        *,
        servers: Mapping[str, str] = NONE,
        sql: Callable[[str], None] | None = None,
    ) -> None:
        self._folder = folder.resolve()
        self._patch = patch
        self._node = platforms.parse(node)
        self._servers = servers
        self._sql = sql
        self._stack = contextlib.ExitStack()
        self._addresses: dict[str, str] = {}
        self._socket = ""
        self._containerd = ""
        self._names: dict[str, Any] = {"__name__": "page"}
        self._status = 0

    def __enter__(self) -> Self:
        work = self._folder / "work"
        work.mkdir()
        for name in ("fixtures", "examples", "config.toml.example"):
            (work / name).symlink_to(TOP / name)
        self._patch.chdir(work)
        self._patch.setattr("imagestore.platforms.host.detect", lambda: self._node)
        home = {"HOME": "home", "DOCKER_CONFIG": "home/.docker", "XDG_RUNTIME_DIR": "run", "IMAGESTORE_ROOT": "store"}
        for name, value in home.items():
            self._patch.setenv(name, str(self._folder / value))
        self._patch.setenv("XDG_CONFIG_HOME", str(self._folder / "home" / ".config"))
        self._serve()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def run(self, block: Block) -> None:
        """Run a block, or write the file that it is.

        Raises:
            AssertionError: something else came out than the page says.
        """
        if block.title:
            path = Path(block.title)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self.real(block.text), "utf-8")
        elif block.language == "console":
            for command, expected in commands(block):
                found = self.output(command)
                assert is_same(expected, found), f"$ {command}\n{found}"
        elif block.language == "python":
            exec(compile(self.real(block.text), f"line {block.line}", "exec"), self._names)
        elif block.language == "pycon":
            self._doctest(block)
        elif block.language == "sql":
            assert self._sql is not None, f"line {block.line}: expected a page that needs servers"
            self._sql(self.real(block.text))

    def output(self, command: str) -> str:
        """What a command prints; the standard error only when it fails."""
        words = shlex.split(self.real(command), comments=True)
        if words[:1] == ["export"]:
            for word in words[1:]:
                name, _, value = word.partition("=")
                self._patch.setenv(name, value)
            return ""
        if words == ["echo", "$?"]:
            return f"{self._status}\n"
        if words[:1] == ["python"]:
            done = subprocess.run([sys.executable, *words[1:]], capture_output=True, text=True, check=False)
            self._status = done.returncode
            return self.shown(done.stdout + (done.stderr if self._status else ""))
        assert words[0] == "imagestore", command
        out, error = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
            self._status = main(words[1:])
        return self.shown(out.getvalue() + (error.getvalue() if self._status else ""))

    def real(self, text: str) -> str:
        """A page's text with the session's folder and addresses."""
        if SOCKET in text:
            text = text.replace(SOCKET, self._endpoint())
        if CONTAINERD in text and "publish" in text:
            text = text.replace(CONTAINERD, self._containerd_address())
        for shown, real in self._servers.items():
            text = text.replace(shown, real)
        for host, address in self._addresses.items():
            text = text.replace(f"https://{host}", f"http://{address}")
        return text.replace(ROOT, str(self._folder / "store"))

    def shown(self, text: str) -> str:
        """Output with the page's folder and addresses."""
        for name, real in self._servers.items():
            text = text.replace(real, name)
        for host, address in self._addresses.items():
            text = text.replace(f"http://{address}", f"https://{host}").replace(address, host)
        if self._socket:
            text = text.replace(f"unix://{self._socket}", SOCKET)
        if self._containerd:
            text = text.replace(self._containerd, CONTAINERD)
        text = text.replace(str(self._folder / "store"), ROOT).replace(str(self._folder / "work") + "/", "")
        return text.replace(str(self._folder / "home"), "/home/me").replace(str(self._folder / "run"), "/run/user/1000")

    def _serve(self) -> None:
        """Start the registries, and lead the names that the pages use to them."""
        recorded = self._stack.enter_context(replay(TOP / "fixtures" / "tapes" / "python-kep4216"))
        hub = self._stack.enter_context(recorded.serve())
        self._lead("docker.io", hub.reference("docker.io/library/python:3").partition("/")[0])
        for host in HOSTS:
            images: dict[str, Image] = {
                f"{host}/{name}": build_index(wanted, seed=name) for name, wanted in IMAGES.items()
            }
            server = self._stack.enter_context(RegistryServer(images))
            self._lead(host, server.address)
        self._patch.setattr("imagestore.config.hosts.DEFAULT_FOLDERS", (str(self._folder / "certs.d"),))

    def _lead(self, host: str, address: str) -> None:
        self._addresses[host] = address
        folder = self._folder / "certs.d" / host
        folder.mkdir(parents=True)
        (folder / "hosts.toml").write_text(f'server = "http://{address}"\n')

    def _endpoint(self) -> str:
        """A CRI server on the page's store, started when a page first names its socket."""
        if not self._socket:
            import imagestore
            from tests.support.cri_server import cri_server

            config = imagestore.load_config(os.environ["IMAGESTORE_CONFIG"])
            store = imagestore.open(self._folder / "store", config=config)
            self._socket = self._stack.enter_context(cri_server(store, has_containerd=True)).socket
        return f"unix://{self._socket}"

    def _containerd_address(self) -> str:
        """A fake containerd, started when a page first names its socket."""
        if not self._containerd:
            folder = self._stack.enter_context(short_folder())
            self._containerd = self._stack.enter_context(fake_containerd(folder / "containerd")).address
        return self._containerd

    def _doctest(self, block: Block) -> None:
        test = doctest.DocTestParser().get_doctest(self.real(block.text), {}, "page", "page", block.line)
        test.globs = self._names
        written: list[str] = []
        runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
        assert runner.run(test, out=written.append, clear_globs=False).failed == 0, "".join(written)


def is_same(expected: str, found: str) -> bool:
    """Whether output is what a page shows: ``...`` stands for anything, and a table's columns may be wider."""
    return doctest.OutputChecker().check_output(expected, found, doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
