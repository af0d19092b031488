"""Full and read-only disks: real ones, mounted in a namespace of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from imagestore.testing import RegistryServer, build_index, synthetic_layer
from tests.support.peers import need

pytestmark = pytest.mark.integration

SMALL, LARGE = "registry.example/small:1", "registry.example/large:1"


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    large = build_index(["linux/amd64"], seed="large", shared=[synthetic_layer("large", 4 * 1024 * 1024)])
    with RegistryServer({SMALL: build_index(["linux/amd64"], seed="small"), LARGE: large}) as running:
        yield running


def on_disk(folder: Path, mount: str, *commands: str) -> list[tuple[int, str, str]]:
    """Run commands one after the other on a store whose disk is mounted as told; status, output, errors of each."""
    report = folder / "report.json"
    store = folder / "disk"
    store.mkdir(exist_ok=True)
    script = folder / "script.py"
    script.write_text(
        "import json, subprocess, sys\n"
        "def run(line):\n"
        "    done = subprocess.run(line, shell=True, capture_output=True, text=True, timeout=60)\n"
        "    return done.returncode, done.stdout, done.stderr\n"
        f"json.dump([run(line) for line in {commands!r}], open({str(report)!r}, 'w'))\n"
    )
    line = f"{mount} && exec {sys.executable} {script}"
    environment = {
        **os.environ,
        "IMAGESTORE": f"{sys.executable} -m imagestore --root {store}",
        "DISK": str(store),
        "DOCKER_CONFIG": str(folder),
    }
    namespace = [need("unshare"), "--mount", "--map-root-user"]
    subprocess.run([*namespace, "sh", "-c", line], check=True, env=environment, timeout=120)
    return [(status, out, err) for status, out, err in json.loads(report.read_text())]


def test_a_disk_too_small_for_the_image_is_refused_before_the_first_byte(
    tmp_path: Path, server: RegistryServer
) -> None:
    small, large = server.server.reference(SMALL), server.server.reference(LARGE)
    results = on_disk(
        tmp_path,
        'mount -t tmpfs -o size=2m,mode=0755 none "$DISK"',
        f"$IMAGESTORE pull --platform linux/amd64 {small}",
        "find $DISK/content -type f | sort",
        f"$IMAGESTORE pull --platform linux/amd64 {large}",
        "find $DISK/content -type f | sort",
        "$IMAGESTORE images -o json",
    )
    assert results[0][0] == 0
    assert results[2][0] == 8
    assert "bytes more, but" in results[2][2]
    assert results[3][1] == results[1][1]
    assert [image["reference"] for image in json.loads(results[4][1])["images"]] == [small]


def test_a_disk_that_counts_no_blocks_takes_images(tmp_path: Path, server: RegistryServer) -> None:
    large = server.server.reference(LARGE)
    results = on_disk(
        tmp_path,
        'mount -t ramfs none "$DISK"',
        f"$IMAGESTORE pull --platform linux/amd64 {large}",
        "$IMAGESTORE df",
        "$IMAGESTORE check",
        f"$IMAGESTORE rmi {large} --gc",
        "find $DISK/content -type f",
    )
    assert [result[0] for result in results] == [0, 0, 0, 0, 0], results
    assert "not counted" in results[1][1]
    assert results[4][1] == ""


def test_a_disk_that_fills_up_meanwhile_gives_its_space_back(tmp_path: Path, server: RegistryServer) -> None:
    large = server.server.reference(LARGE)
    # A quota the space check can't see: the file-size limit of the process. SIGXFSZ is ignored, so write says EFBIG.
    results = on_disk(
        tmp_path,
        'mount -t tmpfs -o size=64m,mode=0755 none "$DISK"',
        "$IMAGESTORE images",
        f"trap '' XFSZ; ulimit -f 2048; $IMAGESTORE pull --platform linux/amd64 {large}",
        "find $DISK/content -type f",
        f"$IMAGESTORE pull --platform linux/amd64 {large}",
    )
    assert results[1][0] == 8, results[1]
    assert "File too large" in results[1][2]
    assert results[2][1] == ""
    assert results[3][0] == 0


@pytest.mark.parametrize("command", ["pull --platform linux/amd64 {large}", "gc", "rmi {small}"])
def test_a_read_only_disk_is_named(tmp_path: Path, server: RegistryServer, command: str) -> None:
    small, large = server.server.reference(SMALL), server.server.reference(LARGE)
    results = on_disk(
        tmp_path,
        'mount -t tmpfs -o size=16m,mode=0755 none "$DISK"',
        f"$IMAGESTORE pull --platform linux/amd64 {small}",
        'mount -o remount,ro "$DISK"',
        f"$IMAGESTORE {command.format(small=small, large=large)}",
    )
    assert [result[0] for result in results] == [0, 0, 8], results
    assert "Traceback" not in results[2][2]
    assert "file system is read-only" in results[2][2] or "Read-only file system" in results[2][2]
    assert "mount it writable" in results[2][2]


def test_a_disk_that_is_full_to_the_last_byte_can_be_emptied_with_our_own_tools(
    tmp_path: Path, server: RegistryServer
) -> None:
    small = server.server.reference(SMALL)
    results = on_disk(
        tmp_path,
        'mount -t tmpfs -o size=4m,mode=0755 none "$DISK"',
        f"$IMAGESTORE pull --platform linux/amd64 {small}",
        "dd if=/dev/zero of=$DISK/fill bs=1k; true",
        "$IMAGESTORE images -q",
        f"$IMAGESTORE rmi {small} --gc",
        "find $DISK/content -type f",
    )
    assert [result[0] for result in results] == [0, 0, 0, 0, 0], results
    assert results[2][1].startswith("sha256:")
    assert results[4][1] == ""


@pytest.mark.parametrize(
    "command", ["images -q", "inspecti {small}", "df", "check", "match --offline {small}", "gc -n"]
)
def test_who_looks_at_a_full_disk_leaves_what_it_is_emptied_with(
    tmp_path: Path, server: RegistryServer, command: str
) -> None:
    """A growing log would take what a reader gives up; then neither rmi nor gc could begin."""
    small, large = server.server.reference(SMALL), server.server.reference(LARGE)
    fill = "dd if=/dev/zero of=$DISK/fill bs=1k oflag=append conv=notrunc; true"
    results = on_disk(
        tmp_path,
        'mount -t tmpfs -o size=4m,mode=0755 none "$DISK"',
        f"$IMAGESTORE pull --platform linux/amd64 {small}",
        fill,
        f"$IMAGESTORE {command.format(small=small)}",
        f"$IMAGESTORE pull --platform linux/amd64 {small}",
        f"! $IMAGESTORE pull --platform linux/amd64 {large}",
        "test -e $DISK/ballast",
        fill,
        f"$IMAGESTORE rmi {small} --gc",
        "find $DISK/content -type f",
    )
    assert [result[0] for result in results] == [0] * 9, results
    assert "disk is full" in results[4][2]
    assert results[8][1] == ""


def test_a_pull_that_is_refused_for_want_of_space_leaves_what_is_kept_back(
    tmp_path: Path, server: RegistryServer
) -> None:
    large = server.server.reference(LARGE)
    results = on_disk(
        tmp_path,
        'mount -t tmpfs -o size=4m,mode=0755 none "$DISK"',
        "$IMAGESTORE leases create",
        "dd if=/dev/zero of=$DISK/fill bs=1k count=3200",
        f"$IMAGESTORE pull --platform linux/amd64 {large}",
        "test -e $DISK/ballast",
        "$IMAGESTORE leases list -o json",
    )
    assert [result[0] for result in results] == [0, 0, 8, 0, 0], results
    assert [each["id"].split("-")[0] for each in json.loads(results[4][1])["leases"]] == ["user"]


def test_a_full_disk_on_which_nothing_is_kept_back_is_told_to_be_emptied_otherwise(
    tmp_path: Path, server: RegistryServer
) -> None:
    small = server.server.reference(SMALL)
    results = on_disk(
        tmp_path,
        'mount -t tmpfs -o size=4m,mode=0755 none "$DISK"',
        f"$IMAGESTORE pull --platform linux/amd64 {small}",
        "rm $DISK/ballast; dd if=/dev/zero of=$DISK/fill bs=1k; true",
        "$IMAGESTORE images -q",
        "$IMAGESTORE gc",
    )
    assert [result[0] for result in results] == [0, 0, 0, 8], results
    assert "disk is full" in results[3][2]
    assert "by other means first" in results[3][2]


@pytest.mark.parametrize(
    ("closed", "command", "status", "told"),
    [
        ("$DISK", "--root $DISK images", 8, "--endpoint"),
        ("$DISK", "--root $DISK inspecti a", 8, "--endpoint"),
        ("$DISK", "--root $DISK version", 0, ""),
        ("config.toml", "--root $DISK --config config.toml images", 9, "config.toml"),
        ("config.toml", "--root $DISK --config config.toml config check", 9, "config.toml"),
    ],
)
def test_what_is_closed_to_us_is_told_in_our_words(
    tmp_path: Path, server: RegistryServer, closed: str, command: str, status: int, told: str
) -> None:
    on_disk(tmp_path, "true", f"$IMAGESTORE pull --platform linux/amd64 {server.server.reference(SMALL)}")
    (tmp_path / "config.toml").touch()
    results = on_disk(
        tmp_path,
        f"cd {tmp_path}",
        f"chmod 000 {closed}",
        f"setpriv --bounding-set=-all --inh-caps=-all {sys.executable} -m imagestore {command}",
        f"chmod 755 {closed}",
    )
    assert results[1][0] == status, results
    assert told in results[1][1] + results[1][2]
    assert "Usage" not in results[1][2]


HOLDS = """
import os, sys, time, imagestore
with imagestore.open(sys.argv[1]), open(sys.argv[2], "x"):
    while os.path.exists(sys.argv[2]):
        time.sleep(0.05)
