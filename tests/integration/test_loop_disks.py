"""Disks that fail for real, and disks that share.

Power that goes, sectors that can't be read, devices and disks that are full, disks that are read-only all at once.

Needs root for mounting, and a kernel with loop devices; xfs and btrfs where the kernel has them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from imagestore.testing import RegistryServer, build_index, synthetic_layer
from tests.support.loop_disk import on_disk
from tests.support.server import short_folder

pytestmark = pytest.mark.integration

SMALL, LARGE = "registry.example/small:1", "registry.example/large:1"
MEBIBYTE = 1024 * 1024
LAYER = synthetic_layer("large", 8 * MEBIBYTE)
SHUTTABLE = ["ext4", "xfs"]


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    large = build_index(["linux/amd64"], seed="large", shared=[LAYER])
    with RegistryServer({SMALL: build_index(["linux/amd64"], seed="small"), LARGE: large}) as running:
        yield running


def pull(server: RegistryServer, reference: str) -> str:
    return f"$IMAGESTORE pull --platform linux/amd64 {server.server.reference(reference)}"


@pytest.mark.parametrize("kind", SHUTTABLE)
def test_what_was_said_to_be_pulled_outlives_the_power(tmp_path: Path, server: RegistryServer, kind: str) -> None:
    results = on_disk(
        tmp_path,
        kind,
        pull(server, SMALL),
        f"{pull(server, LARGE)} && power-off",
        "$IMAGESTORE images -q",
        "mount-again",
        "$IMAGESTORE images -o json",
        "$IMAGESTORE check",
        f"$IMAGESTORE rmi {server.server.reference(LARGE)} --gc && power-off",
        "mount-again",
        "$IMAGESTORE images -o json",
        "$IMAGESTORE check",
    )
    assert [each.status for each in results] == [0, 0, 8, 0, 0, 0, 0, 0, 0, 0], results
    assert "Input/output error" in results[2].err
    names = [sorted(image["reference"] for image in json.loads(results[at].out)["images"]) for at in (4, 8)]
    small, large = (server.server.reference(reference) for reference in (SMALL, LARGE))
    assert names == [sorted([small, large]), [small]]


@pytest.mark.parametrize("kind", SHUTTABLE)
@pytest.mark.parametrize(
    "place",
    [
        "ingest-write:3",
        "commit-rename:1",
        "commit-clean:1",
        "small-sync:2",
        "small-rename:3",
        "database-committed:1",
        "database-committed:2",
    ],
)
def test_power_that_goes_in_the_middle_leaves_a_store_that_opens_and_lies_about_nothing(
    tmp_path: Path, server: RegistryServer, kind: str, place: str
) -> None:
    results = on_disk(
        tmp_path,
        kind,
        pull(server, SMALL),
        f"IMAGESTORE_FAILPOINT={place} {pull(server, LARGE)}; test $? = 137 && power-off",
        "mount-again",
        "$IMAGESTORE check",
        "$IMAGESTORE images -o json",
        pull(server, LARGE),
        "$IMAGESTORE check",
    )
    assert [each.status for each in results] == [0] * 7, results
    assert server.server.reference(SMALL) in results[4].out


def test_a_sector_that_cannot_be_read_is_found_and_its_blob_fetched_again(
    tmp_path: Path, server: RegistryServer
) -> None:
    largest = "$(find $DISK/store/content/blobs -type f -size +7M)"
    first_block = f"$(filefrag -e {largest} | sed -nE 's/^ *0: +[0-9]+\\.\\. +[0-9]+: +([0-9]+)\\.\\..*/\\1/p')"
    results = on_disk(
        tmp_path,
        "ext4",
        pull(server, SMALL),
        pull(server, LARGE),
        f"forget {largest} && truncate -s $(( {first_block} * $(stat -f -c %S $DISK) )) $IMAGE",
        f"cat {largest} > /dev/null",
        "$IMAGESTORE check",
        "$IMAGESTORE repair",
        "$IMAGESTORE check",
    )
    assert [each.status for each in results] == [0, 0, 0, 1, 8, 0, 0], results
    assert "Input/output error" in results[3].err
    # What else lies behind the layer's first block is gone too.
    digest = LAYER.digest
    assert f"blob unreadable: {digest}" in results[4].out
    assert f"fetched and verified {digest}" in results[5].out


DAMAGES_INODE = """
import os, re, subprocess, sys
image, disk, path = sys.argv[1:]
inode, block = os.stat(path).st_ino, os.statvfs(disk).f_bsize
subprocess.run(["umount", disk], check=True)
told = subprocess.run(["debugfs", "-R", f"imap <{inode}>", image], capture_output=True, text=True, check=True).stdout
found = re.search(r"block ([0-9]+), offset 0x([0-9a-f]+)", told)
with open(image, "r+b") as file:
    file.seek(int(found[1]) * block + int(found[2], 16) + 32)
    file.write(bytes([255] * 8))
