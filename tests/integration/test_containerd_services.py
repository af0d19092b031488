"""Debian's ctr at our socket, compared with the same at a real containerd; and a containerd with our content store."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from imagestore import Digest, ImageStore, platforms
from imagestore import config as configuration
from imagestore.containerd.service import add_containerd, add_proxy_content
from imagestore.testing import Image, RegistryServer, build_index, synthetic_layer
from tests.support.patience import until
from tests.support.peers import need
from tests.support.rpc_server import Add, served
from tests.support.whole_images import TWO_HANDLERS

pytestmark = pytest.mark.integration

IMAGE = "registry.example/library/layout:1"
HELLO = Digest.of(b"hello")
CONFIG = """
version = 2
root = "{folder}/root"
state = "{folder}/state"
disabled_plugins = ["io.containerd.grpc.v1.cri"{disabled}]
[grpc]
address = "{folder}/theirs"
[ttrpc]
address = "{folder}/ttrpc"
{more}
"""
# The collection soon after the start would take what the first commands make.
LATE_COLLECTOR = """
[plugins."io.containerd.gc.v1.scheduler"]
startup_delay = "10m"
"""
PROXY = """
[proxy_plugins.ours]
type = "content"
address = "{folder}/proxy"
"""


@dataclass(frozen=True)
class Ctr:
    """ctr at a socket."""

    socket: Path
    namespace: str = "default"

    def run(self, *arguments: str, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        line = [need("ctr"), "--address", str(self.socket), "--namespace", self.namespace, *arguments]
        # A file, since ctr seeks in it to continue an ingest.
        with tempfile.TemporaryFile() as stdin:
            stdin.write(data)
            stdin.seek(0)
            return subprocess.run(line, stdin=stdin, capture_output=True, timeout=60, check=False)

    def __call__(self, *arguments: str, data: bytes = b"") -> str:
        done = self.run(*arguments, data=data)
        assert done.returncode == 0, (arguments, done.stderr.decode())
        return done.stdout.decode()

    def fails(self, *arguments: str) -> str:
        done = self.run(*arguments)
        assert done.returncode != 0, (arguments, done.stdout.decode())
        return done.stderr.decode()

    def within(self, namespace: str) -> Ctr:
        return Ctr(self.socket, namespace)

    def rows(self, *arguments: str) -> list[list[str]]:
        """A table without its header; columns are two spaces or a tab apart in some tables, one space in others."""
        return [line.split() for line in self(*arguments).splitlines()[1:] if line.strip()]

    def content(self) -> dict[str, set[str]]:
        """Labels by digest."""
        return {row[0]: set(row[-1].split(",")) - {"-"} for row in self.rows("content", "ls")}

    def names(self) -> list[str]:
        return self("images", "ls", "-q").split()


def opened(folder: Path) -> ImageStore:
    return ImageStore(folder / "store", host=platforms.parse("linux/amd64"))


@contextlib.contextmanager
def ours(folder: Path) -> Iterator[Ctr]:
    with served(opened(folder), {folder / "ours": add_containerd}):
        yield Ctr(folder / "ours")


@contextlib.contextmanager
def theirs(folder: Path, *, disabled: str = "", more: str = "") -> Iterator[Ctr]:
    config = folder / "containerd.toml"
    config.write_text(CONFIG.format(folder=folder, disabled=disabled, more=more.format(folder=folder)))
    with open(folder / "containerd.log", "wb") as log:
        process = subprocess.Popen([need("containerd"), "--config", str(config)], stdout=log, stderr=log)
    ctr = Ctr(folder / "theirs")
    try:

        def answers() -> bool:
            assert process.poll() is None, (folder / "containerd.log").read_text()
            return ctr.run("version").returncode == 0

        until(answers, "containerd answers")
        yield ctr
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)


@pytest.fixture(scope="module")
def image() -> Image:
    return build_index(["linux/amd64", "linux/arm64"], seed="services", shared=[synthetic_layer("s", 512 * 1000)])


@pytest.fixture
def registry(image: Image) -> Iterator[str]:
    """The reference to pull by."""
    with RegistryServer({IMAGE: image}) as server:
        yield server.server.reference(IMAGE)


@contextlib.contextmanager
def begun(ctr: Ctr, part: bytes, digest: str, size: int) -> Iterator[None]:
    """A ctr that sends some of an ingest "half" and is killed at the end of the block."""
    line = [need("ctr"), "--address", str(ctr.socket), "--namespace", ctr.namespace, "content", "ingest"]
    line += ["--expected-digest", digest, "--expected-size", str(size), "half"]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as sender:
        assert sender.stdin is not None
        sender.stdin.write(part)
        sender.stdin.flush()
        until(lambda: [row for row in ctr.rows("content", "active") if row[1] != "0B"], "something arrives")
        yield
        sender.kill()


def without_times(table: str) -> str:
    """A table whose ages and random ids are made equal."""
    return re.sub(r"(Less than a second|[0-9]+ seconds?|About a minute|[0-9]+ minutes?)", "AGE", table)


def members(archive: str) -> list[str]:
    """Names of an archive's members."""
    with tarfile.open(archive) as opened_archive:
        return sorted(opened_archive.getnames())