"""


def test_a_full_disk_can_be_emptied_while_somebody_has_the_store_open(tmp_path: Path, server: RegistryServer) -> None:
    """As a server has; then the database needs no space to be opened, and some to be written."""
    small = server.server.reference(SMALL)
    holder, held = tmp_path / "holder.py", tmp_path / "held"
    holder.write_text(HOLDS)
    results = on_disk(
        tmp_path,
        'mount -t tmpfs -o size=4m,mode=0755 none "$DISK"',
        f"$IMAGESTORE pull --platform linux/amd64 {small}",
        f"{sys.executable} {holder} $DISK {held} > /dev/null 2>&1 & while ! test -e {held}; do sleep 0.05; done",
        "dd if=/dev/zero of=$DISK/fill bs=1k; true",
        f"$IMAGESTORE rmi {small} --gc",
        f"find $DISK/content -type f; rm {held}",
    )
    assert [result[0] for result in results] == [0, 0, 0, 0, 0], results
    assert results[4][1] == ""


PULLS_AND_REMOVES = """
import os, random, sys, threading, time
from pathlib import Path
from imagestore import platforms
from imagestore.errors import ImageNotFoundError, StoreFullError
from imagestore.registry.client_factory import connect
from imagestore import ImageStore
from imagestore.testing import Registry, build_image, layer