subprocess.run(["mount", "-o", "loop", image, disk], check=True)
"""


def test_a_blob_whose_inode_is_damaged_is_named_and_hides_no_other(tmp_path: Path, server: RegistryServer) -> None:
    """Such a file can't even be looked at, nor deleted: that takes a repair of the file system."""
    (tmp_path / "damage.py").write_text(DAMAGES_INODE)
    results = on_disk(
        tmp_path,
        "ext4",
        pull(server, LARGE),
        f"{sys.executable} $DISK/../damage.py $IMAGE $DISK $(find $DISK/store/content/blobs -type f -size +7M)",
        "$IMAGESTORE check",
        "$IMAGESTORE repair",
        pull(server, LARGE),
    )
    assert [each.status for each in results] == [0, 0, 8, 7, 8], results
    assert results[2].out.count("blob unreadable") == 1
    assert "can't delete: Bad message" in results[3].out
    assert "the disk can't read it: Bad message" in results[4].err


def test_a_device_that_takes_no_more_makes_no_blob_that_only_the_memory_has(
    tmp_path: Path, server: RegistryServer
) -> None:
    """The file system has space, the device below has not: what is written is lost when it is synced."""
    results = on_disk(
        tmp_path,
        "ext4",
        "mkdir $DISK/../thin && mount -t tmpfs -o size=4m none $DISK/../thin",
        "truncate -s 64m $DISK/../thin/image && mkfs.ext4 -q -O ^has_journal $DISK/../thin/image",
        "mkdir -p $DISK/store/content && mount -o loop $DISK/../thin/image $DISK/store/content",
        pull(server, LARGE),
        "mount -o remount,size=60m $DISK/../thin",
        pull(server, LARGE),
        "umount $DISK/store/content && mount -o loop $DISK/../thin/image $DISK/store/content",
        "$IMAGESTORE check",
        "umount $DISK/store/content && umount $DISK/../thin",
    )
    assert [each.status for each in results] == [0, 0, 0, 8, 0, 0, 0, 0, 0], results
    assert "Traceback" not in results[3].err


@pytest.mark.parametrize("kind", ["xfs", "btrfs"])
def test_adopting_shares_blocks_where_the_disk_can(tmp_path: Path, kind: str) -> None:
    """A copy would not fit; the source stays writable, and its fate its own."""
    program = f"""
import os, pathlib, sys
from imagestore import CancelToken
from imagestore.content.local import LocalContentStore
from imagestore import Digest
disk = pathlib.Path(sys.argv[1])
size = 180 * {MEBIBYTE}
data = os.urandom({MEBIBYTE}) * 180
digest = Digest.of(data)
source = disk / "source" / "blobs" / "sha256" / digest.encoded
source.parent.mkdir(parents=True)
source.write_bytes(data)
os.sync()
free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
store = LocalContentStore(disk / "content", disk / "locks", sources=[disk / "source"])
print(store.adopt(digest, size, cancel=CancelToken()).value, free < size)
source.write_bytes(b"changed")
print(Digest.of(store.path(digest).read_bytes()) == digest, oct(store.path(digest).stat().st_mode & 0o777))
print(os.listdir(disk / "content" / "ingest"))
"""
    (tmp_path / "adopt.py").write_text(program)
    (result,) = on_disk(tmp_path, kind, f"{sys.executable} {tmp_path}/adopt.py $DISK")
    assert result.out.splitlines() == ["reflink True", "True 0o444", "[]"], result


