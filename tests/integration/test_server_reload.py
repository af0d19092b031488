"""The server reloads its configuration, with clients at work."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from imagestore import ImageStore
from imagestore.cri import ImageSpec
from imagestore.errors import UnknownRuntimeHandlerError
from imagestore.store.maintenance.rebuild import rebuild
from tests.support.node import CONFIG
from tests.support.patience import until
from tests.support.server import serving
from tests.support.slow_pulls import LARGE, MIB, SMALL, pulling, received, registry
from tests.unit.store.test_upkeep import damage_database

pytestmark = pytest.mark.integration

_HANDLER = """
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.extra]
runtime_type = "io.containerd.kata.v2"
"""


def test_reload_changes_handlers_and_keeps_the_records_of_removed_ones(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(CONFIG.replace("runhcs-wcow-process", "runc"))
    with registry() as source, serving(tmp_path / "root", config=config) as server, server.client() as client:
        spec = ImageSpec(source.server.reference(SMALL), runtime_handler="extra")
        with pytest.raises(UnknownRuntimeHandlerError):
            client.pull(spec)
        config.write_text(config.read_text() + _HANDLER)
        server.send(signal.SIGHUP)
        assert "extra" in server.hear("READY=1")
        client.pull(spec)
        config.write_text("version = [broken")
        server.send(signal.SIGHUP)
        assert "stays as it was" in server.hear("READY=1")
        assert server.log("reload failed")[0]["error"]
        assert client.status(spec) is not None
        config.write_text(CONFIG.replace("runhcs-wcow-process", "runc"))
        server.send(signal.SIGHUP)
        server.hear("READY=1")
        with pytest.raises(UnknownRuntimeHandlerError):
            client.pull(ImageSpec(source.server.reference(LARGE), runtime_handler="extra"))
        assert [each.spec.runtime_handler for each in client.list()] == ["extra"]
        client.remove(spec)
        assert client.list() == []


def test_a_misspelt_member_of_a_guest_platform_is_logged(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(CONFIG)
    with serving(tmp_path / "root", config=config) as server:
        config.write_text(CONFIG.replace("OSVersion =", "OsVersoin ="))
        server.send(signal.SIGHUP)
        server.hear("READY=1")
        (line,) = server.log("configuration warning")
        assert "OsVersoin" in str(line["finding"])
        assert "OSVersion" in f"{line['finding']} {line['hint']}"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--mirror", "127.0.0.1:0"), "io.imagestore.mirror.v1"),
        ((), "reloaded; runtime handlers: runc"),
    ],
    ids=["mirror", "no-mirror"],
)
def test_a_mirrors_broken_table_holds_up_the_server_that_has_a_mirror(
    options: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    config = tmp_path / "config.toml"
    table = 'version = 3\n[plugins."io.imagestore.mirror.v1".upstreams."registry.example"]\n'
    config.write_text(table)
    with serving(tmp_path / "root", *options, config=config) as server:
        config.write_text(f'{table}quota = "much"\n')
        server.send(signal.SIGHUP)
        assert said in server.hear("READY=1")
        server.send(signal.SIGHUP)
        assert said in server.hear("READY=1")


def test_a_fifo_as_configuration_holds_up_neither_reload_nor_stop(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(CONFIG.replace("runhcs-wcow-process", "runc"))
    with serving(tmp_path / "root", config=config) as server:
        config.unlink()
        os.mkfifo(config)
        server.send(signal.SIGHUP)
        assert "expected a regular file, found a FIFO" in server.hear("READY=1")
        server.send(signal.SIGTERM)
        assert server.wait() == 0


def test_a_server_opens_the_database_that_a_rebuild_made(tmp_path: Path) -> None:
    """With the configuration it has: what is on disk may be half written just then."""
    config, root = tmp_path / "config.toml", tmp_path / "root"
    config.write_text(CONFIG.replace("runhcs-wcow-process", "runc"))
    with registry() as source, serving(root, config=config) as server, server.client() as client:
        spec = ImageSpec(source.server.reference(SMALL))
        image_id = client.pull(spec)
        config.write_text("version = [broken")
        damage_database(root)
        assert rebuild(root).restored
        until(lambda: server.log("opened again"), "the server to open the store again")
        assert [each.id for each in client.list()] == [image_id]
        client.remove(spec)
        assert client.list() == []
        assert client.pull(spec) == image_id
    with ImageStore(root) as store:
        assert [str(image.id) for image in store.list()] == [image_id]


def test_pull_that_waits_in_line_keeps_its_handler_over_a_reload(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    plain = CONFIG.replace("runhcs-wcow-process", "runc")
    config.write_text(plain + _HANDLER)
    options = ("--max-concurrent-pulls", "1", "--metrics-listen", "127.0.0.1:0")
    with (
        registry(bytes_per_second=1.0 * MIB) as source,
        serving(tmp_path / "root", *options, config=config) as server,
        server.client() as client,
        pulling(server, source.server.reference(LARGE)) as first,
        ThreadPoolExecutor(1) as pool,
    ):
        until(lambda: received(tmp_path / "root"), "the first pull works")
        spec = ImageSpec(source.server.reference(SMALL), runtime_handler="extra")
        waiting = pool.submit(client.pull, spec)
        until(lambda: server.number("imagestore_pulls_waiting") == 1, "the second pull waits")
        config.write_text(plain)
        server.send(signal.SIGHUP)
        server.hear("reloaded")
        assert not first.done()
        waiting.result()
        assert {each.spec.runtime_handler for each in client.list()} == {"extra", "runc"}


def test_reload_under_load_breaks_no_call(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(CONFIG.replace("runhcs-wcow-process", "runc"))
    stop = threading.Event()
    with (
        registry(bytes_per_second=4 * MIB) as source,
        serving(tmp_path / "root", config=config) as server,
        server.client() as client,
        ThreadPoolExecutor(4) as pool,
    ):
        client.pull(ImageSpec(source.server.reference(SMALL)))

        def ask() -> int:
            count = 0
            while not stop.is_set():
                assert client.list()
                assert client.status(ImageSpec(source.server.reference(SMALL))) is not None
                count += 1
            return count

        asking = [pool.submit(ask) for _ in range(3)]
        with pulling(server, source.server.reference(LARGE)) as pull:
            for _ in range(10):
                server.send(signal.SIGHUP)
                server.hear("READY=1")
            assert pull.result(120)
        stop.set()
        assert all(each.result(120) > 0 for each in asking)
        assert len(server.log("reloaded")) == 10