disk = Path(sys.argv[1])
status = os.statvfs(disk)
with open(disk / "fill", "wb") as fill:
    os.posix_fallocate(fill.fileno(), 0, status.f_bavail * status.f_frsize - 19_000_000)
names = [f"registry.example/app/image{number}:1" for number in range(60)]
layers = [[layer(f"{name} {part}", size=[20_000, 300_000, 900_000][part]) for part in range(3)] for name in names]
registry = Registry({name: build_image(seed=name, layers=parts) for name, parts in zip(names, layers)})
refused, removed = [], []
client, host = connect(transport=registry.transport), platforms.parse("linux/amd64")
with ImageStore(disk / "store", registry=client, host=host) as store:
    enough, end = time.monotonic() + 4, time.monotonic() + 60

    def work(seed):
        chance = random.Random(seed)
        while time.monotonic() < (enough if refused and removed else end):
            try:
                if chance.random() < 0.9:
                    store.pull(chance.choice(names))
                else:
                    store.remove(chance.choice(names), collect=True)
                    removed.append(seed)
            except StoreFullError:
                refused.append(seed)
            except ImageNotFoundError:
                pass

    workers = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for each in workers:
        each.start()
    for each in workers:
        each.join()
    for image in list(store.list()):
        store.remove(image.reference, collect=True)
    store.collect_garbage()
    print(bool(refused), bool(removed), len(list(store.content.walk())))