def test_a_partial_ingest_whose_sectors_are_lost_is_begun_again(tmp_path: Path, server: RegistryServer) -> None:
    data = "$(find $DISK/store/content/ingest -name data -size +1M)"
    first_block = f"$(filefrag -e {data} | sed -nE 's/^ *0: +[0-9]+\\.\\. +[0-9]+: +([0-9]+)\\.\\..*/\\1/p')"
    results = on_disk(
        tmp_path,
        "ext4",
        f"IMAGESTORE_FAILPOINT=ingest-write:3 {pull(server, LARGE)}",
        f"forget {data} && truncate -s $(( {first_block} * $(stat -f -c %S $DISK) )) $IMAGE",
        f"cat {data} > /dev/null",
        pull(server, LARGE),
        "$IMAGESTORE check",
    )
    assert [each.status for each in results] == [137, 0, 1, 0, 0], results


def test_a_database_on_a_lost_sector_is_named_and_rebuilt(tmp_path: Path, server: RegistryServer) -> None:
    database = "$DISK/store/metadata.db"
    first_block = f"$(filefrag -e {database} | sed -nE 's/^ *0: +[0-9]+\\.\\. +[0-9]+: +([0-9]+)\\.\\..*/\\1/p')"
    results = on_disk(
        tmp_path,
        "ext4",
        pull(server, SMALL),
        f"forget {database} && truncate -s $(( {first_block} * $(stat -f -c %S $DISK) )) $IMAGE",
        f"cat {database} > /dev/null",
        "$IMAGESTORE images -q",
        "$IMAGESTORE check --rebuild",
        "$IMAGESTORE images -q",
    )
    assert [each.status for each in results] == [0, 0, 1, 8, 0, 0], results
    assert "check --rebuild" in results[3].err
    assert "restored" in results[4].out
    assert results[5].out.startswith("sha256:")


#: How a disk of a kind comes to take no further file: what is done before anything is stored, and what afterwards.
FILLED = {
    "xfs": ("true", "dd if=/dev/zero of=$DISK/fill bs=64k; sync"),
    "ext4": (
        "mkdir $DISK/fill",
        "cd $DISK/fill && seq 100000 | xargs touch; test $(df --output=iavail $DISK | tail -1) = 0",
    ),
    "btrfs": (
        "btrfs quota enable $DISK && btrfs subvolume create $DISK/store",
        "btrfs qgroup limit 16M $DISK/store && sync $DISK; dd if=/dev/zero of=$DISK/store/fill bs=4k; sync $DISK",
    ),
}


@pytest.mark.parametrize("kind", FILLED)
def test_a_disk_that_takes_no_further_file_can_be_looked_at_and_emptied(
    tmp_path: Path, server: RegistryServer, kind: str
) -> None:
    """Of all space, of inodes, of a quota: SQLite's log can't be made."""
    begin, fill = FILLED[kind]
    small, large = (server.server.reference(reference) for reference in (SMALL, LARGE))
    reading = ["images -q", f"inspecti {small}", "check", "df", f"why {small}", "gc -n", f"pull {small}"]
    results = on_disk(
        tmp_path,
        kind,
        begin,
        pull(server, SMALL),
        pull(server, LARGE),
        f"{fill}; true",
        "! touch $DISK/store/new",
        *(f"$IMAGESTORE {command}" for command in reading),
        f"$IMAGESTORE pin {small}",
        "test -e $DISK/store/ballast -a ! -e $DISK/store/metadata.db-wal",
        f"$IMAGESTORE rmi {large} --gc",
        "$IMAGESTORE gc",
        "$IMAGESTORE images -o json",
        "rm -r $DISK/fill $DISK/store/fill; $IMAGESTORE check",
    )
    pinned = 5 + len(reading)
    assert [each.status for each in results] == [*[0] * pinned, 8, 0, 0, 0, 0, 0], results
    assert "disk is full" in results[pinned].err
    assert results[5].out.count("sha256:") == 2
    assert "freed 8" in results[pinned + 2].out
    assert [image["reference"] for image in json.loads(results[pinned + 4].out)["images"]] == [small]


def served(folder: Path, work: str) -> str:
    """Work done while a server listens at the folder's ``sock``; its status is the line's."""
    return (
        f"$IMAGESTORE serve --listen unix://{folder}/sock > {folder}/log 2>&1 & "
        f"while ! test -S {folder}/sock; do sleep 0.1; done; {work}; done=$?; kill $!; wait $!; exit $done"
    )


