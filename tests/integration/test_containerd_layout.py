"""Debian's containerd and this store on one content directory: each reads what the other wrote, byte for byte."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from imagestore import CancelToken, Digest, ImageStore, platforms
from imagestore.content.local import LocalContentStore
from imagestore.testing import RegistryServer, build_index, synthetic_layer
from tests.support.patience import until
from tests.support.peers import need

pytestmark = pytest.mark.integration

NEVER = CancelToken()
IMAGE = "registry.example/library/layout:1"
# Without its collector, which would delete what it has no records of.
CONFIG = """
version = 2
root = "{folder}/root"
state = "{folder}/state"
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.gc.v1.scheduler"]
[grpc]
address = "{folder}/containerd.sock"
[ttrpc]
address = "{folder}/ttrpc.sock"
"""


@dataclass
class Containerd:
    """A running containerd with a root of its own."""

    folder: Path
    process: subprocess.Popen[bytes]

    def ctr(self, *arguments: str, data: Path | None = None) -> bytes:
        with open(data or os.devnull, "rb") as stdin:
            line = [need("ctr"), "--address", f"{self.folder}/containerd.sock", *arguments]
            done = subprocess.run(line, stdin=stdin, capture_output=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout

    @property
    def content(self) -> Path:
        return self.folder / "root" / "io.containerd.content.v1.content"


@contextlib.contextmanager
def containerd(folder: Path) -> Iterator[Containerd]:
    config = folder / "containerd.toml"
    config.write_text(CONFIG.format(folder=folder))
    with open(folder / "containerd.log", "wb") as log:
        process = subprocess.Popen([need("containerd"), "--config", str(config)], stdout=log, stderr=log)
    running = Containerd(folder, process)
    try:
        probe = [need("ctr"), "--address", f"{folder}/containerd.sock", "version"]

        def answers() -> bool:
            assert process.poll() is None, (folder / "containerd.log").read_text()
            return subprocess.run(probe, capture_output=True, timeout=60, check=False).returncode == 0

        until(answers, "containerd answers")
        yield running
    finally:
        process.terminate()
        process.wait(timeout=60)


def test_containerd_lists_and_serves_the_blobs_we_wrote(tmp_path: Path) -> None:
    image = build_index(["linux/amd64"], seed="layout", shared=[synthetic_layer("layout", 512 * 1000)])
    with (
        RegistryServer({IMAGE: image}) as server,
        ImageStore(tmp_path / "store", host=platforms.parse("linux/amd64")) as store,
    ):
        store.pull(server.server.reference(IMAGE))
        blobs = {info.digest: info.size for info in store.content.walk()}
        files = {digest: store.content.path(digest).stat().st_ino for digest in blobs}
        (tmp_path / "root").mkdir(mode=0o700)
        (tmp_path / "root" / "io.containerd.content.v1.content").symlink_to(store.root / "content")
        with containerd(tmp_path) as peer:
            for digest, size in blobs.items():
                # containerd finds the blob on its disk, asks for no byte of it, and makes its record.
                expected = ("--expected-size", str(size), "--expected-digest", str(digest))
                peer.ctr("content", "ingest", *expected, f"known-{digest}", data=store.content.path(digest))
            listed = {line.split()[0] for line in peer.ctr("content", "ls").decode().splitlines()[1:]}
            assert listed == {str(digest) for digest in blobs}
            for digest in blobs:
                assert Digest.of(peer.ctr("content", "get", str(digest))) == digest
        assert {digest: store.content.path(digest).stat().st_ino for digest in blobs} == files
        assert list(store.content.statuses()) == []
        assert store.check().faults == ()


def test_we_read_the_blobs_containerd_wrote_without_copying(tmp_path: Path) -> None:
    data = {Digest.of(each): each for each in (os.urandom(10), os.urandom(1_000_000), b"")}
    (tmp_path / "data").mkdir()
    with containerd(tmp_path) as peer:
        for digest, raw in data.items():
            file = tmp_path / "data" / digest.encoded
            file.write_bytes(raw)
            if raw:
                peer.ctr("content", "ingest", "--expected-digest", str(digest), f"ref-{digest}", data=file)
        store = LocalContentStore(peer.content, tmp_path / "locks")
        found = {info.digest: info.size for info in store.walk()}
        assert found == {digest: len(raw) for digest, raw in data.items() if raw}
        for digest in found:
            assert store.read(digest, limit_bytes=1_000_000) == data[digest]
            assert store.path(digest) == peer.content / "blobs" / digest.algorithm / digest.encoded


def test_our_files_have_the_modes_of_containerds(tmp_path: Path) -> None:
    digest, raw = Digest.of(b"theirs"), tmp_path / "raw"
    raw.write_bytes(b"theirs")
    with containerd(tmp_path) as peer:
        peer.ctr("content", "ingest", "--expected-digest", str(digest), "ref", data=raw)
        store = LocalContentStore(peer.content, tmp_path / "locks")
        ours = Digest.of(b"ours")
        with store.writer("ours", expected=ours, total=4, cancel=NEVER) as writer:
            writer.write(b"ours")
            writer.commit(ours, 4)
        modes = [store.path(each).stat().st_mode & 0o777 for each in (ours, digest)]
        assert modes == [0o444, 0o444]


def test_an_ingest_of_a_killed_containerd_is_continued_at_its_offset(tmp_path: Path) -> None:
    raw = os.urandom(3_000_000)
    digest = Digest.of(raw)
    with containerd(tmp_path) as peer:
        line = [need("ctr"), "--address", f"{tmp_path}/containerd.sock", "content", "ingest"]
        line += ["--expected-digest", str(digest), "--expected-size", str(len(raw)), "half"]
        with subprocess.Popen(line, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as sender:
            assert sender.stdin is not None
            sender.stdin.write(raw[:2_000_000])
            sender.stdin.flush()
            store = LocalContentStore(peer.content, tmp_path / "locks")
            until(lambda: any(each.offset >= 1_000_000 for each in store.statuses()), "a megabyte is there")
            peer.process.send_signal(signal.SIGKILL)
            peer.process.wait(timeout=60)
            sender.kill()
        (status,) = store.statuses()
        assert (status.ref, status.total) == ("default/1/half", len(raw))
        with store.writer(status.ref, expected=digest, total=len(raw), cancel=NEVER) as writer:
            assert writer.offset == status.offset >= 1_000_000
            writer.write(raw[writer.offset :])
            writer.commit(digest, len(raw))
    assert store.read(digest, limit_bytes=len(raw)) == raw


def test_a_pull_adopts_what_containerd_has(tmp_path: Path) -> None:
    image = build_index(["linux/amd64"], seed="adopted", shared=[synthetic_layer("adopted", 512 * 2000)])
    large = image.manifests[0].layers[0]
    raw = tmp_path / "raw"
    raw.write_bytes(b"".join(image.blobs[large.digest].chunks()))
    with containerd(tmp_path) as peer, RegistryServer({IMAGE: image}) as server:
        peer.ctr("content", "ingest", "--expected-digest", str(large.digest), "ref", data=raw)
        theirs = peer.content / "blobs" / "sha256" / large.digest.encoded
        with ImageStore(tmp_path / "store", host=platforms.parse("linux/amd64"), sources=[peer.content]) as store:
            store.pull(server.server.reference(IMAGE))
            asked = [entry for entry in server.ledger.entries if large.digest.encoded in entry.path]
            assert asked == []
            assert store.content.path(large.digest).read_bytes() == theirs.read_bytes()
            assert store.check().faults == ()
