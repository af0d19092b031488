"""An S3-compatible object store: Ceph's gateway over one monitor and one OSD in memory, all on loopback."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import tempfile
import time
import uuid
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import httpx
import obstore
from obstore.store import S3Store

from tests.support.peers import need

if TYPE_CHECKING:
    from collections.abc import Iterator

    from imagestore.config import BucketSettings

ACCESS_KEY: Final = "TESTACCESSKEY"
SECRET_KEY: Final = "test-secret-key"
_CONFIG: Final = """
[global]
fsid = {fsid}
mon_initial_members = a
mon_host = [v2:127.0.0.1:{v2},v1:127.0.0.1:{v1}]
public_addr = 127.0.0.1
cluster_addr = 127.0.0.1
ms_bind_ipv6 = false
auth_cluster_required = none
auth_service_required = none
auth_client_required = none
ms_mon_client_mode = crc
osd_pool_default_size = 1
osd_pool_default_min_size = 1
mon_allow_pool_size_one = true
osd_pool_default_pg_num = 8
osd_pool_default_pg_autoscale_mode = off
osd_crush_chooseleaf_type = 0
mon_max_pg_per_osd = 1000
osd_objectstore = memstore
memstore_device_bytes = 2147483648
memstore_page_size = 8192
paxos_propose_interval = 0.02
paxos_min_wait = 0.01
osd_fast_shutdown = false
osd_fast_shutdown_notify_mon = false
mon_data_avail_crit = 1
mon_data_avail_warn = 1
run_dir = {folder}/run
admin_socket = {folder}/run/$name.asok
pid_file = {folder}/run/$name.pid
log_file = {folder}/log/$name.log
mon_data = {folder}/mon
osd_data = {folder}/osd
[client.rgw]
rgw_data = {folder}/rgw
rgw_frontends = beast endpoint=127.0.0.1:{port} tcp_nodelay=1
debug_rgw = 0/0
# No watchers: the next gateway would wait for those of a killed one.
rgw_cache_enabled = false
"""


@dataclass
class Ceph:
    """A running gateway; ``endpoint`` is its URL."""

    folder: Path
    endpoint: str
    _processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start_gateway(self) -> None:
        """Start the gateway, and wait for it."""
        self.start("gateway", "radosgw", "-n", "client.rgw")
        self._wait(lambda: httpx.get(self.endpoint).status_code == 200, "the gateway")

    def kill_gateway(self) -> None:
        """As a crash would end it."""
        process = self._processes.pop("gateway")
        process.kill()
        process.wait()

    def start(self, name: str, program: str, *options: str) -> None:
        """Start one of its programs in the foreground."""
        command = [need(program), "-c", f"{self.folder}/ceph.conf", "-f", *options]
        with open(self.folder / "log" / f"{name}.out", "ab") as log:
            self._processes[name] = subprocess.Popen(command, stdout=log, stderr=log)

    def run(self, *command: str) -> None:
        """Run one of its tools."""
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"

    def make_bucket(self, name: str) -> bool:
        """Make a bucket; whether that went well."""
        store = self._store(name, "")
        return httpx.put(obstore.sign(store, "PUT", "", timedelta(seconds=60)), timeout=60).status_code == 200

    def limit(self, bucket: str, *, max_bytes: int) -> None:
        """Give a bucket a quota."""
        admin = (need("radosgw-admin"), "-c", f"{self.folder}/ceph.conf", "-n", "client.rgw", "quota")
        scope = ("--quota-scope=bucket", f"--bucket={bucket}")
        self.run(*admin, "set", *scope, f"--max-size={max_bytes}")
        self.run(*admin, "enable", *scope)

    def drop_bucket(self, settings: BucketSettings) -> None:
        """Delete a bucket with all that is in it."""
        name = settings.url.removeprefix("s3://").partition("/")[0]
        admin = (need("radosgw-admin"), "-c", f"{self.folder}/ceph.conf", "-n", "client.rgw")
        self.run(*admin, "bucket", "rm", f"--bucket={name}", "--purge-objects")

    def store(self, settings: BucketSettings) -> S3Store:
        """A bucket as the library sees it."""
        name, _, prefix = settings.url.removeprefix("s3://").partition("/")
        return self._store(name, prefix)

    def _store(self, bucket: str, prefix: str) -> S3Store:
        return S3Store(
            bucket,
            prefix=prefix or None,
            endpoint=self.endpoint,
            region="us-east-1",
            access_key_id=ACCESS_KEY,
            secret_access_key=SECRET_KEY,
            virtual_hosted_style_request=False,
            client_options={"allow_http": True},
        )

    def stop(self) -> None:
        """End all, the gateway first."""
        for name in ("gateway", "osd", "mon"):
            process = self._processes.pop(name, None)
            if process is not None:
                process.kill()  # nothing of it is wanted any more
                process.wait()

    def _wait(self, condition: Any, what: str) -> None:
        for _ in range(600):
            with contextlib.suppress(httpx.TransportError):
                if condition():
                    return
            for name, process in self._processes.items():
                assert process.poll() is None, (
                    f"{name} ended\n{(self.folder / 'log' / f'{name}.out').read_text()[-2000:]}"
                )
            time.sleep(0.1)
        raise AssertionError(f"{what} did not start within a minute")


@contextlib.contextmanager
def ceph() -> Iterator[Ceph]:
    """Start one, with a user whose keys are above."""
    # A socket's path may have 107 bytes.
    folder = Path(tempfile.mkdtemp(prefix="ceph-"))
    v2, v1, port = _free_ports(3)
    fsid, osd = str(uuid.uuid4()), str(uuid.uuid4())
    for name in ("run", "log", "mon", "osd", "rgw"):
        (folder / name).mkdir()
    config = f"{folder}/ceph.conf"
    Path(config).write_text(_CONFIG.format(folder=folder, fsid=fsid, v1=v1, v2=v2, port=port))
    running = Ceph(folder, f"http://127.0.0.1:{port}")
    try:
        monitors = f"[v2:127.0.0.1:{v2},v1:127.0.0.1:{v1}]"
        running.run(
            *(need("monmaptool"), "--create", "--addv", "a", monitors, "--fsid", fsid),
            *("--enable-all-features", "--clobber", f"{folder}/monmap"),
        )
        running.run(need("ceph-mon"), "-c", config, "-i", "a", "--mkfs", "--monmap", f"{folder}/monmap")
        running.start("mon", "ceph-mon", "-i", "a")
        running.run(need("ceph"), "-c", config, "--connect-timeout", "30", "osd", "new", osd, "0")
        running.run(need("ceph-osd"), "-c", config, "-i", "0", "--mkfs", "--osd-uuid", osd)
        running.start("osd", "ceph-osd", "-i", "0")
        running.start_gateway()
        user = ("--uid=t", "--display-name=t", f"--access-key={ACCESS_KEY}", f"--secret-key={SECRET_KEY}")
        running.run(need("radosgw-admin"), "-c", config, "-n", "client.rgw", "user", "create", *user)
        yield running
    finally:
        running.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