def test_a_server_starts_on_a_disk_that_takes_no_further_file(tmp_path: Path, server: RegistryServer) -> None:
    small = server.server.reference(SMALL)
    with short_folder() as folder:
        endpoint = f"unix://{folder}/sock"
        results = on_disk(
            tmp_path,
            "xfs",
            pull(server, SMALL),
            pull(server, LARGE),
            FILLED["xfs"][1],
            served(folder, f"{sys.executable} -m imagestore --endpoint {endpoint} rmi {small}"),
            "$IMAGESTORE images -o json",
        )
    assert [each.status for each in results] == [0, 0, 0, 0, 0], results
    names = [image["reference"] for image in json.loads(results[4].out)["images"]]
    assert names == [server.server.reference(LARGE)]


def test_a_server_whose_quota_is_used_up_removes_when_it_is_told_again(tmp_path: Path, server: RegistryServer) -> None:
    """It sees the quota only when it meets it; then it gives up what it keeps back."""
    begin, fill = FILLED["btrfs"]
    small = server.server.reference(SMALL)
    with short_folder() as folder:
        endpoint = f"unix://{folder}/sock"
        remove = f"{sys.executable} -m imagestore --endpoint {endpoint} rmi {small}"
        results = on_disk(
            tmp_path,
            "btrfs",
            begin,
            pull(server, SMALL),
            pull(server, LARGE),
            served(folder, f"{fill}; {remove} || {remove}"),
            "rm $DISK/store/fill && $IMAGESTORE images -o json",
        )
    assert [each.status for each in results] == [0, 0, 0, 0, 0], results
    names = [image["reference"] for image in json.loads(results[4].out)["images"]]
    assert names == [server.server.reference(LARGE)]


HOLDS = """
import sys, time, imagestore
with imagestore.open(sys.argv[1]) as store:
    store.metadata.leases.create("lease", lifetime_seconds=60)
    open(sys.argv[2], "x").close()
    time.sleep(600)
"""


@pytest.mark.parametrize("is_held", [False, True])
@pytest.mark.parametrize(
    ("kind", "begin", "turn"),
    [
        ("ext4", "true", "turn-read-only"),
        ("btrfs", "btrfs subvolume create $DISK/store", "btrfs property set -ts $DISK/store ro true"),
    ],
    ids=["ext4", "btrfs"],
)
def test_a_disk_that_is_read_only_without_being_mounted_so_is_read_and_named(
    tmp_path: Path, server: RegistryServer, kind: str, begin: str, turn: str, is_held: bool
) -> None:
    """Whether it happens while somebody, as a server, has the store open or not."""
    small, large = (server.server.reference(reference) for reference in (SMALL, LARGE))
    holder, held = tmp_path / "holder.py", tmp_path / "held"
    holder.write_text(HOLDS)
    hold = f"{sys.executable} {holder} $DISK/store {held} > /dev/null 2>&1 & echo $! > {tmp_path}/holder; "
    hold += f"while ! test -e {held}; do sleep 0.05; done"
    # It is killed: closing would write to what SQLite has mapped, which the kernel may answer with SIGBUS there.
    end = f"holder=$(cat {tmp_path}/holder) && kill -9 $holder; while test -e /proc/$holder/exe; do sleep 0.05; done"
    reading = [
        *("images -q", f"inspecti {small}", "check", "df", "gc -n", f"match --offline {small}", f"pull {small}"),
        *(f"export {tmp_path}/archive {small}", f"backup {tmp_path}/backup"),
    ]
    writing = [f"pull --platform linux/amd64 {large}", f"rmi {small}", "gc", f"tag {small} other.example/name:1"]
    results = on_disk(
        tmp_path,
        kind,
        begin,
        pull(server, SMALL),
        hold if is_held else "true",
        turn,
        "! touch $DISK/store/new",
        *(f"$IMAGESTORE {command}" for command in (*reading, *writing)),
        end if is_held else "true",
    )
    assert [each.status for each in results] == [*[0] * (5 + len(reading)), *[8] * len(writing), 0], results
    for refused in results[5 + len(reading) : -1]:
        assert "read-only" in refused.err.lower(), refused
        assert "mount it writable" in refused.err