def shown(ctr: Ctr, folder: Path, reference: str) -> list[str]:
    """What a session of content and image commands prints."""
    archive = str(folder / "image.tar")
    digest = str(HELLO)
    lines = [
        ctr("content", "ingest", "--expected-digest", digest, "--expected-size", "5", "ref", data=b"hello"),
        ctr("content", "get", digest),
        *sorted(ctr("content", "label", digest, "containerd.io/gc.root=x", "a=b").strip().split(",")),
        ctr("content", "label", digest, "a="),
        ctr("content", "ls", "-q", "labels.a"),
        ctr("content", "ls", "-q", "digest~=^sha256"),
        ctr("content", "active"),
        ctr("content", "fetch", "--plain-http", reference).partition("elapsed")[2] and "fetched",
        *sorted(ctr("content", "ls", "-q").split()),
        ctr("images", "ls", "-q"),
        ctr("images", "ls", "name==nobody", "-q"),
        ctr("images", "label", reference, "x=y"),
        ctr("images", "check").replace(reference, "R"),
        ctr("images", "tag", reference, "example.com/other:2"),
        str("already exists" in ctr.fails("images", "tag", reference, "example.com/other:2")),
        ctr("images", "tag", "--force", reference, "example.com/other:2"),
        ctr("images", "export", "--platform", "linux/amd64", archive, "example.com/other:2"),
        *members(archive),
        ctr("images", "rm", "--sync", reference, "example.com/other:2"),
        ctr("images", "rm", "nobody"),
        ctr("content", "ls", "-q"),
        ctr("images", "import", "--no-unpack", archive),
        ctr("images", "ls", "-q"),
        ctr("images", "check"),
        ctr("content", "prune", "references"),
        *sorted(ctr("content", "ls", "-q").split()),
        ctr("content", "rm", digest),
        str(ctr.run("content", "rm", digest).returncode),
        str(ctr.run("content", "get", digest).returncode),
        ctr("images", "rm", "--sync", "example.com/other:2"),
        ctr("content", "ls"),
        ctr("leases", "create", "--id", "mine", "--expires", "0", "k=v"),
        ctr("leases", "ls", "-q"),
        str(ctr.run("leases", "create", "--id", "mine").returncode),
        ctr("leases", "rm", "--sync", "mine"),
        ctr("leases", "ls", "-q"),
        ctr("namespaces", "create", "second", "a=b"),
        ctr("namespaces", "label", "second", "a=c"),
        str([row for row in ctr.rows("namespaces", "ls") if row[0] == "second"]),
        ctr("namespaces", "rm", "second"),
    ]
    return [without_times(line) for line in lines]


@contextlib.contextmanager
def proxied(folder: Path, store: ImageStore, *, disabled: str = "", more: str = "") -> Iterator[Ctr]:
    """A containerd with our store as its content store; the store is closed at the end."""
    faces: dict[Path, Add] = {folder / "proxy": add_proxy_content, folder / "ours": add_containerd}
    with (
        served(store, faces),
        theirs(folder, disabled=', "io.containerd.content.v1.content"' + disabled, more=PROXY + more) as ctr,
    ):
        yield ctr