"""


def test_pulls_beside_removals_leave_a_full_disk_that_can_be_emptied(tmp_path: Path) -> None:
    """What removals are given back for their log is not for content."""
    script = tmp_path / "work.py"
    script.write_text(PULLS_AND_REMOVES)
    line = f"{sys.executable} {script} $DISK"
    ((status, out, err),) = on_disk(tmp_path, 'mount -t tmpfs -o size=512m,mode=0755 none "$DISK"', line)
    assert (status, out) == (0, "True True 0\n"), err


REMOVES_LEASES = """
import subprocess, sys, imagestore
root = sys.argv[1]
with imagestore.open(root) as store:
    for lease_id, seconds in (("of work", 60), ("lasting", 1e9)):
        store.metadata.leases.create(lease_id, lifetime_seconds=seconds)
    subprocess.run(["dd", "if=/dev/zero", f"of={root}/fill", "bs=1k"], capture_output=True)
    print([store.metadata.leases.delete(each.id) for each in store.metadata.leases.find()])
"""


def test_leases_can_be_removed_from_a_full_disk_while_the_store_is_open(tmp_path: Path) -> None:
    """Else what they keep stays for their lifetime, and with it the disk full."""
    (tmp_path / "removes.py").write_text(REMOVES_LEASES)
    line = f"{sys.executable} {tmp_path}/removes.py $DISK"
    ((status, out, err),) = on_disk(tmp_path, 'mount -t tmpfs -o size=4m,mode=0755 none "$DISK"', line)
    assert (status, out) == (0, "[True, True]\n"), err


@pytest.mark.parametrize(
    "command",
    ["images -q", "inspecti {small}", "match --offline {small}", "gc --dry-run", "export - {small} > /dev/null"],
)
def test_a_read_only_disk_can_be_looked_at(tmp_path: Path, server: RegistryServer, command: str) -> None:
    small = server.server.reference(SMALL)
    results = on_disk(
        tmp_path,
        'mount -t tmpfs -o size=8m,mode=0755 none "$DISK"',
        f"$IMAGESTORE pull --platform linux/amd64 {small}",
        'mount -o remount,ro "$DISK"',
        f"$IMAGESTORE {command.format(small=small)}",
    )
    assert [result[0] for result in results] == [0, 0, 0], results


@pytest.mark.parametrize(("closed", "command"), [("ingest", "gc"), ("blobs/sha256", "gc"), ("blobs/sha256", "images")])
def test_folders_that_are_closed_to_us_are_named(
    tmp_path: Path, server: RegistryServer, closed: str, command: str
) -> None:
    small = server.server.reference(SMALL)
    on_disk(tmp_path, "true", f"$IMAGESTORE pull --platform linux/amd64 {small}")
    results = on_disk(
        tmp_path,
        "true",
        f"chmod 000 $DISK/content/{closed}",
        f"setpriv --bounding-set=-all --inh-caps=-all $IMAGESTORE {command}",
        f"chmod 755 $DISK/content/{closed}",
    )
    assert "Traceback" not in results[1][2]
    if command == "gc":
        assert results[1][0] == 8, results[1]
        assert closed in results[1][2]
    else:
        assert results[1][0] == 0