@pytest.fixture(params=["imagestore", "containerd-with-proxy"])
def judged(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ctr]:
    """ctr at what must behave as a containerd with a content store of its own."""
    folder = tmp_path / "ours"
    folder.mkdir()
    if request.param == "imagestore":
        with ours(folder) as ctr:
            yield ctr
    else:
        with proxied(folder, opened(folder), more=LATE_COLLECTOR) as ctr:
            yield ctr


def test_a_session_prints_what_it_prints_with_containerd(judged: Ctr, tmp_path: Path, registry: str) -> None:
    (tmp_path / "theirs").mkdir()
    found = shown(judged, tmp_path / "ours", registry)
    with theirs(tmp_path / "theirs", more=LATE_COLLECTOR) as ctr:
        assert found == shown(ctr, tmp_path / "theirs", registry)


def test_labels_of_fetched_content_are_those_containerd_keeps(judged: Ctr, tmp_path: Path, registry: str) -> None:
    (tmp_path / "theirs").mkdir()
    found = []
    with theirs(tmp_path / "theirs") as containerd:
        for ctr in (judged, containerd):
            ctr("content", "fetch", "--plain-http", registry)
            found.append(ctr.content())
    assert found[0] == found[1]


def test_an_ingest_that_is_reopened_continues(judged: Ctr) -> None:
    raw = os.urandom(3_000_000)
    digest = str(Digest.of(raw))
    with begun(judged, raw[:2_000_000], digest, len(raw)):
        pass
    # At once: the first stream may not have ended yet.
    judged("content", "ingest", "--expected-digest", digest, "--expected-size", str(len(raw)), "half", data=raw)
    assert judged.run("content", "get", digest).stdout == raw


def test_no_container_uses_an_image(judged: Ctr) -> None:
    assert judged.rows("containers", "ls") == []


def test_a_handlers_records_are_images_that_name_it(tmp_path: Path, registry: str, image: Image) -> None:
    config = tmp_path / "config.toml"
    config.write_text(TWO_HANDLERS)
    host = platforms.parse("linux/amd64")
    store = ImageStore(tmp_path / "store", host=host, config=configuration.load(config, host=host))
    default, other = store.pull(registry), store.pull(registry, runtime_handler="arm")
    layers = other.layers
    with served(store, {tmp_path / "ours": add_containerd}):
        ctr = Ctr(tmp_path / "ours", "k8s.io")
        assert ctr.names() == [registry, f"{registry}@arm"]
        table = {row[0]: row for row in ctr.rows("images", "ls")}
        assert table[registry][2] == str(default.target.digest)
        assert table[f"{registry}@arm"][2] == str(other.manifest.digest)
        assert "io.imagestore.runtime-handler=runc" in table[registry][-1]
        assert "io.imagestore.runtime-handler=arm" in table[f"{registry}@arm"][-1]
        assert "complete (4/4)" in ctr("images", "check", f"name=={registry}")
        # Its config says arm64, and a single manifest is not judged by platform.
        assert "complete (4/4)" in ctr("images", "check", f"name=={registry}@arm")
        ctr("images", "label", f"{registry}@arm", "team=a")
        (record,) = store.metadata.images.find(handler="arm")
        assert record.labels == {"team": "a"}
        ctr("images", "tag", f"{registry}@arm", "example.com/arm:1")
        ctr("images", "rm", "--sync", f"{registry}@arm")
        assert [record.handler for record in store.metadata.images.find()] == ["runc"]
        assert "complete (4/4)" in ctr("images", "check", "name==example.com/arm:1")
        archive = str(tmp_path / "arm.tar")
        ctr("images", "export", "--platform", "linux/arm64", archive, "example.com/arm:1")
        assert {f"blobs/sha256/{layer.digest.encoded}" for layer in layers} <= set(members(archive))


def test_what_is_not_here_says_so(tmp_path: Path, registry: str) -> None:
    with ours(tmp_path) as ctr:
        assert "runs no containers" in ctr.fails("containers", "info", "any")
        assert "runs no containers" in ctr.fails("tasks", "ls")
        assert "publishes no events" in ctr.fails("events")
        assert "without unpacking" in ctr.fails("images", "pull", "--plain-http", registry)
        assert ctr.names() == [registry], "what it fetched before it wanted to unpack is there"
        assert ctr.rows("snapshots", "ls") == []
        assert "imagestore " in ctr("version")
        assert ["io.containerd.content.v1", "content"] in [row[:2] for row in ctr.rows("plugins", "ls")]


def test_an_import_needs_no_registry_and_an_export_gives_the_bytes_back(tmp_path: Path, registry: str) -> None:
    with ours(tmp_path) as ctr:
        store = opened(tmp_path)
        pulled = store.pull(registry)
        home = ctr.within("k8s.io")
        archive = str(tmp_path / "image.tar")
        home("images", "export", archive, registry)
        ctr("images", "import", "--no-unpack", archive)
        assert ctr.names() == [registry]
        wanted = {str(pulled.target.digest), str(pulled.manifest.digest), str(pulled.id)}
        assert wanted <= set(ctr.content())
        assert ctr.run("content", "get", str(pulled.id)).stdout == store.content.path(pulled.id).read_bytes()
        store.remove(registry)
        store.collect_garbage()
        assert "complete (4/4)" in ctr("images", "check"), "the client's image keeps what the record no longer does"
        assert home.names() == []
        assert home.content() == {}
        ctr("images", "rm", "--sync", registry)
        assert list(store.content.walk()) == []
        store.close()


def test_a_long_ingest_is_continued_by_the_next_client(tmp_path: Path) -> None:
    raw = os.urandom(9_000_000)
    digest = str(Digest.of(raw))
    with ours(tmp_path) as ctr, begun(ctr, raw[:5_000_000], digest, len(raw)):
        pass
    with ours(tmp_path) as ctr:
        assert ctr.rows("content", "active")[0][0] == "half"
        ctr("content", "ingest", "--expected-digest", digest, "--expected-size", str(len(raw)), "half", data=raw)
        assert ctr.run("content", "get", digest).stdout == raw
        assert ctr.rows("content", "active") == []


def test_a_containerd_pulls_unpacks_and_collects_over_our_store(tmp_path: Path, registry: str, image: Image) -> None:
    store = opened(tmp_path)
    with proxied(tmp_path, store) as ctr:
        ctr("images", "pull", "--plain-http", "--snapshotter", "native", registry)
        landed = {str(info.digest) for info in store.content.walk()}
        assert landed == set(ctr.content())
        assert str(image.target.digest) in landed
        store.collect_garbage()
        assert "complete (4/4)" in ctr("images", "check")
        assert Ctr(tmp_path / "ours", "k8s.io").content() == {}, "it is containerd's, not the store's"
        assert not (tmp_path / "root" / "io.containerd.content.v1.content").exists()
        ctr("images", "rm", "--sync", registry)
        assert ctr.content() == {}
        assert list(store.content.walk()) == []


def test_a_containerd_fetches_nothing_that_the_store_has(tmp_path: Path, image: Image) -> None:
    with RegistryServer({IMAGE: image}) as server:
        reference = server.server.reference(IMAGE)
        store = opened(tmp_path)
        before = store.pull(reference)
        with proxied(tmp_path, store) as ctr:
            fetched = server.ledger.count(kind="blob")
            assert fetched == len({each.digest for each in before.layers}) + 1
            ctr("images", "pull", "--plain-http", "--snapshotter", "native", reference)
            assert server.ledger.count(kind="blob") == fetched
            store.remove(reference)
            store.collect_garbage()
            assert "complete (4/4)" in ctr("images", "check"), "what containerd found here is held for it"
            ctr("images", "rm", "--sync", reference)
            store.collect_garbage()
            assert list(store.content.walk()) == []
            assert not store.content.exists(before.id)


def test_a_proxied_ingest_survives_both_processes(tmp_path: Path) -> None:
    raw = os.urandom(3_000_000)
    digest = str(Digest.of(raw))
    # Its collector, that runs soon after the start, takes what no lease holds; ctr leases no ingest.
    no_collector = ', "io.containerd.gc.v1.scheduler"'
    with (
        proxied(tmp_path, opened(tmp_path), disabled=no_collector) as ctr,
        begun(ctr, raw[:2_000_000], digest, len(raw)),
    ):
        pass
    with proxied(tmp_path, opened(tmp_path), disabled=no_collector) as ctr:
        assert ctr.rows("content", "active")[0][0] == "half"
        ctr("content", "ingest", "--expected-digest", digest, "--expected-size", "3000000", "half", data=raw)
        assert ctr.run("content", "get", digest).stdout == raw
